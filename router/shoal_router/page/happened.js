// What happened to the pipelines, the newest first.

import { byId, h, keyed } from "./dom.js";
import { clock } from "./format.js";

export function drawEvents(events) {
  byId("events-empty").hidden = events.length > 0;
  keyed(
    byId("events"),
    [...events].reverse(),
    (event) => `${event.at}/${event.pipeline}/${event.kind}`,
    (event) => h("li", { data: { kind: event.kind } }, h("time", {}, clock(event.at)), h("span", {}, event.text)),
    () => {},
  );
}
