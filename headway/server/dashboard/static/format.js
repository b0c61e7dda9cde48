// Numbers and names in words.

export const CLASSES = ["realtime", "standard", "batch"];
export const PLACES = ["waiting", "computing", "paused", "swapped"];
export const WAITING = 0, RUNNING = 1, PAUSED = 2, SWAPPED = 3;
export const FREE = -1, CACHED = -2, COPYING = -3;

/** Seconds for people: `4.2 ms`, `320 ms`, `1.25 s`, `75 s`. */
export function duration(seconds) {
  const ms = seconds * 1000;
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  return seconds < 9.95 ? `${seconds.toFixed(2)} s` : `${Math.round(seconds)} s`;
}

const NUMBERS = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value) {
  return NUMBERS.format(value);
}

export function plural(n, word) {
  return `${count(n)} ${word}${n === 1 ? "" : "s"}`;
}

/** A quantile of numbers; NaN of none. */
export function quantile(values, share) {
  if (!values.length) return NaN;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(Math.floor(share * sorted.length), sorted.length - 1)];
}

/** An element with a class and text. */
export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

/** Set text only where it changes, so that nothing is laid out anew in vain. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
