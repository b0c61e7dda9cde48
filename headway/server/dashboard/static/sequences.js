// Sequences by place, a chip each, and the tokens of the last step.

import { CLASSES, PAUSED, PLACES, SWAPPED, WAITING, count, duration, element, plural, say } from "./format.js";
import { describe, fit, widthOf } from "./paint.js";

const CHIP = 12, GAP = 3, MOST = 240;
const SHOWN = [[1, "running"], [2, "paused"], [3, "swapped"], [0, "waiting"]];

export class Sequences {
  /** marks, onMark: see PoolMap. */
  constructor(colours, tip, marks, onMark) {
    Object.assign(this, { colours, tip, marks, onMark, strips: [] });
    for (const [place, id] of SHOWN) {
      const canvas = document.getElementById(id);
      const strip = { place, canvas, total: document.getElementById(`n-${id}`), columns: 1, height: 0 };
      canvas.addEventListener("pointermove", (event) => this.#point(strip, event));
      canvas.addEventListener("pointerleave", () => this.#leave());
      this.strips.push(strip);
    }
    this.bar = document.getElementById("batch");
    this.bar.addEventListener("pointermove", (event) => this.#pointBar(event));
    this.bar.addEventListener("pointerleave", () => this.#leave());
    this.cells = this.#table();
  }

  draw(state) {
    this.state = state;
    for (const strip of this.strips) this.#strip(strip);
    this.#lastStep(state.frame.last);
    this.#counts(state.frame.counts);
    const promoted = state.frame.pool.promoted;
    const notes = [`${count(state.hello.seats)} seats`];
    if (promoted) notes.push(`${promoted} promoted`);
    if (state.frame.pool.split) notes.push("prefill and decode apart");
    say(document.getElementById("queues-note"), notes.join(" · "));
  }

  #strip(strip) {
    const sequences = this.state.byPlace[strip.place].slice(0, MOST);
    const width = widthOf(strip.canvas.parentElement) || 1;
    strip.columns = Math.max(1, Math.floor((width + GAP) / (CHIP + GAP)));
    // A strip never shrinks while it is watched, so that what is below stays where it is.
    const rows = Math.ceil(sequences.length / strip.columns);
    strip.height = Math.max(strip.height, Math.min(rows, 12) * (CHIP + GAP), CHIP + GAP);
    const surface = fit(strip.canvas, strip.height);
    if (!surface) return;
    surface.context.clearRect(0, 0, surface.width, surface.height);
    sequences.forEach((sequence, i) => this.#chip(surface.context, strip, sequence, i));
    strip.canvas.setAttribute("aria-label", this.#inWords(strip.place));
  }

  #chip(context, strip, sequence, i) {
    const x = (i % strip.columns) * (CHIP + GAP), y = Math.floor(i / strip.columns) * (CHIP + GAP);
    const colour = this.colours.shades[sequence.cls][sequence.id & 3];
    const hollow = [PAUSED, WAITING].includes(strip.place);
    context.beginPath();
    context.roundRect(x + (hollow ? 1 : 0), y + (hollow ? 1 : 0), CHIP - (hollow ? 2 : 0), CHIP - (hollow ? 2 : 0), 3);
    context.globalAlpha = strip.place === WAITING ? 0.75 : 1;
    if (hollow) {
      context.strokeStyle = colour;
      context.lineWidth = 2;
      context.setLineDash(strip.place === WAITING ? [2.5, 2] : []);
      context.stroke();
      context.setLineDash([]);
    } else {
      context.fillStyle = colour;
      context.fill();
    }
    context.globalAlpha = 1;
    if (strip.place === SWAPPED) {
      context.clearRect(x + 3, y + CHIP / 2 - 1, CHIP - 6, 2);
    }
    if (sequence.id === this.marks.id) {
      context.strokeStyle = this.colours.text;
      context.lineWidth = 1.5;
      context.strokeRect(x + 0.5, y + 0.5, CHIP - 1, CHIP - 1);
    }
  }

  /** A row of one segment a sequence, as wide as the tokens it has in the step. */
  #lastStep(last) {
    const surface = fit(this.bar, 22);
    this.segments = [];
    if (!surface) return;
    const { context, width, height } = surface;
    context.fillStyle = this.colours.free;
    context.fillRect(0, 0, width, height);
    const busy = last && this.state.byPlace[1].length;
    const rows = busy ? [...last.computed].sort((a, b) => this.#rank(a) - this.#rank(b)) : [];
    const total = rows.reduce((sum, [, tokens]) => sum + tokens, 0);
    const note = document.getElementById("batch-note");
    if (!total) return say(note, "nothing: the engine is idle");
    let x = 0;
    for (const [id, tokens, decoding] of rows) {
      const wide = (tokens / total) * width, sequence = this.state.sequences.get(id);
      context.fillStyle = sequence ? this.colours.shades[sequence.cls][id & 3] : this.colours.muted;
      context.fillRect(x, 0, Math.max(wide - (wide > 3 ? 1 : 0), 0.5), height);
      if (!decoding) this.#hatch(context, x, wide, height);
      this.segments.push({ from: x, to: x + wide, id, tokens, decoding });
      x += wide;
    }
    const decoding = rows.filter((row) => row[2]).length;
    const prompt = rows.reduce((sum, [, tokens, row]) => sum + (row ? 0 : tokens), 0);
    const parts = [decoding && plural(decoding, "decode row"), prompt && plural(prompt, "prompt token")];
    return say(note, parts.filter(Boolean).join(" and "));
  }

  #rank([id, , decoding]) {
    const sequence = this.state.sequences.get(id);
    return (sequence ? sequence.cls : 3) * 2 + (decoding ? 1 : 0);
  }

  #hatch(context, x, width, height) {
    context.save();
    context.beginPath();
    context.rect(x, 0, width, height);
    context.clip();
    context.strokeStyle = this.colours.card;
    context.lineWidth = 1.5;
    context.globalAlpha = 0.55;
    context.beginPath();
    for (let from = x - height; from < x + width; from += 6) {
      context.moveTo(from, height);
      context.lineTo(from + height, 0);
    }
    context.stroke();
    context.restore();
  }

  #table() {
    const body = document.getElementById("counts");
    return CLASSES.map((name) => {
      const row = body.appendChild(element("tr"));
      const head = row.appendChild(element("th", name, name));
      head.scope = "row";
      return SHOWN.map(() => row.appendChild(element("td")));
    });
  }

  #counts(counts) {
    const totals = [0, 0, 0, 0];
    counts.forEach((places, cls) => {
      SHOWN.forEach(([place], column) => {
        say(this.cells[cls][column], count(places[place]));
        totals[column] += places[place];
      });
    });
    this.strips.forEach((strip, column) => say(strip.total, count(totals[column])));
  }

