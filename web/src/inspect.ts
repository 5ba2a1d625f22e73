/** Descriptions of models. This module is loaded when the first description is requested. */

import type { Compiled } from "./compiler/index.js";
import { count, string } from "./json.js";
import type { Plan } from "./plan.js";
import type { Program } from "./program.js";

export interface KernelInfo {
  readonly name: string;
  /** The kernel's family, which is the part of the compiler that generated it. */
  readonly family: string;
  /** The model's nodes that its dispatches compute. */
  readonly nodes: readonly string[];
  readonly dispatches: number;
  readonly features: readonly string[];
  /** Its WGSL. */
  readonly text: string;
}

export interface PlanInfo {
  readonly name: string;
  /** The symbolic dimensions. */
  readonly symbols: readonly string[];
  /** The number of the model's nodes that the dispatches compute. */
  readonly nodes: number;
  readonly dispatches: number;
  readonly kernels: readonly KernelInfo[];
  /** Whether it stores values of a model of f32 as f16. */
  readonly halved: boolean;
  readonly warnings: readonly string[];
}

export interface Inspection {
  /** The name and version of the compiler. */
  readonly producer: string;
  /** The plans that this device can run, in the order in which runs try them. */
  readonly plans: readonly PlanInfo[];
  /** The browser's information about the adapter. */
  readonly adapter: {
    readonly vendor: string;
    readonly architecture: string;
    readonly device: string;
    readonly description: string;
    /** Whether the browser reports an adapter that computes on the CPU. */
    readonly software: boolean;
  };
  readonly features: readonly string[];
  readonly limits: Readonly<Record<string, number>>;
  /**
   * Bytes on the device of weights, states and other memory at present. `cached` is the number of bytes of weights that came from
   * the cache.
   */
  readonly bytes: { readonly weights: number; readonly states: number; readonly other: number; readonly cached: number };
  /** Times and sizes of the compilation, for a model that the page compiled. */
  readonly compiled: Pick<Compiled, "ms" | "read" | "cached"> | undefined;
}

type Memory = Readonly<Record<"weights" | "states" | "other", readonly (GPUBuffer | undefined)[]>>;

export async function inspect(
  device: GPUDevice,
  plans: readonly Plan[],
  program: Program,
  memory: Memory,
  compiled: Compiled | undefined,
): Promise<Inspection> {
  const { root } = program;
  const { vendor = "", architecture = "", device: name = "", description = "", isFallbackAdapter = false } = device.adapterInfo ?? {};
  const software = isFallbackAdapter || /swiftshader|llvmpipe|lavapipe/i.test(`${architecture} ${description}`);
  const sum = (buffers: readonly (GPUBuffer | undefined)[]) => buffers.reduce((n, b) => n + (b?.size ?? 0), 0);
  const limits: Record<string, number> = {};
  for (const limit in device.limits) {
    const n = device.limits[limit as keyof GPUSupportedLimits];
    if (typeof n === "number") limits[limit] = n;
  }
  const all = root.get("plans").list((p) => p);
  const infos = plans.map(async (plan): Promise<PlanInfo> => {
    const json = all[program.plans.indexOf(plan)]!;
    const families = json.get("kernels").list((k) => k.get("family").string());
    const kernels = plan.kernels.map(async (k, i): Promise<KernelInfo> => {
      const dispatches = plan.dispatches.filter((d) => d.kernel === i);
      const nodes = [...new Set(dispatches.flatMap((d) => d.nodes))];
      return { name: k.name, family: families[i]!, nodes, dispatches: dispatches.length, features: k.features, text: await program.text(k) };
    });
    const stats = json.get("stats").object({ model_nodes: count, warnings: (w) => w.list(string), halved: (h) => !h.missing });
    const { symbols, dispatches } = plan;
    const { model_nodes: nodes, halved, warnings } = stats;
    return { name: plan.name, symbols, nodes, dispatches: dispatches.length, kernels: await Promise.all(kernels), halved, warnings };
  });
  return {
    producer: root.get("producer").string(),
    plans: await Promise.all(infos),
    adapter: { vendor, architecture, device: name, description, software },
    features: [...(device.features as ReadonlySet<string>)],
    limits,
    bytes: { weights: sum(memory.weights), states: sum(memory.states), other: sum(memory.other), cached: program.source.cached ?? 0 },
    compiled: compiled && { ms: compiled.ms, read: compiled.read, cached: compiled.cached },
  };
}
