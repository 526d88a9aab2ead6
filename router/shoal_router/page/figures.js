// The row of figures at the top, of all pipelines together; the last two minutes of tokens a second as a line.

import { byId, h, keyed, setText, svg } from "./dom.js";
import { milliseconds, number, percent, whole } from "./format.js";

const HISTORY = 240;
const SHORTEST = 30;
const WIDTH = 74;
const HEIGHT = 30;
const history = [];

const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);

function figuresOf(state) {
  const { pipelines, speculation, requests } = state;
  const verified = sum(speculation.map((source) => source.verified));
  const accepted = sum(speculation.map((source) => source.accepted));
  const blocks = sum(pipelines.map((pipeline) => pipeline.kvBlocks));
  const free = sum(pipelines.map((pipeline) => pipeline.kvBlocksFree));
  const firsts = requests.filter((request) => request.first !== null).map((request) => request.first - request.arrived);
  firsts.sort((a, b) => a - b);
  const median = firsts.length ? firsts[Math.floor(firsts.length / 2)] * 1000 : null;
  const [first, unit] = milliseconds(median).split(" ");
  const known = pipelines.some((pipeline) => pipeline.tokensPerSecond !== null);
  return [
    ["Tokens a second", known ? number(sum(pipelines.map((each) => each.tokensPerSecond))) : "–", "", true],
    ["Running", whole(sum(pipelines.map((each) => each.running))), `of ${whole(sum(pipelines.map((each) => each.slots)))}`],
    ["In the queue", whole(sum(pipelines.map((each) => each.waiting))), ""],
    ["First token, median", first, unit ?? ""],
    ["Drafts accepted", verified ? percent(accepted / verified) : "–", ""],
    ["KV memory in use", blocks ? percent((blocks - free) / blocks) : "–", ""],
    ["Recoveries", whole(state.recoveries), ""],
  ];
}

export function drawFigures(state) {
  history.push(sum(state.pipelines.map((each) => each.tokensPerSecond)));
  if (history.length > HISTORY) history.shift();
  keyed(
    byId("figures"),
    figuresOf(state),
    ([label]) => label,
    ([label, , , line]) =>
      h("div", {}, h("dt", {}, label), h("dd", {}, h("span"), h("small")), line ? h("dd", { "aria-hidden": "true" }, spark()) : null),
    (element, [, value, unit, line]) => {
      setText(element.querySelector("span"), value);
      setText(element.querySelector("small"), unit);
      if (line) redraw(element);
    },
  );
}

function spark() {
  return svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}` }, svg("path", { class: "area" }), svg("path", { class: "line" }));
}

function redraw(element) {
  const most = Math.max(...history, 1);
  const step = WIDTH / (Math.max(history.length, SHORTEST) - 1);
  const left = WIDTH - (history.length - 1) * step;
  const points = history.map((value, at) => `${(left + at * step).toFixed(1)},${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`);
  element.querySelector(".line").setAttribute("d", `M${points.join("L")}`);
  element.querySelector(".area").setAttribute("d", `M${left},${HEIGHT}L${points.join("L")}L${WIDTH},${HEIGHT}z`);
}
