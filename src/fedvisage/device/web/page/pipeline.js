// Check pictures, the same as fedvisage.device.Pipeline: faces, their quality, attack detection, and the embedding of a
// living face.

import { aligned } from "./align.js";
import { detector } from "./cascade.js";
import { operatingPoint } from "./models.js";
import { cut, resized, turned } from "./pixels.js";
import { measured } from "./quality.js";
import { clipped, nearest } from "./rounding.js";

const probability = (logit) => 1 / (1 + Math.exp(-logit));

/** Return a function that checks a picture; `pad` and `recognition` may be missing. */
export function pipeline({ nets, pad, recognition, settings }) {
  const detect = detector(nets, settings.detector);
  return async (image, { embed = true } = {}) => {
    const detected = await find(image, detect, settings.upright);
    const faces = [];
    for (const face of detected.faces) {
      const quality = measured(detected.image, face, detected.faces.length === 1, settings);
      const verdict = pad ? await judged(detected.image, face, quality, pad, settings) : null;
      const passed = quality.reasons.length === 0 && (verdict === null || verdict.decision === "bona_fide");
      const embedding = embed && recognition && passed ? await embedded(detected.image, face, recognition, settings) : null;
      faces.push({ ...(detected.turned ? asItCame(face, image) : face), quality, pad: verdict, embedding });
    }
    return { faces, turned: detected.turned, ...decided(faces, settings) };
  };
}

function decided(faces, { reasons }) {
  if (!faces.length) return { decision: "no_decision", reasons: [reasons.no_face] };
  return { decision: faces[0].pad?.decision ?? "no_decision", reasons: faces[0].quality.reasons };
}

/** Find the faces of a picture, the largest first, and turn the picture if its largest face is upside down. */
async function find(image, detect, { sure, sure_turned: sureTurned }) {
  const upright = { image, faces: bySize(await detect(image)), turned: false };
  const largest = upright.faces[0]?.confidence ?? 0;
  if (largest >= sure) return upright;
  const flipped = turned(image);
  const faces = bySize(await detect(flipped));
  return (faces[0]?.confidence ?? 0) > Math.max(sureTurned, largest) ? { image: flipped, faces, turned: true } : upright;
}

function bySize(faces) {
  return faces.sort((first, second) => second.box.width * second.box.height - first.box.width * first.box.height);
}

/** Return the square to cut around a face, and whether the picture ends too close to it, like crop_face in Python. */
export function place(image, { x, y, width, height }, margin, least) {
  const longest = Math.max(width, height);
  const side = Math.min(nearest(margin * longest), image.width, image.height);
  const left = clipped(nearest(x + width / 2 - side / 2), 0, image.width - side);
  const top = clipped(nearest(y + height / 2 - side / 2), 0, image.height - side);
  return { left, top, side, close: margin > least && side < least * longest };
}

/** Return the verdict on a face; a face whose crop would have to be enlarged counts as too small. */
async function judged(image, face, quality, pad, settings) {
  const { least_context: least, strict, reasons } = settings;
  const places = pad.shapes.map(({ margin, size }) => ({ size, ...place(image, face.box, margin, least) }));
  const upscaled = places.some(({ side, size }) => side < size);
  const tight = places.some(({ close }) => close);
  if (tight && strict) quality.reasons.push(reasons.close);
  if (upscaled && !quality.reasons.includes(reasons.small)) quality.reasons.push(reasons.small);
  const point = pad.threshold;
  const verdict = { threshold: probability(point.value), operating_point: operatingPoint(point) };
  if (quality.reasons.length) return { ...verdict, decision: "no_decision", score: null, logit: null, notes: [] };
  const notes = [...(pad.rendered ? [settings.rendered_only] : []), ...(tight ? [settings.little_context] : [])];
  const logit = await pad.score(places.map((where) => cropped(image, where)));
  const decision = logit >= point.value ? "bona_fide" : "attack";
  return { ...verdict, decision, score: probability(logit), logit, notes };
}

function cropped(image, { left, top, side, size }) {
  return resized(cut(image, left, top, side, side), size, size).data;
}

async function embedded(image, face, recognition, { alignment }) {
  return recognition.run(aligned(image, face.points, recognition.size, alignment).data);
}

function asItCame(face, image) {
  const { x, y, width, height } = face.box;
  return {
    ...face,
    box: { x: image.width - x - width, y: image.height - y - height, width, height },
    points: face.points.map(([across, down]) => [image.width - across, image.height - down]),
  };
}
