// onnxruntime-web in the page, with its WebGPU execution provider, or on the CPU.
import { tensors, tokens } from "./inputs.mjs";

const query = new URLSearchParams(location.search);
const flavour = query.get("ort") || "webgpu";
const provider = query.get("provider") || "webgpu";
const ort = await import(`/ort/ort.${flavour}.min.mjs`);
ort.env.wasm.wasmPaths = "/ort/";
ort.env.wasm.numThreads = 1;

const TYPES = { f32: "float32", i64: "int64" };
const made = ({ dtype, shape, data }) => new ort.Tensor(TYPES[dtype], data, shape);
const ids = (numbers) => new ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), [1, numbers.length]);

export async function open(spec) {
  const options = { executionProviders: [provider], freeDimensionOverrides: spec.dims ?? {} };
  if (spec.fixture) options.externalData = [{ path: `${spec.name}.onnx.data`, data: `/models/${spec.name}/${spec.name}.onnx.data` }];
  // Caches stay on the device.
  if (spec.decode && provider === "webgpu") options.preferredOutputLocation = Object.fromEntries(spec.decode.caches.map(([, present]) => [present, "gpu-buffer"]));
  const session = await ort.InferenceSession.create(`/models/${spec.name}/${spec.name}.onnx`, options);
  if (!spec.decode) {
    const feeds = () => Object.fromEntries(Object.entries(tensors(spec.inputs, true)).map(([n, t]) => [n, made(t)]));
    const inputs = feeds();
    return { run: () => session.run(inputs) };
  }
  const { decode } = spec;
  let [at, runs] = [0, 0];
  let past = Object.fromEntries(decode.caches.map(([name]) => [name, new ort.Tensor("float32", new Float32Array(0), decode.empty)]));
  const run = async () => {
    const now = tokens(decode, at === 0 ? undefined : runs++);
    const positions = now.map((_, i) => at + i);
    at += now.length;
    const outputs = await session.run({ [decode.ids]: ids(now), [decode.positions]: ids(positions), ...past });
    for (const t of Object.values(past)) t.dispose();
    past = Object.fromEntries(decode.caches.map(([name, present]) => [name, outputs[present]]));
    return Object.fromEntries(Object.entries(outputs).filter(([name]) => session.outputNames.includes(name) && !decode.caches.some((c) => c[1] === name)));
  };
  return { run };
}

export function results(outputs) {
  return Object.fromEntries(Object.entries(outputs).map(([name, t]) => [name, t.data]));
}
