// Reads /watch/events for as long as the page is open. When the stream breaks it comes back by itself, and the page says
// meanwhile that the picture is old.

import { byId, setText } from "./dom.js";
import { ask, problem, readEvents } from "./session.js";

const FIRST_PAUSE_MS = 400;
const LONGEST_PAUSE_MS = 5000;
const SILENCE_MS = 25000;

/** What the header says: ready, partly, down or connecting, and in words. */
export function health(state, text) {
  byId("health").dataset.state = state;
  setText(byId("health").querySelector(".health-text"), text);
}

async function watch(draw) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  try {
    const response = await ask("/watch/events", { signal: silence.signal });
    if (!response.ok) throw new Error(await problem(response));
    await readEvents(response, (kind, data) => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
      draw(kind, data);
    });
  } finally {
    clearTimeout(timer);
  }
}

/** Calls `draw(kind, data)` for each event, for ever. */
export async function keepWatching(draw) {
  let pause = FIRST_PAUSE_MS;
  for (;;) {
    const begun = performance.now();
    try {
      await watch(draw);
    } catch (error) {
      console.info("the stream of events ended:", error.message);
    }
    health("connecting", "Reconnecting");
    document.body.dataset.stale = "true";
    pause = performance.now() - begun > LONGEST_PAUSE_MS ? FIRST_PAUSE_MS : Math.min(pause * 2, LONGEST_PAUSE_MS);
    await new Promise((resolve) => setTimeout(resolve, pause));
    delete document.body.dataset.stale;
  }
}
