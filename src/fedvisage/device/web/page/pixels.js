// Scale and cut pictures (width, height, data: three bytes per pixel in RGB) with OpenCV's arithmetic.
//
// The scaling of browsers differs between them, and so would the scores.

import { Refused } from "./refused.js";
import { clipped, nearest } from "./rounding.js";

const { fround } = Math;
const CHANNELS = 3;
const LINEAR_ONE = 2048; // weights of linear scaling are whole numbers of 11 bits

export function picture(width, height, data = new Uint8ClampedArray(width * height * CHANNELS)) {
  return { width, height, data };
}

/** Remove the alpha channel from a canvas's data; refuse transparent pixels, like Python. */
export function withoutAlpha({ width, height, data }) {
  const out = new Uint8ClampedArray(width * height * CHANNELS);
  for (let from = 0, to = 0; from < data.length; from += 4, to += CHANNELS) {
    out[to] = data[from];
    out[to + 1] = data[from + 1];
    out[to + 2] = data[from + 2];
    if (data[from + 3] < 255) throw new Refused("picture", "The picture has transparent pixels; flatten it onto a background first.");
  }
  return picture(width, height, out);
}

/** Turn a picture by quarter turns, counter-clockwise. */
export function turned({ width, height, data }, turns) {
  const out = turns % 2 ? picture(height, width) : picture(width, height);
  // The pixel of `data` that becomes the first one, and the distances to its neighbours on the right and below.
  const [first, right, below] = [
    [0, 1, width],
    [width - 1, width, -1],
    [width * height - 1, -1, -width],
    [width * (height - 1), -width, 1],
  ][turns];
  for (let y = 0, to = 0; y < out.height; y++) {
    for (let x = 0; x < out.width; x++, to += CHANNELS) copyPixel(data, first + x * right + y * below, out.data, to);
  }
  return out;
}

/** Add a border that repeats the picture's edge. */
export function bordered({ width, height, data }, border) {
  const out = picture(width + 2 * border, height + 2 * border);
  for (let y = 0, to = 0; y < out.height; y++) {
    const row = clipped(y - border, 0, height - 1) * width;
    for (let x = 0; x < out.width; x++, to += CHANNELS) copyPixel(data, row + clipped(x - border, 0, width - 1), out.data, to);
  }
  return out;
}

function copyPixel(data, pixel, out, to) {
  for (let channel = 0; channel < CHANNELS; channel++) out[to + channel] = data[pixel * CHANNELS + channel];
}

/** Scale a picture, averaging pixels when it shrinks. */
export function resized(image, width, height) {
  if (width === image.width && height === image.height) return image;
  return width < image.width || height < image.height ? averaged(image, width, height) : enlarged(image, width, height);
}

/** Cut out a rectangle of whole pixels; the area outside the picture is black. */
export function cut(image, left, top, width, height) {
  const out = picture(width, height);
  const from = Math.max(left, 0);
  const to = Math.min(left + width, image.width);
  if (to <= from) return out;
  for (let y = Math.max(top, 0); y < Math.min(top + height, image.height); y++) {
    const row = image.data.subarray((y * image.width + from) * CHANNELS, (y * image.width + to) * CHANNELS);
    out.data.set(row, ((y - top) * width + from - left) * CHANNELS);
  }
  return out;
}

/** Average the pixels under each new pixel, weighting those at its edges by the covered share.
 *
 * OpenCV works in single precision, so each product and sum is rounded to it: otherwise, values near a half could be
 * rounded to the other side.
 */
export function averaged(image, width, height) {
  const wide = image.width / width;
  const high = image.height / height;
  if (Number.isInteger(wide) && Number.isInteger(high)) return averagedWhole(image, width, height, wide, high);
  const columns = shares(image.width, width);
  const rows = shares(image.height, height);
  const out = picture(width, height);
  const sums = new Float32Array(width * CHANNELS);
  const line = new Float32Array(width * CHANNELS);
  for (let y = 0; y < height; y++) {
    sums.fill(0);
    for (let part = rows.first[y]; part < rows.first[y + 1]; part++) {
      weighLine(image, rows.source[part], columns, line);
      const weight = rows.weight[part];
      for (let x = 0; x < line.length; x++) sums[x] += fround(weight * line[x]);
    }
    out.data.set(sums, y * width * CHANNELS); // rounds like OpenCV
  }
  return out;
}

