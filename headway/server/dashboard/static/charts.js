// The last five minutes: first tokens as dots, time between tokens as lines, tokens as a stack.

import { CLASSES, duration, quantile, say } from "./format.js";
import { fit } from "./paint.js";

const SPANS_S = [60, 120, 300], LEFT = 46, BOTTOM = 18, TOP = 6, RIGHT = 6;
const FONT = "11px system-ui, sans-serif";

export class Charts {
  constructor(colours) {
    this.colours = colours;
    this.nodes = {};
    for (const name of ["ttft", "itl", "speed"]) {
      const text = document.getElementById(`${name}-text`);
      this.nodes[name] = { canvas: document.getElementById(`${name}-chart`), text };
    }
  }

  draw(state) {
    this.now = state.now;
    const oldest = Math.min(...state.firsts.slice(0, 1).map((f) => f.when), ...state.seconds.slice(0, 1).map((s) => s.when));
    this.span = SPANS_S.find((span) => this.now - oldest <= span) ?? SPANS_S.at(-1);
    this.#ttft(state.firsts);
    this.#itl(state.seconds);
    this.#speed(state.seconds);
  }

  #ttft(firsts) {
    const plot = this.#plot("ttft");
    if (!plot) return;
    const y = this.#logarithmic(plot, firsts.map((f) => f.ttft), 0.01, 10);
    // Realtime last, so that it lies on top.
    for (const cls of [2, 1, 0]) {
      plot.context.fillStyle = this.colours[CLASSES[cls]];
      for (const first of firsts) {
        if (first.cls !== cls) continue;
        plot.context.beginPath();
        plot.context.arc(this.#x(plot, first.when), y(first.ttft), cls ? 2.5 : 3.5, 0, 7);
        plot.context.fill();
      }
    }
    this.#inWords("ttft", (cls) => quantile(firsts.filter((f) => f.cls === cls).map((f) => f.ttft), 0.5));
  }

  #itl(seconds) {
    const plot = this.#plot("itl");
    if (!plot) return;
    const p95 = (second, cls) => second.classes[cls][2];
    const values = seconds.flatMap((s) => [0, 1, 2].map((c) => p95(s, c))).filter((v) => v > 0);
    const y = this.#logarithmic(plot, values, 0.005, 1);
    for (const cls of [2, 1, 0]) {
      plot.context.strokeStyle = this.colours[CLASSES[cls]];
      plot.context.lineWidth = cls ? 1.6 : 2.2;
      plot.context.lineJoin = "round";
      plot.context.beginPath();
      let before = -9;
      for (const second of seconds) {
        const value = p95(second, cls), x = this.#x(plot, second.when);
        if (!value) continue;
        if (second.when - before > 3) {
          plot.context.moveTo(x - 1, y(value));
        }
        plot.context.lineTo(x, y(value));
        before = second.when;
      }
      plot.context.stroke();
    }
    this.#inWords("itl", (cls) => quantile(seconds.slice(-10).map((s) => p95(s, cls)).filter(Boolean), 0.95));
  }

  #speed(seconds) {
    const plot = this.#plot("speed");
    if (!plot) return;
    const total = (s) => s.classes.reduce((sum, c) => sum + c[0], 0);
    const top = nice(Math.max(10, ...seconds.map(total)));
    const { context, width, height } = plot, room = height - BOTTOM - TOP;
    for (const share of [0, 0.5, 1]) this.#rule(plot, TOP + room * (1 - share), String(Math.round(top * share)));
    const wide = Math.max(1.5, (width - LEFT - RIGHT) / this.span);
    for (const second of seconds) {
      const x = this.#x(plot, second.when);
      let base = TOP + room;
      for (const cls of [0, 1, 2]) {
        const tall = (second.classes[cls][0] / top) * room;
        context.fillStyle = this.colours[CLASSES[cls]];
        context.fillRect(x, base - tall, wide, tall);
        base -= tall;
      }
    }
    const late = seconds.slice(-10);
    const texts = CLASSES.map((name, cls) => {
      const mean = late.reduce((sum, s) => sum + s.classes[cls][0], 0) / Math.max(late.length, 1);
      return `${name} ${Math.round(mean)}`;
    });
    say(this.nodes.speed.text, `Tokens per second of late: ${texts.join(", ")}.`);
  }

  #plot(name) {
    const surface = fit(this.nodes[name].canvas, 168);
    if (!surface) return null;
    const { context, width, height } = surface;
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    context.fillStyle = this.colours.muted;
    context.textAlign = "center";
    const apart = this.span / (this.span < 300 ? 4 : 5);
    for (let age = 0; age < this.span; age += apart) {
      const label = !age ? "now" : this.span < 300 ? `−${age} s` : `−${age / 60} min`;
      const x = this.#x(surface, this.now - age);
      context.fillText(label, Math.min(x, width - (age ? 18 : 12)), height - 4);
    }
    return surface;
  }

  #x({ width }, when) {
    return LEFT + (1 - (this.now - when) / this.span) * (width - LEFT - RIGHT);
  }

  /** Rules at powers of ten that hold the values, `from` to `to` at least; a value's y. */
  #logarithmic(plot, values, from, to) {
    const low = Math.floor(Math.log10(Math.min(from, ...values)) + 1e-9);
    const high = Math.ceil(Math.log10(Math.max(to, ...values)) - 1e-9);
    const room = plot.height - BOTTOM - TOP;
    const y = (value) => TOP + room * (1 - (Math.log10(value) - low) / (high - low));
    for (let power = low; power <= high; power += 1) {
      this.#rule(plot, y(10 ** power), power < 0 ? `${10 ** (power + 3)} ms` : `${10 ** power} s`);
    }
    return y;
  }

  #rule({ context, width }, y, label) {
    context.strokeStyle = this.colours.line;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(LEFT, Math.round(y) + 0.5);
    context.lineTo(width - RIGHT, Math.round(y) + 0.5);
    context.stroke();
    context.fillStyle = this.colours.muted;
    context.textAlign = "right";
    context.fillText(label, LEFT - 7, Math.max(y + 4, 9));
  }

  #inWords(name, value) {
    const known = CLASSES.map((label, cls) => [label, value(cls)]).filter(([, v]) => !Number.isNaN(v));
    const text = known.map(([label, v]) => `${label} ${duration(v)}`).join(", ");
    say(this.nodes[name].text, text ? `Of late: ${text}.` : "Nothing yet.");
  }
}

/** The next of 1, 2, 5 times a power of ten. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}
