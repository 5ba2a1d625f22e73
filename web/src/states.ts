/** States: tensors that stay on the device from run to run. This module is loaded by the first model that has states. */

import type { Gpu } from "./device.js";
import { bitsOf, bufferBytes } from "./dtypes.js";
import { WgfcError } from "./errors.js";
import { checkSize } from "./memory.js";
import { type Plan, type State, capacitySymbol, isWindow } from "./plan.js";
import type { Values } from "./sizes.js";

/** The initial capacity of states in positions, if the model leaves it open. */
const CAPACITY = 256;

export class States {
  readonly #gpu: Gpu;
  readonly #plan: Plan;
  readonly #buffers = new Map<string, GPUBuffer>();
  /** The number of positions in use, by symbol. */
  readonly #lengths = new Map<string, number>();
  /** The capacity in positions, by symbol. */
  #capacities = new Map<string, number>();
  /** The number of times that buffers have been replaced. */
  version = 0;
  /** The length's symbol and the capacity of each state, or undefined for those that do not grow, at a version. */
  #growing: { readonly at: number; readonly all: readonly ({ readonly symbol: string; readonly capacity: number } | undefined)[] } | undefined;

  /** The states of a plan; all plans of a model have the same states. */
  static async create(gpu: Gpu, plan: Plan, capacity = CAPACITY): Promise<States> {
    const states = new States(gpu, plan);
    states.#capacities = states.#room(capacity);
    await gpu.scoped("making the states", () => {
      for (const s of plan.states) states.#buffers.set(s.name, states.#make(s, states.#capacities));
    });
    return states;
  }

  private constructor(gpu: Gpu, plan: Plan) {
    this.#gpu = gpu;
    this.#plan = plan;
    for (const s of plan.states) if (s.growth) this.#lengths.set(s.growth.length, 0);
  }

