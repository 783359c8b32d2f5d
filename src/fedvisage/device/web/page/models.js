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

/** Open the folder of an exported or fused model; return threshold, digest, and the functions that compute. */
export async function openModel(ort, read, { folder, graph }, task, crop) {
  const config = await read.json(`${folder}/config.json`);
  const open = task === "pad" && config.fused ? openFused : openGraph;
  return open(ort, read, { folder, graph, config }, task, crop);
}

/** Open a fused model, whose `score` is the weighted sum of its members' log-odds. */
async function openFused(ort, read, { folder, graph, config }, task, crop) {
  const place = `${folder}/config.json`;
  const threshold = graph === "int8" ? config.int8_threshold : config.threshold;
  checkFused(place, config, threshold);
  const members = await Promise.all(
    config.members.map(async ({ config: { sha256, bytes } }, index) => {
      const own = `${folder}/members/${index + 1}`;
      const content = await read.checked(`${own}/config.json`, sha256, bytes);
      const model = { folder: own, graph, config: JSON.parse(new TextDecoder().decode(content)) };
      return openGraph(ort, read, model, task, crop);
    }),
  );
  checkSum(place, config, members);
  const keys = members.map(({ shapes: [{ margin, size }] }) => `${margin} ${size}`);
  const distinct = [...new Set(keys)]; // members of equal crops share one
  const shapes = distinct.map((key) => members[keys.indexOf(key)].shapes[0]);

  async function score(crops) {
    let sum = 0;
    for (const [index, { weight, scale }] of config.members.entries()) {
      sum += (weight * (await members[index].score([crops[distinct.indexOf(keys[index])]]))) / scale;
    }
    return sum;
  }

  const rendered = members.some((member) => member.rendered);
  return { shapes, threshold, digest: config.model_sha256, rendered, score };
}

/** Open the folder of one graph; `run` maps a crop's bytes to numbers, `score` the crops of a face to log-odds. */
async function openGraph(ort, read, { folder, graph, config }, task, expected) {
  const place = `${folder}/config.json`;
  const entry = config[graph];
  const description = entry?.description;
  if (description?.task !== task || !description.threshold) {
    throw new Refused("damaged", `${place}: is not the description of a model of ${task} with a threshold; export it again`);
  }
  checkThreshold(place, description.threshold);
  const margin = description.crop?.margin ?? expected.margin;
  if (!alike(description.crop, expected.margin === null ? expected : { ...expected, margin })) {
    throw new Refused("other_crops", `${place}: requires crops that this version does not make; export the model again`);
  }
  const path = `${folder}/onnx/${graph === "int8" ? "model_int8" : "model"}.onnx`;
  const { session, stated } = await opened(ort, path, await read.checked(path, entry.file.sha256, entry.file.bytes));
  checkStated(path, stated, description);
  const output = task === "pad" ? "logit" : "embedding";
  const { size, threshold, model_sha256: digest, files_sha256: bound, fused } = description;

  async function run(crop) {
    const images = new ort.Tensor("uint8", new Uint8Array(crop.buffer), [1, size, size, 3]);
    const values = (await session.run({ images }, [output]))[output].data;
    const length = task === "pad" ? 1 : Math.hypot(...values);
    if (!values.every(Number.isFinite) || Math.abs(length - 1) > LENGTH) {
      throw new Refused("damaged", `${path}: the model's output is not finite, or not an embedding; export it again`);
    }
    return values;
  }

  const score = async ([crop]) => (await run(crop))[0];
  const crops = description.trained_on ?? [];
  const rendered = crops.length > 0 && crops.every(({ how }) => how === "rendered");
  return { size, shapes: [{ margin, size }], threshold, digest, bound, fused, rendered, run, score };
}

/** Refuse a sum that differs from the one in its members' graphs; only graphs of earlier versions state none. */
export function checkSum(place, config, members) {
  const { model_sha256, threshold, int8_threshold = null } = config;
  const factors = config.members.map(({ weight, scale }) => [weight, scale]);
  const sum = Object.entries({ model_sha256, factors, threshold, int8_threshold });
  if (!members.some(({ bound }) => bound)) return;
  for (const { fused } of members) {
    for (const [name, value] of sum) {
      if (!fused || !alike(value, fused[name]) || !alike(fused[name], value)) {
        throw new Refused("damaged", `${place}: contains another ${name} than its members' graphs; fuse the models again`);
      }
    }
  }
}

/** Refuse a fused model that Python refuses: fedvisage.device.fused.FusedConfig has the same limits. */
export function checkFused(place, { fused, members }, threshold) {
  const factor = (value) => typeof value === "number" && value > 0 && value <= 1e6;
  const complete = ({ config, weight, scale }) => typeof config?.sha256 === "string" && factor(weight) && factor(scale);
  const several = Array.isArray(members) && members.length >= 2 && members.length <= 16;
  if (fused !== 1 || !several || !members.every(complete) || !threshold) {
    throw new Refused("damaged", `${place}: is not the description of a fused model with a threshold; fuse it again`);
  }
  checkThreshold(place, threshold);
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

/** The estimates of a threshold that was calibrated to one camera, as in fedvisage.metrics.threshold. */
const OF_CAMERA = {
  "BPCER of these pictures": ["these pictures", "rejected"],
  "BPCER expected of further pictures": ["further pictures", "expected"],
};

/** Return a threshold's rule, and its error rates with intervals if there are any, as Python writes them. */
export function operatingPoint({ rule, estimates }) {
  const rates = Object.entries(estimates ?? {}).map(([name, { rate, low, high }]) => {
    const [pictures, verb] = OF_CAMERA[name] ?? [];
    return pictures
      ? `${pictures}: ${rate > 0 && rate < 0.005 ? "<1%" : whole(rate)} ${verb} (95%: ${whole(low)} to ${whole(high)})`
      : `${name} ${percent(rate)} (95%: ${percent(low)} to ${percent(high)})`;
  });
  return rates.length ? `${rule}: ${rates.join(", ")}` : rule;
}

function whole(rate) {
  return `${Math.floor(100 * rate + 0.5)}%`;
}

function percent(rate) {
  return `${Number((100 * rate).toFixed(rate < 0.001 ? 4 : rate < 0.1 ? 2 : 1))}%`;
}

/** Refuse a graph whose metadata differs from config.json, for example in threshold, size or model. */
export function checkStated(path, stated, description) {
  const inside = Object.keys(stated).filter((key) => key.startsWith("fedvisage."));
  for (const name of [...Object.keys(description), ...inside.map((key) => key.slice("fedvisage.".length))]) {
    if (!same(description[name] ?? null, stated[`fedvisage.${name}`] ?? "null")) {
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
