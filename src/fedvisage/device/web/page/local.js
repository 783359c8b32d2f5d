// Computing in this page: two workers, each with all that is needed, that look at frames in turn. No picture leaves it.
//
// Two workers of one thread get more frames done than one of two threads, and need no headers from a server.

import { Refused } from "./refused.js";

const WORKERS = 2;

export class Local {
  constructor() {
    this.ready = [];
  }

  /** How many frames may be under way. */
  get lanes() {
    return this.ready.length;
  }

  /** Load runtime and models, and return what they are; the second worker comes when the first one works already. */
  async open(page, base, key) {
    const said = await this.add(page, base, key);
    const more = Math.min(WORKERS, navigator.hardwareConcurrency ?? 1) > 1;
    this.growing = more ? this.add(page, base, key).catch(() => {}) : null; // one is enough
    return said;
  }

  async add(page, base, key) {
    const lane = new Lane();
    const said = await lane.ask({ kind: "open", page, base, key });
    if (this.closed) lane.close();
    else this.ready.push(lane);
    return said;
  }

  /** Say what a picture (an ImageBitmap, which is used up) shows; the worker with the least to do is asked. */
  check(frame, { embed }) {
    const [lane] = [...this.ready].sort((one, other) => one.waiting.size - other.waiting.size);
    return lane.ask({ kind: "check", frame, embed }, [frame]);
  }

  close() {
    this.closed = true;
    for (const lane of this.ready) lane.close();
  }
}

/** A worker that is asked, and answers in the order of the questions. */
class Lane {
  constructor() {
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.waiting = new Map();
    this.count = 0;
    this.worker.onmessage = ({ data }) => this.answered(data);
    this.worker.onerror = (event) => this.failed(event);
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
    const why = event.message ?? "it cannot be loaded";
    const refused = new Refused("worker", `The page's worker could not go on (${why}); load the page again.`);
    for (const { reject } of this.waiting.values()) reject(refused);
    this.waiting.clear();
  }
}
