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

  draw(state) {
    for (const preemption of [...state.newPreemptions].reverse()) {
      this.#preempted += 1;
      this.#add(preemption.when, preemptionNode(preemption), preemption.kind);
    }
    for (const second of state.seconds) {
      if (second.told) continue;
      second.told = true;
      second.classes.forEach(([, , , pauses], cls) => {
        this.#pauses += pauses;
        if (pauses) this.#addPauses(second.when, cls, pauses);
      });
    }
    this.#ages(state.now);
    const text = `${count(this.#preempted)} preempted, ${count(this.#pauses)} paused`;
    say(document.getElementById("events-note"), text);
  }

  /** Seconds with pauses of one class in a row are one entry, which counts up. */
  #addPauses(when, cls, pauses) {
    const latest = this.#list.firstChild;
    if (latest?.pausedClass === cls) {
      latest.pauses += pauses;
      latest.firstChild.dataset.when = when;
      say(latest.querySelector(".who"), plural(latest.pauses, "pause"));
      return;
    }
    Object.assign(this.#add(when, pauseNode(cls, pauses), "paused"), { pausedClass: cls, pauses });
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

function pauseNode(cls, pauses) {
  const node = element("span");
  node.append(who(cls, plural(pauses, "pause")), `: ${CLASSES[cls]} left out of steps, nothing lost`);
  return node;
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
