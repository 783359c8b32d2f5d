// Open networks on onnxruntime-web: the detector's three, and exported models written by `fedvisage export`.

import { readGraph } from "./graph.js";
import { Refused } from "./refused.js";

const LENGTH = 1e-3; // maximum deviation of an embedding's length from 1

/** Load the runtime on one thread, because there are several workers; the WebAssembly is checked by its digest. */
export async function runtime(base, read, { module, threads, wasm, wasm_sha256: digest }) {
  const [ort, binary] = await Promise.all([import(new URL(module, base)), read.checked(wasm, digest)]);
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = { mjs: new URL(threads, base).href };
  ort.env.wasm.wasmBinary = binary;
  return ort;
}

/** Open the detector's networks as functions from floats and their shape to outputs. */
export async function openNets(ort, read, { files }) {
  return Promise.all(
    files.map(async ({ path, sha256 }) => {
      const { session } = await opened(ort, path, await read.checked(path, sha256));
      return async (values, dims) => {
        const outputs = await session.run({ [session.inputNames[0]]: new ort.Tensor("float32", values, dims) });
        return session.outputNames.map((name) => outputs[name]);
      };
    }),
  );
}

/** Open an exported folder; return size, threshold, digest, and `run`, which maps a crop's bytes to numbers. */
export async function openModel(ort, read, { folder, graph }, task, crop) {
  const place = `${folder}/config.json`;
  const entry = (await read.json(place))[graph];
  const description = entry?.description;
  if (description?.task !== task || !description.threshold) {
    throw new Refused("damaged", `${place}: is not the description of a model of ${task} with a threshold; export it again`);
  }
  checkThreshold(place, description.threshold);
  if (!alike(description.crop, crop)) {
    throw new Refused("other_crops", `${place}: requires crops that this version does not make; export the model again`);
  }
  const path = `${folder}/onnx/${graph === "int8" ? "model_int8" : "model"}.onnx`;
  const { session, stated } = await opened(ort, path, await read.checked(path, entry.file.sha256, entry.file.bytes));
  checkStated(path, stated, description);
  const output = task === "pad" ? "logit" : "embedding";
  const { size, threshold, model_sha256: digest } = description;

  async function run(crop) {
    const images = new ort.Tensor("uint8", new Uint8Array(crop.buffer), [1, size, size, 3]);
    const values = (await session.run({ images }, [output]))[output].data;
    const length = task === "pad" ? 1 : Math.hypot(...values);
    if (!values.every(Number.isFinite) || Math.abs(length - 1) > LENGTH) {
      throw new Refused("damaged", `${path}: the model's output is not finite, or not an embedding; export it again`);
    }
    return values;
  }

  return { size, threshold, digest, run };
}

async function opened(ort, path, content) {
  const stated = readGraph(path, content);
  try {
    const session = await ort.InferenceSession.create(content, { executionProviders: ["wasm"], logSeverityLevel: 3 });
    return { session, stated };
  } catch (error) {
    throw new Refused("damaged", `${path}: cannot be run (${String(error.message ?? error).slice(0, 200)})`);
  }
}

/** Refuse a threshold that Python refuses: fedvisage.device.exported.OperatingPoint has the same limits. */
export function checkThreshold(place, { value, rule, far = null, frr = null, estimates = null, ...others }) {
  const within = (number, low, high) => typeof number === "number" && number >= low && number <= high;
  const rates = [far, frr].every((rate) => rate === null || within(rate, 0, 1));
  const named = typeof rule === "string" && [...rule].length <= 200 && !/\p{C}/u.test(rule);
  const measured = Object.values(estimates ?? {}).every((all) => Object.values(all).every((rate) => within(rate, 0, 1)));
  if (!within(value, -100, 100) || !named || !rates || !measured || Object.keys(others).length) {
    throw new Refused("damaged", `${place}: its threshold is not a value, a rule and error rates; export the model again`);
  }
}

/** Return a threshold's rule, and its error rates with intervals if there are any, as Python writes them. */
export function operatingPoint({ rule, estimates }) {
  const rates = Object.entries(estimates ?? {}).map(
    ([name, { rate, low, high }]) => `${name} ${percent(rate)} (95 %: ${percent(low)} to ${percent(high)})`,
  );
  return rates.length ? `${rule}: ${rates.join(", ")}` : rule;
}

function percent(rate) {
  return `${Number((100 * rate).toFixed(rate < 0.001 ? 4 : rate < 0.1 ? 2 : 1))}%`;
}

/** Refuse a graph whose metadata differs from config.json, for example in threshold, size or model. */
export function checkStated(path, stated, description) {
  for (const [name, value] of Object.entries(description)) {
    if (name === "adapted" && value === null) continue; // absent in older graphs
    if (!same(value, stated[`fedvisage.${name}`])) {
      throw new Refused("damaged", `${path}: contains another ${name} than config.json; export the model again`);
    }
  }
}

function same(value, text) {
  try {
    const other = JSON.parse(text);
    return alike(value, other) && alike(other, value);
  } catch {
    return false;
  }
}

/** Return whether an export's record of its crops matches this page's; older records lack some entries. */
function alike(recorded, expected) {
  if (recorded === null || expected === null || typeof recorded !== "object") return recorded === expected;
  return Object.keys(recorded).every((name) => name in expected && alike(recorded[name], expected[name]));
}
