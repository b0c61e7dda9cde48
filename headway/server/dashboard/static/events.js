// Preemptions and pauses as a list, and the live Batch jobs.

import { CLASSES, count, element, plural, say } from "./format.js";

const MOST = 40;

export class Events {
  #list = document.getElementById("events");
  #pauses = 0;
  #preempted = 0;

  constructor() {
    this.#empty();
  }

  /** Forget everything: a new connection is told again what the server still knows. */
  reset() {
    this.#list.replaceChildren();
    this.#pauses = this.#preempted = 0;
    this.#empty();
  }

  draw(state) {
    for (const preemption of [...state.newPreemptions].reverse()) {
      this.#preempted += 1;
      this.#add(preemption.when, preemptionNode(preemption), preemption.kind);
    }
    for (const second of state.seconds) {
      if (second.told) continue;
      second.told = true;
      const pauses = second.classes.map((figures) => figures[3]);
      const sum = pauses.reduce((a, b) => a + b, 0);
      this.#pauses += sum;
      if (sum) this.#addPauses(second.when, pauses);
    }
    this.#ages(state.now);
    const text = `${count(this.#preempted)} preempted, ${count(this.#pauses)} paused`;
    say(document.getElementById("events-note"), text);
  }

  /** Seconds with pauses and nothing else in between are one entry, which counts up. */
  #addPauses(when, pauses) {
    const latest = this.#list.firstChild;
    if (!latest.pauses) {
      this.#add(when, element("span"), "paused").pauses = [0, 0, 0];
      return this.#addPauses(when, pauses);
    }
    latest.pauses = latest.pauses.map((n, cls) => n + pauses[cls]);
    latest.firstChild.dataset.when = when;
    latest.children[1].replaceChildren(...pauseWords(latest.pauses));
    return undefined;
  }

  #add(when, node, kind) {
    this.#list.querySelector(".none")?.remove();
    const item = element("li", "new");
    const time = element("time");
    time.dataset.when = when;
    item.append(time, node, element("small", "", kind));
    this.#list.prepend(item);
    while (this.#list.children.length > MOST) this.#list.lastChild.remove();
    return item;
  }

  #ages(now) {
    for (const time of this.#list.querySelectorAll("time")) {
      const age = Math.round(now - Number(time.dataset.when));
      say(time, age < 1 ? "now" : age < 60 ? `${age} s` : `${Math.floor(age / 60)} min`);
    }
  }

  #empty() {
    const item = element("li", "none", "None yet. Queue more batch work than the pool holds, then send in realtime.");
    this.#list.append(item);
  }
}

function who(cls, text) {
  return element("span", `who ${CLASSES[cls] ?? ""}`, text);
}

function preemptionNode({ class: cls, request, for: wanted, for_class: wantedClass, blocks }) {
  const node = element("span");
  node.append(who(cls, `request ${request}`), ` gave ${plural(blocks, "block")} to `, who(wantedClass, `request ${wanted}`));
  return node;
}

function pauseWords(pauses) {
  const known = pauses.map((n, cls) => n && who(cls, `${count(n)} ${CLASSES[cls]} `)).filter(Boolean);
  return [...known, "left out of steps, nothing lost"];
}

/** The live Batch jobs with their progress. */
export function drawJobs(jobs) {
  document.getElementById("jobs-card").hidden = !jobs.length;
  const list = document.getElementById("jobs");
  while (list.children.length > jobs.length) list.lastChild.remove();
  jobs.forEach((job, i) => {
    const item = list.children[i] ?? list.appendChild(jobNode());
    const [id, status, bar, lines] = item.children;
    say(id, job.id);
    say(status, job.status.replace("_", " "));
    const done = job.completed + job.failed;
    bar.firstChild.style.transform = `scaleX(${job.total ? done / job.total : 0})`;
    const failed = job.failed ? `, ${count(job.failed)} failed` : "";
    say(lines, `${count(done)} of ${plural(job.total, "line")}${failed}`);
  });
}

function jobNode() {
  const item = element("li");
  const bar = element("div", "bar batch");
  bar.append(element("i"));
  item.append(element("span"), element("span", "note"), bar, element("span", "note"));
  return item;
}
