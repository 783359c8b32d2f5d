// The MTCNN cascade, which detects faces and their five points: Zhang et al., "Joint Face Detection and Alignment Using
// Multitask Cascaded Convolutional Networks", IEEE Signal Processing Letters 23(10), 2016, section II-A. Steps, files and
// numbers are the same as in fedvisage.faces.detection, so that both give the same result.

import { warped } from "./align.js";
import { moved, squared, suppress } from "./boxes.js";
import { cut, resized } from "./pixels.js";
import { nearest } from "./rounding.js";

const CELL = 12; // input side of the first network; STRIDE is the distance between its places
const STRIDE = 2;
const MIDDLE = 24; // input sides of the other two networks
const LAST = 48;
const AT_ONCE = 128;

/**
 * Return a function that finds the faces of a picture, highest confidence first.
 *
 * A net maps (floats, [N, W, H, 3]) to its outputs, each with `data` and `dims`; `settings` are those of Python.
 */
export function detector([first, second, third], settings) {
  return async (image) => {
    const seen = reduced(image, settings.longest_side);
    const scale = [image.width / seen.width, image.height / seen.height];
    const proposed = await propose(first, seen, settings);
    const looked = await lookAgain(second, seen, proposed, settings);
    return (await lookClosely(second, third, seen, looked, scale, settings)).filter(
      (face) => face.confidence >= settings.lowest_confidence,
    );
  };
}

/** Stage 1: run the first network at every place of an image pyramid. */
async function propose(net, image, settings) {
  const proposals = { boxes: [], scores: [], offsets: [] };
  const smaller = Math.min(image.width, image.height);
  for (let scale = CELL / settings.smallest; smaller * scale >= CELL; scale *= settings.shrink) {
    const level = await proposeAt(net, image, scale, settings.sure[0]);
    for (const index of suppress(level.boxes, level.scores, settings.alike_in_level, "union")) {
      for (const name of Object.keys(proposals)) proposals[name].push(level[name][index]);
    }
  }
  const kept = suppress(proposals.boxes, proposals.scores, settings.alike, "union");
  return kept.map((index) => squared(moved(proposals.boxes[index], proposals.offsets[index])));
}

async function proposeAt(net, image, scale, sure) {
  const [width, height] = [image.width, image.height].map((side) => Math.max(CELL, nearest(side * scale)));
  const input = new Float32Array(width * height * 3);
  prepare(resized(image, width, height), input, 0);
  const [offsets, scores] = await net(input, [1, width, height, 3]);
  const rows = scores.dims[2];
  const [across, down] = [image.width / width, image.height / height];
  const level = { boxes: [], scores: [], offsets: [] };
  for (let place = 0; place < scores.data.length / 2; place++) {
    const score = scores.data[2 * place + 1];
    if (score < sure) continue;
    const [x, y] = [Math.floor(place / rows) * STRIDE, (place % rows) * STRIDE]; // the first axis is x
    level.boxes.push([x * across, y * down, (x + CELL) * across, (y + CELL) * down]);
    level.scores.push(score);
    level.offsets.push(offsets.data.subarray(4 * place, 4 * place + 4));
  }
  return level;
}

/** Stage 2: run the second network on the remaining squares. */
async function lookAgain(net, image, boxes, settings) {
  const { whole, outputs } = await shown(net, image, boxes, MIDDLE);
  const [offsets, scores] = outputs;
  const sure = surest(scores, whole.length, settings.sure[1]);
  const kept = suppress(sure.map((index) => whole[index]), sure.map((index) => scores[2 * index + 1]), settings.alike, "union");
  return kept.map((number) => sure[number]).map((index) => squared(moved(whole[index], at(offsets, index, 4))));
}

/** Stage 3: decide, and locate the points; the network outputs all x shares before all y shares. */
async function lookClosely(second, third, image, boxes, scale, settings) {
  const { whole, outputs } = await shown(third, image, boxes, LAST);
  const [offsets, points, scores] = outputs;
  const sure = surest(scores, whole.length, settings.sure[2]);
  const final = sure.map((index) => moved(whole[index], at(offsets, index, 4)));
  const kept = suppress(final, sure.map((index) => scores[2 * index + 1]), settings.alike, "smaller");
  const faces = [];
  for (const number of kept) {
    const square = whole[sure[number]];
    const [left, top, right, bottom] = final[number];
    const shares = at(points, sure[number], 10);
    const face = {
      box: {
        x: left * scale[0],
        y: top * scale[1],
        width: (right - left) * scale[0],
        height: (bottom - top) * scale[1],
      },
      points: [0, 1, 2, 3, 4].map((point) => [
        (square[0] + shares[point] * (square[2] - square[0])) * scale[0],
        (square[1] + shares[point + 5] * (square[3] - square[1])) * scale[1],
      ]),
      confidence: scores[2 * sure[number] + 1],
    };
    const around = squared(final[number]);
    const [middle, last] = [
      await turnedOdds(second, image, around, MIDDLE, settings.turns),
      await turnedOdds(third, image, around, LAST, settings.turns),
    ];
    const odds = middle.map((value, turn) => 2 * value + last[turn]);
    const sureness = 2 * logOdds(scores, sure[number]) + odds[0] - Math.max(...odds.slice(1));
    if (plausible(face, settings.plausible) && sureness >= settings.upright) faces.push(face);
  }
  return faces;
}

