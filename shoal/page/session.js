// Talks to this server: with the API key if it asks for one. The key lives in sessionStorage, so a tab that is closed
// forgets it, and goes out as a bearer token, as any client of the API sends it.

import { byId } from "./dom.js";

const KEY = "shoal.key";
let asking = null;

function headers(extra = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...extra, Authorization: `Bearer ${key}` } : extra;
}

/** fetch with the key; a 401 asks for it and tries again. */
export async function ask(path, options = {}) {
  for (;;) {
    const sent = sessionStorage.getItem(KEY);
    const response = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store" });
    if (response.status !== 401) {
      byId("forget-key").hidden = !sent;
      return response;
    }
    if (sessionStorage.getItem(KEY) === sent) await askForKey(sent !== null);
    options.signal?.throwIfAborted();
  }
}

function askForKey(wrong) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    sessionStorage.removeItem(KEY);
    byId("key-error").textContent = wrong ? "This key is not known here." : "";
    byId("key-form").onsubmit = () => {
      const key = byId("key").value.trim();
      byId("key").value = "";
      if (key) sessionStorage.setItem(KEY, key);
    };
    dialog.onclose = () => {
      asking = null;
      if (sessionStorage.getItem(KEY)) resolve();
      else resolve(askForKey(false));
    };
    dialog.showModal();
    byId("key").focus();
  });
  return asking;
}

export function setUpKey() {
  byId("forget-key").addEventListener("click", () => {
    sessionStorage.removeItem(KEY);
    location.reload();
  });
}

/** What an error response says, in one line. */
export async function problem(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

/** Server-sent events of a response: `each(kind, data)`, until it ends. */
export async function readEvents(response, each) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let kind = "message";
      let data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) kind = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) each(kind, data);
    }
  }
}
