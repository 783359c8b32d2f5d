// Computation at the service. Pictures are sent there only after the person chose it; the service stores none.

import { Refused } from "./refused.js";

export class Remote {
  lanes = 1; // number of frames processed at the same time

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
    const reply = await this.ask(route, { method: "POST", body, headers: { "content-type": "image/png" } });
    return { ...this.judged(reply.faces), milliseconds: performance.now() - begun };
  }

  /** The service evaluates every face; this page only accepts a single one. */
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
      throw new Refused("unreachable", "The service cannot be reached; is it running?");
    }
    const reply = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Refused(reply.error?.code ?? "failed", `The service: ${reply.error?.message ?? answer.status}`);
    return reply;
  }
}
