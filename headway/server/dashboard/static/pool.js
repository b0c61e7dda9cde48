// The KV pool: one cell for each block, in the colour of its holder's class.
//
// Only cells that look different than before are painted, so thousands of them cost little.

import { CACHED, COPYING, FREE, PAUSED, count } from "./format.js";
import { describe, fit, widthOf } from "./paint.js";

const FREE_STYLE = 0, CACHED_STYLE = 1, COPYING_STYLE = 2, FIRST_CLASS_STYLE = 3;
const MARKED = 64;
const FLASH_MS = 500;

export class PoolMap {
  #holders = null;
  #styles = new Uint8Array(0);
  #flashes = new Map();
  #cursor = -1;
  #calm = matchMedia("(prefers-reduced-motion: reduce)");

  /** marks: {id} of the request whose blocks stand out; shared with the other views. */
  constructor(canvas, colours, tip, marks, options) {
    Object.assign(this, { canvas, colours, tip, marks, options });
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("pointerleave", () => this.#leave());
    canvas.addEventListener("blur", () => this.#leave());
    canvas.addEventListener("keydown", (event) => this.#step(event));
  }

  draw(state, holders) {
    this.state = state;
    this.#note(holders);
    this.#holders = holders;
    const { cell, columns, height } = this.#layout(holders.length);
    const surface = fit(this.canvas, height);
    if (!surface) return;
    const layout = `${surface.width} ${height} ${cell} ${devicePixelRatio}`;
    if (layout !== this.layout || this.#styles.length !== holders.length) this.repaint();
    Object.assign(this, { layout, cell, columns });
    this.#paint(surface.context);
  }

  /** Paint every cell anew at the next draw. */
  repaint() {
    this.#styles = new Uint8Array(this.#holders?.length ?? 0).fill(255);
    this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
  }

  #layout(blocks) {
    const width = widthOf(this.canvas.parentElement) || 1;
    const cell = Math.max(4, Math.min(20, Math.floor(Math.sqrt((width * this.options.height) / blocks))));
    const columns = Math.max(1, Math.floor(width / cell));
    return { cell, columns, height: Math.ceil(blocks / columns) * cell };
  }

  /** Blocks that a higher class took since the last time flash up. */
  #note(holders) {
    const before = this.#before, owners = this.state.sequences;
    if (before && before.length === holders.length && !this.#calm.matches) {
      const until = performance.now() + FLASH_MS;
      for (let i = 0; i < holders.length; i += 1) {
        if (holders[i] === before[i] || holders[i] < 0 || before[i] === FREE) continue;
        if (owners.get(holders[i])?.cls === 0) this.#flashes.set(i, until);
      }
    }
    this.#before = holders.slice();
  }
  #before = null;

  #style(holder) {
    if (holder === FREE) return FREE_STYLE;
    if (holder === CACHED) return CACHED_STYLE;
    const sequence = this.state.sequences.get(holder);
    if (!sequence) return COPYING_STYLE;
    const shade = sequence.id & 3, hollow = sequence.place === PAUSED ? 1 : 0;
    const style = FIRST_CLASS_STYLE + sequence.cls * 8 + shade * 2 + hollow;
    return this.marks.id === holder ? style | MARKED : style;
  }

  #paint(context) {
    const { cell, columns } = this, styles = this.#styles, now = performance.now();
    for (let i = 0; i < styles.length; i += 1) {
      let style = this.#style(this.#holders[i]);
      if (i === this.#cursor) style |= 128;
      const flash = this.#flashes.get(i);
      if (flash !== undefined) {
        if (flash <= now) this.#flashes.delete(i);
        styles[i] = 255;
      }
      if (styles[i] === style) continue;
      styles[i] = flash !== undefined && flash > now ? 255 : style;
      const x = (i % columns) * cell, y = Math.floor(i / columns) * cell;
      this.#cell(context, x, y, style, flash !== undefined ? (flash - now) / FLASH_MS : 0);
    }
    if (this.#flashes.size) requestAnimationFrame(() => this.state && this.#again());
  }

  #again() {
    const surface = fit(this.canvas, this.#layout(this.#holders.length).height);
    if (surface) this.#paint(surface.context);
  }

  #cell(context, x, y, style, glow) {
    const { cell, colours } = this, size = cell - 1, plain = style & 63;
    context.clearRect(x, y, cell, cell);
    if (plain < FIRST_CLASS_STYLE) {
      context.fillStyle = [colours.free, colours.cached, colours.copying][plain];
      context.fillRect(x, y, size, size);
    } else {
      const index = plain - FIRST_CLASS_STYLE;
      const colour = colours.shades[index >> 3][(index & 7) >> 1];
      context.fillStyle = index & 1 ? colours.free : colour;
      context.fillRect(x, y, size, size);
      if (index & 1) {
        context.strokeStyle = colour;
        context.lineWidth = cell > 8 ? 2 : 1.5;
        const inset = context.lineWidth / 2;
        context.strokeRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
      }
    }
    if (glow > 0) {
      context.fillStyle = colours.text;
      context.globalAlpha = Math.min(1, glow);
      context.fillRect(x, y, size, size);
      context.globalAlpha = 1;
    }
    if (style & (MARKED | 128)) {
      context.strokeStyle = colours.text;
      context.lineWidth = style & 128 ? 2 : 1;
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    }
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.cell);
    const index = Math.floor((event.clientY - box.top) / this.cell) * this.columns + column;
    if (column >= this.columns || !(index < this.#holders?.length)) return this.#leave();
    this.#show(index, event.clientX, event.clientY);
  }

  #show(index, x, y) {
    const text = this.describe(index);
    this.marks.id = this.#holders[index] >= 0 ? this.#holders[index] : null;
    this.tip.show(text, x, y);
    this.options.onMark();
    return text;
  }

  /** A block in words. */
  describe(index) {
    const holder = this.#holders[index], sequence = this.state.sequences.get(holder);
    const held = sequence ? describe(sequence)
      : { [FREE]: "Free", [CACHED]: "Prefix cache: given up when needed",
          [COPYING]: "Being copied for a request that left" }[holder] ?? "In use";
    return `Block ${count(index)}\n${held}`;
  }

  /** Arrow keys walk over the blocks. */
  #step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    if (event.key === "Escape") return this.#leave();
    if (!(event.key in by) || !this.#holders) return undefined;
    event.preventDefault();
    const last = this.#holders.length - 1;
    this.#cursor = Math.max(0, Math.min(last, this.#cursor < 0 ? 0 : this.#cursor + by[event.key]));
    const box = this.canvas.getBoundingClientRect();
    const x = box.left + (this.#cursor % this.columns) * this.cell;
    const y = box.top + Math.floor(this.#cursor / this.columns) * this.cell;
    this.options.say(this.#show(this.#cursor, x, y).replaceAll("\n", ", "));
    return undefined;
  }

  #leave() {
    this.#cursor = -1;
    this.marks.id = null;
    this.tip.hide();
    this.options.onMark();
  }
}
