// Model card and plan.

import { byId, h, setText } from "./dom.js";
import { bytes, whole } from "./format.js";

export function drawCard({ model, plan, version }) {
  setText(byId("model-name"), model.servedNames[0]);
  document.title = `${model.servedNames[0]} · shoal`;
  const facts = [
    ["Name", model.name],
    ["Asked for as", model.servedNames.join(", ")],
    ["Family", model.family],
    ["Precision", model.groupSize ? `${model.precision}, groups of ${model.groupSize}` : model.precision],
    ["Weights", bytes(model.weightBytes)],
    ["Layers", `${model.layers}, hidden size ${whole(model.hiddenSize)}`],
    ["Attention", `${model.heads} heads, ${model.kvHeads} for keys and values`],
    ["Vocabulary", whole(model.vocabulary)],
    ["Context", `${whole(plan?.maxContext || model.maxContext)} tokens`],
    ["Digest", h("code", { title: model.digest }, model.digest.slice(0, 16))],
    ["shoal", version],
  ];
  byId("model-card").replaceChildren(...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  byId("plan").replaceChildren(...(plan ? planParts(plan) : [h("p", { class: "empty" }, "There is no plan yet.")]));
}

function planParts(plan) {
  const list = (title, lines, kind) => (lines.length ? [h("div", {}, h("h3", {}, title), h("ul", { class: kind }, ...lines.map((line) => h("li", {}, line))))] : []);
  const standbys = plan.standbys.map((each) => `${each.node} (${each.device}) can take over stage ${each.stage}: ${each.holds}`);
  const parts = [
    ...list("Why so", plan.reasons, "reasons"),
    ...list("Would be better", plan.advice, "advice"),
    ...list("Standing by", standbys, "reasons"),
    ...list("Spare nodes", plan.spares.length ? [plan.spares.join(", ")] : [], "reasons"),
  ];
  return parts.length ? parts : [h("p", { class: "empty" }, "The plan was written by hand and gives no reasons.")];
}
