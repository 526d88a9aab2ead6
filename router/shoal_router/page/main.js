// The router's page: hands each state that comes to the parts, which draw it.

import { byId, setText } from "./dom.js";
import { drawCard } from "./card.js";
import { setUpChat, tellChat } from "./chat.js";
import { drawEvents } from "./happened.js";
import { drawFigures } from "./figures.js";
import { drawPipelines } from "./pipelines.js";
import { drawRequests, tick } from "./requests.js";
import { setUpKey } from "./session.js";
import { health, keepWatching } from "./stream.js";
import { setUpTheme } from "./theme.js";

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

setUpTheme();
setUpKey();
setUpChat();
setInterval(tick, 250);
keepWatching(draw);
