// The worker: all that computes, so that the page stays at hand. It hears `open` once, then one `check` after another.

import { reader } from "./loading.js";
import { openModel, openNets, runtime } from "./models.js";
import { pipeline } from "./pipeline.js";
import { withoutAlpha } from "./pixels.js";

let check;
let busy = Promise.resolve();

self.onmessage = ({ data }) => {
  busy = busy.then(() => answer(data));
};

async function answer({ id, kind, ...asked }) {
  try {
    self.postMessage({ id, value: kind === "open" ? await open(asked) : await look(asked) });
  } catch (error) {
    self.postMessage({ id, error: { code: error.code ?? "failed", message: String(error.message ?? error) } });
  }
}

async function open({ base, key, page }) {
  const read = reader(base, key);
  const ort = await runtime(base, page.runtime);
  const nets = await openNets(ort, read, page.detector);
  const one = (task) => page[task] && openModel(ort, read, page[task], task, page.settings.crops[task]);
  const [pad, recognition] = await Promise.all([one("pad"), one("recognition")]);
  check = pipeline({ nets, pad, recognition, settings: page.settings });
  const said = (model) => model && { threshold: model.threshold, digest: model.digest };
  return { pad: said(pad), recognition: said(recognition) };
}

async function look({ frame, embed }) {
  const begun = performance.now();
  const canvas = new OffscreenCanvas(frame.width, frame.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(frame, 0, 0);
  const image = withoutAlpha(context.getImageData(0, 0, frame.width, frame.height));
  frame.close();
  return { ...(await check(image, { embed })), milliseconds: performance.now() - begun };
}
