/** Comparison of tensors. This module is loaded by the first comparison. */

import { type DType, type TypedArray, arrayOver, isFloat, toNumbers } from "./dtypes.js";
import type { Model } from "./model.js";
import { parseHeader } from "./safetensors.js";
import { type Tensor, type TensorLike, elementsOf } from "./tensor.js";

/** Tensors by name, or a safetensors file of them. */
export type Tensors = Readonly<Record<string, TensorLike<TypedArray>>> | Uint8Array;

/** The tolerance for floats: `|a − b| ≤ atol + rtol·|b|`. */
export interface Tolerance {
  rtol?: number;
  atol?: number;
}

export interface Comparison {
  /** A description of the difference; undefined if there is none. */
  problem: string | undefined;
  /** The number of elements that differ. */
  wrong: number;
  /** The largest absolute difference between finite elements. */
  largest: number;
  /** `‖a − b‖ / ‖b‖`, 0 for two zeros. */
  relative: number;
}

/** Minimal tolerances for the rounding of these types. Integers and floats of at most 8 bits must be equal. */
const ROUNDING: Partial<Record<DType, [rtol: number, atol: number]>> = {
  f64: [0, 0],
  f32: [0, 0],
  f16: [2e-3, 1e-3],
  bf16: [1.6e-2, 1e-2],
};

/** Runs a model and compares its outputs with expected ones. */
export async function verify(model: Model, inputs: Tensors, expected: Tensors, tolerance?: Tolerance): Promise<Record<string, Comparison>> {
  const wanted = Object.entries(readTensors(expected));
  const outputs = Object.fromEntries(wanted.map(([n]) => [n, "cpu" as const]));
  const got = (await model.run(readTensors(inputs), { outputs })) as Record<string, Tensor<TypedArray>>;
  return Object.fromEntries(wanted.map(([n, want]) => [n, compare(got[n]!, want, tolerance)]));
}

/** Compares two tensors by types, shapes and elements. NaN equals NaN. */
export function compare(got: TensorLike<TypedArray>, want: TensorLike<TypedArray>, tolerance: Tolerance = {}): Comparison {
  const show = (t: TensorLike) => `${t.dtype}[${t.shape.join(", ")}]`;
  if (show(got) !== show(want))
    return { problem: `${show(got)} instead of ${show(want)}`, wrong: elementsOf(want.shape), largest: NaN, relative: NaN };
  const n = elementsOf(want.shape);
  const rounding = ROUNDING[want.dtype];
  const [rtol, atol] = rounding
    ? [Math.max(tolerance.rtol ?? 1e-3, rounding[0]), Math.max(tolerance.atol ?? 1e-5, rounding[1])]
    : [0, 0];
  const wide = want.dtype === "i64" || want.dtype === "u64";
  const [a, b] = [got, want].map((t) => toNumbers(t.dtype, t.data, n)) as [Float64Array, Float64Array];
  let [wrong, first, largest, difference, norm] = [0, -1, 0, 0, 0];
  for (let i = 0; i < n; i++) {
    const [x, y] = [a[i]!, b[i]!];
    const same = wide ? got.data[i] === want.data[i] : x === y || (isFloat(want.dtype) && Number.isNaN(x) && Number.isNaN(y));
    const distance = Math.abs(x - y);
    if (Number.isFinite(distance)) largest = Math.max(largest, distance);
    difference += (x - y) ** 2;
    norm += y ** 2;
    if (same || distance <= atol + rtol * Math.abs(y) && Number.isFinite(x) && Number.isFinite(y) && rounding) continue;
    wrong++;
    if (first < 0) first = i;
  }
  const problem = wrong
    ? `${wrong} of ${n} elements of ${show(want)} differ, the first at [${position(first, want.shape)}]: ${(wide ? got.data : a)[first]} instead of ${(wide ? want.data : b)[first]}`
    : undefined;
  return { problem, wrong, largest, relative: difference === 0 ? 0 : Math.sqrt(difference / norm) };
}

function position(i: number, shape: readonly number[]): number[] {
  return shape.map((d, axis) => Math.floor(i / elementsOf(shape.slice(axis + 1))) % d);
}

/** All tensors of a safetensors file. */
export function readTensors(tensors: Tensors): Readonly<Record<string, TensorLike<TypedArray>>> {
  if (!(tensors instanceof Uint8Array)) return tensors;
  const where = "the file of tensors";
  const start = tensors.length < 8 ? 8 : 8 + Number(new DataView(tensors.buffer, tensors.byteOffset).getBigUint64(0, true));
  const { tensors: entries } = parseHeader(new TextDecoder().decode(tensors.subarray(8, start)), start, where);
  return Object.fromEntries(
    [...entries].map(([name, { dtype, shape, offset, bytes }]) => {
      const raw = tensors.subarray(offset, offset + bytes);
      if (raw.length < bytes) throw new RangeError(`${where}: "${name}" is cut off`);
      return [name, { dtype, shape, data: arrayOver(dtype, raw) }];
    }),
  );
}
