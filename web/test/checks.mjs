// Promises of the package, in a browser. Each check gets the function that reads a case of tests/it/web.rs.
import { Tensor, load } from "/dist/index.js";
import { close, equal, refused, using } from "./expect.mjs";

export async function a_folder_is_loaded_from_its_address(readCase) {
  const { runs } = await readCase("small/mlp");
  const progress = [];
  await using("/program/small/mlp", { onProgress: (p) => progress.push(p) }, async (model) => {
    equal(model.inputs.map((p) => [p.name, p.dtype, p.optional]), [["x", "f32", false]], "inputs");
    for (const { inputs, outputs } of runs) close(await model.run(inputs), outputs);
  });
  const last = (stage) => progress.filter((p) => p.stage === stage).at(-1);
  for (const stage of ["kernels", "weights"]) equal(last(stage).loaded, last(stage).total, stage);
  if (last("weights").total < 100) throw new Error("no bytes are counted");
}

export async function programs_of_several_plans_and_files_are_loaded_from_addresses(readCase) {
  for (const address of ["plans/folder", "plans/file/program.wgfc", "weights/shards"]) {
    const { runs } = await readCase(address.replace(/\/program.*/, ""));
    await using(`/program/${address}`, {}, async (model) => {
      equal(model.plans, address.startsWith("plans") ? ["decode", "prefill"] : [""], "plans");
      for (const { inputs, outputs } of runs) close(await model.run(inputs), outputs);
    });
  }
}

export async function runs_at_the_same_time_are_done_in_order(readCase) {
  const { files, runs } = await readCase("states/decoder-grows");
  await using(files, { capacity: 6 }, async (model) => {
    const all = await Promise.all(runs.map(({ inputs }) => model.run(inputs)));
    runs.forEach(({ outputs }, i) => close(all[i], outputs));
    const [{ length, capacity }] = model.states;
    equal([length, capacity >= length, capacity > 6], [15, true, true], "the cache");
    await model.rewind(5);
    close(await model.run(runs[1].inputs), runs[1].outputs);
    await refused(model.rewind(99), "limits", /cannot be rewound to 99 positions: it holds 6/);
    await model.reset();
    close(await model.run(runs[0].inputs), runs[0].outputs);
  });
}

const planOf = (files) => JSON.parse(new TextDecoder().decode(files["plan.json"]));

/** A program whose state begins with numbers and adds up its inputs. */
function counter() {
  const header = new TextEncoder().encode(JSON.stringify({ begin: { dtype: "F32", shape: [4], data_offsets: [0, 16] } }));
  const weights = new Uint8Array(8 + header.length + 16);
  new DataView(weights.buffer).setUint32(0, header.length, true);
  weights.set(header, 8);
  weights.set(new Uint8Array(Float32Array.of(1, 2, 3, 4).buffer), 8 + header.length);
  const port = (name, buffer) => ({ name, dtype: "f32", shape: [4], buffer });
  const buffer = (kind) => ({ kind, dtype: "f32", elements: 4 });
  const plan = {
    name: "", needs: { features: [], limits: {} }, inputs: [port("x", 0)], outputs: [port("y", 2)], symbols: [], constraints: [],
    states: [{ ...port("sum", 1), growth: null, initial: "begin" }],
    buffers: [buffer({ kind: "input", index: 0 }), buffer({ kind: "state", name: "sum" }), buffer({ kind: "output", index: 0 })],
    kernels: [{ name: "add", family: "map", workgroup_size: [4, 1, 1], bindings: ["read", "read_write", "read_write"], uses_dims: false, workgroup_bytes: 0, features: [] }],
    dispatches: [{ kernel: 0, bindings: [0, 1, 2], workgroups: [1, 1, 1], nodes: ["Add_0"], bytes: 48, flops: 4 }],
    stats: { model_nodes: 1, bytes_unfused: 48, weights_absent: false, warnings: [] },
  };
  const text = `@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> sum: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(4) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  sum[id.x] += x[id.x];
  y[id.x] = sum[id.x];
}`;
  return { "plan.json": JSON.stringify({ version: 1, producer: "a test", plans: [plan] }), "kernels/add.wgsl": text, "weights.safetensors": weights };
}

