import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { graphOf } from "../build/compiler/onnx.js";
import { Download, RandomBytes, originOf } from "../build/compiler/origin.js";
import { SPEEDS, profileOf, profileOfLimits } from "../build/compiler/profile.js";
import { MATRICES } from "../build/kind.js";
import { WgfcError } from "../build/errors.js";
import { FileSource } from "../build/files.js";
import { external, field, message, number, pair, tensor } from "./protobuf.mjs";

const random = (n, seed) => Uint8Array.from({ length: n }, (_, i) => (i * 7919 + (i >> 8) * seed) & 255);
/** A 64-bit -1, as attributes have it. */
const minusOne = Buffer.from([8 * 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);

/** A model with tensors wherever they may be, each made by `data` from its size and number. */
function model(data) {
  const t = (name, size, seed) => tensor(name, ...data(size, seed));
  const constant = message(field(4, "Constant"), field(5, message(field(1, "value"), field(5, t("c", 20_000, 3)))));
  const inner = message(field(1, constant), field(5, t("inner", 17_000, 4)));
  const branch = message(field(4, "If"), field(5, message(field(1, "then_branch"), field(6, inner), minusOne)));
  const many = message(field(4, "Many"), field(5, message(field(10, t("m", 30_000, 5)), field(11, inner))));
  const graph = message(field(1, branch), field(1, many), field(2, "g"), field(5, t("w", 70_000, 1)), field(5, t("b", 100, 2)), field(5, tensor("typed", field(4, random(50_000, 6)))));
  const functions = field(25, message(field(1, "f"), field(7, constant)));
  return message(number(1, 8), field(2, "a test"), field(7, graph), functions, field(14, message(field(1, "k"), field(2, "v"))));
}
const here = (size, seed) => [field(9, random(size, seed))];

/** A blob whose bytes are counted. */
const graphs = async (bytes) => {
  const blob = new Blob([bytes]);
  const download = new Download(new FileSource({ m: bytes }), "m", undefined, () => {});
  const kept = RandomBytes.kept(new FileSource({ m: bytes }), "m", bytes.length);
  const all = [await graphOf(RandomBytes.of(blob), "it.onnx"), await graphOf(download, "it.onnx"), await graphOf(kept, "it.onnx")];
  const { blob: whole } = await download.whole();
  assert.deepEqual(new Uint8Array(await whole.arrayBuffer()), new Uint8Array(bytes));
  return all;
};

test("large tensors become external data of the model's file, everything else stays", async () => {
  const bytes = Buffer.from(model(here));
  for (const g of await graphs(bytes)) {
    assert.deepEqual([...g.external], []);
    // One constant stands in each of the two branches and in the function.
    assert.equal(g.moved, 70_000 + 3 * 20_000 + 2 * 17_000 + 30_000);
    const text = Buffer.from(g.bytes);
    const offsets = [...text.toString("latin1").matchAll(/it\.onnxj.\n\x06offset\x12.(\d+)j.\n\x06length\x12.(\d+)p\x01/gs)];
    assert.equal(offsets.length, 7);
    for (const [, offset, length] of offsets) {
      const seed = { 70000: 1, 20000: 3, 17000: 4, 30000: 5 }[length];
      assert.deepEqual(new Uint8Array(bytes.subarray(+offset, +offset + +length)), random(+length, seed));
    }
    assert.ok(text.includes(Buffer.from(random(100, 2))) && text.includes(Buffer.from(random(50_000, 6))) && text.includes(minusOne));
  }
});

test("models without large tensors stay as they are", async () => {
  const folder = new URL("../../fixtures/small/", import.meta.url);
  let same = 0;
  for (const name of readdirSync(folder)) {
    const bytes = readFileSync(new URL(`${name}/model.onnx`, folder));
    for (const g of await graphs(bytes)) {
      assert.ok(g, name);
      if (g.moved) continue;
      assert.deepEqual(Buffer.from(g.bytes), bytes, name);
      same++;
    }
  }
  assert.ok(same > 20, `${same} graphs`);
});

test("external data are found, with how far they reach", async () => {
  const at = (location, offset, length) => field(5, tensor("t", ...external(location, offset, length)));
  const graph = message(at("a/b.bin", 100, 28), at("a/b.bin", 0, 100), at("c", 7, 1e10), field(5, tensor("all", pair("location", "d"))));
  for (const g of await graphs(message(number(1, 8), field(7, graph)))) {
    assert.deepEqual([...g.external], [["a/b.bin", 128], ["c", 1e10 + 7], ["d", 0]]);
    assert.equal(g.moved, 0);
  }
});

test("models that are cut off, and what is no model, are told", async () => {
  const bytes = Buffer.from(model(here));
  for (let i = 1; i < 60; i++)
    for (const g of await graphs(bytes.subarray(0, bytes.length - 1 - Math.floor((i * (bytes.length - 300)) / 60)))) assert.equal(g, undefined);
  for (const what of [Buffer.from("PK\x03\x04 an archive"), Buffer.from("{}"), Buffer.alloc(30, 255), Buffer.from([0x3a, 0x80])])
    for (const g of await graphs(what)) assert.equal(g, undefined);
  let deep = Buffer.alloc(0);
  for (let i = 0; i < 300; i++) deep = field(7, field(1, field(5, field(6, deep)))).subarray(0);
  for (const g of await graphs(field(7, deep))) assert.ok(g === undefined || g.bytes.length > 0);
});

test("a download that breaks off goes on there, once", async () => {
  const bytes = random(90_000, 3);
  const asked = [];
  const source = (...ends) => ({
    async *stream(file, from) {
      asked.push(from);
      const end = ends.shift() ?? bytes.length;
      for (let at = from; at < end; at += 1000) yield bytes.subarray(at, Math.min(at + 1000, end));
      if (end < bytes.length) throw new WgfcError("network", "it broke off");
    },
  });
  const { blob } = await new Download(source(30_000, 70_500), "", undefined, () => {}).whole();
  assert.deepEqual(new Uint8Array(await blob.arrayBuffer()), bytes);
  assert.deepEqual(asked, [0, 30_000, 70_500]);
  await assert.rejects(new Download(source(500, 500), "", undefined, () => {}).whole(), { kind: "network" });
  await assert.rejects(new Download(source(0), "", undefined, () => {}).whole(), { kind: "network" });
});

test("a model is found among files", () => {
  const [a, b] = [new Blob(["a"]), new Blob(["b"])];
  const origin = originOf({ "x/net.onnx": a, "x/weights/w.bin": b, "README.md": "hello" });
  assert.deepEqual([origin.name, origin.place, origin.beside("weights/w.bin"), origin.beside("nowhere")], ["net.onnx", a, b, undefined]);
  assert.equal(originOf({ "y.onnx": a, "model.onnx": b }).place, b);
  assert.throws(() => originOf({ "y.onnx": a, "z.onnx": b }), { kind: "model", message: /several models.*y.onnx, z.onnx/ });
  assert.throws(() => originOf({ "y.txt": a }), { kind: "model", message: /no .onnx, .pt2 or .gguf file, but y.txt/ });
  const remote = originOf("https://example.com/models/a%20b.onnx?x=1");
  assert.equal(remote.name, "a b.onnx");
  assert.equal(remote.beside("data #1.bin").href, "https://example.com/models/data%20%231.bin");
  for (const outside of ["../w.bin", "/w.bin", "https://example.org/w.bin", "x/../../w.bin"])
    assert.ok([undefined, "https://example.com/models/https%3A//example.org/w.bin"].includes(remote.beside(outside)?.href), outside);
});

test("a profile has the limits of a device and the speeds of its kind", () => {
  const limits = { maxStorageBuffersPerShaderStage: 10, maxComputeInvocationsPerWorkgroup: 1024, maxComputeWorkgroupStorageSize: 32768, maxStorageBufferBindingSize: 2 ** 31, maxBufferSize: 2 ** 30, maxComputeWorkgroupsPerDimension: 65535 };
  const want = { max_storage_buffers: 10, max_invocations: 1024, max_workgroup_bytes: 32768, max_binding_bytes: 2 ** 30, max_workgroups: 65535 };
  const device = (features, adapterInfo) => profileOf({ limits, features: new Set(features), adapterInfo });
  assert.deepEqual(device([], { vendor: "?" }), { version: 1, limits: { f16: false, ...want } });
  const sized = { vendor: "nvidia", subgroupMinSize: 32, subgroupMaxSize: 32 };
  assert.deepEqual(device(["shader-f16", "subgroups"], sized), { version: 1, limits: { f16: true, ...want, subgroup: 32 }, speeds: SPEEDS.discrete });
  assert.equal(device(["subgroups"], { ...sized, subgroupMaxSize: 64 }).limits.subgroup, undefined);
  const edge = (n) => ({ ...sized, subgroupMatrixConfigs: [{ M: n, N: n, K: n, componentType: "f16", resultComponentType: "f32" }] });
  const units = (n, ...features) => device(["shader-f16", "subgroups", ...features], edge(n)).limits.subgroup_matrix;
  assert.deepEqual([units(16, MATRICES), units(8, MATRICES), units(16)], [true, undefined, undefined]);
  assert.deepEqual(device([], { vendor: "google", architecture: "swiftshader" }).speeds, SPEEDS.swiftshader);
  assert.deepEqual(profileOfLimits({}, []), { version: 1, limits: { f16: false } });
});

test("speeds are those of the compiler", () => {
  const text = readFileSync(new URL("../../compiler/src/device.rs", import.meta.url), "utf8");
  for (const [kind, speeds] of Object.entries(SPEEDS)) {
    const body = new RegExp(`const ${kind.toUpperCase()}: Speeds = Speeds \\{([^}]*)\\}`).exec(text)[1];
    const found = [...body.matchAll(/^ *(\w+): ([\d_.e-]+),$/gm)].map(([, name, n]) => [name, Number(n.replaceAll("_", ""))]);
    assert.deepEqual(Object.fromEntries(found), speeds, kind);
  }
});
