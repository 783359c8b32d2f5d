// Check whether a face can be evaluated, the same as fedvisage.faces.quality: size, sharpness, pose, and number of faces.
// The texts of the reasons come from Python with the settings.

import { aligned } from "./align.js";

export function measured(image, face, alone, settings) {
  const { limits, reasons, alignment } = settings;
  const size = Math.min(face.box.width, face.box.height);
  const sharp = sharpness(aligned(image, face.points, alignment.side, alignment));
  const { turned, tilted } = pose(face.points);
  const wrong = [
    [reasons.several, !alone],
    [reasons.small, size < limits.smallest],
    [reasons.blurred, sharp < limits.sharpness],
    [reasons.turned, turned > limits.turned],
    [reasons.tilted, tilted > limits.tilted],
  ];
  return { size, sharpness: sharp, turned, tilted, reasons: wrong.filter(([, is]) => is).map(([reason]) => reason) };
}

/** Mean square of the Laplacian over the variance of brightness. */
export function sharpness({ width, height, data }) {
  const grey = brightness(data);
  const mean = grey.reduce((sum, value) => sum + value, 0) / grey.length;
  const variance = grey.reduce((sum, value) => sum + (value - mean) ** 2, 0) / grey.length;
  if (variance < 1) return 0;
  // Beyond the edge, the picture is mirrored at the centre of its last pixel.
  const beside = (place, length) => (place < 0 ? 1 : place >= length ? length - 2 : place);
  let sum = 0;
  for (let y = 0; y < height; y++) {
    const [up, down] = [beside(y - 1, height) * width, beside(y + 1, height) * width];
    for (let x = 0; x < width; x++) {
      const across = grey[y * width + beside(x - 1, width)] + grey[y * width + beside(x + 1, width)];
      sum += (across + grey[up + x] + grey[down + x] - 4 * grey[y * width + x]) ** 2;
    }
  }
  return sum / grey.length / variance;
}

/** Return the turn of a face to one side, in halves of the eyes' distance, and its tilt in degrees. */
export function pose([left, right, nose]) {
  const along = [right[0] - left[0], right[1] - left[1]];
  const length = Math.hypot(...along);
  if (length === 0) return { turned: 1, tilted: 0 };
  const middle = [(left[0] + right[0]) / 2, (left[1] + right[1]) / 2];
  const aside = Math.abs((nose[0] - middle[0]) * along[0] + (nose[1] - middle[1]) * along[1]);
  return { turned: aside / length / (length / 2), tilted: Math.abs((Math.atan2(along[1], along[0]) * 180) / Math.PI) };
}

/** Convert RGB to grey in integers, like OpenCV. */
function brightness(data) {
  const grey = new Float64Array(data.length / 3);
  for (let index = 0, from = 0; index < grey.length; index++, from += 3) {
    grey[index] = (data[from] * 9798 + data[from + 1] * 19235 + data[from + 2] * 3735 + 16384) >> 15;
  }
  return grey;
}
