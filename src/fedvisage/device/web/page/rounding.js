// Round to integers like Python: halves go to the even neighbour.

export function nearest(value) {
  const low = Math.floor(value);
  const rest = value - low;
  if (rest === 0.5) return low % 2 === 0 ? low : low + 1;
  return rest < 0.5 ? low : low + 1;
}

export function clipped(value, low, high) {
  return Math.min(Math.max(value, low), high);
}
