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

/** The number of runs whose sizes and bind groups are kept. */
const KEPT = 8;

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

/** The bind groups of a run, and what they were made for. */
interface Bound {
  readonly sized: Sized;
  readonly ports: readonly GPUBuffer[];
  /** The slots, the version of the states, and the arenas. */
  readonly uses: readonly unknown[];
  readonly groups: readonly (GPUBindGroup | undefined)[];
}

interface Piece {
  readonly buffer: GPUBuffer;
  readonly offset: number;
  readonly size: number;
}

export class Session {
  readonly plan: Plan;
  /** Whether shapes of outputs or constraints use symbols that the run computes. */
  readonly late: boolean;
  /** The `Dims` uniform. */
  readonly dims: GPUBuffer;
  readonly #shared: Shared;
  readonly #pipelines: readonly Pipeline[];
  /** For each dispatch, the bindings that may move: inputs, outputs, and tensors whose sizes depend on symbols. */
  readonly #moving: readonly (readonly number[])[];
  /** The last runs with other sizes or other buffers of inputs and outputs, the last one first. */
  #bound: readonly Bound[] = [];
  /** The sizes whose values the uniform has. */
  #written: Sized | undefined;

  constructor(plan: Plan, pipelines: ReadonlyMap<string, Pipeline>, shared: Shared) {
    this.plan = plan;
    this.#shared = shared;
    this.#pipelines = plan.kernels.map((k) => pipelines.get(k.name)!);
    const moves = (b: number) => plan.buffers[b]!.elements.powers.size > 0 || "index" in plan.buffers[b]!.kind;
    this.#moving = plan.dispatches.map((d) => d.bindings.filter(moves));
    this.late = isLate(plan, [...plan.outputs.flatMap((o) => o.shape), ...plan.constraints.flatMap((c) => [c.a, c.b])]);
    const size = Math.max(1, Math.ceil(plan.symbols.length / 4)) * 16;
    this.dims = shared.gpu.device.createBuffer({ label: "dimensions", size, usage: UNIFORM | COPY_DST | COPY_SRC });
  }

  /** Sizes, offsets and workgroup counts, checked against the device's limits. */
  sized(values: readonly number[]): Sized {
    return this.#bound.find((b) => b.sized.values.join() === values.join())?.sized ?? this.#size(values);
  }

  #size(values: readonly number[]): Sized {
    const { limits } = this.#shared.gpu.device;
    const memory = layOut(this.plan, values, limits.maxBufferSize, this.#bound[0]?.sized.memory);
    const most = limits.maxComputeWorkgroupsPerDimension;
    const largest = Math.min(limits.maxBufferSize, limits.maxStorageBufferBindingSize);
    const workgroups = this.plan.dispatches.map(({ workgroups, bindings, nodes }, i) => {
      for (const b of bindings) if (memory.bytes[b]! > largest) checkSize(`a tensor of ${nodesOf(nodes)}`, memory.bytes[b]!, limits, nodes[0]);
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
    const uses = [sized.memory.slots, states?.version, ...sized.memory.arenas.map((_, i) => arenas[i])];
    const groups = this.#bindAll(sized, ports, this.#bound.filter((b) => b.uses.every((u, i) => u === uses[i])));
    const others = this.#bound.filter((b) => !(b.sized === sized && b.ports.every((p, i) => p === ports[i])));
    this.#bound = [{ sized, ports, uses, groups }, ...others].slice(0, KEPT);
    // The uniform is written before each run if runs overwrite it with computed sizes.
    const { values } = sized;
    if (values.length && (this.plan.computed.length || this.#written !== sized)) gpu.device.queue.writeBuffer(this.dims, 0, Int32Array.from(values));
    this.#written = sized;
  }

  /** The bind groups of all dispatches. A run before with the same buffers has the same ones. */
  #bindAll(sized: Sized, ports: readonly GPUBuffer[], before: readonly Bound[]): (GPUBindGroup | undefined)[] {
    return this.plan.dispatches.map((d, i) => {
      if (sized.workgroups[i]!.includes(0)) return undefined;
      const same = before.find(
        (run) =>
          run.groups[i] &&
          this.#moving[i]!.every((b) => run.sized.memory.bytes[b] === sized.memory.bytes[b] && this.#port(run.ports, b) === this.#port(ports, b)),
      );
      if (same) return same.groups[i];
      const kernel = this.plan.kernels[d.kernel]!;
      const pieces: GPUBufferBinding[] = d.bindings.map((b) => this.piece(sized, ports, b));
      if (kernel.uses_dims) pieces.push({ buffer: this.dims });
      return this.#shared.gpu.device.createBindGroup({
        label: kernel.name,
        layout: this.#pipelines[d.kernel]!.layout,
        entries: pieces.map((resource, binding) => ({ binding, resource })),
      });
    });
  }

  /** The buffer of an input or an output. */
  #port(ports: readonly GPUBuffer[], b: number): GPUBuffer | undefined {
    const { kind } = this.plan.buffers[b]!;
    return "index" in kind ? ports[kind.index + (kind.kind === "input" ? 0 : this.plan.inputs.length)] : undefined;
  }

  /** The location of a buffer of the plan. */
  piece({ memory }: Sized, ports: readonly GPUBuffer[], b: number): Piece {
    const { kind } = this.plan.buffers[b]!;
    const { weights, states, arenas } = this.#shared;
    const slot = memory.slots[b];
    const buffer =
      kind.kind === "weight" ? weights.get(kind.name)
      : kind.kind === "state" ? states?.buffer(kind.name)
      : slot ? arenas[slot.arena]
      : this.#port(ports, b);
    if (!buffer) throw corrupt("plan.json", `buffer ${b} is not there`);
    return { buffer, offset: slot?.offset ?? 0, size: memory.bytes[b]! };
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
        const group = this.#bound[0]!.groups[i];
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
