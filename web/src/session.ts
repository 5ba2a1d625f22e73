/** One plan on the device, which records runs for given values of the symbols. */

import { checkConstraints, isLate } from "./bind.js";
import type { Gpu } from "./device.js";
import { WgfcError } from "./errors.js";
import { corrupt } from "./fail.js";
import { type Memory, checkSize, layOut } from "./memory.js";
import type { Pipeline } from "./pipelines.js";
import { type Plan, type Repeat, nodesOf } from "./plan.js";
import { play } from "./play.js";
import { Recorder } from "./recorder.js";
import type { Values } from "./sizes.js";
import type { States } from "./states.js";
import type { Timestamps } from "./timestamps.js";
import { COPY_DST, COPY_SRC, UNIFORM } from "./usage.js";

/** The largest numbers of evaluated sizes, and of bind groups per dispatch, that are kept. */
const KEPT_SIZES = 16;
const KEPT_GROUPS = 8;

/** Memory that all plans of a model share. As runs do not overlap, plans can share arenas, too. */
export interface Shared {
  readonly gpu: Gpu;
  readonly weights: ReadonlyMap<string, GPUBuffer>;
  readonly states: States | undefined;
  readonly arenas: GPUBuffer[];
}

/** The evaluated sizes of a run. */
export interface Sized {
  readonly values: readonly number[];
  readonly memory: Memory;
  readonly workgroups: readonly (readonly number[])[];
}

interface Piece {
  readonly buffer: GPUBuffer;
  readonly offset: number;
  readonly size: number;
}

let ids = 0;
const numbered = new WeakMap<GPUBuffer, number>();
function idOf(buffer: GPUBuffer): number {
  const id = numbered.get(buffer) ?? ids++;
  numbered.set(buffer, id);
  return id;
}

export class Session {
  readonly plan: Plan;
  /** Whether shapes of outputs or constraints use symbols that the run computes. */
  readonly late: boolean;
  /** The `Dims` uniform. */
  readonly dims: GPUBuffer;
  readonly #shared: Shared;
  readonly #pipelines: readonly Pipeline[];
  readonly #sized = new Map<string, Sized>();
  readonly #groups: Map<string, GPUBindGroup>[];
  /** The bind groups of the last run, with the key of their buffers. */
  #last: { key: string; groups: (GPUBindGroup | undefined)[] } | undefined;
  #written = "";

  constructor(plan: Plan, pipelines: ReadonlyMap<string, Pipeline>, shared: Shared) {
    this.plan = plan;
    this.#shared = shared;
    this.#pipelines = plan.kernels.map((k) => pipelines.get(k.name)!);
    this.#groups = plan.dispatches.map(() => new Map());
    this.late = isLate(plan, [...plan.outputs.flatMap((o) => o.shape), ...plan.constraints.flatMap((c) => [c.a, c.b])]);
    const size = Math.max(1, Math.ceil(plan.symbols.length / 4)) * 16;
    this.dims = shared.gpu.device.createBuffer({ label: "dimensions", size, usage: UNIFORM | COPY_DST | COPY_SRC });
  }

  /** Sizes, offsets and workgroup counts, checked against the device's limits. */
  sized(values: readonly number[]): Sized {
    const key = values.join();
    let sized = this.#sized.get(key);
    this.#sized.delete(key);
    sized ??= this.#size(values);
    this.#sized.set(key, sized);
    if (this.#sized.size > KEPT_SIZES) this.#sized.delete(this.#sized.keys().next().value!);
    return sized;
  }

  #size(values: readonly number[]): Sized {
    const { limits } = this.#shared.gpu.device;
    const memory = layOut(this.plan, values, limits.maxBufferSize);
    const most = limits.maxComputeWorkgroupsPerDimension;
    const workgroups = this.plan.dispatches.map(({ workgroups, bindings, nodes }, i) => {
      for (const b of bindings) checkSize(`a tensor of ${nodesOf(nodes)}`, memory.bytes[b]!, limits, nodes[0]);
      return workgroups.map((size) => {
        const n = size.at(values);
        if (!(n >= 0)) throw corrupt("plan.json", `dispatch ${i}: the workgroup count ${size.text} is ${n}`);
        if (n > most)
          throw new WgfcError("limits", `${nodesOf(nodes)} takes ${n} workgroups along one dimension, and this device allows ${most}`, { node: nodes[0] });
        return n;
      });
    });
    return { values, memory, workgroups };
  }

