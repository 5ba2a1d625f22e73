/** A program's files: the plans, the kernels' texts, and where weights are. */

import { corrupt } from "./errors.js";
import { type Kernel, type Plans, readPlans } from "./plan.js";
import { readHeader } from "./safetensors.js";
import { FileSource, type ModelSource, type Source, UrlSource, readText } from "./source.js";
import { type WeightParts, partsOfHeader, partsOfRecipes } from "./weights.js";

export interface Program extends Plans {
  readonly source: Source;
  text(kernel: Kernel, signal?: AbortSignal): Promise<string>;
  /** Where the bytes of these weights are, and of others. */
  weightParts(names: Iterable<string>, signal?: AbortSignal): Promise<WeightParts>;
}

const WEIGHTS = "weights.safetensors";
const BUNDLE = /\.wgfc$/i;

export async function openProgram(from: ModelSource, signal?: AbortSignal): Promise<Program> {
  if (typeof from === "string" || from instanceof URL) {
    const url = new URL(from, globalThis.location?.href);
    const name = url.pathname.split("/").pop()!;
    if (BUNDLE.test(name)) return openBundle(new UrlSource(url), url.href, signal);
    if (name !== "plan.json" && !url.pathname.endsWith("/")) url.pathname += "/";
    return openFolder(new UrlSource(url), signal);
  }
  if (from instanceof Blob) return openBundle(new FileSource({ "": from }), "", signal);
  const bundle = Object.hasOwn(from, "plan.json") ? undefined : Object.keys(from).find((n) => BUNDLE.test(n));
  return bundle === undefined ? openFolder(new FileSource(from), signal) : openBundle(new FileSource(from), bundle, signal);
}

async function openFolder(source: Source, signal?: AbortSignal): Promise<Program> {
  const plans = readPlans(await readText(source, "plan.json", signal));
  return {
    ...plans,
    source,
    text: async (k, signal) => withDirectives(k, await readText(source, `kernels/${k.name}.wgsl`, signal)),
    weightParts: async (names, signal) => {
      const recipes = partsOfRecipes(plans.weights);
      if ([...names].every((n) => recipes.has(n))) return recipes;
      return new Map([...partsOfHeader(WEIGHTS, await readHeader(source, WEIGHTS, signal)), ...recipes]);
    },
  };
}

/** One file, which has plan and kernels in its header. `file` is its name in `source`. */
async function openBundle(source: Source, file: string, signal?: AbortSignal): Promise<Program> {
  const header = await readHeader(source, file, signal);
  const entry = (name: string) => {
    const text = header.metadata.get(name);
    if (text === undefined) throw corrupt(file || source.name, `"${name}" is not in its header, as it is in bundles that \`wgfc compile\` writes`);
    return text;
  };
  const plans = readPlans(entry("plan.json"));
  return {
    ...plans,
    source,
    text: async (k) => withDirectives(k, entry(`kernels/${k.name}.wgsl`)),
    // In recipes the bundle itself has no name.
    weightParts: async () => new Map([...partsOfHeader(file, header), ...partsOfRecipes(plans.weights, (name) => name || file)]),
  };
}

/** Texts of older compilers come without the directives of the extensions that they use. */
function withDirectives({ features }: Kernel, text: string): string {
  const words = features.map((f) => f.replace("shader-", "")).filter((w) => w === "f16" || w === "subgroups");
  return words.filter((w) => !new RegExp(`^\\s*enable\\b[^;]*\\b${w}\\b`, "m").test(text)).map((w) => `enable ${w};\n`).join("") + text;
}
