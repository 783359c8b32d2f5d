// A running mean of log-odds over frames of one face, which limits the influence of a single lucky frame. If the face is
// lost, or another one appears, the mean restarts (fedvisage.device.pipeline).

import { overlap } from "./boxes.js";

const LIMIT = 40; // graphs limit their log-odds to it
const logOdds = (score) => Math.max(-LIMIT, Math.min(LIMIT, Math.log(score / (1 - score))));

export class Running {
  constructor(settings) {
    this.settings = settings;
    this.forget();
  }

  forget() {
    this.logits = [];
    this.box = null;
  }

  /** Add the result of a frame, and return the verdict by the mean of the last ones; null if there is none. */
  add(checked) {
    const face = checked.faces[0];
    if (!face?.pad || face.pad.score === null) {
      this.forget();
      return null;
    }
    if (this.box && overlap(this.box, face.box) < this.settings.same_place) this.forget();
    this.box = face.box;
    this.logits = [...this.logits, logOdds(face.pad.score)].slice(-this.settings.window);
    const frames = this.logits.length;
    if (frames === 1) return { ...face.pad, frames };
    const logit = this.logits.reduce((sum, value) => sum + value, 0) / frames;
    const decision = logit >= logOdds(face.pad.threshold) ? "bona_fide" : "attack";
    return { ...face.pad, score: 1 / (1 + Math.exp(-logit)), logit, decision, frames };
  }
}
