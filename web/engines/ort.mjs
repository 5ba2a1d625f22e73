// onnxruntime-web in a page or an engine, with its WebGPU execution provider: runs of the graphs in fixtures/, and tokens of decoders. All their
// weights are zeros, which take as long as others.
import { waitedFor } from "./dispatch.mjs";
import { outside } from "./fixture.mjs";

const base = new URL("/ort/", location.href).href;
if (globalThis.process) {
  // Its module takes a process of this type for a page, also in node.
  globalThis.process.type = "renderer";
  // Dawn's module for node takes no views of WebAssembly's memory.
  const { writeBuffer } = GPUQueue.prototype;
  GPUQueue.prototype.writeBuffer = function (buffer, at, data, from = 0, size = data.length - from) {
    return writeBuffer.call(this, buffer, at, data.slice(from, from + size));
  };
}
const TYPES = { f32: "float32", i64: "int64", f16: "float16" };

/** The version of the package. */
export async function version() {
  return (await import(`${base}ort.webgpu.min.mjs`)).env.versions.web;
}

async function session(fixture, options = {}) {
  const ort = await import(`${base}ort.webgpu.min.mjs`);
  ort.env.wasm.wasmPaths = base;
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "error";
  const { address, weights } = await outside(fixture);
  const externalData = Object.entries(weights).map(([path, data]) => ({ path, data }));
  return { ort, made: await ort.InferenceSession.create(address, { executionProviders: ["webgpu"], externalData, ...options }) };
}

function tensor(ort, { dtype, shape, value }) {
  const n = shape.reduce((a, b) => a * b, 1);
  const at = (i) => value ?? ((i * 7) % 13) / 6 - 1;
  const data = dtype === "i64" ? BigInt64Array.from({ length: n }, (_, i) => BigInt(at(i))) : Float32Array.from({ length: n }, (_, i) => at(i));
  return new ort.Tensor(TYPES[dtype], data, shape);
}

/** Milliseconds of a run that is waited for, and to the first result. Sizes are fixed to those of the inputs. */
export async function times(fixture, inputs, { seconds = 1, dims = {} } = {}) {
  const start = performance.now();
  const { ort, made } = await session(fixture, { freeDimensionOverrides: dims });
  const feeds = Object.fromEntries(inputs.map((i) => [i.name, tensor(ort, i)]));
  await made.run(feeds);
  const first = performance.now() - start;
  const waited = await waitedFor(() => made.run(feeds), seconds);
  await made.release();
  return { ...waited, first };
}

/** Tokens a second of a decoder behind `past` positions, whose caches stay on the device, with the token chosen by the page from the logits. */
export async function decode(fixture, { past = 64, tokens = 96, layers = 24, heads = 2, size = 64, half = false } = {}) {
  const start = performance.now();
  const caches = Array.from({ length: layers }, (_, i) => ["key", "value"].map((kv) => [`past_key_values.${i}.${kv}`, `present.${i}.${kv}`])).flat();
  const { ort, made } = await session(fixture, { preferredOutputLocation: Object.fromEntries(caches.map(([, present]) => [present, "gpu-buffer"])) });
  const loaded = performance.now() - start;
  const empty = () => new ort.Tensor(half ? "float16" : "float32", half ? new (globalThis.Float16Array ?? Uint16Array)(0) : new Float32Array(0), [1, heads, 0, size]);
  let held = Object.fromEntries(caches.map(([name]) => [name, empty()]));
  let at = 0;
  const step = async (ids) => {
    const of = (numbers) => new ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), [1, numbers.length]);
    const outputs = await made.run({ input_ids: of(ids), position_ids: of(ids.map((_, i) => at + i)), ...held });
    at += ids.length;
    for (const t of Object.values(held)) t.dispose();
    held = Object.fromEntries(caches.map(([name, present]) => [name, outputs[present]]));
    const logits = await outputs.logits.getData();
    const last = logits.subarray(logits.length - logits.length / ids.length);
    let best = 0;
    for (let i = 1; i < last.length; i++) if (last[i] > last[best]) best = i;
    return best;
  };
  let id = await step(Array.from({ length: past }, (_, i) => 100 + i));
  const first = performance.now() - start;
  for (let i = 0; i < 8; i++) id = await step([id]);
  const begin = performance.now();
  const ends = [begin];
  for (let i = 0; i < tokens; i++) {
    id = await step([id]);
    ends.push(performance.now());
  }
  const perSecond = (1000 * tokens) / (ends[tokens] - begin);
  await made.release();
  return { perSecond, first, loaded, all: ends.slice(1).map((t, i) => t - ends[i]) };
}
