// Numbers for people. An en dash stands for what is not known yet.

export const NONE = "–";

export function number(value, digits = 1) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  const places = Math.abs(value) >= 100 ? 0 : digits;
  return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
}

export const whole = (value) => (value === null || value === undefined ? NONE : Math.round(value).toLocaleString("en"));

export const percent = (share) => (share === null || share === undefined ? NONE : `${Math.round(share * 100)} %`);

export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 1000) return `${(value / 1000).toFixed(value >= 100000 ? 0 : 1)} s`;
  return value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(value >= 10 ? 0 : 1)} ms`;
}

export const seconds = (value) => milliseconds(value === null || value === undefined ? value : value * 1000);

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${value.toFixed(at && value < 10 ? 1 : 0)} ${units[at]}`;
}

export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

// Of a time as Kubernetes writes it; the day, as a condition may hold for weeks.
export const day = (when) => new Date(when).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
