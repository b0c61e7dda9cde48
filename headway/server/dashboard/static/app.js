// The live page: frames in, pictures out. Frames come a few times a second; what they change is
// drawn once, at the browser's next frame.

import { Charts } from "./charts.js";
import { Events, drawJobs } from "./events.js";
import { CLASSES, count, duration, plural, quantile, say } from "./format.js";
import { Tip, forgetWidths, palette } from "./paint.js";
import { PoolMap } from "./pool.js";
import { Race } from "./race.js";
import { Sequences, stepWords } from "./sequences.js";
import { State } from "./state.js";
import { Feed, Keyring } from "./stream.js";

const CHARTS_MS = 500, WORDS_MS = 1000;

class Page {
  #due = false;
  #charted = 0;
  #worded = 0;
  #folded = false;

  constructor() {
    const tip = new Tip(), marks = { id: null };
    const colours = palette(() => this.#repaint());
    const onMark = () => this.#draw();
    const aloud = (text) => say(node("say"), text);
    this.pool = new PoolMap(node("pool"), colours, tip, marks, { height: 340, onMark, say: aloud });
    this.host = new PoolMap(node("host"), colours, tip, marks, { height: 90, onMark, say: aloud });
    this.sequences = new Sequences(colours, tip, marks, onMark);
    this.charts = new Charts(colours);
    this.events = new Events();
    const keyring = new Keyring();
    this.race = new Race(keyring, colours);
    this.feed = new Feed("dashboard/data", keyring, (name, data) => this.#take(name, data), linkState);
    addEventListener("resize", () => {
      forgetWidths();
      this.#repaint();
    });
  }

  #take(name, data) {
    if (name === "hello") {
      this.state = new State(data);
      this.events.reset();
      this.race.model = data.model;
      say(node("model"), `${data.model} · ${plural(data.blocks, "block")} of ${data.block_size} tokens`);
      node("host-part").hidden = !data.host_blocks;
    } else if (name === "frame" && this.state) {
      if (this.#folded) {
        // The frame before was never drawn: what was new in it still is.
        const missed = this.state.newPreemptions;
        this.state.apply(data);
        this.state.newPreemptions.push(...missed);
      } else {
        this.state.apply(data);
      }
      this.#folded = true;
      this.#draw();
    }
  }

  #draw() {
    if (this.#due || !this.state?.frame) return;
    this.#due = true;
    requestAnimationFrame((time) => {
      this.#due = false;
      this.#folded = false;
      this.#paint(time);
      this.state.newPreemptions = [];
    });
  }

  #paint(time) {
    const { state } = this;
    this.pool.draw(state, state.device);
    if (state.host.length) this.host.draw(state, state.host);
    this.sequences.draw(state);
    this.events.draw(state);
    this.race.draw();
    this.#tiles(state);
    if (time - this.#charted >= CHARTS_MS) {
      this.#charted = time;
      this.charts.draw(state);
      drawJobs(state.frame.jobs);
    }
    if (time - this.#worded >= WORDS_MS) {
      this.#worded = time;
      poolWords(state);
    }
  }

  #repaint() {
    this.pool.repaint();
    this.host.repaint();
    this.race.repaint();
    this.#charted = 0;
    this.#draw();
  }

  #tiles(state) {
    const { rate, last, counts } = state.frame;
    const firsts = state.firsts.filter((f) => f.cls === 0 && f.when > state.now - 60).map((f) => f.ttft);
    const latest = state.firsts.findLast((f) => f.cls === 0);
    if (firsts.length) {
      say(node("ttft"), duration(quantile(firsts, 0.5)));
      say(node("ttft-note"), firsts.length > 1 ? `median of ${firsts.length}, worst ${duration(Math.max(...firsts))}` : "the last request");
    } else if (latest) {
      say(node("ttft"), duration(latest.ttft));
      say(node("ttft-note"), `${Math.round((state.now - latest.when) / 60)} min ago`);
    }
    const gaps = state.seconds.filter((s) => s.classes[0][2] > 0).slice(-10);
    if (gaps.length) {
      say(node("itl"), duration(quantile(gaps.map((s) => s.classes[0][1]), 0.5)));
      say(node("itl-note"), `median, p95 ${duration(Math.max(...gaps.map((s) => s.classes[0][2])))}`);
    }
    const busy = counts.some((places) => places[1] || places[2]);
    const late = state.seconds.filter((s) => s.when > state.now - 4).slice(-3);
    const speeds = CLASSES.map((_, c) => late.reduce((sum, s) => sum + s.classes[c][0], 0) / Math.max(late.length, 1));
    say(node("speed"), count(busy ? speeds[0] + speeds[1] + speeds[2] : 0));
    say(node("speed-note"), busy ? CLASSES.map((name, c) => speeds[c] >= 0.5 && `${name} ${count(speeds[c])}`).filter(Boolean).join(" · ") || "starting" : "idle");
    if (rate.bound) {
      say(node("ratio"), `${Math.round(rate.ratio * 100)} %`);
      say(node("ratio-note"), `${count(rate.achieved)} of ${count(rate.bound)} tokens/s`);
      node("ratio-meter").value = rate.ratio;
    }
    const [took, note] = busy ? stepWords(last) : ["–", "idle"];
    say(node("step-time"), took);
    say(node("step-note"), note);
  }
}

/** The pool in words, beside the map and for those who can't see it. */
function poolWords(state) {
  const { counts, cached, free } = state.blocksByClass(), total = state.device.length;
  const used = state.frame.tiers.device.used;
  say(node("pool-note"), `${Math.round((used / total) * 100)} % of ${count(total)} blocks in use, ${count(cached)} cached`);
  const host = state.host.length ? ` On the host: ${count(state.frame.tiers.host.used)} of ${count(state.host.length)}.` : "";
  const held = CLASSES.map((name, c) => `${name} ${count(counts[c])}`).join(", ");
  say(node("pool-text"), `Blocks held: ${held}; prefix cache ${count(cached)}; free ${count(free)}.${host} Arrow keys walk over the blocks.`);
}

function linkState(name) {
  const link = node("link");
  if (link.dataset.state === name) return;
  link.dataset.state = name;
  say(link.querySelector("b"), { live: "live", lost: "connection lost, trying again" }[name] ?? name);
}

function node(id) {
  return document.getElementById(id);
}

new Page();
