/** A compiled program in the playground: `plan.json`, the kernels' texts, and the files for loading it. */

import { type Size, parseSize } from "../../src/sizes.js";
import { type GraphNode, readGraph } from "./onnx.js";

export interface PlanPort {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly (number | string)[];
  readonly buffer: number;
}

export interface PlanDispatch {
  readonly kernel: number;
  readonly bindings: readonly number[];
  readonly nodes: readonly string[];
  readonly writes?: readonly string[];
  readonly workgroups: readonly (number | string)[];
  readonly bytes: number | string;
  readonly flops: number | string;
}

export interface PlanKernel {
  readonly name: string;
  readonly family: string;
  readonly workgroup_size: readonly number[];
  readonly workgroup_bytes: number;
  readonly bindings: readonly string[];
  readonly features: readonly string[];
}

export interface PlanBuffer {
  readonly kind: { readonly kind: string; readonly name?: string; readonly index?: number };
  readonly dtype: string;
  readonly elements: number | string;
}

export interface Plan {
  readonly name?: string;
  readonly inputs: readonly PlanPort[];
  readonly outputs: readonly PlanPort[];
  readonly states?: readonly { readonly name: string; readonly shape: readonly (number | string)[]; readonly growth?: { readonly length: string } | null }[];
  readonly symbols: readonly string[];
  readonly computed?: readonly { readonly symbol: string; readonly bound: number | string }[];
  readonly buffers: readonly PlanBuffer[];
  readonly kernels: readonly PlanKernel[];
  readonly dispatches: readonly PlanDispatch[];
  readonly repeats?: readonly { readonly first: number; readonly count: number; readonly times: number | string }[];
  readonly stats: { readonly model_nodes: number; readonly bytes_unfused: number | string; readonly operators?: Readonly<Record<string, string>>; readonly warnings: readonly string[] };
}

/** Files by name. URLs are not fetched here. */
export type Files = Readonly<Record<string, Uint8Array | string | Blob | URL>>;

export interface Opened {
  readonly name: string;
  readonly files: Files;
  readonly root: Record<string, unknown>;
  readonly plans: readonly Plan[];
  readonly kernels: Readonly<Record<string, string>>;
  readonly graph: readonly GraphNode[] | undefined;
  /** The model, for compiling it again. */
  readonly model?: readonly File[] | URL;
  /** The model's file, if it is small enough for a link. */
  readonly file?: { readonly name: string; readonly bytes: Uint8Array };
  /** The duration of the compilation in milliseconds, if the page compiled it. */
  readonly compiled?: number;
  /** The schedules of kernels, if they were requested. */
  readonly schedules?: string;
}

/**
 * Opens a program from its files. A bundle is a safetensors file whose header has the other files, so it also serves as the
 * weights. `at` is the program's address, relative to which the files of weights are found.
 */
export async function openFiles(name: string, files: Files, graph?: readonly GraphNode[], at?: URL): Promise<Opened> {
  const bundle = Object.keys(files).find((n) => n.endsWith(".wgfc"));
  let all = files;
  if (bundle !== undefined && !("plan.json" in files)) {
    const whole = files[bundle] as Blob;
    const length = Number(new DataView(await whole.slice(0, 8).arrayBuffer()).getBigUint64(0, true));
    if (!(length < 1 << 28)) throw new Error(`${bundle} is no program of wgfc`);
    const header = JSON.parse(await whole.slice(8, 8 + length).text()) as { __metadata__?: Record<string, string> };
    const texts = Object.entries(header.__metadata__ ?? {}).filter(([n]) => n === "plan.json" || n.startsWith("kernels/"));
    all = { ...files, ...Object.fromEntries(texts), "weights.safetensors": whole, "": whole };
  }
  const text = async (n: string) => {
    const file = all[n];
    if (file === undefined) throw new Error(`${name} has no ${n}: it is neither a model nor a program of wgfc`);
    return typeof file === "string" ? file : file instanceof URL ? (await fetch(file)).text() : new Response(file as BodyInit).text();
  };
  const root = JSON.parse(await text("plan.json")) as Record<string, unknown>;
  if (at) {
    const beside = (root.weights as { files: { name: string }[] } | undefined)?.files ?? [];
    all = { ...Object.fromEntries(beside.map((f) => [f.name, new URL(f.name, at)])), ...all };
  }
  const plans = root.plans as Plan[];
  const names = [...new Set(plans.flatMap((p) => p.kernels.map((k) => k.name)))];
  const kernels = Object.fromEntries(await Promise.all(names.map(async (n) => [n, await text(`kernels/${n}.wgsl`)] as const)));
  return { name, files: all, root, plans, kernels, graph };
}