  #inWords(place) {
    const counts = this.state.frame.counts.map((places, cls) => `${places[place]} ${CLASSES[cls]}`);
    return `${PLACES[place]}: ${counts.join(", ")}`;
  }

  #point(strip, event) {
    const box = strip.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / (CHIP + GAP));
    const index = Math.floor((event.clientY - box.top) / (CHIP + GAP)) * strip.columns + column;
    const sequence = column < strip.columns ? this.state?.byPlace[strip.place][index] : null;
    if (!sequence) return this.#leave();
    return this.#mark(sequence.id, describe(sequence), event);
  }

  #pointBar(event) {
    const x = event.clientX - this.bar.getBoundingClientRect().left;
    const segment = this.segments?.find(({ from, to }) => from <= x && x < to);
    if (!segment) return this.#leave();
    const sequence = this.state.sequences.get(segment.id);
    const what = segment.decoding ? "one decode row" : plural(segment.tokens, "prompt token");
    return this.#mark(segment.id, `${what}\n${sequence ? describe(sequence) : "ended"}`, event);
  }

  #mark(id, text, event) {
    this.marks.id = id;
    this.tip.show(text, event.clientX, event.clientY);
    this.onMark();
  }

  #leave() {
    this.marks.id = null;
    this.tip.hide();
    this.onMark();
  }
}

/** How long steps take, for the tile. */
export function stepWords(last) {
  if (!last?.seconds) return ["–", "idle"];
  return [duration(last.seconds), `predicted ${duration(last.predicted)} · no. ${count(last.step)}`];
}