/** Return the log-odds of a face in a square box, its content turned around its middle by each of the angles. */
async function turnedOdds(net, image, [left, top, right, bottom], side, angles) {
  const wide = 2 * Math.ceil(side / Math.SQRT2);
  const length = Math.max(1, nearest(((right - left) * wide) / side));
  const [x, y] = [nearest((left + right) / 2 - length / 2), nearest((top + bottom) / 2 - length / 2)];
  const around = resized(cut(image, x, y, length, length), wide, wide);
  const input = new Float32Array(angles.length * side * side * 3);
  const [centre, margin] = [(wide - 1) / 2, (wide - side) / 2];
  angles.forEach((angle, number) => {
    const [cos, sin] = [Math.cos((angle * Math.PI) / 180), Math.sin((angle * Math.PI) / 180)];
    const [across, down] = [(1 - cos - sin) * centre - margin, (1 + sin - cos) * centre - margin];
    prepare(warped(around, [cos, sin, across, -sin, cos, down], side), input, number * side * side * 3);
  });
  const scores = (await net(input, [angles.length, side, side, 3])).at(-1).data;
  return angles.map((_, number) => logOdds(scores, number));
}

function logOdds(scores, index) {
  return Math.log(Math.max(scores[2 * index + 1], 1e-12) / Math.max(scores[2 * index], 1e-12));
}

/** Return whether the points can be those of a face, like Face.plausible in Python. */
function plausible({ box, points }, { near, least_across: leastAcross, least_down: leastDown, straight, parallel }) {
  const [leftEye, rightEye, nose, leftMouth, rightMouth] = points;
  const between = (first, second) => [second[0] - first[0], second[1] - first[1]];
  const centre = (first, second) => [(first[0] + second[0]) / 2, (first[1] + second[1]) / 2];
  const dot = (first, second) => first[0] * second[0] + first[1] * second[1];
  const eyes = centre(leftEye, rightEye);
  const [across, mouth] = [between(leftEye, rightEye), between(leftMouth, rightMouth)];
  const [down, toNose] = [between(eyes, centre(leftMouth, rightMouth)), between(eyes, nose)];
  const [wide, high, side] = [Math.hypot(...across), Math.hypot(...down), Math.max(box.width, box.height)];
  return (
    across[0] * down[1] - across[1] * down[0] >= straight * wide * high &&
    dot(across, mouth) >= parallel * wide * Math.hypot(...mouth) &&
    wide >= leastAcross * side && high >= leastDown * side && high <= side &&
    dot(toNose, down) > 0 && dot(toNose, down) < dot(down, down) &&
    points.every(([x, y]) =>
      x >= box.x - near * box.width && x <= box.x + (1 + near) * box.width &&
      y >= box.y - near * box.height && y <= box.y + (1 + near) * box.height)
  );
}

/** Run a network on square boxes in batches; return the boxes in whole pixels, and the outputs for all of them. */
async function shown(net, image, boxes, side) {
  const whole = boxes.map(([left, top, right]) => {
    const length = Math.max(1, nearest(right - left));
    const [x, y] = [nearest(left), nearest(top)];
    return [x, y, x + length, y + length];
  }).filter((box) => box[2] > 0 && box[3] > 0 && box[0] < image.width && box[1] < image.height);
  const parts = [];
  for (let start = 0; start < whole.length; start += AT_ONCE) {
    const batch = whole.slice(start, start + AT_ONCE);
    const input = new Float32Array(batch.length * side * side * 3);
    batch.forEach(([left, top, right, bottom], number) => {
      const square = resized(cut(image, left, top, right - left, bottom - top), side, side);
      prepare(square, input, number * side * side * 3);
    });
    parts.push(await net(input, [batch.length, side, side, 3]));
  }
  const outputs = [0, 1, 2].map((output) => parts.flatMap((part) => Array.from(part[output]?.data ?? [])));
  return { whole, outputs };
}

function surest(scores, count, least) {
  return Array.from({ length: count }, (_, index) => index).filter((index) => scores[2 * index + 1] >= least);
}

function at(values, index, length) {
  return values.slice(index * length, (index + 1) * length);
}

/** Return a picture whose longer side has at most this length. */
export function reduced(image, longest) {
  const scale = longest / Math.max(image.width, image.height);
  if (scale >= 1) return image;
  return resized(image, ...[image.width, image.height].map((side) => Math.max(1, nearest(side * scale))));
}

/** Write a picture in the networks' input format: about -1 to 1, with x as the first axis. */
function prepare({ width, height, data }, out, start) {
  for (let y = 0, from = 0; y < height; y++) {
    for (let x = 0; x < width; x++, from += 3) {
      const to = start + (x * height + y) * 3;
      out[to] = (data[from] - 127.5) / 128;
      out[to + 1] = (data[from + 1] - 127.5) / 128;
      out[to + 2] = (data[from + 2] - 127.5) / 128;
    }
  }
}
