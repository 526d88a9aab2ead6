// Light, dark, or as the system has it: one button goes round.

import { byId } from "./dom.js";

const ORDER = ["system", "light", "dark"];
const STORED = "shoal.theme";

function apply(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-label", `Colour theme: ${theme === "system" ? "as the system" : theme}`);
  byId("theme").title = byId("theme").getAttribute("aria-label");
}

export function setUpTheme() {
  let theme = localStorage.getItem(STORED) ?? "system";
  apply(theme);
  byId("theme").addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    localStorage.setItem(STORED, theme);
    apply(theme);
  });
}