export async function states_begin_with_what_the_model_has() {
  await using(counter(), {}, async (model) => {
    const x = Tensor.from("f32", [4], [10, 20, 30, 40]);
    const run = async () => [...(await model.run({ x })).y.data];
    equal(await run(), [11, 22, 33, 44], "the first run");
    equal(await run(), [21, 42, 63, 84], "the second");
    const [{ name, dtype, shape, data, length }] = model.states;
    equal([name, length], ["sum", undefined], "the state");
    equal([...(await new Tensor(dtype, shape, data).read(model.device)).data], [21, 42, 63, 84], "what it holds");
    model.device.queue.writeBuffer(data, 0, Float32Array.of(0, 0, 0, 1));
    equal(await run(), [10, 20, 30, 41], "after it was written");
    await model.reset();
    equal(await run(), [11, 22, 33, 44], "after it began anew");
    await refused(model.rewind(0), "limits", /state "sum" cannot be rewound/);
  });
}

export async function tensors_stay_on_the_device(readCase) {
  const { files, runs } = await readCase("small/mlp");
  const [{ inputs, outputs }] = runs;
  const [name] = Object.keys(outputs);
  await using(files, {}, async (model) => {
    const { device } = model;
    const data = device.createBuffer({ size: Math.max(16, inputs.x.data.byteLength), usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST });
    device.queue.writeBuffer(data, 0, inputs.x.data);
    const x = new Tensor("f32", inputs.x.shape, data);
    const got = await model.run({ x }, { outputs: "gpu" });
    equal(got[name].onGpu, true, "on the device");
    close({ [name]: await got[name].read(device) }, outputs);
    const into = device.createBuffer({ size: got[name].data.size, usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC });
    const second = await model.run({ x }, { outputs: { [name]: into } });
    equal(second[name].data === into, true, "the caller's buffer");
    close({ [name]: await second[name].read(device) }, outputs);
    got[name].destroy();
    await refused(model.run({ x }, { outputs: { z: "cpu" } }), "shape", /no output "z"/);
    const small = device.createBuffer({ size: 4, usage: GPUBufferUsage.STORAGE });
    await refused(model.run({ x: { ...x, data: small } }), "shape", /takes \d+ bytes .* not a GPUBuffer of 4/);
    data.destroy();
    await refused(model.run({ x }), "validation", /destroyed|submit/i);
    close(await model.run(inputs), outputs);
  });
}

export async function a_device_is_shared_and_outlives_its_models(readCase) {
  const { files, runs } = await readCase("small/mlp");
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  const [a, b] = [await load(files, { device }), await load(files, { device })];
  const on = await a.run(runs[0].inputs, { outputs: "gpu" });
  a.dispose();
  await refused(a.run(runs[0].inputs), "disposed", /disposed of/);
  close(await b.run(runs[0].inputs), runs[0].outputs);
  const [name] = Object.keys(on);
  close({ [name]: await on[name].read(device) }, runs[0].outputs);
  b.dispose();
  device.destroy();
}

/** Ends runs in the middle, and finds that they were ended by `kind`. */
async function ended(model, inputs, end, kind) {
  await model.run(inputs);
  const running = [model.run(inputs), model.run(inputs)];
  // Both have submitted their commands then, and the results of neither can be there before the page's next task.
  for (let i = 0; i < 100; i++) await undefined;
  end();
  for (const { status, reason } of await Promise.allSettled(running)) equal([status, reason?.kind], ["rejected", kind], "a run");
  await refused(model.run(inputs), kind, /./);
}

export async function a_lost_device_is_an_error_and_load_works_again(readCase) {
  const { files, runs } = await readCase("simulations/cartpole");
  const model = await load(files);
  await ended(model, runs[0].inputs, () => model.device.destroy(), "device-lost");
  model.dispose();
  await using(files, {}, async (again) => close(await again.run(runs[0].inputs), runs[0].outputs));
}

