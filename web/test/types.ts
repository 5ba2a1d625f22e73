// Uses of the public types. `npm run check` type-checks this file; nothing runs it.
import { Generator, type Message } from "../src/generate.js";
import { type Compiled, compile } from "../src/compiler/index.js";
import { type CpuModel, load as loadOnCpu } from "../src/cpu/index.js";
import { type DeviceProfile, measure } from "../src/measure.js";
import { type Step, Trainer } from "../src/train.js";
import { type Tuned, type TunedKernel, tune } from "../src/tune.js";
import { clearCache, type DispatchTime, type ErrorKind, type Inspection, load, type Model, Tensor, type TypedArray, WgfcError } from "../src/index.js";

export async function compiling(file: File, device: GPUDevice): Promise<void> {
  const { source, plan, kernels, ms }: Compiled = await compile(file, { device, dims: { batch: 1 }, plans: [{ name: "a", dims: { seq: 1 } }] });
  const model = await load(source, { device });
  await load("model.onnx", { dims: { batch: 1 }, expect: { seq: 128 }, precision: "f32", plans: [{ name: "a" }], onProgress: ({ stage }) => stage === "compile" });
  const { plans, adapter }: Inspection = await model.inspect();
  console.log(plan.plans.length, kernels["k"], ms, plans[0]?.kernels[0]?.text, adapter.vendor);
  await compile({ "m.onnx": file, "m.onnx.data": new URL("https://example.com/data") }, { limits: device.limits as unknown as Record<string, number>, features: [] }).catch(
    (e) => e instanceof WgfcError && e.diagnostics.map((d) => d.help),
  );
}

export async function onTheCpu(file: File, x: Tensor<TypedArray>): Promise<number> {
  const model: CpuModel = await loadOnCpu(file, { dims: { batch: 1 }, signal: AbortSignal.timeout(9000), onProgress: ({ stage, loaded, total }) => console.log(stage, loaded / total) });
  await loadOnCpu({ "m.onnx": file, "m.onnx.data": new URL("https://example.com/data") }, { cache: false });
  const { y } = await model.run({ x, n: { dtype: "f32", shape: [1], data: new Float32Array(1) } }, { outputs: ["y"], symbols: { seq: 3 } });
  console.log(model.inputs.map((p) => p.shape), model.outputs.map((p) => p.dtype));
  model.dispose();
  return y!.data.length;
}

export async function tuning(device: GPUDevice): Promise<Tuned> {
  const report = ({ title, own, best }: TunedKernel) => console.log(title, own.microseconds / best.microseconds, best.schedule);
  return tune("model.onnx", { device, dims: { batch: 1 }, values: { seq: 128 }, budget: 5000, most: 8, idle: false, onKernel: ({ done, total, kernel }) => kernel ? report(kernel) : console.log(done / total) });
}

export async function measuring(device: GPUDevice): Promise<DeviceProfile> {
  const profile = await measure(device, { cache: "mine", signal: AbortSignal.timeout(5000), onProgress: ({ stage, done, total }) => console.log(stage, done / total) });
  await compile("model.onnx", { profile });
  return profile;
}

export async function training(file: File, device: GPUDevice, x: Tensor<TypedArray>): Promise<Step[]> {
  const trainer = await Trainer.load(file, { device, data: { x }, inputs: { rate: Tensor.from("f32", [], [0.1]) }, states: { w: "w.1" }, batch: 8, seed: 3n, inFlight: 3 });
  const steps: Step[] = [];
  for await (const step of trainer.run(10, { signal: AbortSignal.timeout(1000) })) steps.push(step);
  trainer.set({ rate: Tensor.from("f32", [], [0.01]) });
  const file2: Blob = await trainer.save();
  await trainer.resume(file2);
  await trainer.begin({ w: x });
  console.log(trainer.step, trainer.loss, trainer.batch, trainer.rows, trainer.model.states.map((s) => s.data.size));
  trainer.dispose();
  return steps;
}

export async function generating(file: File, device: GPUDevice): Promise<void> {
  const generator = await Generator.load(file, { device, capacity: 1024, chatTemplate: "{{ messages }}" });
  const messages: Message[] = [{ role: "user", content: [{ type: "text", text: "Hello!" }], name: "Ada" }, { role: "assistant", tool_calls: [{}] }];
  const options = { tools: [{ type: "function" }], variables: { enable_thinking: false }, maxTokens: 9, minP: 0.1, repetitionPenalty: 1.1, logitBias: { 7: -1 } };
  for await (const piece of generator.chat(messages, options)) console.log(piece.length, generator.length);
  for await (const piece of generator.complete("text", { presencePenalty: 1 })) console.log(piece.trim());
  for await (const token of generator.tokens([1, 2])) console.log(token + 1);
  const { hidden } = await generator.observe([1, 2], ["hidden"], { "hidden.add": { dtype: "f32", shape: [8], data: new Float32Array(8) } });
  for await (const token of generator.tokens([1], { inputs: { "hidden.add": hidden! } })) console.log(token);
  for await (const token of generator.tokens([1], { inputs: (past, count) => (past + count > 3 ? { "hidden.add": hidden! } : {}) })) console.log(token);
  await generator.rewind(1);
  console.log((await generator.chatPrompt(messages, { tools: [] })).length);
}

export async function types(device: GPUDevice, canvas: HTMLCanvasElement, file: File): Promise<void> {
  const model: Model = await load("model/", { device, onProgress: ({ stage, loaded, total }) => console.log(stage, loaded / total) });
  await load(file, { signal: AbortSignal.timeout(1000), plans: ["decode"], capacity: 64 });
  await load("model/", { cache: "mine" });
  await clearCache("mine");
  await load({ "plan.json": "{}", "weights.safetensors": new Uint8Array(8) });

  const plain = { dtype: "f32", shape: [1, 4], data: new Float32Array(4) } as const;
  const host = await model.run({ x: plain, n: Tensor.from("i64", [1], [3n]) });
  const numbers: TypedArray = host["y"]!.data;
  const onDevice = await model.run({ x: host["y"]! }, { outputs: "gpu" });
  const buffer: GPUBuffer = onDevice["y"]!.data;
  const chosen = await model.run({ x: onDevice["y"]! }, { outputs: { y: buffer } });
  const read: Tensor<TypedArray> = await chosen["y"]!.read(device);
  // @ts-expect-error: a tensor on the device must be read before it has numbers
  onDevice["y"]!.toNumbers();
  // @ts-expect-error: no such type
  Tensor.from("f33", [1], [1]);

  const image = await Tensor.fromImage(device, canvas, { shape: [1, 3, 224, 224], mean: [0.5, 0.5, 0.5] });
  const times: DispatchTime[] = await model.profile({ x: image });
  const { problem } = (await model.verify({ x: read }, { y: host["y"]! }, { rtol: 1e-3 }))["y"]!;
  try {
    await model.reset();
  } catch (e) {
    const kind: ErrorKind | undefined = e instanceof WgfcError ? e.kind : undefined;
    console.log(kind, numbers.length, times.length, problem, model.states[0]?.data.size);
  }
  model.dispose();
}
