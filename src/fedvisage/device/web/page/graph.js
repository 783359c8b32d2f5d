// Check an ONNX graph before it runs, as Python does: it must contain all its tensors, and its description as metadata.
// This module reads protobuf's encoding. The numbers are those of the fields in onnx.proto.

import { Refused } from "./refused.js";

const WITHIN = {
  model: { 7: "graph", 14: "property" },
  graph: { 1: "node", 5: "tensor" },
  node: { 5: "attribute" },
  attribute: { 5: "tensor", 6: "graph", 10: "tensor", 11: "graph" },
}; // message: { field: message }
const FORBIDDEN = {
  model: { 20: "training steps", 25: "functions" },
  graph: { 15: "a sparse tensor" },
  attribute: { 22: "a sparse tensor", 23: "a sparse tensor" },
  tensor: { 13: "values in another file", 14: "values in another file" },
};
const DEEPEST = 100; // levels of messages, the limit of protobuf

/** Return the metadata of a graph; refuse one that names other files. */
export function readGraph(path, content) {
  const bytes = new Uint8Array(content);
  const stated = {};

  function walk(kind, start, end, depth) {
    if (depth > DEEPEST) refuse(path, "is nested too deeply");
    for (const { field, value, from, to } of fieldsOf(path, bytes, start, end)) {
      const forbidden = FORBIDDEN[kind]?.[field];
      // Field 14 of a tensor is the location of its values; 0 is the graph.
      if (forbidden && !(kind === "tensor" && field === 14 && value === 0)) refuse(path, `has ${forbidden}`);
      const inner = WITHIN[kind]?.[field];
      if (inner === "property") keep(from, to);
      else if (inner) walk(inner, from, to, depth + 1);
    }
  }

  function keep(start, end) {
    const texts = {};
    for (const { field, from, to } of fieldsOf(path, bytes, start, end)) {
      texts[field] = new TextDecoder().decode(bytes.subarray(from, to));
    }
    stated[texts[1]] = texts[2];
  }

  walk("model", 0, bytes.length, 0);
  return stated;
}

/** Yield the fields of a message: the value of a number, or the start and end of the bytes of a text or message. */
function* fieldsOf(path, bytes, start, end) {
  let at = start;

  function number() {
    let value = 0;
    for (let factor = 1; at < end && factor < 2 ** 70; factor *= 128) {
      const byte = bytes[at++];
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
    return refuse(path, "is not a complete graph");
  }

  while (at < end) {
    const tag = number();
    const field = Math.floor(tag / 8);
    const type = tag % 8;
    if (type === 0) {
      yield { field, value: number() };
      continue;
    }
    if (![1, 2, 5].includes(type)) refuse(path, "is not a complete graph");
    const length = type === 1 ? 8 : type === 5 ? 4 : number();
    if (at + length > end) refuse(path, "is not a complete graph");
    yield { field, from: at, to: at + length };
    at += length;
  }
}

function refuse(path, reason) {
  throw new Refused("damaged", `${path}: ${reason}; export the model again`);
}
