// Local computation: two workers, each with runtime and models, process frames in turn. No picture leaves the page.
//
// Two workers with one thread process more frames than one worker with two threads, and need no headers from a server.

import { Refused } from "./refused.js";

const WORKERS = 2;

export class Local {
  constructor() {
    this.ready = [];
  }

  /** Number of frames processed at the same time. */
  get lanes() {
    return this.ready.length;
  }

  /** Load runtime and models, and return the models' descriptions; the second worker starts once the first is ready. */
  async open(page, base, key) {
    const models = await this.add(page, base, key);
    const more = Math.min(WORKERS, navigator.hardwareConcurrency ?? 1) > 1;
    this.growing = more ? this.add(page, base, key).catch(() => {}) : null; // one worker is enough
    return models;
  }

  async add(page, base, key) {
    const lane = new Lane();
    const models = await lane.ask({ kind: "open", page, base, key });
    if (this.closed) lane.close();
    else this.ready.push(lane);
    return models;
  }

  /** Check a picture (an ImageBitmap, which is consumed) in the least busy worker. */
  check(frame, { embed }) {
    const [lane] = [...this.ready].sort((first, second) => first.waiting.size - second.waiting.size);
    return lane.ask({ kind: "check", frame, embed }, [frame]);
  }

  close() {
    this.closed = true;
    for (const lane of this.ready) lane.close();
  }
}

/** A worker that answers requests in order. */
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
    const refused = new Refused("worker", `The page's worker stopped (${why}); reload the page.`);
    for (const { reject } of this.waiting.values()) reject(refused);
    this.waiting.clear();
  }
}