  get all(): readonly State[] {
    return this.#plan.states;
  }
  buffer(name: string): GPUBuffer | undefined {
    return this.#buffers.get(name);
  }
  /** The values of the symbols for lengths and capacities. */
  symbols(): Map<string, number> {
    return new Map([...this.#lengths, ...this.#capacities]);
  }
  shape(state: State): number[] {
    return extents(this.#plan, state, this.#capacities);
  }
  /** The length and the capacity in positions of a growing state. */
  positions(state: State): { length: number; capacity: number } | undefined {
    const growth = state.growth;
    return growth && { length: this.#lengths.get(growth.length) ?? 0, capacity: this.shape(state)[growth.axis]! };
  }

  /** The number of positions in the states that grow, and whether all states grow and have room behind one more. */
  filled(): { length: number | undefined; more: boolean } {
    const { states } = this.#plan;
    if (this.#growing?.at !== this.version)
      this.#growing = { at: this.version, all: states.map((s) => s.growth && { symbol: s.growth.length, capacity: this.positions(s)!.capacity }) };
    const { all } = this.#growing;
    const length = (symbol: string) => this.#lengths.get(symbol) ?? 0;
    const first = all.find((s) => s);
    return { length: first && length(first.symbol), more: all.length > 0 && all.every((s) => s && length(s.symbol) + 1 < s.capacity) };
  }

  /** The lengths after a run of a plan. States that are too small for it are enlarged first. `values` are those of the plan's symbols. */
  async after(plan: Plan, values: () => Values): Promise<Map<string, number>> {
    const lengths = this.#lengthsAfter(plan, values());
    if (lengths instanceof Map) return lengths;
    const { needs } = lengths;
    // Plans number their symbols in orders of their own.
    const state = this.#plan.states.find((s) => s.name === lengths.state.name)!;
    const { length, capacity } = this.positions(state)!;
    if (capacitySymbol(this.#plan, state) === undefined || isWindow(this.#plan, state))
      throw new WgfcError("limits", `state "${state.name}" holds ${length} of at most ${capacity} positions: ${needs - length} more do not fit`);
    await this.grow(Math.max(needs, 2 * capacity));
    return this.#lengthsAfter(plan, values()) as Map<string, number>;
  }
  /** The lengths of the states after a run, or a state without enough room and the capacity that it needs. */
  #lengthsAfter(plan: Plan, values: Values): Map<string, number> | { state: State; needs: number } {
    const lengths = new Map<string, number>();
    for (const state of plan.states) {
      const growth = state.growth;
      if (!growth) continue;
      const needs = (this.#lengths.get(growth.length) ?? 0) + growth.by.at(values);
      const capacity = state.shape[growth.axis]!.at(values);
      if (!(needs <= capacity)) return { state, needs };
      if (!lengths.has(growth.length)) lengths.set(growth.length, needs);
    }
    return lengths;
  }
  setLengths(lengths: ReadonlyMap<string, number>): void {
    for (const [symbol, n] of lengths) this.#lengths.set(symbol, n);
  }

  /** Fills all states with zeros and sets their lengths to 0. */
  clear(): void {
    const encoder = this.#gpu.device.createCommandEncoder();
    for (const b of this.#buffers.values()) encoder.clearBuffer(b);
    this.#gpu.device.queue.submit([encoder.finish()]);
    for (const symbol of this.#lengths.keys()) this.#lengths.set(symbol, 0);
  }

  /** Truncates the states to their first `length` positions. */
  rewind(length: number): void {
    for (const s of this.#plan.states) {
      const now = this.positions(s);
      const refuse = (why: string): never => {
        throw new WgfcError("limits", `state "${s.name}" cannot be rewound to ${length} positions: ${why}`);
      };
      if (!now) refuse("its earlier values were overwritten");
      else if (!(length >= 0 && length <= now.length)) refuse(`it holds ${now.length}`);
      else if (isWindow(this.#plan, s) && length < now.length && now.length >= now.capacity) refuse("it is a full window, whose oldest positions were overwritten");
    }
    for (const symbol of this.#lengths.keys()) this.#lengths.set(symbol, length);
  }

  /** Enlarges the states to at least `capacity` positions and keeps their contents. */
  async grow(capacity: number): Promise<void> {
    const { device } = this.#gpu;
    const small = this.#plan.states.filter((s) => s.growth && !isWindow(this.#plan, s) && this.positions(s)!.capacity < capacity);
    if (small.length === 0) return;
    const fixed = small.find((s) => capacitySymbol(this.#plan, s) === undefined);
    if (fixed)
      throw new WgfcError(
        "limits",
        `state "${fixed.name}" was compiled with room for ${this.positions(fixed)!.capacity} positions, not for ${capacity}`,
      );
    const to = this.#room(capacity);
    for (const [symbol, n] of this.#capacities) to.set(symbol, Math.max(n, to.get(symbol) ?? 0));
    const growing = this.#plan.states.filter((s) => capacitySymbol(this.#plan, s) !== undefined);
    const made = await this.#gpu.scoped("growing the states", () => {
      const encoder = device.createCommandEncoder();
      const made = growing.map((s) => {
        const [old, buffer] = [this.#buffers.get(s.name)!, this.#make(s, to)];
        const { rows, bits } = rowsOf(this.#plan, s);
        const bytes = (positions: number) => Math.ceil((positions * bits) / 8);
        const [had, has] = [bytes(this.positions(s)!.capacity), bytes(extents(this.#plan, s, to)[s.growth!.axis]!)];
        const used = Math.min(Math.ceil(bytes(this.positions(s)!.length) / 4) * 4, rows > 1 ? had : old.size);
        if (used > 0) for (let r = 0; r < rows; r++) encoder.copyBufferToBuffer(old, r * had, buffer, r * has, used);
        return buffer;
      });
      device.queue.submit([encoder.finish()]);
      return made;
    });
    growing.forEach((s, i) => {
      this.#buffers.get(s.name)!.destroy();
      this.#buffers.set(s.name, made[i]!);
    });
    this.#capacities = to;
    this.version++;
  }

  dispose(): void {
    for (const b of this.#buffers.values()) b.destroy();
  }

  #make(state: State, capacities: ReadonlyMap<string, number>): GPUBuffer {
    const elements = extents(this.#plan, state, capacities).reduce((a, b) => a * b, 1);
    const bytes = bufferBytes(state.dtype, elements);
    checkSize(`state "${state.name}"`, bytes, this.#gpu.device.limits);
    return this.#gpu.storage(`state ${state.name}`, bytes);
  }

  /** Values for the capacities that the plan leaves open: `capacity`, rounded up so that rows begin at whole words. */
  #room(capacity: number): Map<string, number> {
    const out = new Map<string, number>();
    for (const s of this.#plan.states) {
      const symbol = capacitySymbol(this.#plan, s);
      if (symbol === undefined) continue;
      const { rows, bits } = rowsOf(this.#plan, s);
      const step = rows > 1 ? 32 / Math.min(32, bits & -bits || 32) : 1;
      out.set(symbol, Math.max(out.get(symbol) ?? 0, Math.ceil(capacity / step) * step));
    }
    return out;
  }
}

function extents(plan: Plan, state: State, capacities: ReadonlyMap<string, number>): number[] {
  const values = plan.symbols.map((s) => capacities.get(s) ?? NaN);
  return state.shape.map((d) => d.at(values));
}

/** The number of rows of a state, and the bits of one position in a row. */
function rowsOf(plan: Plan, state: State): { rows: number; bits: number } {
  const shape = extents(plan, state, new Map());
  const axis = state.growth!.axis;
  const product = (of: readonly number[]) => of.reduce((a, b) => a * b, 1);
  return { rows: product(shape.slice(0, axis)), bits: product(shape.slice(axis + 1)) * bitsOf(state.dtype) };
}
