/** The digits on which the page trains, also changed as people draw them. */

import { Tensor, type TypedArray } from "wgfc";

/** One of so many digits is kept to test with. */
const TESTED = 5;
/** The number of changed copies of each digit. */
const COPIES = 8;

export interface Digits {
  readonly training: { readonly image: Tensor<TypedArray>; readonly label: Tensor<TypedArray> };
  readonly test: { readonly image: Tensor<TypedArray>; readonly labels: Uint8Array };
}

/** The 1,797 digits of scikit-learn: 8 × 8 counts from 0 to 16, and labels. */
export async function fetchDigits(address: string): Promise<Digits> {
  const bytes = await (await fetch(address)).arrayBuffer();
  const start = 8 + Number(new DataView(bytes).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, start - 8))) as Record<string, { data_offsets: [number, number] }>;
  const [images, labels] = ["images", "labels"].map((name) => {
    const [from, to] = header[name]!.data_offsets;
    return new Uint8Array(bytes, start + from, to - from);
  }) as [Uint8Array, Uint8Array];
  const ofRow = (row: number) => Float32Array.from(images.subarray(64 * row, 64 * row + 64), (x) => x / 16);
  const rows = Array.from(labels, (_, i) => i);
  const [test, own] = [rows.filter((i) => i % TESTED === 0), rows.filter((i) => i % TESTED !== 0)];
  const training = own.flatMap((row) => {
    const image = ofRow(row);
    return [image, ...Array.from({ length: COPIES }, () => changed(image))].map((image) => ({ image, label: labels[row]! }));
  });
  return {
    training: {
      image: imagesOf(training.map((t) => t.image)),
      label: Tensor.from("i64", [training.length], training.map((t) => t.label)),
    },
    test: { image: imagesOf(test.map(ofRow)), labels: Uint8Array.from(test, (row) => labels[row]!) },
  };
}

function imagesOf(images: readonly Float32Array[]): Tensor<TypedArray> {
  const all = new Float32Array(64 * images.length);
  images.forEach((image, i) => all.set(image, 64 * i));
  return new Tensor("f32", [images.length, 1, 8, 8], all);
}

/** A digit that is moved, turned, slanted, made larger or smaller, and drawn with a thicker or thinner pen. */
function changed(image: Float32Array): Float32Array {
  const between = (a: number, b: number) => a + (b - a) * Math.random();
  const [angle, size, slant, dx, dy] = [between(-0.2, 0.2), between(0.8, 1.15), between(-0.2, 0.2), between(-0.9, 0.9), between(-0.9, 0.9)];
  const [pen, ink] = [between(1, 1.8), between(-0.15, 0.15)];
  const [cos, sin] = [Math.cos(angle) / size, Math.sin(angle) / size];
  const at = (i: number, j: number) => (i >= 0 && i < 8 && j >= 0 && j < 8 ? image[8 * i + j]! : 0);
  const out = new Float32Array(64);
  // Each pixel is the mean of four samples.
  for (let i = 0; i < 16; i++)
    for (let j = 0; j < 16; j++) {
      const [y, x] = [(i - 7.5) / 2, (j - 7.5) / 2];
      const [u, v] = [cos * x + sin * y + slant * y + dx + 3.5, -sin * x + cos * y + dy + 3.5];
      const [row, column] = [Math.floor(v), Math.floor(u)];
      const [a, b] = [v - row, u - column];
      const sample = (1 - a) * ((1 - b) * at(row, column) + b * at(row, column + 1)) + a * ((1 - b) * at(row + 1, column) + b * at(row + 1, column + 1));
      if (sample > 0.02) out[8 * (i >> 1) + (j >> 1)]! += Math.min(1, Math.max(0, (sample - 0.5) * pen + 0.5 + ink)) / 4;
    }
  return out;
}
