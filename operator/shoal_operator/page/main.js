// The operator's page: every ShardedModel that it serves, brought up to date as their statuses change.

import { byId, keyed, setText } from "./dom.js";
import { plural } from "./format.js";
import { makeModel, updateModel } from "./models.js";
import { setUpKey } from "./session.js";
import { health, keepWatching } from "./stream.js";
import { setUpTheme } from "./theme.js";

function healthOf(models) {
  const ready = models.filter((model) => model.state === "ready").length;
  const wanted = models.filter((model) => model.state !== "off").length;
  if (!models.length) return ["connecting", "No models"];
  if (ready === wanted) return ["ready", `${plural(ready, "model")} ready`];
  return [ready ? "partly" : "down", `${ready} of ${plural(wanted, "model")} ready`];
}

function draw(_kind, data) {
  const models = JSON.parse(data);
  health(...healthOf(models));
  byId("models-empty").hidden = models.length > 0;
  setText(byId("models-empty"), "There are no ShardedModels. kubectl apply one, and it appears here.");
  const list = byId("models");
  list.querySelector(".models") ?? list.append(Object.assign(document.createElement("div"), { className: "models" }));
  keyed(list.querySelector(".models"), models, (each) => `${each.namespace}/${each.name}`, makeModel, updateModel);
}

setUpTheme();
setUpKey();
keepWatching(draw);