export async function graphOf(file: Blob): Promise<readonly GraphNode[] | undefined> {
  try {
    return readGraph(new Uint8Array(await file.arrayBuffer()));
  } catch {
    return undefined;
  }
}

/** The symbols whose values the user chooses: those that are neither computed nor lengths or capacities of states. */
export function freeSymbols(plan: Plan): string[] {
  const states = (plan.states ?? []).flatMap((s) => [...s.shape.map(String), ...(s.growth ? [s.growth.length] : [])]);
  const computed = (plan.computed ?? []).map((c) => c.symbol);
  return plan.symbols.filter((s) => !states.includes(s) && !computed.includes(s));
}

/** Evaluates the sizes of a plan for values of its symbols. */
export class Sizes {
  readonly #plan: Plan;
  readonly #values: readonly number[];
  readonly #parsed = new Map<string, Size>();

  constructor(plan: Plan, dims: Readonly<Record<string, number>>) {
    this.#plan = plan;
    const values = plan.symbols.map((s) => dims[s] ?? 1);
    for (const { symbol, bound } of plan.computed ?? []) values[plan.symbols.indexOf(symbol)] = this.#at(bound, values);
    this.#values = values;
  }

  at(size: number | string): number {
    return this.#at(size, this.#values);
  }
  #at(size: number | string, values: readonly number[]): number {
    if (typeof size === "number") return size;
    let parsed = this.#parsed.get(size);
    if (!parsed) this.#parsed.set(size, (parsed = parseSize(size, (name) => this.#plan.symbols.indexOf(name))));
    return parsed.at(values);
  }
}

/** The files of a program with other kernels and an edited plan. */
export function edited(opened: Opened, edits: Readonly<Record<string, string>>, plan: (p: Plan) => Plan = (p) => p): Files {
  const kernels = Object.fromEntries(Object.entries(edits).map(([k, t]) => [`kernels/${k}.wgsl`, t]));
  const plans = opened.plans.map(plan);
  return { ...opened.files, ...kernels, "plan.json": JSON.stringify({ ...opened.root, plans }) };
}

/** The plan with a buffer as an additional output, so that its contents are not overwritten by later dispatches. */
export function tapped(plan: Plan, buffer: number, name: string): Plan {
  const { kind, dtype, elements } = plan.buffers[buffer]!;
  if (kind.kind !== "arena") return plan;
  const buffers = plan.buffers.map((b, i) => (i === buffer ? { ...b, kind: { kind: "output", index: plan.outputs.length } } : b));
  return { ...plan, buffers, outputs: [...plan.outputs, { name, dtype, shape: [elements], buffer }] };
}

/** The plan with one dispatch repeated several times. */
export function repeated(plan: Plan, dispatch: number, times: number): Plan {
  const inside = (plan.repeats ?? []).some((r) => r.first <= dispatch && dispatch < r.first + r.count);
  const repeats = inside ? plan.repeats! : [...(plan.repeats ?? []), { first: dispatch, count: 1, times, why: "measured" }];
  return { ...plan, repeats: [...repeats].sort((a, b) => a.first - b.first) };
}
