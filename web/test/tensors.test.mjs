import assert from "node:assert/strict";
import { test } from "node:test";
import { Tensor, WgfcError } from "../dist/index.js";
import { compare, readTensors } from "../dist/verify.js";

const bits = (t) => [...t.bytes()].map((b) => b.toString(16).padStart(2, "0")).join("");
const numbers = (dtype, bytes, shape = [bytes.length]) => [...Tensor.fromBytes(dtype, shape, Uint8Array.from(bytes)).toNumbers()];

test("numbers are packed", () => {
  const cases = [
    ["f16", [1, -2, 65504, 65520, 2 ** -24, 2 ** -26, 1 + 2 ** -11, 1 + 3 * 2 ** -11, NaN, -0], "003c00c0ff7b007c01000000003c023c007e0080"],
    ["bf16", [1, 3.3895313892515355e38, 3.4e38, 1 + 2 ** -8, 1 + 3 * 2 ** -8, -Infinity], "803f7f7f807f803f823f80ff"],
    ["i64", [-1, 2n ** 62n], "ffffffffffffffff0000000000000040"],
    ["u64", [2n ** 64n - 1n], "ffffffffffffffff"],
    ["i4", [1, -1, 7, -8, 3], "f18703"],
    ["u2", [3, 0, 1, 2, 1], "9301"],
    ["bool", [true, 0, 5], "010001"],
    ["i16", [-2], "feff"],
  ];
  for (const [dtype, values, want] of cases) {
    const t = Tensor.from(dtype, [values.length], values);
    assert.equal(bits(t), want, dtype);
    assert.equal(t.toString(), `${dtype}[${values.length}]`);
  }
  assert.throws(() => Tensor.from("f8e4m3", [1], [1]), TypeError);
});

test("f16 and bf16 come back as they were packed", () => {
  for (const dtype of ["f16", "bf16"]) {
    const all = Uint16Array.from({ length: 1 << 16 }, (_, i) => i);
    const wide = Tensor.fromBytes(dtype, [1 << 16], new Uint8Array(all.buffer)).toNumbers();
    const again = new Uint16Array(Tensor.from(dtype, [1 << 16], wide).bytes().slice().buffer);
    for (let i = 0; i < 1 << 16; i++) if (!Number.isNaN(wide[i])) assert.equal(again[i], i, `${dtype} ${i}`);
  }
});

test("small floats are numbers", () => {
  assert.deepEqual(numbers("f8e4m3", [0x38, 0x7e, 0x7f, 0x01, 0x80, 0xb8]), [1, 448, NaN, 2 ** -9, -0, -1]);
  assert.deepEqual(numbers("f8e4m3uz", [0x40, 0x7f, 0x80, 0x01]), [1, 240, NaN, 2 ** -10]);
  assert.deepEqual(numbers("f8e5m2", [0x3c, 0x7b, 0x7c, 0xfc, 0x7d, 0x01]), [1, 57344, Infinity, -Infinity, NaN, 2 ** -16]);
  assert.deepEqual(numbers("f8e5m2uz", [0x40, 0x7f, 0x80]), [1, 57344, NaN]);
  assert.deepEqual(numbers("f8e8m0", [127, 0, 255]), [1, 2 ** -127, NaN]);
  assert.deepEqual(numbers("f4e2m1", [0x21, 0xf7], [4]), [0.5, 1, 6, -6]);
  assert.deepEqual(numbers("i4", [0xf1, 0x07], [3]), [1, -1, 7]);
});

test("data of another class or length is refused", () => {
  const refused = (dtype, shape, data) =>
    assert.throws(() => new Tensor(dtype, shape, data), (e) => e instanceof WgfcError && e.kind === "shape");
  refused("f32", [2], new Float64Array(2));
  refused("f32", [2, 2], new Float32Array(3));
  refused("i64", [1], new Int32Array(2));
  refused("u4", [3], new Uint8Array(1));
  assert.equal(new Tensor("u8", [2], new Uint8ClampedArray(2)).elements, 2);
  assert.equal(new Tensor("f16", [2], new Uint16Array(2)).onGpu, false);
});

test("tensors are compared", () => {
  const t = (dtype, values) => Tensor.from(dtype, [values.length], values);
  const problem = (...args) => compare(...args).problem;
  assert.equal(problem(t("f32", [1, NaN, Infinity, -0]), t("f32", [1.0009, NaN, Infinity, 0])), undefined);
  assert.match(problem(t("f32", [1, 2]), t("f32", [1, 2.1])), /1 of 2 .* \[1\]: 2 instead of 2.09/);
  assert.match(problem(t("f32", [1, Infinity]), t("f32", [1, 9])), /Infinity instead of 9/);
  assert.match(problem(t("i64", [2n ** 53n]), t("i64", [2n ** 53n + 1n])), /9007199254740992 instead of 9007199254740993/);
  assert.match(problem(t("i32", [1]), t("i64", [1])), /i32\[1\] instead of i64\[1\]/);
  assert.equal(problem(t("f16", [1]), t("f16", [1.0015]), { rtol: 0, atol: 0 }), undefined);
});

test("files of tensors are read", () => {
  const header = new TextEncoder().encode(
    JSON.stringify({
      __metadata__: { wgfc: JSON.stringify({ q: { dtype: "u4", shape: [3] } }) },
      x: { dtype: "F32", shape: [2], data_offsets: [0, 8] },
      q: { dtype: "U8", shape: [2], data_offsets: [8, 10] },
    }),
  );
  const file = new Uint8Array(8 + header.length + 10);
  new DataView(file.buffer).setBigUint64(0, BigInt(header.length), true);
  file.set(header, 8);
  file.set([0, 0, 128, 63, 0, 0, 0, 192, 0x21, 0x03], 8 + header.length);
  const { x, q } = readTensors(file);
  assert.deepEqual([...x.data], [1, -2]);
  assert.deepEqual([...new Tensor(q.dtype, q.shape, q.data).toNumbers()], [1, 2, 3]);
  assert.throws(() => readTensors(file.subarray(0, file.length - 1)), /"q" is cut off/);
  assert.throws(() => readTensors(file.subarray(0, 20)), (e) => e.kind === "corrupt");
});
