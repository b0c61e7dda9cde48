// Prompts sent from the page, in each class, and how they fare.
//
// Many batch answers are asked for in one request: a browser opens only six connections to a server,
// and a realtime prompt must not wait for one.

import { count, duration, element, plural, quantile, say } from "./format.js";
import { fit } from "./paint.js";
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

  constructor(keyring, colours) {
    Object.assign(this, { keyring, colours, drawn: [] });
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
    for (const run of this.#runs) run.draw(this.colours);
  }

  /** Draw all that can be seen, in whatever colours there are now. */
  repaint() {
    for (const run of this.drawn) run.draw(this.colours);
  }

  #send() {
    const cls = new FormData(this.#form).get("class");
    const prompt = document.getElementById("prompt").value.trim() || "Hello!";
    const limit = number("tokens");
    const behind = this.#unfinished("batch") + (cls === "realtime" ? this.#unfinished("standard") : 0);
    const run = new Run(cls, [limit], prompt);
    this.#chat(run, prompt, limit).then(() => {
      if (run.first !== null) this.#judge(run, behind);
    });
  }

  /** As a chat, or as plain text where the model has no chat template. */
  async #chat(run, prompt, limit) {
    const messages = [{ role: "user", content: prompt }];
    await this.#start(run, "v1/chat/completions", { messages, max_tokens: limit });
    if (run.refused?.param !== "messages") return;
    run.restart();
    await this.#start(run, "v1/completions", { prompt, max_tokens: limit });
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
    this.drawn = [run, ...this.drawn.filter((other) => other !== run)].slice(0, MOST_RUNS);
    while (this.#list.children.length > MOST_RUNS) this.#list.lastChild.remove();
    button("stop").disabled = false;
    try {
      await run.go(path, { ...body, model: this.model, service_tier: run.cls }, this.keyring);
    } finally {
      this.#runs.delete(run);
      button("stop").disabled = !this.#runs.size;
      run.draw(this.colours);
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
    this.refused = null;
    this.abort = new AbortController();
    this.#build(title);
  }

  /** Forget a refusal, to ask in another way. */
  restart() {
    this.refused = null;
    this.problem = "";
    this.ended.fill(false);
  }

  /** How many answers have not ended. */
  left() {
    return this.ended.filter((ended) => !ended).length;
  }

  async go(path, body, keyring) {
    this.began = performance.now();
    try {
      let response = await this.#post(path, body, keyring);
      if (response.status === 401) {
        await keyring.ask();
        this.began = performance.now();
        response = await this.#post(path, body, keyring);
      }
      if (!response.ok) {
        this.refused = (await response.json()).error;
        throw new Error(this.refused.message);
      }
      await readEvents(response, (_, data) => {
        if (data !== "[DONE]") this.#take(JSON.parse(data));
      });
    } catch (error) {
      this.problem = error.name === "AbortError" ? "stopped" : error.message;
    }
    this.ended.fill(true);
  }

  #post(path, body, keyring) {
    return fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...keyring.headers() },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal: this.abort.signal,
    });
  }

  #take(event) {
    if (event.error) throw new Error(event.error.message);
    // A chunk may carry several tokens: the end says how many there were.
    if (event.usage && this.limits.length === 1) this.done[0] = event.usage.completion_tokens;
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
    this.node = element("li", this.limits.length > 1 ? `${this.cls} many` : this.cls);
    const head = element("p", "run-head", `${this.cls}: ${title}`);
    this.note = head.appendChild(element("span", "", "waiting"));
    this.words = element("p", "run-text", " ");
    // Many answers are one canvas: as elements of their own they would be the dearest of the page.
    const many = this.limits.length > 1;
    this.bars = element("div", many ? "canvas-box bars" : "bar");
    this.bars.setAttribute("aria-hidden", "true");
    this.bars.append(element(many ? "canvas" : "i"));
    this.node.append(head, ...(many ? [] : [this.words]), this.bars);
  }

  draw(colours) {
    const many = this.limits.length > 1, tokens = this.done.reduce((a, b) => a + b, 0);
    const shares = this.done.map((done, i) => this.ended[i] && !this.problem ? 1 : Math.min(1, done / this.limits[i]));
    if (many) this.#drawBars(shares, colours);
    else this.bars.firstChild.style.transform = `scaleX(${shares[0].toFixed(3)})`;
    if (!many) say(this.words, this.text.trim().replaceAll("\n", " ").slice(0, 160) || " ");
    say(this.note, this.problem || this.#progress(many, tokens));
  }

  #drawBars(shares, colours) {
    const surface = fit(this.bars.firstChild, 34);
    if (!surface) return;
    const { context, width, height } = surface;
    context.clearRect(0, 0, width, height);
    const apart = width / shares.length, wide = Math.max(apart - 2, 1);
    shares.forEach((share, i) => {
      context.fillStyle = colours.free;
      context.fillRect(i * apart, 0, wide, height);
      context.fillStyle = colours[this.cls];
      context.fillRect(i * apart, height * (1 - share), wide, height * share);
    });
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
