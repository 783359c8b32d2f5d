// Computing at the service: only when a person chose that, pictures go there, and it keeps none.

import { Refused } from "./refused.js";

export class Remote {
  lanes = 1; // how many frames may be under way

  async open(page, base, key) {
    this.base = base;
    this.headers = key ? { authorization: `Bearer ${key}` } : {};
    this.reasons = page.settings.reasons;
    const { pipeline, recognition } = await this.ask("v1/models", {});
    this.recognises = recognition !== null;
    const short = (digest) => digest?.replace("sha256:", "");
    return {
      pad: { threshold: null, digest: short(pipeline.pad) },
      recognition: recognition && {
        threshold: { value: recognition.threshold, rule: recognition.operating_point },
        digest: short(pipeline.recognition),
      },
    };
  }

  async check(frame, { embed }) {
    const begun = performance.now();
    const canvas = new OffscreenCanvas(frame.width, frame.height);
    canvas.getContext("2d").drawImage(frame, 0, 0);
    frame.close();
    const body = await canvas.convertToBlob({ type: "image/png" });
    const route = embed && this.recognises ? "v1/embed" : "v1/pad";
    const said = await this.ask(route, { method: "POST", body, headers: { "content-type": "image/png" } });
    return { ...this.judged(said.faces), turned: false, milliseconds: performance.now() - begun };
  }

  /** The service judges every face; this page, as a door does, wants one alone. */
  judged(faces) {
    if (!faces.length) return { faces, decision: "no_decision", reasons: [this.reasons.no_face] };
    if (faces.length > 1) {
      const undecided = (pad) => pad && { ...pad, decision: "no_decision", score: null };
      const others = faces.map((face) => ({ ...face, pad: undecided(face.pad), embedding: null }));
      return { faces: others, decision: "no_decision", reasons: [this.reasons.several] };
    }
    return { faces, decision: faces[0].pad?.decision ?? "no_decision", reasons: faces[0].quality.reasons };
  }

  close() {}

  async ask(route, { headers = {}, ...options }) {
    let answer;
    try {
      answer = await fetch(new URL(route, this.base), { ...options, headers: { ...this.headers, ...headers } });
    } catch {
      throw new Refused("unreachable", "The service cannot be reached; is it still there?");
    }
    const said = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Refused(said.error?.code ?? "failed", `The service: ${said.error?.message ?? answer.status}`);
    return said;
  }
}
