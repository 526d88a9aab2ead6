// One ShardedModel: how it is and why, which PC holds what, and where its router's own page is.

import { h, keyed, setText } from "./dom.js";
import { bytes, day, milliseconds, number } from "./format.js";

const STATES = { ready: "ready", partly: "degraded", down: "not ready", off: "switched off" };
const MARKS = { ready: "ready", partly: "loading", down: "lost", off: "waiting" };

export function makeModel(model) {
  return h(
    "section",
    { class: "card model", "aria-label": `${model.namespace}/${model.name}` },
    h(
      "div",
      { class: "card-head" },
      h("h2", {}, h("span", { class: "where" }, `${model.namespace} / `), model.name),
      h("span", { class: "state" }),
    ),
    h("p", { class: "why" }),
    h("div", { class: "pipeline-rows" }),
    h("ul", { class: "conditions" }),
    h("dl", { class: "facts" }),
  );
}

export function updateModel(element, model) {
  element.dataset.state = model.state;
  const state = element.querySelector(".state");
  state.dataset.state = MARKS[model.state];
  setText(state, STATES[model.state]);
  const behind = model.behind ? " A newer spec is not taken up yet." : "";
  setText(element.querySelector(".why"), `${model.reason}: ${model.message}.${behind}`);
  const rows = model.pipelines.map((each) => ({ ...each, title: model.pipelines.length > 1 ? `Pipeline ${each.index}` : "" }));
  if (model.standbys.length) rows.push({ index: "standby", title: "Standing by", stages: model.standbys });
  keyed(element.querySelector(".pipeline-rows"), rows, (each) => each.index, makeRow, updateRow);
  keyed(element.querySelector(".conditions"), model.conditions, (each) => each.type, makeCondition, updateCondition);
  element.querySelector(".facts").replaceChildren(...factsOf(model).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function makeRow() {
  return h("div", { class: "pipeline" }, h("h3", {}), h("div", { class: "ring stages" }));
}

function updateRow(element, row) {
  setText(element.querySelector("h3"), row.title);
  element.querySelector("h3").hidden = !row.title;
  keyed(element.querySelector(".stages"), row.stages, (stage) => `${stage.index} ${stage.node}`, makeStage, updateStage);
}

function makeStage(stage) {
  return h(
    "article",
    { class: "stage", "aria-label": `Stage ${stage.index} on ${stage.node}` },
    h("div", { class: "stage-top" }, h("span", { class: "stage-name" }, stage.node), h("span", { class: "state" })),
    h("p", { class: "stage-holds" }, h("span", { class: "device" }), h("span", { class: "holds" })),
    h("p", { class: "memory" }),
    h("p", { class: "in-use", hidden: true }),
  );
}

function updateStage(element, stage) {
  const state = stage.ready ? "ready" : "waiting";
  element.dataset.state = state;
  element.querySelector(".state").dataset.state = state;
  setText(element.querySelector(".state"), stage.ready ? "ready" : "not ready");
  setText(element.querySelector(".device"), stage.device);
  setText(element.querySelector(".holds"), stage.layers);
  setText(element.querySelector(".memory"), `${bytes(stage.memory)} at its peak`);
  element.querySelector(".in-use").hidden = !stage.inUse;
  setText(element.querySelector(".in-use"), stage.inUse ? `this PC is in use: ${stage.inUse}` : "");
}

function makeCondition(condition) {
  return h("li", {}, h("span", { class: "mark", "aria-hidden": "true" }), h("strong", {}, condition.type), h("span", { class: "said" }));
}

const OUTSIDE = ["Degraded", "Progressing"];

function updateCondition(element, condition) {
  const wanted = condition.type === "Degraded" ? "False" : "True";
  const passing = condition.type === "Progressing";
  element.dataset.state = passing ? "none" : condition.status === wanted ? "good" : condition.status === "Unknown" ? "none" : "bad";
  element.hidden = OUTSIDE.includes(condition.type) && condition.status !== "True";
  const since = condition.since ? ` since ${day(condition.since)}` : "";
  const why = condition.message ? `${condition.reason}: ${condition.message}` : condition.reason;
  setText(element.querySelector(".said"), `${condition.status}${since} · ${why}`);
}

function speedOf({ measured, tokensPerSecond }) {
  if (measured) return `${number(measured.tokensPerSecond)} tokens/s, first token after ${milliseconds(measured.firstTokenMilliseconds)}`;
  return tokensPerSecond ? `about ${number(tokensPerSecond)} tokens/s by the plan, not measured yet` : "not known yet";
}

function factsOf(model) {
  const page = model.page
    ? h("a", { href: model.page, rel: "noopener" }, model.page)
    : h("code", {}, `kubectl port-forward -n ${model.namespace} service/${model.name} 8000:${model.port}`);
  return [
    ["Its page", page],
    ["API", h("code", {}, model.url || "none yet")],
    ["Pipelines", `${model.readyReplicas} of ${model.replicas}`],
    ["Speed, one user", speedOf(model)],
    ...(model.spares.length ? [["Spare PCs", model.spares.join(", ")]] : []),
    ...(model.digest ? [["Digest", h("code", { title: model.digest }, model.digest.slice(0, 16))]] : []),
    ...model.advice.map((line) => ["Would be better", line]),
  ];
}