export async function a_device_that_is_lost_while_loading_is_an_error(readCase) {
  const { files, runs } = await readCase("small/mlp");
  for (const stage of ["kernels", "weights"]) {
    const device = await (await navigator.gpu.requestAdapter()).requestDevice();
    const onProgress = (p) => p.stage === stage && device.destroy();
    await refused(load(files, { device, onProgress }), "device-lost", /lost/);
    await refused(load(files, { device }), "device-lost", /lost/);
  }
  await using(files, {}, async (model) => close(await model.run(runs[0].inputs), runs[0].outputs));
}

export async function disposing_ends_runs(readCase) {
  const { files, runs } = await readCase("simulations/cartpole");
  const model = await load(files);
  await ended(model, runs[0].inputs, () => model.dispose(), "disposed");
  model.dispose();
}

export async function what_breaks_off_or_is_spoilt_is_refused(readCase) {
  const { files, runs } = await readCase("small/mlp");
  const weights = files["weights.safetensors"];
  await refused(load("/broken/400/program/small/mlp", { cache: false }), "network", /cannot be fetched|weights/);
  await refused(load({ ...files, "weights.safetensors": weights.subarray(0, weights.length - 3) }), "corrupt", /inside of the weight/);
  await refused(load("/program/small/nothing"), "network", /404/);
  await refused(load({ ...files, "plan.json": "{" }), "corrupt", /not JSON/);
  const root = planOf(files);
  const [plan] = root.plans;
  const changed = (p, more) => ({ ...files, "plan.json": JSON.stringify({ ...root, plans: [{ ...plan, ...p }], ...more }) });
  await refused(load(changed({}, { version: 77 })), "unsupported-version", /version 77 of the format; .* version 1\. Update/);
  const [kernel] = plan.kernels;
  const text = `kernels/${kernel.name}.wgsl`;
  const e = await refused(load({ ...files, [text]: `${new TextDecoder().decode(files[text])}\nfn broken( {` }), "validation", /does not compile: line \d+/);
  equal([e.kernel, typeof e.node], [kernel.name, "string"], "where");
  const needing = (features, limits) => changed({ needs: { features, limits } });
  await refused(load(needing(["wgpu-cooperative-matrix"], {})), "feature", /needs the feature wgpu-cooperative-matrix/);
  await refused(load(needing([], { maxComputeWorkgroupStorageSize: 1 << 30 })), "limits", /maxComputeWorkgroupStorageSize of 1073741824/);
  const huge = (kind) => changed({ buffers: plan.buffers.map((b) => (b.kind.kind === kind ? { ...b, elements: 2 ** 40 } : b)) });
  await refused(load(huge("weight")), "corrupt", /the plan needs 4398046511104/);
  const large = await load(huge("output"));
  const limit = await refused(large.run(runs[0].inputs), "limits", /a tensor of node ".*" and 1 others takes 4398046511104 bytes, and this device's maxBufferSize is \d+/);
  equal(typeof limit.node, "string", "where");
  large.dispose();
  await refused(load(changed({ stats: { ...plan.stats, weights_absent: true } })), "corrupt", /without its weights/);
  await using("/whole/program/small/mlp/plan.json", {}, async (model) => close(await model.run(runs[0].inputs), runs[0].outputs));
}

/** A program whose parts of weights are small, and that has a plan for no device. */
async function withRecipes({ files }, change = (parts) => parts) {
  const bytes = files["weights.safetensors"];
  const start = 8 + Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
  const tensors = {};
  for (const [name, { data_offsets: [from, to] }] of Object.entries(header)) {
    const parts = [];
    for (let at = from; at < to; at += 1000) {
      const part = bytes.slice(start + at, start + Math.min(to, at + 1000));
      const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", part));
      parts.push({ file: 0, offset: start + at, bytes: part.length, sha256: [...hash].map((b) => b.toString(16).padStart(2, "0")).join("") });
    }
    tensors[name] = { dtype: "f32", shape: [(to - from) / 4], parts: change(parts) };
  }
  const root = planOf(files);
  const [plan] = root.plans;
  const f16 = { ...plan, name: "never", needs: { ...plan.needs, features: ["not-there"] } };
  const weights = { files: [{ name: "weights.safetensors", bytes: bytes.length }], tensors };
  return { ...files, "plan.json": JSON.stringify({ ...root, plans: [f16, { ...plan, name: "any" }], weights }) };
}

export async function recipes_are_checked_by_their_hashes(readCase) {
  const read = await readCase("small/mlp");
  const [{ inputs, outputs }] = read.runs;
  await using(await withRecipes(read), {}, async (model) => {
    equal(model.plans, ["any"], "plans");
    close(await model.run(inputs), outputs);
  });
  const other = (parts) => parts.map((p) => ({ ...p, sha256: p.sha256.replace(/^./, (c) => (c === "0" ? "1" : "0")) }));
  await refused(withRecipes(read, other).then((f) => load(f)), "corrupt", /do not have the hash that the plan says/);
  await refused(withRecipes(read).then((f) => load(f, { plans: ["never"] })), "feature", /plan "never" needs the feature not-there/);
  await refused(withRecipes(read).then((f) => load(f, { plans: ["?"] })), "feature", /there is plan "never", plan "any"/);
}

export async function the_plan_that_fits_runs(readCase) {
  const { files, runs } = await readCase("states/decoder-grows");
  const root = planOf(files);
  const [plan] = root.plans;
  // One plan takes one token only, by a constraint; both fill one cache.
  const one = { ...plan, name: "one", constraints: [...plan.constraints, { a: "seq", b: 1, node: "one" }] };
  const two = { ...files, "plan.json": JSON.stringify({ ...root, plans: [one, { ...plan, name: "any" }] }) };
  await using(two, {}, async (model) => {
    equal(model.plans, ["one", "any"], "plans");
    for (const { inputs, outputs } of runs) close(await model.run(inputs), outputs);
  });
}

export async function a_signal_ends_loading_and_runs(readCase) {
  const { files, runs } = await readCase("small/mlp");
  await refused(load(files, { signal: AbortSignal.abort() }), "aborted", /caller/);
  for (const stage of ["kernels", "weights"]) {
    const stop = new AbortController();
    const onProgress = (p) => p.stage === stage && p.loaded > 0 && stop.abort();
    await refused(load("/program/small/mlp", { signal: stop.signal, onProgress }), "aborted", /caller/);
  }
  await using(files, {}, async (model) => {
    await refused(model.run(runs[0].inputs, { signal: AbortSignal.abort() }), "aborted", /caller/);
    close(await model.run(runs[0].inputs), runs[0].outputs);
  });
}

export async function inputs_that_do_not_fit_are_refused(readCase) {
  const { files, runs } = await readCase("small/mlp");
  const { x } = runs[0].inputs;
  await using(files, {}, async (model) => {
    await refused(model.run({}), "shape", /"x": it is missing; it is f32\[/);
    await refused(model.run({ x, constructor: x }), "shape", /"constructor": the model has no such input/);
    await refused(model.run({ x: Tensor.from("f64", [1], [1]) }), "shape", /must be f32, not f64/);
    await refused(model.run({ x: { ...x, data: x.data.subarray(1) } }), "shape", /takes \d+ bytes in a Float32Array/);
    await refused(model.run({ x: { ...x, shape: [x.shape[0], x.shape[1] + 1] } }), "shape", /axis 1 must have/);
    close(await model.run({ x }), runs[0].outputs);
  });
}

export async function a_device_is_verified(readCase) {
  const { files, runs } = await readCase("small/mlp");
  const [name] = Object.keys(runs[0].outputs);
  await using(files, {}, async (model) => {
    const good = await model.verify(runs[0].inputs, runs[0].outputs);
    equal([good[name].problem, good[name].wrong], [undefined, 0], "the same");
    const want = runs[0].outputs[name];
    const other = Tensor.from("f32", want.shape, want.toNumbers().map((v, i) => (i === 2 ? v + 1 : v)));
    const bad = await model.verify(runs[0].inputs, { [name]: other });
    equal(bad[name].wrong, 1, "what differs");
  });
}

export async function dispatches_are_timed(readCase) {
  const { files, runs } = await readCase("small/conv");
  await using(files, {}, async (model) => {
    if (!model.device.features.has("timestamp-query")) return refused(model.profile(runs[0].inputs), "feature", /timestamp-query/);
    const rows = await model.profile(runs[0].inputs);
    const [plan] = planOf(files).plans;
    equal(rows.length, plan.dispatches.length, "rows");
    for (const r of rows) if (!(r.microseconds >= 0 && r.times === 1 && r.bytes > 0 && r.nodes.length > 0)) throw new Error(JSON.stringify(r));
  });
}

export async function pictures_become_tensors() {
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  const canvas = new OffscreenCanvas(6, 4);
  const draw = canvas.getContext("2d");
  draw.fillStyle = "rgb(255, 0, 0)";
  draw.fillRect(0, 0, 6, 2);
  draw.fillStyle = "rgb(0, 51, 255)";
  draw.fillRect(0, 2, 6, 2);
  const numbers = async (source, options) => {
    const tensor = await Tensor.fromImage(device, source, options);
    const read = await tensor.read(device);
    tensor.destroy();
    return [...read.toNumbers()].map((v) => Math.round(v * 100) / 100);
  };
  const bitmap = await createImageBitmap(canvas);
  const top = [1, 1, 0, 0], green = [0, 0, 0.2, 0.2], blue = [0, 0, 1, 1];
  for (const source of [canvas, bitmap, new VideoFrame(canvas, { timestamp: 0 })]) {
    const got = await numbers(source, { shape: [1, 3, 2, 2] });
    // Video may lose a little.
    [...top, ...green, ...blue].forEach((want, i) => {
      if (Math.abs(got[i] - want) > 0.03) throw new Error(`${source.constructor.name}: ${got}`);
    });
    source.close?.();
  }
  equal(await numbers(canvas, { shape: [2, 1, 3], layout: "NHWC", dtype: "f16" }), [1, 0, 0, 0, 0.2, 1], "NHWC");
  equal(await numbers(canvas, { shape: [1, 2, 1, 3], layout: "NHWC", dtype: "u8" }), [255, 0, 0, 0, 51, 255], "bytes");
  equal(await numbers(canvas, { shape: [3, 2, 1], mean: [0.5, 0, 0], std: [0.5, 1, 0.1] }), [1, -1, 0, 0.2, 0, 10], "mean and std");
  await refused(Tensor.fromImage(device, canvas, { shape: [1, 4, 2, 2] }), "shape", /three channels/);
  device.destroy();
}

const collect = async (all) => {
  const out = [];
  for await (const x of all) out.push(x);
  return out;
};

export async function texts_are_generated() {
  const { Generator } = await import("/dist/generate.js");
  const { requests } = await (await fetch("/test/generate.json")).json();
  const tokenizer = {
    encode: (text) => [...text].map((c) => c.charCodeAt(0) % 37),
    decode: (ids) => ids.map((id) => `<${id}>`).join(""),
  };
  const generator = await Generator.load("/program/generate/decoder", { tokenizer, capacity: 8 });
  try {
    for (const { prompt, tokens, ...options } of requests) {
      equal(await collect(generator.tokens(prompt, options)), tokens, JSON.stringify(options));
      equal(generator.length, prompt.length + tokens.length, "tokens so far");
      await generator.reset();
    }
    const [{ prompt, tokens, ...options }] = requests;
    // A run that is left early, or ended, goes on as if it had not been.
    const some = [];
    for await (const t of generator.tokens(prompt, options)) if (some.push(t) === 2) break;
    equal(await collect(generator.tokens([], { ...options, maxTokens: 2 })), tokens.slice(2, 4), "what goes on");
    equal(await collect(generator.tokens([], { ...options, maxTokens: 5, stop: [tokens[5]] })), tokens.slice(4, 6), "a token that ends it");
    await generator.reset();
    const word = `${tokens[2]}><${tokens[3]}`;
    const text = (await collect(generator.generate(String.fromCharCode(...prompt.map((id) => id + 37)), { ...options, stop: [word] }))).join("");
    equal(text, `<${tokens[0]}><${tokens[1]}><`, "a text that ends it");
    await refused(collect(generator.tokens([37])), "shape", /token 37 is outside/);
    await refused(collect(generator.tokens([1], { topP: 0 })), "shape", /topP is 0/);
    await refused(collect(generator.tokens([1], { minP: 2 })), "shape", /minP is 2/);
    await refused(collect(generator.tokens([1], { repetitionPenalty: 0 })), "shape", /repetition penalty is 0/);
    await refused(collect(generator.tokens([1], { logitBias: { 37: 1 } })), "shape", /bias of token 37/);
    await refused(collect(generator.chat([{ role: "user", content: "?" }])), "shape", /no chat template/);
    await refused(collect(generator.tokens([1], { signal: AbortSignal.abort() })), "aborted", /signal/);
    const running = generator.tokens([1]);
    await running.next();
    await refused(collect(generator.tokens([1])), "shape", /at work/);
    await running.return();
  } finally {
    generator.dispose();
  }
  await using("/program/small/mlp", {}, async (model) => refused((async () => new Generator(model))(), "shape", /--generate/));
}

export async function conversations_stay_in_the_cache(readCase) {
  const { Generator } = await import("/dist/generate.js");
  const { chats } = await (await fetch("/test/generate.json")).json();
  const text = async (name) => (await fetch(`/fixtures/chat/decoder/${name}`)).text();
  const { files } = await readCase("generate/decoder");
  files["tokenizer.json"] = await text("tokenizer.json");
  files["tokenizer_config.json"] = await text("tokenizer_config.json");
  const generator = await Generator.load(files, { capacity: 64 });
  // The numbers of tokens of the runs.
  let runs = [];
  for (const name of ["run", "begin"]) {
    const method = generator.model[name];
    generator.model[name] = function (inputs, ...rest) {
      runs.push(Object.values(inputs).find((t) => t.dtype === "i64").shape.at(-1));
      return method.call(this, inputs, ...rest);
    };
  }
  const processed = async (all) => {
    runs = [];
    return [(await collect(all)).join(""), runs[0]];
  };
  try {
    const { tokenizer } = generator;
    const [first, second, tools] = chats;
    equal(await generator.chatPrompt(second.messages), second.prompt, "the prompt");
    const prompts = [first, second].map(({ prompt }) => tokenizer.encode(prompt, false));
    equal(await processed(generator.chat(first.messages, { maxTokens: 6 })), [first.text, prompts[0].length], "the first answer");
    equal(generator.length, prompts[0].length + first.tokens.length, "tokens so far");
    equal(await processed(generator.chat(second.messages, { maxTokens: 6 })), [second.text, prompts[1].length - prompts[0].length], "the second answer");
    // A prompt that is given again is its last token, and the answer goes on.
    equal(await processed(generator.complete(second.prompt.slice("<s>".length), { maxTokens: 6 })), [second.text, 1], "again");
    equal(await processed(generator.chat(tools.messages, { tools: tools.tools, maxTokens: 6 })), [tools.text, tokenizer.encode(tools.prompt, false).length - 2], "another conversation");
    await generator.rewind(2);
    equal(generator.length, 2, "rewound");
    await refused(generator.rewind(3), "shape", /there are 2 tokens/);
    await refused(collect(generator.chat([{ content: "no role" }])), "shape", /message 1 has no `role`/);
  } finally {
    generator.dispose();
  }
}