function weighLine(image, y, columns, line) {
  const { data } = image;
  const start = y * image.width * CHANNELS;
  const { first, source, weight } = columns;
  for (let x = 0, to = 0; to < line.length; x++, to += CHANNELS) {
    let red = 0;
    let green = 0;
    let blue = 0;
    for (let part = first[x]; part < first[x + 1]; part++) {
      const from = start + source[part] * CHANNELS;
      const share = weight[part];
      red = fround(red + fround(data[from] * share));
      green = fround(green + fround(data[from + 1] * share));
      blue = fround(blue + fround(data[from + 2] * share));
    }
    line[to] = red;
    line[to + 1] = green;
    line[to + 2] = blue;
  }
}

/** Return the pixels under each new pixel along one side, and their shares. */
function shares(length, wanted) {
  const scale = 1 / (wanted / length);
  const first = new Int32Array(wanted + 1);
  const source = [];
  const weight = [];
  for (let index = 0; index < wanted; index++) {
    const begin = index * scale;
    const end = begin + scale;
    const whole = Math.min(scale, length - begin);
    const last = Math.min(Math.floor(end), length - 1);
    const next = Math.min(Math.ceil(begin), last);
    const add = (place, share) => (source.push(place), weight.push(share / whole));
    if (next - begin > 1e-3) add(next - 1, next - begin);
    for (let place = next; place < last; place++) add(place, 1);
    if (end - last > 1e-3) add(last, Math.min(Math.min(end - last, 1), whole));
    first[index + 1] = source.length;
  }
  return { first, source: Int32Array.from(source), weight: Float32Array.from(weight) };
}

function averagedWhole(image, width, height, wide, high) {
  const out = picture(width, height);
  const share = fround(1 / (wide * high));
  const halvesUp = wide === 2 && high === 2; // OpenCV has separate code for this case
  for (let y = 0, to = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      for (let channel = 0; channel < CHANNELS; channel++, to++) {
        let sum = 0;
        for (let row = 0; row < high; row++) {
          const from = ((y * high + row) * image.width + x * wide) * CHANNELS + channel;
          for (let column = 0; column < wide; column++) sum += image.data[from + column * CHANNELS];
        }
        out.data[to] = halvesUp ? (sum + 2) >> 2 : fround(sum * share);
      }
    }
  }
  return out;
}

/** Enlarge a picture by linear interpolation between pixel centres, in integers. */
function enlarged(image, width, height) {
  const columns = neighbours(image.width, width, true);
  const rows = neighbours(image.height, height, false);
  const out = picture(width, height);
  const line = (y) => stretched(image, clipped(y, 0, image.height - 1), columns);
  for (let y = 0, to = 0; y < height; y++) {
    const upper = line(rows.place[y]);
    const lower = line(rows.place[y] + 1);
    const [upperWeight, lowerWeight] = [LINEAR_ONE - rows.weight[y], rows.weight[y]];
    for (let x = 0; x < upper.length; x++, to++) {
      out.data[to] = ((((upperWeight * (upper[x] >> 4)) >> 16) + ((lowerWeight * (lower[x] >> 4)) >> 16)) + 2) >> 2;
    }
  }
  return out;
}

function stretched(image, y, { place, weight }) {
  const start = y * image.width * CHANNELS;
  const line = new Int32Array(place.length * CHANNELS);
  for (let x = 0; x < place.length; x++) {
    const from = start + place[x] * CHANNELS;
    const beside = start + Math.min(place[x] + 1, image.width - 1) * CHANNELS;
    for (let channel = 0; channel < CHANNELS; channel++) {
      const [first, second] = [image.data[from + channel], image.data[beside + channel]];
      line[x * CHANNELS + channel] = first * (LINEAR_ONE - weight[x]) + second * weight[x];
    }
  }
  return line;
}

/** Return for each new pixel along one side the pixel before its centre, and the weight of the one after it. */
function neighbours(length, wanted, inside) {
  const scale = 1 / (wanted / length);
  const place = new Int32Array(wanted);
  const weight = new Int32Array(wanted);
  for (let index = 0; index < wanted; index++) {
    const middle = fround((index + 0.5) * scale - 0.5);
    let low = Math.floor(middle);
    let rest = fround(middle - low);
    if (inside && (low < 0 || low >= length - 1)) [low, rest] = [low < 0 ? 0 : length - 1, 0];
    place[index] = low;
    weight[index] = nearest(rest * LINEAR_ONE);
  }
  return { place, weight };
}
