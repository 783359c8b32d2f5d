// The worker, which keeps the page responsive: it receives one `open` message, then `check` messages.

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
  const ort = await runtime(base, read, page.runtime);
  const nets = await openNets(ort, read, page.detector);
  const load = (task) => page[task] && openModel(ort, read, page[task], task, page.settings.crops[task]);
  const [pad, recognition] = await Promise.all([load("pad"), load("recognition")]);
  check = pipeline({ nets, pad, recognition, settings: page.settings });
  const summary = (model) => model && { threshold: model.threshold, digest: model.digest };
  return { pad: summary(pad), recognition: summary(recognition) };
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
