// The timeline of the last requests: queue, prompt and answer of each on one time axis; of the chosen one, when each stage
// computed and waited. Steps are known while this page is open; of older requests, the sums of each stage are.

import { byId, h, keyed, setText } from "./dom.js";
import { clock, milliseconds, plural, seconds } from "./format.js";

const SHOWN = 12;
const STEPS = 3000;
const SHORTEST_SPAN = 4;
const LONGEST_SPAN = 90;
const MOST_BARS = 700;

const steps = [];
let state = null;
let chosen = null;
let offset = 0;

const now = () => Date.now() / 1000 + offset;
const nameOf = (request) => request.id.replace(/^(chat)?cmpl-/, "").slice(0, 10);
const keyOf = (request) => `${request.id}/${request.seq}/${request.arrived}`;

export function drawRequests(fresh) {
  state = fresh;
  offset = fresh.time - Date.now() / 1000;
  steps.push(...fresh.steps);
  if (steps.length > STEPS) steps.splice(0, steps.length - STEPS);
  draw();
}

/** Running requests grow between two states, too. */
export function tick() {
  if (state?.requests.some((request) => request.ended === null)) draw();
}

function draw() {
  const shown = state.requests.slice(-SHOWN).reverse();
  byId("requests-empty").hidden = shown.length > 0;
  if (!shown.length) return;
  const last = Math.max(...shown.map((request) => request.ended ?? now()));
  const first = Math.max(Math.min(...shown.map((request) => request.arrived)), last - LONGEST_SPAN);
  const span = Math.max(last - first, SHORTEST_SPAN);
  const start = last - span;
  const rows = [...shown.map((request) => ({ request })), { axis: true }];
  keyed(byId("requests"), rows, (row) => (row.axis ? "axis" : keyOf(row.request)), make, (element, row) => {
    if (row.axis) {
      const [left, right] = element.querySelectorAll("span");
      setText(left, clock(start));
      setText(right, clock(last));
    } else update(element, row.request, start, span);
  });
  const detail = shown.find((request) => keyOf(request) === chosen);
  byId("request-detail").hidden = !detail;
  if (detail) drawDetail(detail);
}

function make(row) {
  if (row.axis) return h("div", { class: "axis", "aria-hidden": "true" }, h("b"), h("div", {}, h("span"), h("span")), h("b"));
  const toggle = () => {
    chosen = chosen === keyOf(row.request) ? null : keyOf(row.request);
    draw();
  };
  const bars = ["queue", "prefill", "decode"].map((kind) => h("i", { class: `k-${kind}` }));
  return h("button", { type: "button", class: "request", onclick: toggle }, h("span", { class: "who" }), h("span", { class: "track", "aria-hidden": "true" }, ...bars), h("span", { class: "sum" }));
}

function place(bar, from, to, start, span) {
  const left = Math.max((from - start) / span, 0);
  const right = Math.min((to - start) / span, 1);
  bar.hidden = !(right > left) || right <= 0;
  bar.style.left = `${left * 100}%`;
  bar.style.width = `${Math.max(right - left, 0) * 100}%`;
}

function update(element, request, start, span) {
  const end = request.ended ?? now();
  const admitted = request.admitted ?? end;
  const first = request.first ?? end;
  const [queue, prefill, decode] = element.querySelectorAll(".track i");
  place(queue, request.arrived, admitted, start, span);
  place(prefill, admitted, first, start, span);
  place(decode, first, end, start, span);
  element.dataset.outcome = request.outcome;
  element.setAttribute("aria-expanded", String(keyOf(request) === chosen));
  setText(element.querySelector(".who"), nameOf(request));
  const sum = request.outcome === "failed" ? "failed" : `${request.tokens} in ${seconds(end - request.arrived)}`;
  setText(element.querySelector(".sum"), sum);
  element.setAttribute("aria-label", `Request ${nameOf(request)}: ${describe(request, end)}`);
}

function describe(request, end) {
  const parts = [`queue ${seconds((request.admitted ?? end) - request.arrived)}`];
  if (request.admitted !== null) parts.push(`prompt of ${plural(request.promptTokens, "token")} ${seconds((request.first ?? end) - request.admitted)}`);
  if (request.first !== null) parts.push(`answer of ${plural(request.tokens, "token")} ${seconds(end - request.first)}`);
  if (request.cachedTokens) parts.push(`${request.cachedTokens} cached`);
  if (request.losses) parts.push(`survived ${plural(request.losses, "lost pipeline")}`);
  parts.push({ running: "running", left: "client left or stopped", failed: "failed", stop: "complete", length: "cut at its longest" }[request.outcome]);
  return parts.join(", ");
}

function drawDetail(request) {
  const end = request.ended ?? now();
  const stages = state.pipelines.find((pipeline) => pipeline.index === request.pipeline)?.stages ?? [];
  const own = steps.filter((step) => step[0] === request.pipeline && step[4].includes(request.seq) && step[1] >= request.arrived - 0.001);
  const lanes = own.length ? laneBars(own, stages.length, request.arrived, end) : null;
  const rows = lanes ? stages.map((stage, at) => lane(stage.node, lanes[at])) : stages.map((stage, at) => shares(stage.node, request, at)).filter(Boolean);
  const hint = lanes ? plural(own.length, "step") + ", as each stage computed them" : rows.length ? "sums of each stage from admission to the end: computing, frames waiting, idle" : "No times of its stages are known: the pipeline changed on the way, or it has not begun.";
  byId("request-detail").replaceChildren(h("h3", {}, describe(request, end)), h("div", { class: "lanes" }, ...rows), h("p", { class: "hint" }, hint));
}

/** Where each step was when: its hops share what remains of the round trip. */
function laneBars(own, count, from, to) {
  const lanes = Array.from({ length: count }, () => []);
  for (const [, sent, received, , , timings] of own.slice(-Math.floor(MOST_BARS / Math.max(count, 1)))) {
    const inside = timings.reduce((total, [compute, queue]) => total + compute + queue, 0) / 1000;
    const hop = Math.max(received - sent - inside, 0) / (timings.length + 1);
    let at = sent;
    timings.forEach(([compute, queue], stage) => {
      at += hop;
      const began = at + queue / 1000;
      if (queue > 1) lanes[stage]?.push(["k-wait", at, began]);
      at = began + compute / 1000;
      lanes[stage]?.push([own.length > 1 && sent < own[0][2] && timings.length ? "k-prefill" : "k-decode", began, at]);
    });
  }
  const span = Math.max(to - from, 0.001);
  return lanes.map((bars) =>
    bars.map(([kind, start, stop]) => {
      const bar = h("i", { class: kind });
      place(bar, start, stop, from, span);
      return bar;
    }),
  );
}

const lane = (name, bars) => h("div", { class: "lane" }, h("span", {}, name), h("div", { class: "track" }, ...bars));

function shares(name, request, at) {
  const parts = [request.prefill[at], request.decode[at]].filter(Boolean);
  if (!parts.length) return null;
  const total = (field) => parts.reduce((sum, part) => sum + part[field], 0);
  const values = [["k-decode", total("computeMs")], ["k-wait", total("queueMs")], ["k-hatch", total("idleMs")]];
  const whole = values.reduce((sum, [, value]) => sum + value, 0) || 1;
  const bars = values.map(([kind, value]) => {
    const bar = h("i", { class: kind, title: milliseconds(value) });
    bar.style.width = `${(value / whole) * 100}%`;
    return bar;
  });
  return h("div", { class: "lane" }, h("span", {}, `${name} ${milliseconds(values[0][1])}`), h("div", { class: "share" }, ...bars));
}
