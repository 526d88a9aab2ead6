// The playground: a conversation with the model over the same API that every client uses, streamed.

import { byId, h, setText } from "./dom.js";
import { NONE, number, seconds } from "./format.js";
import { whoWorks } from "./pipelines.js";
import { ask, problem, readEvents } from "./session.js";

const SUGGESTIONS = ["Explain in three sentences why the sky is blue.", "Write a short note that invites the team to lunch.", "List five uses for an old laptop."];
const NEAR_END = 60;

const known = { model: "", pipelines: [] };
const conversation = [];
let running = null;

/** What the picture says: the model's name, the pipelines. */
export function tellChat(news) {
  Object.assign(known, news);
  byId("send").disabled = !known.model;
  if (running?.waits) setText(running.meta, whoWorks(known.pipelines) || "waiting for the first token");
  else if (running) setText(running.meta, whoWorks(known.pipelines));
}

export function setUpChat() {
  const prompt = byId("prompt");
  byId("suggestions").append(...SUGGESTIONS.map((text) => h("button", { type: "button", onclick: () => send(text) }, text)));
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send(prompt.value);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send(prompt.value);
    }
  });
  prompt.addEventListener("input", fit);
  byId("stop").addEventListener("click", () => running?.controller.abort());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.controller.abort();
  });
  byId("chat-clear").addEventListener("click", clear);
}

function fit() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function clear() {
  running?.controller.abort();
  conversation.length = 0;
  byId("messages").replaceChildren(byId("welcome"));
  byId("welcome").hidden = false;
  byId("chat-clear").disabled = true;
  byId("prompt").focus();
}

function parameters() {
  const chosen = {};
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    const field = byId(name);
    if (field.value === "") continue;
    if (!field.checkValidity()) throw new Error(`${field.labels[0].firstChild.textContent.trim()}: ${field.validationMessage}`);
    chosen[name] = Number(field.value);
  }
  return chosen;
}

function add(role, text) {
  const messages = byId("messages");
  const message = h("div", { class: `message ${role}` }, h("span", { class: "visually-hidden" }, role === "user" ? "You: " : "Model: "), h("span", { class: "text" }, text));
  byId("welcome").hidden = true;
  messages.append(message);
  messages.scrollTop = messages.scrollHeight;
  return message;
}

function scrollAlong(change) {
  const messages = byId("messages");
  const follows = messages.scrollHeight - messages.scrollTop - messages.clientHeight < NEAR_END;
  change();
  if (follows) messages.scrollTop = messages.scrollHeight;
}

async function send(text) {
  text = text.trim();
  if (!text || running || !known.model) return;
  add("user", text);
  conversation.push({ role: "user", content: text });
  byId("prompt").value = "";
  fit();
  const message = add("assistant", "");
  message.dataset.streaming = "true";
  const meta = h("span", { class: "meta" });
  message.append(meta);
  running = { controller: new AbortController(), meta, waits: true };
  show(true);
  const answer = { text: "", tokens: null, finish: null, begun: performance.now(), first: null };
  let error = null;
  try {
    await stream(answer, message.querySelector(".text"));
  } catch (problem) {
    error = problem.name === "AbortError" ? "stopped" : problem.message;
  }
  finish(message, meta, answer, error);
}

async function stream(answer, into) {
  const system = byId("system").value.trim();
  const body = {
    model: known.model,
    messages: system ? [{ role: "system", content: system }, ...conversation] : conversation,
    stream: true,
    stream_options: { include_usage: true },
    ...parameters(),
  };
  const response = await ask("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: running.controller.signal,
  });
  if (!response.ok) throw new Error(await problem(response));
  await readEvents(response, (_, data) => {
    if (data === "[DONE]") return;
    const piece = JSON.parse(data);
    if (piece.error) throw new Error(piece.error.message);
    if (piece.usage) answer.tokens = piece.usage.completion_tokens;
    const [choice] = piece.choices;
    if (!choice) return;
    answer.finish = choice.finish_reason ?? answer.finish;
    if (!choice.delta.content) return;
    answer.first ??= performance.now();
    running.waits = false;
    answer.text += choice.delta.content;
    scrollAlong(() => into.append(choice.delta.content));
  });
}

function finish(message, meta, answer, error) {
  delete message.dataset.streaming;
  running = null;
  show(false);
  conversation.push({ role: "assistant", content: answer.text });
  const wait = answer.first === null ? NONE : seconds((answer.first - answer.begun) / 1000);
  const parts = [];
  if (answer.first !== null) parts.push(`first token after ${wait}`);
  if (answer.tokens > 1) parts.push(`${answer.tokens} tokens, ${number(((answer.tokens - 1) * 1000) / (performance.now() - answer.first))} a second`);
  if (answer.finish === "length") parts.push("cut at its longest");
  if (error === "stopped") parts.push("stopped");
  scrollAlong(() => setText(meta, parts.join(" · ")));
  if (error && error !== "stopped") {
    message.classList.add("error");
    scrollAlong(() => setText(meta, error));
  }
  byId("prompt").focus({ preventScroll: true });
}

function show(busy) {
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  byId("chat-clear").disabled = false;
}
