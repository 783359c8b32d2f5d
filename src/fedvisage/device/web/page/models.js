// Networks on onnxruntime-web: the detector's three, and exported models as `fedvisage export` writes them.

import { readGraph } from "./graph.js";
import { Refused } from "./refused.js";

const LENGTH = 1e-3; // how far an embedding's length may be from one

/** Load the runtime, on one thread: there are several workers. */
export async function runtime(base, { module, threads, wasm }) {
  const ort = await import(new URL(module, base));
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = { mjs: new URL(threads, base).href, wasm: new URL(wasm, base).href };
  return ort;
}

/** Open the detector's networks: functions from floats and their shape to outputs. */
export async function openNets(ort, read, { files }) {
  return Promise.all(
    files.map(async ({ path, sha256 }) => {
      const { session } = await opened(ort, path, await read.checked(path, sha256));
      return async (values, dims) => {
        const found = await session.run({ [session.inputNames[0]]: new ort.Tensor("float32", values, dims) });
        return session.outputNames.map((name) => found[name]);
      };
    }),
  );
}

/** Open an exported folder: size, threshold, digest, and `run` from a crop's bytes to numbers. */
export async function openModel(ort, read, { folder, graph }, task, crop) {
  const place = `${folder}/config.json`;
  const said = (await read.json(place))[graph];
  const description = said?.description;
  if (description?.task !== task || !description.threshold) {
    throw new Refused("damaged", `${place}: is not the description of a model of ${task} with a threshold; export it again`);
  }
  if (!alike(description.crop, crop)) {
    throw new Refused("other_crops", `${place}: wants crops that this version does not make; export the model again`);
  }
  const path = `${folder}/onnx/${graph === "int8" ? "model_int8" : "model"}.onnx`;
  const { session, stated } = await opened(ort, path, await read.checked(path, said.file.sha256, said.file.bytes));
  checkStated(path, stated, description);
  const output = task === "pad" ? "logit" : "embedding";
  const { size, threshold, model_sha256: digest } = description;

  async function run(crop) {
    const images = new ort.Tensor("uint8", new Uint8Array(crop.buffer), [1, size, size, 3]);
    const values = (await session.run({ images }, [output]))[output].data;
    const length = task === "pad" ? 1 : Math.hypot(...values);
    if (!values.every(Number.isFinite) || Math.abs(length - 1) > LENGTH) {
      throw new Refused("damaged", `${path}: the model gives what is no number or no embedding; export it again`);
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
    throw new Refused("damaged", `${path}: is no graph that can be run (${String(error.message ?? error).slice(0, 200)})`);
  }
}

/** Refuse a graph that states another threshold, size or model than config.json does. */
export function checkStated(path, stated, description) {
  for (const [name, value] of Object.entries(description)) {
    if (name === "adapted" && value === null) continue; // which older graphs do not state
    if (!same(value, stated[`fedvisage.${name}`])) {
      throw new Refused("damaged", `${path}: says another ${name} inside than config.json does; export the model again`);
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

/** Whether what an export says of its crops is what is made here; an older one says nothing of some of it. */
function alike(said, made) {
  if (said === null || made === null || typeof said !== "object") return said === made;
  return Object.keys(said).every((name) => name in made && alike(said[name], made[name]));
}
