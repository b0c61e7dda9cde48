// Colours of the theme, canvases that fit their boxes, and the one tooltip.

import { CLASSES, PLACES, plural } from "./format.js";

const NAMES = [...CLASSES, "free", "cached", "copying", "text", "muted", "line", "card"];

/** The theme's colours by name; `onChange` is called when the theme changes. */
export function palette(onChange) {
  const colours = {};
  const read = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of NAMES) colours[name] = style.getPropertyValue(`--${name}`).trim();
    colours.shades = CLASSES.map((name) => shades(colours[name]));
  };
  read();
  matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => {
    read();
    onChange();
  });
  return colours;
}

/** Four neighbours of a colour, so that sequences side by side can be told apart. */
function shades(hex) {
  const parts = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return [0, -0.13, 0.11, -0.22].map((by) => {
    const mixed = parts.map((p) => Math.round(by < 0 ? p * (1 + by) : p + (255 - p) * by));
    return `rgb(${mixed.join(" ")})`;
  });
}

const widths = new Map();

/** Width of an element's inside in CSS pixels. Asking the browser lays the page out, so that is done
 * once until `forgetWidths`. */
export function widthOf(box) {
  const known = widths.get(box);
  if (known) return known;
  widths.set(box, box.clientWidth);
  return box.clientWidth;
}

/** The window has another size. */
export function forgetWidths() {
  widths.clear();
}

/** A context in CSS pixels, its canvas sized to its box; null where it has no room. */
export function fit(canvas, height) {
  const width = widthOf(canvas.parentElement), ratio = devicePixelRatio;
  if (!width || !height) return null;
  const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) {
    [canvas.width, canvas.height] = pixels;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height };
}

/** Shows text beside the pointer, or beside a spot of an element. */
export class Tip {
  #node = document.getElementById("tip");

  show(text, x, y) {
    const node = this.#node;
    if (node.textContent !== text) node.textContent = text;
    node.hidden = false;
    const { width, height } = node.getBoundingClientRect();
    const left = Math.min(x + 14, innerWidth - width - 8);
    const top = y + height + 22 > innerHeight ? y - height - 10 : y + 16;
    node.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  hide() {
    this.#node.hidden = true;
  }
}

/** A sequence in words. */
export function describe(sequence) {
  const { id, cls, place, tokens, computed, generated, blocks, preempted } = sequence;
  const doing = generated || computed >= tokens - 1 ? `${plural(generated, "token")} answered`
    : `prompt: ${computed} of ${plural(tokens, "token")}`;
  const held = blocks ? `\n${plural(blocks, "block")}` : "";
  const often = preempted ? `, preempted ${preempted === 1 ? "once" : `${preempted} times`}` : "";
  return `Request ${id}, ${CLASSES[cls]}, ${PLACES[place]}\n${doing}${held}${often}`;
}
