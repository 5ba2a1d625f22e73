/** f16 weights of f32 bytes. This module is loaded by the first model whose f16 weights are f32 in its file. */

import { WgfcError } from "./errors.js";

/** Converts f32 elements to f16, rounding to nearest, ties to even. */
export function halves(name: string, bytes: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> {
  const words = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const out = new DataView(new ArrayBuffer(bytes.length / 2));
  for (let i = 0; i < bytes.length; i += 4) {
    const word = words.getUint32(i, true);
    const half = halfOf(word);
    if ((half & 0x7fff) === 0x7c00 && (word & 0x7fffffff) !== 0x7f800000)
      throw new WgfcError("unsupported", `the weight "${name}" has ${words.getFloat32(i, true)}, which is beyond f16: compile the model with its node in keepF32`);
    out.setUint16(i / 2, half, true);
  }
  return new Uint8Array(out.buffer);
}

/** Converts the bits of an f32 to those of the nearest f16, ties to even. */
export function halfOf(word: number): number {
  const sign = (word >>> 16) & 0x8000;
  const rest = word & 0x7fffffff;
  if (rest > 0x7f800000) return sign | 0x7e00;
  // Adds half a unit in the last place, less one bit if the result would otherwise be even, for ties to even.
  const rounded = (bits: number, shift: number) => (bits + (1 << (shift - 1)) - 1 + ((bits >>> shift) & 1)) >>> shift;
  if (rest >= 0x38800000) return sign | Math.min(rounded(rest - 0x38000000, 13), 0x7c00);
  // For subnormal results the exponent determines the shift of the mantissa.
  const exponent = rest >>> 23;
  if (exponent < 102) return sign;
  return sign | rounded((rest & 0x7fffff) | 0x800000, 126 - exponent);
}
