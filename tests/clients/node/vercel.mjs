// Vercel AI SDK: generateText and streamText, with a tool that is run and answered; prints what it got as JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({ name: "shoal", baseURL: process.env.BASE_URL, apiKey: "none" });
const asked = { model: provider("fake"), prompt: "hi", seed: 7, maxOutputTokens: 60, maxRetries: 0 };
const out = {};

out.whole = (await generateText(asked)).text;
const stream = streamText(asked);
out.streamed = "";
for await (const text of stream.textStream) out.streamed += text;
out.finish = await stream.finishReason;

const weather = tool({
  description: "The weather of a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `rain in ${city}`,
});
const tools = { ...asked, maxOutputTokens: 110, tools: { weather }, stopWhen: stepCountIs(3) };
const run = await generateText(tools);
out.steps = run.steps.map((step) => ({ finish: step.finishReason, inputs: step.toolCalls.map((call) => call.input) }));
out.text = run.text;
const streamed = streamText(tools);
await streamed.consumeStream();
out.streamedSteps = (await streamed.steps).map((step) => step.toolCalls.map((call) => call.input));
out.streamedText = await streamed.text;
console.log(JSON.stringify(out));
