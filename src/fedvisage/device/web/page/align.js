// Five-point alignment, the same as fedvisage.faces.align: the least-squares similarity of Umeyama (1991) onto the places
// of Deng et al., "ArcFace", CVPR 2019; the area outside the picture is filled with its mirrored edge.

import { picture, resized } from "./pixels.js";
import { clipped, nearest } from "./rounding.js";

/** Return the matrix [a, b, c, d, e, f] (x' = ax + by + c, y' = dx + ey + f) that brings points closest to places. */
export function similarity(points, places) {
  const middle = (list, axis) => list.reduce((sum, point) => sum + point[axis], 0) / list.length;
  const [px, py, qx, qy] = [middle(points, 0), middle(points, 1), middle(places, 0), middle(places, 1)];
  let [along, across, size] = [0, 0, 0];
  points.forEach(([x, y], index) => {
    const [u, v, s, t] = [x - px, y - py, places[index][0] - qx, places[index][1] - qy];
    along += u * s + v * t;
    across += u * t - v * s;
    size += u * u + v * v;
  });
  // In the plane, the best rotation is the angle of (along, across), and the scale its length over the points' spread.
  const [a, b] = [along / size, across / size];
  return [a, -b, qx - a * px + b * py, b, a, qy - b * px - a * py];
}

/** Return the aligned crop of a face; `places` are the positions of its points in a crop of `side` pixels. */
export function aligned(image, points, size, { places, side }) {
  const goal = places.map((place) => place.map((value) => (value * size) / side));
  let matrix = similarity(points, goal);
  const shrink = Math.hypot(matrix[0], matrix[1]);
  if (shrink < 0.5) { // bilinear sampling would skip pixels
    const [width, height] = [image.width, image.height].map((length) => Math.max(2, nearest(length * 2 * shrink)));
    const smaller = points.map(([x, y]) => [(x * width) / image.width, (y * height) / image.height]);
    image = resized(image, width, height);
    matrix = similarity(smaller, goal);
  }
  return warped(image, matrix, size);
}

/** Return a square picture by a matrix from the old places to the new ones. */
export function warped(image, [a, b, c, d, e, f], size) {
  const whole = a * e - b * d;
  const back = [e / whole, -b / whole, -d / whole, a / whole];
  const [x0, y0] = [-back[0] * c - back[1] * f, -back[2] * c - back[3] * f];
  const out = picture(size, size);
  for (let y = 0, to = 0; y < size; y++) {
    for (let x = 0; x < size; x++, to += 3) {
      sample(image, back[0] * x + back[1] * y + x0, back[2] * x + back[3] * y + y0, out.data, to);
    }
  }
  return out;
}

function sample({ width, height, data }, x, y, out, to) {
  const [low, high] = [Math.floor(x), Math.floor(y)];
  const [right, below] = [x - low, y - high];
  const columns = [mirrored(low, width) * 3, mirrored(low + 1, width) * 3];
  const rows = [mirrored(high, height) * width * 3, mirrored(high + 1, height) * width * 3];
  for (let channel = 0; channel < 3; channel++) {
    const at = (row, column) => data[rows[row] + columns[column] + channel];
    const upper = at(0, 0) + right * (at(0, 1) - at(0, 0));
    const lower = at(1, 0) + right * (at(1, 1) - at(1, 0));
    out[to + channel] = upper + below * (lower - upper);
  }
}

/** Return the position that mirrors one outside the picture; the edge pixel is repeated. */
function mirrored(place, length) {
  if (place >= 0 && place < length) return place;
  const period = 2 * length;
  const within = ((place % period) + period) % period;
  return clipped(within < length ? within : period - 1 - within, 0, length - 1);
}
