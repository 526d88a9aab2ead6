// openai-node: chat, streams, tools, responses and errors; prints what it got as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "none", maxRetries: 0 });
const chat = { model: "fake", messages: [{ role: "user", content: "hi" }], seed: 7, max_tokens: 60 };
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: {} } } }];
const out = {};

const whole = await client.chat.completions.create(chat);
out.whole = whole.choices[0].message.content;
out.usage = whole.usage;
out.streamed = "";
for await (const chunk of await client.chat.completions.create({ ...chat, stream: true })) {
  out.streamed += chunk.choices[0]?.delta?.content ?? "";
}
const completion = { model: "fake", prompt: "hi", seed: 7, max_tokens: 20 };
out.completion = (await client.completions.create(completion)).choices[0].text;
out.completionStreamed = "";
for await (const chunk of await client.completions.create({ ...completion, stream: true })) {
  out.completionStreamed += chunk.choices[0].text;
}
out.models = (await client.models.list()).data.map((model) => model.id);

const called = await client.chat.completions.create({ ...chat, max_tokens: 200, tools });
out.calls = called.choices[0].message.tool_calls ?? null;
out.finish = called.choices[0].finish_reason;
const assembled = await client.chat.completions.stream({ ...chat, max_tokens: 200, tools }).finalChatCompletion();
out.callsStreamed = assembled.choices[0].message.tool_calls ?? null;

const response = await client.responses.create({ model: "fake", input: "hi", max_output_tokens: 200 });
out.response = response.output_text;
out.responseStreamed = "";
for await (const event of await client.responses.create({ model: "fake", input: "hi", stream: true, max_output_tokens: 200 })) {
  if (event.type === "response.output_text.delta") out.responseStreamed += event.delta;
  if (event.type === "response.completed" || event.type === "response.incomplete") out.responseEnd = event.type;
}
try {
  await client.chat.completions.create({ ...chat, model: "other" });
} catch (error) {
  out.error = { status: error.status, code: error.code, param: error.param, type: error.type, id: error.requestID };
}
console.log(JSON.stringify(out));
