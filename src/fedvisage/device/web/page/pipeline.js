// Check pictures, the same as fedvisage.device.Pipeline: faces, their quality, attack detection, and the embedding of a
// living face.

import { aligned } from "./align.js";
import { detector, reduced } from "./cascade.js";
import { operatingPoint } from "./models.js";
import { bordered, cut, resized, turned } from "./pixels.js";
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
      faces.push({ ...inOriginal(face, detected), quality, pad: verdict, embedding });
    }
    return { faces, turns: detected.turns, ...decided(faces, settings) };
  };
}

function decided(faces, { reasons }) {
  if (!faces.length) return { decision: "no_decision", reasons: [reasons.no_face] };
  return { decision: faces[0].pad?.decision ?? "no_decision", reasons: faces[0].quality.reasons };
}

/** Find the faces of a picture, the largest first, and turn the picture if its largest face is upside down or on its side. */
async function find(image, detect, { sure, sure_turned: sureTurned, longest, border }) {
  const search = async (turns, look) => {
    const picture = turns ? turned(image, turns) : image;
    return { image: picture, faces: bySize(await look(picture)), turns };
  };
  const confidence = ({ faces }) => faces[0]?.confidence ?? 0;
  const upright = await search(0, detect);
  if (confidence(upright) >= sure) return upright;
  const flipped = await search(2, detect);
  if (confidence(flipped) > Math.max(sureTurned, confidence(upright))) return flipped;
  if (upright.faces.length) return upright;
  // The networks miss a face that fills the picture: they need some surroundings.
  let best = upright;
  for (const turns of [0, 1, 2, 3]) {
    const result = await search(turns, (picture) => searchWithBorder(picture, detect, longest, border));
    if (confidence(result) > Math.max(sureTurned, confidence(best))) best = result;
  }
  return best;
}

/** Find the faces of a reduced picture with a border that repeats its edge; all five points lie in the picture. */
async function searchWithBorder(image, detect, longest, share) {
  const { width, height } = image;
  const scale = Math.min(1, longest / Math.max(width, height));
  const small = reduced(image, longest);
  const border = nearest(share * Math.max(small.width, small.height));
  const back = (value) => (value - border) / scale;
  const faces = (await detect(bordered(small, border))).map(({ box, points, confidence }) => ({
    box: { x: back(box.x), y: back(box.y), width: box.width / scale, height: box.height / scale },
    points: points.map((point) => point.map(back)),
    confidence,
  }));
  return faces.filter(({ points }) => points.every(([x, y]) => x >= 0 && x <= width && y >= 0 && y <= height));
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
  const crops = places.map((where) => cropped(image, where));
  const noted = [
    [settings.rendered_only, pad.rendered],
    [settings.grey.note, isGrey(crops[0], settings.grey)],
    [settings.little_context, tight],
  ];
  const notes = noted.filter(([, applies]) => applies).map(([note]) => note);
  const logit = await pad.score(crops);
  const decision = logit >= point.value ? "bona_fide" : "attack";
  return { ...verdict, decision, score: probability(logit), logit, notes };
}

function cropped(image, { left, top, side, size }) {
  return resized(cut(image, left, top, side, side), size, size).data;
}

async function embedded(image, face, recognition, { alignment }) {
  return recognition.run(aligned(image, face.points, recognition.size, alignment).data);
}

/** Return a face of a turned picture in the original one. */
function inOriginal(face, { image: { width, height }, turns }) {
  const place = ([x, y]) => [[x, y], [height - y, x], [width - x, height - y], [y, width - x]][turns];
  const { x, y, width: wide, height: high } = face.box;
  const [[left, top], [right, bottom]] = [place([x, y]), place([x + wide, y + high])];
  const [across, down] = [Math.abs(right - left), Math.abs(bottom - top)];
  const box = { x: Math.min(left, right), y: Math.min(top, bottom), width: across, height: down };
  return { ...face, box, points: face.points.map(place) };
}

/** Return whether a crop has no colours, like those of infrared cameras. */
function isGrey(data, { colourless, mostly }) {
  let grey = 0;
  for (let from = 0; from < data.length; from += 3) {
    const [red, green, blue] = data.subarray(from, from + 3);
    if (Math.max(red, green, blue) - Math.min(red, green, blue) <= colourless) grey += 3;
  }
  return grey / data.length >= mostly;
}
