/** Creation of pipelines from kernels, a few at a time so that the page stays responsive. */

import type { Gpu } from "./device.js";
import { WgfcError } from "./errors.js";
import { messageOf, throwIfAborted } from "./fail.js";
import { PACKED_PRODUCTS, lacksPackedProducts } from "./language.js";
import { type Kernel, type Plan, nodesOf } from "./plan.js";
import type { Program } from "./program.js";
import { COMPUTE_STAGE } from "./usage.js";

export interface Pipeline {
  readonly pipeline: GPUComputePipeline;
  readonly layout: GPUBindGroupLayout;
}

/** The number of pipelines that are made concurrently. */
const TOGETHER = 4;

/** The pipelines of all kernels, by name. Kernels with the same name are equal in all plans. */
export async function makePipelines(
  gpu: Gpu,
  program: Program,
  plans: readonly Plan[],
  options: { signal?: AbortSignal | undefined; progress?: ((made: number, all: number) => void) | undefined },
): Promise<Map<string, Pipeline>> {
  const kernels = new Map<string, [Kernel, Plan]>();
  for (const plan of plans) for (const k of plan.kernels) kernels.set(k.name, [k, plan]);
  const layouts = new Map<string, GPUBindGroupLayout>();
  const made = new Map<string, Pipeline>();
  const rest = [...kernels.values()];
  let failed = false;
  const work = async () => {
    for (let next; !failed && (next = rest.shift()); ) {
      throwIfAborted(options.signal);
      const [kernel, plan] = next;
      const layout = layoutOf(gpu, kernel, layouts);
      made.set(kernel.name, { layout, pipeline: await make(gpu, program, plan, kernel, layout, options.signal) });
      options.progress?.(made.size, kernels.size);
    }
  };
  const workers = Array.from({ length: TOGETHER }, () => work().catch((e: unknown) => {
    failed = true;
    throw e;
  }));
  // Waits for all workers, so that nothing is freed while one of them uses it.
  const ended = await Promise.allSettled(workers);
  for (const e of ended) if (e.status === "rejected") throw e.reason;
  return made;
}

function layoutOf({ device }: Gpu, kernel: Kernel, known: Map<string, GPUBindGroupLayout>): GPUBindGroupLayout {
  const key = `${kernel.bindings.join()}${kernel.uses_dims}`;
  const types: GPUBufferBindingType[] = kernel.bindings.map((b) => (b === "read" ? "read-only-storage" : "storage"));
  if (kernel.uses_dims) types.push("uniform");
  const entries = types.map((type, binding) => ({ binding, visibility: COMPUTE_STAGE, buffer: { type } }));
  const layout = known.get(key) ?? device.createBindGroupLayout({ entries });
  known.set(key, layout);
  return layout;
}

async function make(
  gpu: Gpu,
  program: Program,
  plan: Plan,
  kernel: Kernel,
  layout: GPUBindGroupLayout,
  signal?: AbortSignal,
): Promise<GPUComputePipeline> {
  const { device } = gpu;
  const code = await program.text(kernel, signal);
  gpu.check();
  const nodes = plan.dispatches.find((d) => plan.kernels[d.kernel] === kernel)?.nodes ?? [];
  const origin = { kernel: kernel.name, node: nodes[0] };
  const what = `kernel ${kernel.name} of ${nodesOf(nodes)}`;
  if (/\bdot4[IU]8Packed\b/.test(code) && lacksPackedProducts())
    throw new WgfcError("feature", `${what} needs ${PACKED_PRODUCTS}, which this browser's WGSL lacks: compile the model without activations of 8 bits`, origin);
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ label: kernel.name, code });
  const pipeline = device.createComputePipelineAsync({
    label: kernel.name,
    layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
    compute: { module, entryPoint: "main" },
  });
  const refused = device.popErrorScope();
  try {
    const [made] = await gpu.watch(Promise.all([pipeline, refused]));
    gpu.check();
    return made;
  } catch (cause) {
    if (cause instanceof WgfcError) throw cause;
    const { messages } = await gpu.watch(module.getCompilationInfo());
    const first = messages.find((m) => m.type === "error");
    const why = first ? `line ${first.lineNum}: ${first.message}` : messageOf(cause);
    throw new WgfcError("validation", `${what} does not compile: ${why}`, { ...origin, cause });
  }
}
