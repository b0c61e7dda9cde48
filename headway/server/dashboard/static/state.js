// What is known of the server, kept up to date by frames.

import { CACHED, FREE } from "./format.js";

const KEPT_S = 300;

export class State {
  /** hello: the server's sizes. */
  constructor(hello) {
    this.hello = hello;
    this.device = new Int32Array(hello.blocks).fill(FREE);
    this.host = new Int32Array(hello.host_blocks).fill(FREE);
    this.sequences = new Map();
    this.byPlace = [[], [], [], []];
    this.firsts = [];
    this.seconds = [];
    this.newPreemptions = [];
    this.frame = null;
    this.now = 0;
  }

  apply(frame) {
    this.frame = frame;
    this.now = frame.t;
    write(this.device, frame.blocks);
    write(this.host, frame.host);
    this.#place(frame.sequences);
    for (const [age, cls, ttft] of frame.firsts) this.firsts.push({ when: this.now - age, cls, ttft });
    for (const { age, classes } of frame.seconds) this.seconds.push({ when: this.now - age, classes });
    this.newPreemptions = frame.preemptions.map((p) => ({ ...p, when: this.now - p.age })).reverse();
    const since = this.now - KEPT_S;
    this.firsts = this.firsts.filter((f) => f.when > since);
    this.seconds = this.seconds.filter((s) => s.when > since);
  }

  #place(rows) {
    this.sequences.clear();
    this.byPlace = [[], [], [], []];
    for (const [id, cls, place, tokens, computed, generated, blocks, preempted] of rows) {
      const sequence = { id, cls, place, tokens, computed, generated, blocks, preempted };
      this.sequences.set(id, sequence);
      this.byPlace[place].push(sequence);
    }
  }

  /** Blocks in use by class, then cached and free ones. */
  blocksByClass() {
    const counts = [0, 0, 0];
    let cached = 0, free = 0;
    for (const holder of this.device) {
      if (holder === FREE) free += 1;
      else if (holder === CACHED) cached += 1;
      else if (holder >= 0) {
        const sequence = this.sequences.get(holder);
        if (sequence) counts[sequence.cls] += 1;
      }
    }
    return { counts, cached, free };
  }
}

function write(holders, runs) {
  for (const [start, length, holder] of runs) holders.fill(holder, start, start + length);
}
