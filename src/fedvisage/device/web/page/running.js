// A running mean of scores over frames of one face, which limits the influence of a single lucky frame. If the face is
// lost, or another one appears, the mean restarts (fedvisage.device.pipeline).

import { overlap } from "./boxes.js";

export class Running {
  constructor(settings) {
    this.settings = settings;
    this.forget();
  }

  forget() {
    this.scores = [];
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
    this.scores = [...this.scores, face.pad.score].slice(-this.settings.window);
    if (this.scores.length === 1) return { ...face.pad, frames: 1 };
    const mean = this.scores.reduce((sum, score) => sum + score, 0) / this.scores.length;
    const decision = mean >= face.pad.threshold ? "bona_fide" : "attack";
    return { ...face.pad, score: mean, logit: null, decision, frames: this.scores.length };
  }
}
