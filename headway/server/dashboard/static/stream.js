// Server-sent events over fetch, which can send a key and a body, unlike EventSource.

/** Calls `onEvent(name, data)` for each event of a response until it ends. */
export async function readEvents(response, onEvent) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message", data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) onEvent(name, data);
    }
  }
}

/** The tab's key, asked for when the server wants one. */
export class Keyring {
  #dialog = document.getElementById("key");

  headers() {
    const key = sessionStorage.getItem("headway-key");
    return key ? { Authorization: `Bearer ${key}` } : {};
  }

  ask() {
    return new Promise((resolve) => {
      this.#dialog.addEventListener("close", () => {
        sessionStorage.setItem("headway-key", document.getElementById("key-value").value);
        resolve();
      }, { once: true });
      if (!this.#dialog.open) this.#dialog.showModal();
    });
  }
}

/** Keeps a feed open while the page can be seen; tells `onState(connecting | live | lost)`. */
export class Feed {
  #abort = null;

  constructor(url, keyring, onEvent, onState) {
    Object.assign(this, { url, keyring, onEvent, onState });
    document.addEventListener("visibilitychange", () => this.#follow());
    this.#follow();
  }

  #follow() {
    if (document.hidden) {
      this.#abort?.abort();
      this.#abort = null;
    } else if (!this.#abort) {
      this.#abort = new AbortController();
      this.#run(this.#abort.signal);
    }
  }

  async #run(signal) {
    for (let tries = 0; !signal.aborted; tries += 1) {
      try {
        const response = await fetch(this.url, { headers: this.keyring.headers(), signal });
        if (response.status === 401 || response.status === 403) {
          await this.keyring.ask();
          continue;
        }
        if (response.ok) {
          tries = 0;
          await readEvents(response, (name, data) => {
            this.onState("live");
            this.onEvent(name, JSON.parse(data));
          });
        }
      } catch (error) {
        if (error.name === "AbortError") return;
      }
      this.onState("lost");
      await new Promise((wake) => setTimeout(wake, Math.min(500 * 2 ** tries, 5000)));
    }
  }
}
