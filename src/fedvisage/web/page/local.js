// Computing in this page: a worker that is asked, and answers. No picture leaves it.

import { Refused } from "./refused.js";

export class Local {
  constructor() {
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.waiting = new Map();
    this.count = 0;
    this.worker.onmessage = ({ data }) => this.answered(data);
    this.worker.onerror = (event) => this.failed(event);
  }

  /** Load runtime and models, and return what they are. */
  open(page, base, key) {
    return this.ask({ kind: "open", page, base, key });
  }

  /** Say what a picture (an ImageBitmap, which is used up) shows. */
  check(frame, { embed }) {
    return this.ask({ kind: "check", frame, embed }, [frame]);
  }

  close() {
    this.worker.terminate();
  }

  ask(message, moved = []) {
    return new Promise((resolve, reject) => {
      this.waiting.set(++this.count, { resolve, reject });
      this.worker.postMessage({ id: this.count, ...message }, moved);
    });
  }

  answered({ id, value, error }) {
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    if (error) reject(new Refused(error.code, error.message));
    else resolve(value);
  }

  failed(event) {
    const refused = new Refused("worker", `The page's worker could not go on (${event.message ?? "it cannot be loaded"}); load the page again.`);
    for (const { reject } of this.waiting.values()) reject(refused);
    this.waiting.clear();
  }
}
