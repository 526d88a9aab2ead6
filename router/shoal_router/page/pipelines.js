// The live picture: router, hops and stages of each pipeline, with the state, load and times of every stage.

import { byId, h, keyed, setText, svg } from "./dom.js";
import { bytes, milliseconds, number, percent, plural, whole } from "./format.js";

const BUSY = 0.03;
const NAMES = {
  ready: "ready",
  loading: "loading",
  waiting: "not there yet",
  draining: "draining",
  failed: "failed",
  lost: "lost",
};

export function drawPipelines(state) {
  const { pipelines } = state;
  byId("pipelines-empty").hidden = pipelines.some((pipeline) => pipeline.stages.length);
  setText(byId("pipelines-title"), pipelines.length > 1 ? `${pipelines.length} pipelines` : "Pipeline");
  const detail = pipelines.find((pipeline) => !pipeline.ready)?.detail ?? "";
  setText(byId("pipelines-empty"), detail || "Waiting for the first picture.");
  keyed(byId("pipelines"), pipelines.filter((each) => each.stages.length), (each) => each.index, makePipeline, (element, each) =>
    updatePipeline(element, each, pipelines.length > 1),
  );
}

function makePipeline() {
  return h("div", { class: "pipeline" }, h("div", { class: "pipeline-head" }), h("div", { class: "ring" }), h("div", { class: "back", "aria-hidden": "true" }, h("span", {}, "token ids")));
}

function updatePipeline(element, pipeline, several) {
  const facts = [
    several ? ["", `Pipeline ${pipeline.index}`] : null,
    pipeline.ready ? ["epoch ", String(pipeline.epoch)] : ["", notOpen(pipeline)],
    ["", `${number(pipeline.tokensPerSecond)} tokens/s`],
    ["a step takes ", milliseconds(pipeline.stepMs)],
    ["", `${pipeline.inFlight} in flight`],
    ["", `${pipeline.running} running, ${pipeline.waiting} waiting`],
  ].filter(Boolean);
  keyed(element.querySelector(".pipeline-head"), facts, (fact) => facts.indexOf(fact), () => h("span", {}, "", h("strong")), (span, [before, value]) => {
    if (span.firstChild.nodeValue !== before) span.firstChild.nodeValue = before;
    setText(span.lastChild, value);
  });
  const parts = [{ kind: "router" }];
  for (const stage of pipeline.stages) parts.push({ kind: "hop", stage }, { kind: "stage", stage });
  const slowest = paceSetter(pipeline.stages);
  keyed(element.querySelector(".ring"), parts, (part) => part.kind + (part.stage?.index ?? ""), makePart, (node, part) => {
    if (part.kind === "hop") updateHop(node, pipeline);
    if (part.kind === "stage") updateStage(node, part.stage, slowest === part.stage.index);
  });
}

/** Each stage says itself what it lacks; the pipeline says so only if all of them are there. */
function notOpen(pipeline) {
  const missing = pipeline.stages.filter((stage) => stage.state !== "ready").length;
  return missing ? `not open: ${plural(missing, "stage")} of ${pipeline.stages.length} missing` : pipeline.detail;
}

function paceSetter(stages) {
  const loads = stages.map((stage) => stage.load ?? 0);
  const most = Math.max(...loads);
  return stages.length > 1 && most > 0.3 ? stages[loads.indexOf(most)].index : null;
}

function makePart(part) {
  if (part.kind === "router") return h("div", { class: "router" }, h("strong", {}, "router"), h("span", {}, "schedules"));
  if (part.kind === "hop") {
    const line = svg("svg", { viewBox: "0 0 62 12", "aria-hidden": "true" }, svg("line", { class: "line", x1: 2, y1: 6, x2: 52, y2: 6 }), svg("path", { d: "M52 1l8 5-8 5z", fill: "currentColor" }));
    return h("div", { class: "hop" }, h("span"), line);
  }
  const labels = ["compute", "in queue", "idle"];
  return h(
    "article",
    { class: "stage" },
    h("div", { class: "stage-top" }, h("h3", { class: "stage-name" }), h("span", { class: "state" })),
    h("p", { class: "stage-holds" }, h("span", { class: "device" }), h("span", { class: "holds" })),
    h("div", { class: "load", role: "meter", "aria-valuemin": "0", "aria-valuemax": "100" }, h("i")),
    h("dl", { class: "stage-figures" }, h("div", {}, h("dt", {}, "load"), h("dd")), ...labels.map((label) => h("div", {}, h("dt", {}, label), h("dd")))),
    h("p", { class: "stage-note", hidden: true }),
  );
}

function updateHop(element, pipeline) {
  element.dataset.flow = String((pipeline.stepsPerSecond ?? 0) > 0 && pipeline.ready);
  setText(element.querySelector("span"), pipeline.hopMs === null || !pipeline.ready ? "" : milliseconds(pipeline.hopMs));
  element.title = "mean of the last steps' hops";
}

function updateStage(element, stage, slowest) {
  const { dataset } = element;
  dataset.state = stage.state;
  dataset.busy = String((stage.load ?? 0) > BUSY);
  element.setAttribute("aria-label", `stage ${stage.index} on ${stage.node}: ${NAMES[stage.state]}`);
  setText(element.querySelector(".stage-name"), stage.node);
  const state = element.querySelector(".state");
  state.dataset.state = stage.state;
  setText(state, slowest && stage.state === "ready" ? "sets the pace" : NAMES[stage.state]);
  const device = element.querySelector(".device");
  device.dataset.fellBack = String(stage.fellBack);
  setText(device, stage.fellBack ? `${stage.device} runs on ${stage.executionDevices.join(", ")}` : stage.device);
  setText(element.querySelector(".holds"), stage.holds);
  element.title = [
    `stage ${stage.index} at ${stage.address}`,
    stage.engine && `${stage.engine} engine`,
    `weights ${bytes(stage.memory.weights)}, KV ${bytes(stage.memory.kv)}, peak ${bytes(stage.memory.peak)}`,
    `${whole(stage.done)} frames done`,
  ].filter(Boolean).join("\n");
  const load = stage.serving ? stage.load : null;
  const bar = element.querySelector(".load");
  bar.setAttribute("aria-label", `load of ${stage.node}`);
  bar.setAttribute("aria-valuenow", String(Math.round((load ?? 0) * 100)));
  bar.firstElementChild.style.width = `${((load ?? 0) * 100).toFixed(1)}%`;
  const values = [percent(load), milliseconds(stage.computeMs), milliseconds(stage.queueMs), milliseconds(stage.idleMs)];
  element.querySelectorAll(".stage-figures dd").forEach((cell, at) => setText(cell, values[at]));
  const note = element.querySelector(".stage-note");
  note.hidden = stage.state === "ready" || !stage.detail;
  setText(note, stage.detail);
}

/** Who works right now, in words: for the chat. */
export function whoWorks(pipelines) {
  const stages = pipelines.flatMap((pipeline) => pipeline.stages).filter((stage) => stage.serving && (stage.load ?? 0) > BUSY);
  stages.sort((a, b) => b.load - a.load);
  if (!stages.length) {
    const lost = pipelines.flatMap((pipeline) => pipeline.stages).filter((stage) => stage.state !== "ready");
    return lost.length ? `waiting for ${plural(lost.length, "stage")}` : "";
  }
  return stages.slice(0, 4).map((stage) => `${stage.node} ${percent(stage.load)}`).join(" · ");
}
