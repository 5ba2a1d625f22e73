/** A program's files: the plans, the kernels' texts, and the places of weights. */

import { corrupt } from "./fail.js";
import type { Json } from "./json.js";
import { type Kernel, type Plans, readPlans } from "./plan.js";
import { readHeader } from "./safetensors.js";
import { type Files, type ModelSource, type Source, UrlSource, readText } from "./source.js";
import { type WeightParts, partsOfHeader, partsOfRecipes } from "./weights.js";

export interface Program extends Plans {
  readonly source: Source;
  text(kernel: Kernel, signal?: AbortSignal): Promise<string>;
  /** The parts of these weights. Others may be included. */
  weightParts(names: Iterable<string>, signal?: AbortSignal): Promise<WeightParts>;
}

const WEIGHTS = "weights.safetensors";
const BUNDLE = /\.wgfc$/i;
const MODEL = /\.(onnx|pt2|gguf)$/i;

/** Whether the source is a model that must be compiled first. */
export async function isModel(from: ModelSource): Promise<boolean> {
  if (typeof from === "string" || from instanceof URL) return MODEL.test(new URL(from, globalThis.location?.href).pathname);
  // The header of a bundle is JSON and begins with a brace.
  if (from instanceof Blob) return (await from.slice(8, 9).text()) !== "{" || (await from.slice(0, 4).text()) === "GGUF";
  return !Object.keys(from).some((n) => n === "plan.json" || BUNDLE.test(n));
}

/** Deletes all cached downloads and plans. */
export async function clearCache(name = "wgfc"): Promise<void> {
  await globalThis.caches?.delete(name);
}

export interface OpenOptions {
  readonly signal?: AbortSignal | undefined;
  readonly cache?: boolean | string | undefined;
}

/** Makes a source cache its downloads. It is called once the places of weights are known. */
type Keep = (weights?: Json) => Source | Promise<Source>;

export async function openProgram(from: ModelSource, { signal, cache }: OpenOptions = {}): Promise<Program> {
  if (typeof from === "string" || from instanceof URL) {
    const url = new URL(from, globalThis.location?.href);
    const name = url.pathname.split("/").pop()!;
    const bundle = BUNDLE.test(name);
    if (!bundle && name !== "plan.json" && !url.pathname.endsWith("/")) url.pathname += "/";
    const source = new UrlSource(url);
    const later = cache === false ? undefined : import("./cache.js");
    const keep: Keep = async (weights) => (later ? (await later).keep(source, weights, cache) : source);
    return bundle ? openBundle(source, url.href, keep, signal) : openFolder(source, keep, signal);
  }
  const { FileSource } = await import("./files.js");
  const given: Files = from instanceof Blob ? { "": from } : from;
  const source = new FileSource(given, cache);
  const bundle = from instanceof Blob ? "" : Object.hasOwn(from, "plan.json") ? undefined : Object.keys(from).find((n) => BUNDLE.test(n));
  return bundle === undefined ? openFolder(source, () => source, signal) : openBundle(source, bundle, () => source, signal);
}

async function openFolder(files: Source, keep: Keep, signal?: AbortSignal): Promise<Program> {
  const plans = readPlans(await readText(files, "plan.json", signal));
  const source = await keep(plans.weights);
  return {
    ...plans,
    source,
    text: (k, signal) => readText(files, `kernels/${k.name}.wgsl`, signal),
    weightParts: async (names, signal) => {
      const recipes = partsOfRecipes(plans.weights);
      if ([...names].every((n) => recipes.has(n))) return recipes;
      return new Map([...partsOfHeader(WEIGHTS, await readHeader(source, WEIGHTS, signal)), ...recipes]);
    },
  };
}

/** Opens a bundle: one file with the plan and the kernels in its header. `file` is its name in `source`. */
async function openBundle(files: Source, file: string, keep: Keep, signal?: AbortSignal): Promise<Program> {
  const header = await readHeader(files, file, signal);
  const entry = (name: string) => {
    const text = header.metadata.get(name);
    if (text === undefined) throw corrupt(file || files.name, `"${name}" is not in its header, as it is in bundles that \`wgfc compile\` writes`);
    return text;
  };
  const plans = readPlans(entry("plan.json"));
  return {
    ...plans,
    source: await keep(plans.weights),
    text: async (k) => entry(`kernels/${k.name}.wgsl`),
    // Recipes refer to the bundle itself by an empty name.
    weightParts: async () => new Map([...partsOfHeader(file, header), ...partsOfRecipes(plans.weights, (name) => name || file)]),
  };
}
