// The page: reads /watch/events and hands each state to the parts, which draw it. When the stream breaks it comes back by
// itself, and says meanwhile that the picture is old.

import { byId, setText } from "./dom.js";
import { drawCard } from "./card.js";
import { setUpChat, tellChat } from "./chat.js";
import { drawEvents } from "./happened.js";
import { drawFigures } from "./figures.js";
import { drawPipelines } from "./pipelines.js";
import { drawRequests, tick } from "./requests.js";
import { ask, problem, readEvents, setUpKey } from "./session.js";
import { setUpTheme } from "./theme.js";

const FIRST_PAUSE_MS = 400;
const LONGEST_PAUSE_MS = 5000;
const SILENCE_MS = 25000;

function health(state, text) {
  byId("health").dataset.state = state;
  setText(byId("health").querySelector(".health-text"), text);
}

function healthOf(pipelines) {
  const ready = pipelines.filter((pipeline) => pipeline.ready).length;
  if (pipelines.length && ready === pipelines.length) return ["ready", "Ready"];
  if (ready) return ["partly", `${ready} of ${pipelines.length} pipelines`];
  return ["down", "Not ready"];
}

function draw(kind, data) {
  const value = JSON.parse(data);
  if (kind === "card") {
    drawCard(value);
    tellChat({ model: value.model.servedNames[0] });
    return;
  }
  health(...healthOf(value.pipelines));
  drawFigures(value);
  drawPipelines(value);
  drawRequests(value);
  drawEvents(value.events);
  tellChat({ pipelines: value.pipelines });
}

async function watch() {
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

async function keepWatching() {
  let pause = FIRST_PAUSE_MS;
  for (;;) {
    const begun = performance.now();
    try {
      await watch();
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

setUpTheme();
setUpKey();
setUpChat();
setInterval(tick, 250);
keepWatching();
