// Models on the CPU: `dist/cpu` in Node, where it needs no worker, with the expected results of the fixtures.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { compare } from "../build/verify.js";
import { load } from "../dist/cpu/index.js";
import { Tensor, WgfcError } from "../dist/index.js";
import { external, field, product, tensorOf } from "./protobuf.mjs";

const small = new URL("../../fixtures/small/", import.meta.url);
const model = (name) => new Blob([readFileSync(new URL(`${name}/model.onnx`, small))]);

/** The inputs and expected outputs of a fixture, one pair for each set of its data. */
function* sets(name, { inputs, outputs }) {
  for (const set of readdirSync(new URL(`${name}/`, small)).filter((f) => f.startsWith("test_data_set_"))) {
    const read = (kind, { name: port }, i) => {
      const { dtype, shape, bytes } = tensorOf(readFileSync(new URL(`${name}/${set}/${kind}_${i}.pb`, small)));
      return [port, Tensor.fromBytes(dtype, shape, bytes)];
    };
    yield [Object.fromEntries(inputs.map((p, i) => read("input", p, i))), Object.fromEntries(outputs.map((p, i) => read("output", p, i)))];
  }
}

function close(got, want) {
  for (const [name, tensor] of Object.entries(want)) assert.equal(compare(got[name], tensor, { rtol: 1e-4, atol: 1e-5 }).problem, undefined, name);
}

const refused = (promise, kind, message) =>
  assert.rejects(promise, (e) => {
    assert.ok(e instanceof WgfcError, e);
    assert.equal(e.kind, kind, e.message);
    assert.match(e.message, message);
    return true;
  });

test("the fixtures have their expected results", async (t) => {
  for (const name of readdirSync(small))
    await t.test(name, async () => {
      const loaded = await load(model(name));
      for (const [inputs, outputs] of sets(name, loaded)) close(await loaded.run(inputs), outputs);
      loaded.dispose();
    });
});

test("weights in another file are found by its name", async () => {
  const [k, n] = [96, 128];
  const w = Float32Array.from({ length: k * n }, (_, i) => (i % 11) - 5);
  const file = new Uint8Array(8 + 4 * k * n);
  file.set(new Uint8Array(w.buffer), 8);
  const x = Tensor.from("f32", [2, k], Float32Array.from({ length: 2 * k }, (_, i) => (i % 7) / 7));
  const inside = await load(new Blob([product(k, n, [field(9, new Uint8Array(w.buffer))])]));
  const beside = await load({ "m.onnx": product(k, n, external("data.bin", 8, 4 * k * n)), "data.bin": file });
  const [port] = inside.inputs;
  const [a, b] = [await inside.run({ [port.name]: x }), await beside.run({ [port.name]: x })];
  assert.deepEqual(a, b);
  await refused(load({ "m.onnx": product(k, n, external("data.bin", 8, 4 * k * n)), "data.bin": file.subarray(0, 100) }), "model", /outside the file/);
});

test("inputs that do not fit are errors, as on a GPU", async () => {
  const mlp = await load(model("mlp"));
  assert.deepEqual(mlp.inputs, [{ name: "x", dtype: "f32", shape: ["batch", 13], optional: false }]);
  const x = Tensor.from("f32", [3, 13], Array(39).fill(0.5));
  await refused(mlp.run({}), "shape", /"x": it is missing; it is f32\[batch, 13\]/);
  await refused(mlp.run({ x, y: x }), "shape", /"y": the model has no such input; it has "x"/);
  await refused(mlp.run({ x: { ...x, dtype: "i32" } }), "shape", /it must be f32, not i32/);
  await refused(mlp.run({ x: Tensor.from("f32", [3, 12], Array(36).fill(0)) }), "shape", /axis 1 must have 13 elements, not 12/);
  await refused(mlp.run({ x: { dtype: "f32", shape: [3, 13], data: new Float32Array(5) } }), "shape", /takes 156 bytes/);
  await refused(mlp.run({ x: { dtype: "f32", shape: [3, 13], data: { size: 156 } } }), "shape", /GPUBuffer/);
  await refused(mlp.run({ x }, { outputs: ["nothing"] }), "shape", /no output "nothing"; it has "/);
  const [first] = mlp.outputs;
  assert.deepEqual(Object.keys(await mlp.run({ x }, { outputs: [first.name] })), [first.name]);
  await refused(mlp.run({ x }, { signal: AbortSignal.abort() }), "aborted", /aborted/);
  mlp.dispose();
  await refused(mlp.run({ x }), "disposed", /disposed of/);
});

test("models that cannot be read are errors with diagnostics", async () => {
  await refused(load(new Blob(["no model"])), "model", /not an ONNX model/);
  await refused(load(new Blob(["PK\x03\x04 an archive"])), "unsupported", /give an \.onnx file/);
  await refused(load(new Blob([])), "model", /is empty/);
  await refused(load(model("mlp"), { dims: { nothing: 3 } }), "model", /nothing/);
});
