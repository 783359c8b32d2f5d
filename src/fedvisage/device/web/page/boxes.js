// Operations on boxes, given as corners [left, top, right, bottom].

/** Return the indices of the boxes to keep, highest score first, without those that overlap a better box too much. */
export function suppress(boxes, scores, limit, shareOf) {
  const areas = boxes.map(area);
  let waiting = boxes.map((_, index) => index).sort((first, second) => scores[second] - scores[first]);
  const kept = [];
  while (waiting.length) {
    const [best, ...others] = waiting;
    kept.push(best);
    waiting = others.filter((index) => {
      const both = common(boxes[best], boxes[index]);
      const whole = shareOf === "smaller" ? Math.min(areas[best], areas[index]) : areas[best] + areas[index] - both;
      return both <= limit * whole;
    });
  }
  return kept;
}

/** Move each corner by a share of the box's width and height. */
export function moved(box, offsets) {
  const [width, height] = [box[2] - box[0], box[3] - box[1]];
  return [
    box[0] + offsets[0] * width,
    box[1] + offsets[1] * height,
    box[2] + offsets[2] * width,
    box[3] + offsets[3] * height,
  ];
}

/** Return the square with the same centre, as wide as the longer side. */
export function squared(box) {
  const [x, y] = [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2];
  const half = Math.max(box[2] - box[0], box[3] - box[1]) / 2;
  return [x - half, y - half, x + half, y + half];
}

/** Return the intersection of two boxes (x, y, width, height) over their union. */
export function overlap(first, second) {
  const both = common(corners(first), corners(second));
  const whole = first.width * first.height + second.width * second.height - both;
  return whole > 0 ? both / whole : 0;
}

function corners({ x, y, width, height }) {
  return [x, y, x + width, y + height];
}

function common(first, second) {
  const width = Math.min(first[2], second[2]) - Math.max(first[0], second[0]);
  const height = Math.min(first[3], second[3]) - Math.max(first[1], second[1]);
  return Math.max(width, 0) * Math.max(height, 0);
}

function area(box) {
  return Math.max(box[2] - box[0], 0) * Math.max(box[3] - box[1], 0);
}