  /** Enlarges arenas if necessary, binds buffers and writes the uniform. */
  #prepare(sized: Sized, ports: readonly GPUBuffer[]): void {
    const { gpu, arenas, states } = this.#shared;
    sized.memory.arenas.forEach((bytes, i) => {
      if ((arenas[i]?.size ?? 0) >= bytes) return;
      arenas[i]?.destroy();
      arenas[i] = gpu.storage(`arena ${i}`, bytes);
    });
    const used = sized.memory.arenas.map((_, i) => idOf(arenas[i]!));
    const key = [sized.values, ports.map(idOf), used, states?.version].join(";");
    if (this.#last?.key !== key) this.#last = { key, groups: this.#bindAll(sized, ports) };
    const words = sized.values;
    // The uniform is written before each run if runs overwrite it with computed sizes.
    if (this.plan.computed.length || this.#written !== words.join()) gpu.device.queue.writeBuffer(this.dims, 0, Int32Array.from(words));
    this.#written = words.join();
  }

  #bindAll(sized: Sized, ports: readonly GPUBuffer[]): (GPUBindGroup | undefined)[] {
    return this.plan.dispatches.map((d, i) => {
      if (sized.workgroups[i]!.includes(0)) return undefined;
      const kernel = this.plan.kernels[d.kernel]!;
      const pieces = d.bindings.map((b) => this.piece(sized, ports, b));
      const key = pieces.map((p) => `${idOf(p.buffer)}+${p.offset}:${p.size}`).join();
      const kept = this.#groups[i]!;
      const known = kept.get(key);
      if (known) return known;
      if (kept.size >= KEPT_GROUPS) kept.clear();
      if (kernel.uses_dims) pieces.push({ buffer: this.dims, offset: 0, size: this.dims.size });
      const group = this.#shared.gpu.device.createBindGroup({
        label: kernel.name,
        layout: this.#pipelines[d.kernel]!.layout,
        entries: pieces.map((resource, binding) => ({ binding, resource })),
      });
      kept.set(key, group);
      return group;
    });
  }

  /** The location of a buffer of the plan. */
  piece({ memory }: Sized, ports: readonly GPUBuffer[], b: number): Piece {
    const { kind } = this.plan.buffers[b]!;
    const size = memory.bytes[b]!;
    const at = (buffer: GPUBuffer | undefined, offset = 0): Piece => {
      if (!buffer) throw corrupt("plan.json", `buffer ${b} is not there`);
      return { buffer, offset, size };
    };
    switch (kind.kind) {
      case "input":
        return at(ports[kind.index]);
      case "output":
        return at(ports[this.plan.inputs.length + kind.index]);
      case "weight":
        return at(this.#shared.weights.get(kind.name));
      case "state":
        return at(this.#shared.states?.buffer(kind.name));
      case "arena": {
        const slot = memory.slots[b]!;
        return at(this.#shared.arenas[slot.arena], slot.offset);
      }
    }
  }

  /**
   * Runs the plan. `place` fills the buffers of the inputs, and returns them followed by the buffers of the outputs. `finish`
   * records commands that execute last. This waits only for the rounds of loops; the promise in the result rejects if WebGPU
   * rejects the commands.
   */
  async run(
    sized: Sized,
    place: () => readonly GPUBuffer[],
    finish: (recorder: Recorder) => void,
    times?: Timestamps,
  ): Promise<{ taken: Promise<void> }> {
    const { gpu } = this.#shared;
    let ports: readonly GPUBuffer[] = [];
    const recorder = new Recorder(gpu, times);
    const steps = play(this.plan, sized.values, {
      dispatch: (i) => {
        const group = this.#last!.groups[i];
        const { pipeline } = this.#pipelines[this.plan.dispatches[i]!.kernel]!;
        if (group) recorder.dispatch(i, pipeline, group, sized.workgroups[i]!);
      },
      known: ({ buffer, symbol }) => {
        const { buffer: from, offset } = this.piece(sized, ports, buffer);
        recorder.copy(from, offset, this.dims, 4 * symbol, 4);
      },
    });
    for (let goesOn: boolean | undefined; ; ) {
      let repeat = undefined as Repeat | void;
      const taken = gpu.scoped("running the model", () => {
        if (goesOn === undefined) this.#prepare(sized, (ports = place()));
        repeat = steps.next(goesOn ?? false).value;
        if (!repeat) finish(recorder);
        recorder.submit();
      });
      taken.catch(() => {});
      if (!repeat) return { taken };
      await taken;
      const word = this.piece(sized, ports, repeat.until!.buffer);
      goesOn = (await recorder.word(word.buffer, word.offset)) !== 0;
    }
  }

  /** The shapes of the outputs. If the run computes sizes, `values` must be those after the run. */
  outputShapes(values: Values): number[][] {
    return this.plan.outputs.map((o) => o.shape.map((d) => d.at(values)));
  }

  /** The values of all symbols after a run, given the contents of the `Dims` uniform. */
  settle(sized: Sized, dims: Int32Array): number[] {
    const values = [...sized.values];
    for (const { symbol, bound } of this.plan.computed) {
      const value = (values[symbol] = dims[symbol]!);
      if (!(value >= 0 && value <= bound.at(sized.values)))
        throw new WgfcError("validation", `\`${this.plan.symbols[symbol]}\` was computed to be ${value}, outside of 0 to ${bound.at(sized.values)}`);
    }
    checkConstraints(this.plan, values, true);
    return values;
  }

  dispose(): void {
    this.dims.destroy();
  }
}
