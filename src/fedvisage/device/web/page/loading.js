// Read files of the page's folder, and check their digests before use.

import { Refused } from "./refused.js";

/** Return functions that read files below `base`; `key` is the API key, for a service that requires one. */
export function reader(base, key) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};

  async function bytes(path) {
    let answer;
    try {
      answer = await fetch(new URL(path, base), { headers, cache: "no-cache" });
    } catch {
      throw new Refused("unreachable", `${path}: cannot be reached; is the server running?`);
    }
    if (answer.status === 401) throw new Refused("unauthorised", "The service requires a key, and this is not one of its keys.");
    if (answer.status === 404) throw new Refused("missing", `${path}: is missing; write the folder again with fedvisage web build`);
    if (!answer.ok) throw new Refused("unreachable", `${path}: the server answered ${answer.status}; try again`);
    return answer.arrayBuffer();
  }

  async function checked(path, sha256, length) {
    const content = await bytes(path);
    if ((length !== undefined && content.byteLength !== length) || (await digest(content)) !== sha256) {
      throw new Refused("wrong_digest", `${path}: does not match its digest; export the model again`);
    }
    return content;
  }

  async function json(path) {
    const text = new TextDecoder().decode(await bytes(path));
    try {
      return JSON.parse(text);
    } catch {
      throw new Refused("damaged", `${path}: is not complete JSON; write the folder again with fedvisage web build`);
    }
  }

  return { checked, json };
}

async function digest(content) {
  const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return Array.from(sum, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
