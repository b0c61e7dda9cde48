// Prompts sent from the page, in each class, and how they fare.
//
// Many batch answers are asked for in one request: a browser opens only six connections to a server,
// and a realtime prompt must not wait for one.

import { count, duration, element, plural, quantile, say } from "./format.js";
import { readEvents } from "./stream.js";

const MOST_RUNS = 12;
const TOPICS = ["the history of paper", "how tides work", "growing tomatoes", "the moons of Jupiter",
  "baking bread", "why the sky is blue", "the rules of chess", "repairing a bicycle"];
const FILL = ("Every part of it has been looked at more than once by people who know it well and what they "
  + "found is written down here in the order in which they found it with what it may mean for others").split(" ");

export class Race {
  #runs = new Set();
  #form = document.getElementById("send");
  #list = document.getElementById("runs");

  constructor(keyring) {
    this.keyring = keyring;
    this.model = "";
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#form.requestSubmit();
    });
    button("flood").addEventListener("click", () => this.#flood());
    button("stop").addEventListener("click", () => {
      for (const run of this.#runs) run.abort.abort();
    });
  }

  /** Move the bars of what is under way. */
  draw() {
    for (const run of this.#runs) run.draw();
  }

  #send() {
    const cls = new FormData(this.#form).get("class");
    const prompt = document.getElementById("prompt").value.trim() || "Hello!";
    const limit = number("tokens");
    const behind = this.#unfinished("batch") + (cls === "realtime" ? this.#unfinished("standard") : 0);
    const run = new Run(cls, [limit], prompt);
    const messages = [{ role: "user", content: prompt }];
    const body = { messages, max_tokens: limit };
    this.#start(run, "v1/chat/completions", body).then(() => {
      if (run.first !== null) this.#judge(run, behind);
    });
  }

  #flood() {
    const answers = number("flood-count"), limit = number("flood-tokens"), words = number("flood-words");
    const prompt = Array.from({ length: answers }, (_, i) => makePrompt(i, words));
    const run = new Run("batch", Array(answers).fill(limit), plural(answers, "answer"));
    this.#start(run, "v1/completions", { prompt, max_tokens: limit, ignore_eos: true });
  }

  async #start(run, path, body) {
    this.#runs.add(run);
    this.#list.prepend(run.node);
    while (this.#list.children.length > MOST_RUNS) this.#list.lastChild.remove();
    button("stop").disabled = false;
    try {
      await run.go(path, { ...body, model: this.model, service_tier: run.cls }, this.keyring);
    } finally {
      this.#runs.delete(run);
      button("stop").disabled = !this.#runs.size;
      run.draw();
    }
  }

  #unfinished(cls) {
    let left = 0;
    for (const run of this.#runs) if (run.cls === cls) left += run.left();
    return left;
  }

  #judge(run, behind) {
    const overtook = behind && run.cls !== "batch" ? `, past ${plural(behind, "answer")} already under way` : "";
    say(document.getElementById("verdict"), `${capital(run.cls)}: first token after ${duration(run.first)}${overtook}.`);
  }
}

/** A prompt of so many words, unlike the others from its first word on, so that none is cached. */
function makePrompt(i, words) {
  const topic = TOPICS[i % TOPICS.length];
  const start = `${Math.random().toString(36).slice(2, 8)}: a report on ${topic}.`.split(" ");
  const more = Array.from({ length: Math.max(0, words - start.length) }, (_, k) => FILL[(i * 7 + k) % FILL.length]);
  return [...start, ...more].join(" ");
}

/** One request of one or more answers. */
class Run {
  constructor(cls, limits, title) {
    this.cls = cls;
    this.limits = limits;
    this.done = limits.map(() => 0);
    this.ended = limits.map(() => false);
    this.first = null;
    this.firsts = [];
    this.text = "";
    this.problem = "";
    this.abort = new AbortController();
    this.#build(title);
  }

  /** How many answers have not ended. */
  left() {
    return this.ended.filter((ended) => !ended).length;
  }

  async go(path, body, keyring) {
    this.began = performance.now();
    try {
      const response = await fetch(path, {
        method: "POST",
        headers: { "Content-Type": "application/json", ...keyring.headers() },
        body: JSON.stringify({ ...body, stream: true }),
        signal: this.abort.signal,
      });
      if (!response.ok) throw new Error((await response.json()).error.message);
      await readEvents(response, (_, data) => {
        if (data !== "[DONE]") this.#take(JSON.parse(data));
      });
    } catch (error) {
      this.problem = error.name === "AbortError" ? "stopped" : error.message;
    }
    this.ended.fill(true);
  }

  #take(event) {
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) {
      const text = choice.delta?.content ?? choice.text ?? "";
      if (text && !this.done[choice.index]) {
        const seconds = (performance.now() - this.began) / 1000;
        this.first ??= seconds;
        this.firsts.push(seconds);
      }
      if (text) this.done[choice.index] += 1;
      if (choice.index === 0) this.text += text;
      if (choice.finish_reason) this.ended[choice.index] = true;
    }
  }

  #build(title) {
    this.node = element("li", this.cls);
    const head = element("p", "run-head", `${this.cls}: ${title}`);
    this.note = head.appendChild(element("span", "", "waiting"));
    this.words = element("p", "run-text", " ");
    this.bars = element("div", this.limits.length > 1 ? "bars" : "bar");
    this.bars.setAttribute("aria-hidden", "true");
    for (let i = 0; i < this.limits.length; i += 1) this.bars.append(element("i"));
    this.node.append(head, ...(this.limits.length > 1 ? [] : [this.words]), this.bars);
  }

  draw() {
    const many = this.limits.length > 1, tokens = this.done.reduce((a, b) => a + b, 0);
    this.done.forEach((done, i) => {
      const share = Math.min(1, this.ended[i] && !this.problem ? 1 : done / this.limits[i]);
      const bar = this.bars.children[i].style;
      if (many) bar.setProperty("--done", share.toFixed(3));
      else bar.transform = `scaleX(${share.toFixed(3)})`;
    });
    if (!many) say(this.words, this.text.trim().replaceAll("\n", " ").slice(0, 160) || " ");
    say(this.note, this.problem || this.#progress(many, tokens));
  }

  #progress(many, tokens) {
    if (this.first === null) return "waiting";
    const start = `first token ${duration(this.first)}`;
    if (!many) return `${start} · ${plural(tokens, "token")}`;
    const late = quantile(this.firsts, 0.5);
    const ended = this.ended.filter(Boolean).length;
    return `${count(ended)} of ${this.limits.length} done · first token ${duration(late)} (median)`;
  }
}

function button(id) {
  return document.getElementById(id);
}

function number(id) {
  const input = document.getElementById(id);
  const value = Math.round(Number(input.value)) || Number(input.defaultValue);
  return Math.max(Number(input.min), Math.min(Number(input.max), value));
}

function capital(word) {
  return word[0].toUpperCase() + word.slice(1);
}
