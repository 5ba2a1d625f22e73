// Promises of the package about models that it compiles, in a browser.
import { Tensor, clearCache, load } from "/dist/index.js";
import { compile } from "/dist/compiler/index.js";
import { endOf } from "/build/compiler/gguf.js";
import { close, equal, refused, using } from "./expect.mjs";
import { external, field, product } from "./protobuf.mjs";

const mlp = "/fixtures/small/mlp/model.onnx";

export async function models_are_loaded_from_addresses_files_and_folders(readCase) {
  const { runs: [{ inputs, outputs }] } = await readCase("small/mlp");
  const bytes = await (await fetch(mlp)).blob();
  for (const source of [mlp, new URL(mlp, location.href), new File([bytes], "mlp.onnx"), bytes, { "some/model.onnx": bytes }]) {
    const progress = [];
    await using(source, { onProgress: (p) => progress.push(p.stage) }, async (model) => close(await model.run(inputs), outputs));
    equal([...new Set(progress)].filter((s) => s !== "model").sort(), ["compile", "kernels", "weights"], "stages");
  }
}

const [K, N] = [96, 128];
const w = Float32Array.from({ length: K * N }, (_, i) => ((i * 37) % 101) / 50 - 1);
const x = Tensor.from("f32", [2, K], Array.from({ length: 2 * K }, (_, i) => ((i * 7) % 13) / 6 - 1));
const y = () => {
  const sums = Array.from({ length: 2 * N }, (_, i) => x.data.subarray(Math.floor(i / N) * K).subarray(0, K).reduce((s, v, k) => s + v * w[k * N + (i % N)], 0));
  return { y: Tensor.from("f32", [2, N], sums) };
};
const bytes = new Uint8Array(w.buffer);
/** The weight in the model's file, and in one beside it behind 100 bytes. */
const inside = () => new Blob([product(K, N, [field(9, bytes)])]);
const beside = (offset = 100) => product(K, N, external("data/w%20 #.bin", offset, bytes.length));
const data = new Blob([new Uint8Array(100), bytes]);

export async function weights_stay_where_they_are() {
  for (const source of [inside(), { "m.onnx": beside(), "data/w%20 #.bin": data }]) {
    const made = await compile(source);
    // Nothing of them goes through the compiler.
    equal([made.read, made.source[""].length, made.plan.weights.files.length], [0, 0, 2], "weights");
    await using(made.source, {}, async (model) => close(await model.run({ x }), y()));
    await using(source, { dims: { batch: 2 } }, async (model) => {
      equal(model.inputs[0].shape, [2, K], "the shape of x");
      close(await model.run({ x }), y());
    });
  }
}

export async function files_that_are_missing_or_cut_off_are_refused() {
  await refused(load({ "m.onnx": beside() }), "model", /data\/w%20 #\.bin/);
  await refused(load({ "m.onnx": beside(), "data/w%20 #.bin": data.slice(0, 5000) }), "model", /outside the file \(5000 bytes\)/);
  await refused(load("/fixtures/nothing.onnx"), "network", /404/);
  await refused(load(new Blob([])), "model", /is empty/);
  await refused(load({ "read me": "hello" }), "model", /no .onnx, .pt2 or .gguf file/);
  const whole = inside();
  for (const end of [5, 100, 30_000, whole.size - 1]) {
    const e = await refused(load(new File([whole.slice(0, end)], "m.onnx")), "model", /^error: /);
    equal([e.diagnostics.length > 0, e.diagnostics[0].kind], [true, "model"], "diagnostics");
  }
}

export async function diagnostics_say_where() {
  const wrong = product(K, N, [field(9, bytes)]).map((b, i, all) => (b === 77 && all[i + 1] === 97 && all[i + 2] === 116 ? 78 : b));
  const e = await refused(load(new Blob([wrong])), "unsupported", /NatMul/);
  equal([e.node, e.diagnostics[0].node, e.diagnostics[0].operator], ["product", "product", "NatMul"], "where");
}

export async function plans_are_kept() {
  const name = "plans";
  const [a, b] = [new File([inside()], "a.onnx", { lastModified: 1 }), new File([inside()], "a.onnx", { lastModified: 2 })];
  const cached = async (source, options = {}) => (await compile(source, { cache: name, ...options })).cached;
  try {
    equal([await cached(a), await cached(a), await cached(b), await cached(a, { dims: { batch: 3 } })], [false, true, false, false], "by file and request");
    equal([await cached(a, { cache: false }), await cached(inside()), await cached(inside())], [false, false, false], "where nothing tells files apart");
    const made = await compile(a, { cache: name });
    await using(made.source, {}, async (model) => close(await model.run({ x }), y()));
    equal([await cached(mlp), await cached(mlp)], [false, true], "by address");
    await clearCache(name);
    equal(await cached(a), false, "cleared");
  } finally {
    await clearCache(name);
  }
}

export async function kernels_are_validated_where_that_is_asked_for() {
  const name = "validated";
  const source = new File([inside()], "a.onnx", { lastModified: 1 });
  try {
    const plain = await compile(source, { cache: name });
    // A plan that was kept without having been validated does not count.
    const made = await compile(source, { cache: name, validate: true });
    equal([plain.cached, made.cached, made.kernels], [false, false, plain.kernels], "kernels");
    equal((await compile(source, { cache: name, validate: true })).cached, true, "kept");
    await using(source, { validate: true, cache: name }, async (model) => close(await model.run({ x }), y()));
    // A model that is refused has its diagnostics.
    const e = await refused(compile(new Blob(["this is no model"]), { validate: true }), "model", /^error: /);
    equal(e.diagnostics.length > 0, true, "diagnostics");
  } finally {
    await clearCache(name);
  }
}

export async function several_plans_are_compiled() {
  const plans = [{ name: "one", dims: { batch: 1 } }, { name: "any" }];
  await using(inside(), { plans }, async (model) => {
    equal(model.plans, ["one", "any"], "plans");
    close(await model.run({ x }), y());
    close(await model.run({ x: Tensor.from("f32", [1, K], x.data.subarray(0, K)) }), { y: Tensor.from("f32", [1, N], y().y.data.subarray(0, N)) });
  });
  const { plan } = await compile(inside(), { plans, unfused: true, expect: { batch: 8 } });
  equal(plan.plans.map((p) => p.name), ["one", "any"], "names");
}

export async function compiling_is_aborted() {
  await refused(compile(mlp, { signal: AbortSignal.abort() }), "aborted", /caller/);
  for (const stage of ["model", "compile"]) {
    const stop = new AbortController();
    const onProgress = (p) => p.stage === stage && stop.abort();
    await refused(compile(mlp, { signal: stop.signal, cache: false, onProgress }), "aborted", /caller/);
  }
  // Some at the same time, of which one ends.
  const stop = new AbortController();
  const all = [1, 2, 3].map((i) => compile(inside(), i === 2 ? { signal: stop.signal } : {}));
  stop.abort();
  equal((await Promise.allSettled(all)).map((r) => r.status), ["fulfilled", "rejected", "fulfilled"], "of three");
}

export async function a_model_says_what_it_is_and_where_it_runs() {
  await using(inside(), {}, async (model) => {
    const { producer, plans, adapter, limits, features, bytes, compiled } = await model.inspect();
    equal([producer.startsWith("wgfc "), plans.length, plans[0].symbols, plans[0].nodes], [true, 1, ["batch"], 1], "the plan");
    const [kernel] = plans[0].kernels;
    equal([kernel.nodes, kernel.dispatches, kernel.text.includes("@compute")], [["product"], 1, true], "the kernel");
    equal([adapter.software, limits.maxBufferSize, Array.isArray(features)], [true, model.device.limits.maxBufferSize, true], "the adapter");
    equal([bytes.weights, compiled.read, compiled.cached], [4 * K * N, 0, false], "bytes");
  });
}

export async function precision_and_devices_are_held() {
  const limits = { maxComputeInvocationsPerWorkgroup: 128, maxComputeWorkgroupStorageSize: 8192 };
  const { plan } = await compile(inside(), { limits });
  equal(plan.plans[0].needs.limits.maxComputeInvocationsPerWorkgroup <= 128, true, "invocations");
  await refused(compile(inside(), { precision: "f16" }), "feature", /shader-f16/);
  await refused(compile(inside(), { profile: { version: 9 } }), "model", /device profile/);
  await refused(compile(inside(), { expect: { nobody: 3 } }), "model", /nobody/);
}

export async function integers_are_multiplied_where_the_browser_can() {
  const options = { dims: { batch: 1 }, weights: "q4", activations: "q8" };
  const uses = ({ kernels }) => Object.values(kernels).some((k) => k.includes("dot4I8Packed"));
  const plain = await compile(inside(), { ...options, activations: undefined });
  const packed = await compile(inside(), options);
  equal([uses(plain), uses(packed)], [false, true], "where there is the language feature");
  const { warn } = console;
  const warnings = [];
  const own = Object.getOwnPropertyDescriptor(navigator.gpu, "wgslLanguageFeatures");
  Object.defineProperty(navigator.gpu, "wgslLanguageFeatures", { configurable: true, value: new Set() });
  console.warn = (text) => warnings.push(text);
  try {
    const made = await compile(inside(), options);
    equal([made.kernels, warnings.length, warnings[0]?.includes("packed_4x8_integer_dot_product")], [plain.kernels, 1, true], "where there is none");
    const e = await refused(load(packed.source), "feature", /needs packed_4x8_integer_dot_product.*without activations of 8 bits/);
    equal(e.node, "product", "the node");
    (await load(made.source)).dispose();
  } finally {
    console.warn = warn;
    delete navigator.gpu.wgslLanguageFeatures;
    if (own) Object.defineProperty(navigator.gpu, "wgslLanguageFeatures", own);
  }
  const run = ({ source }) => using(source, {}, async (model) => (await model.run({ x: Tensor.from("f32", [1, K], x.data.subarray(0, K)) })).y.toNumbers());
  const [got, want] = [await run(packed), await run(plain)];
  const largest = Math.max(...want.map(Math.abs));
  for (let i = 0; i < N; i++) if (!(Math.abs(got[i] - want[i]) < 0.02 * largest)) throw new Error(`${i}: ${got[i]}, not ${want[i]}`);
}

/** The columns of the decoder's residual stream. */
const WIDTH = 24;

export async function texts_are_steered() {
  const { Generator } = await import("/dist/generate.js");
  const { requests: [{ prompt, tokens, maxTokens, temperature }] } = await (await fetch("/test/generate.json")).json();
  const generator = await Generator.load("/fixtures/small/decoder/model.onnx", { plans: ["decode"], taps: ["layer0/out"], added: ["layer0/out"], replaced: ["layer1/mlp"] });
  const made = async (inputs) => {
    await generator.reset();
    const got = [];
    for await (const token of generator.tokens(prompt, { maxTokens, temperature, ...(inputs ? { inputs } : {}) })) got.push(token);
    return got;
  };
  const vector = (f) => Tensor.from("f32", [WIDTH], Array.from({ length: WIDTH }, (_, i) => f(i)));
  try {
    equal(await made(), tokens, "nothing given");
    equal(await made({ "layer0/out.add": vector(() => 0) }), tokens, "zeros added");
    const direction = { "layer0/out.add": vector((i) => ((i * 7) % 5) - 2) };
    const steered = await made(direction);
    if (`${steered}` === `${tokens}`) throw new Error("a direction changes nothing");
    equal(await made(direction), steered, "the same direction again");
    const patched = await made({ "layer1/mlp.replace": vector((i) => i % 3) });
    if (`${patched}` === `${tokens}`) throw new Error("a patch changes nothing");
    // Replaced nowhere.
    equal(await made({ "layer1/mlp.replace": vector((i) => i % 3), "layer1/mlp.where": Tensor.from("bool", [1], [0]) }), tokens, "nowhere");
    equal(await made(), tokens, "nothing given again");
    // A tap of the tensor that is added to has the sum.
    const observed = async (inputs) => (await generator.observe(prompt.slice(0, 1), ["layer0/out"], inputs))["layer0/out"];
    const [before, after] = [await observed(), await observed(direction)];
    equal([before.shape, after.shape], [[1, 1, WIDTH], [1, 1, WIDTH]], "shapes");
    const sums = Float32Array.from(before.data, (x, i) => x + direction["layer0/out.add"].data[i]);
    equal([...after.data], [...sums], "the sum");
    equal(generator.length, 0, "tokens after observing");
    await refused(made({ "layer9/out.add": vector(() => 0) }), "shape", /no optional input layer9\/out\.add: it has layer0\/out\.add/);
  } finally {
    generator.dispose();
  }
}

/** A GGUF file with more metadata, of texts and lists of texts. */
function withMetadata(file, more) {
  const end = endOf(file);
  const text = (t) => {
    const bytes = new TextEncoder().encode(t);
    return [...new Uint8Array(BigUint64Array.of(BigInt(bytes.length)).buffer), ...bytes];
  };
  const u32 = (n) => [...new Uint8Array(Uint32Array.of(n).buffer)];
  const u64 = (n) => [...new Uint8Array(BigUint64Array.of(BigInt(n)).buffer)];
  const value = (v) => {
    if (typeof v === "number") return [...u32(4), ...u32(v)];
    if (typeof v === "string") return [...u32(8), ...text(v)];
    return [...u32(9), ...u32(8), ...u64(v.length), ...v.flatMap(text)];
  };
  const items = Object.entries(more).flatMap(([k, v]) => [...text(k), ...value(v)]);
  const head = [...file.slice(0, 16), ...u64(Number(new DataView(file.buffer).getBigUint64(16, true)) + Object.keys(more).length), ...items, ...file.slice(24, end)];
  const pad = (n) => Math.ceil(n / 32) * 32;
  return new Uint8Array([...head, ...new Array(pad(head.length) - head.length).fill(0), ...file.slice(pad(end))]);
}

export async function language_models_are_compiled_from_gguf() {
  const { Generator } = await import("/dist/generate.js");
  const numbers = async (path, type) => {
    const bytes = await (await fetch(`/fixtures/decoders/${path}`)).arrayBuffer();
    return new type(bytes.slice(10 + new DataView(bytes).getUint16(8, true)));
  };
  const ids = [...(await numbers("ids.npy", BigInt64Array))].map(Number);
  // Blocks of 4 bits, read by ranges; blocks of 8 bits, from a server without ranges.
  for (const [name, from, plans] of [["llama", "", ["decode", "prefill"]], ["qwen2", "/whole", ["decode"]]]) {
    const logits = await numbers(`${name}/gguf_logits.npy`, Float32Array);
    const vocabulary = logits.length / ids.length;
    const want = Tensor.from("f32", [vocabulary], logits.slice(-vocabulary));
    const generator = await Generator.load(`${from}/fixtures/decoders/${name}/model.gguf`, { cache: false, plans });
    try {
      const { model } = generator;
      equal(model.plans, plans, "plans");
      const choice = { dtype: "u32", shape: [5], data: new Uint32Array(5) };
      const run = (some) => model.run({ input_ids: Tensor.from("i64", [1, some.length], some), "choice of the token": choice }, { outputs: { logits: "cpu" } });
      // By the program for prompts, and by that for single tokens.
      for (const count of plans.map((p) => (p === "prefill" ? ids.length : 1))) {
        await model.reset();
        let got;
        for (let at = 0; at < ids.length; at += count) got = (await run(ids.slice(at, at + count))).logits;
        close({ y: Tensor.from("f32", [vocabulary], got.toNumbers()) }, { y: want });
      }
    } finally {
      generator.dispose();
    }
  }
}

export async function decoders_in_onnx_are_compiled_to_generate() {
  const { Generator } = await import("/dist/generate.js");
  const { requests: [{ prompt, tokens, maxTokens, temperature }] } = await (await fetch("/test/generate.json")).json();
  const generator = await Generator.load("/fixtures/small/decoder/model.onnx", { plans: ["decode"] });
  try {
    const got = [];
    for await (const token of generator.tokens(prompt, { maxTokens, temperature })) got.push(token);
    equal(got, tokens, "tokens");
  } finally {
    generator.dispose();
  }
  await refused(Generator.load(mlp), "unsupported", /none of its inputs holds token ids/);
}

export async function blocks_stay_in_a_gguf_file() {
  const { source, plan } = await compile("/fixtures/decoders/llama-tied/model.gguf", { generate: true });
  const { files, tensors } = plan.weights;
  equal([files.map((f) => f.name), source["model.gguf"] instanceof URL], [["model.gguf", ""], true], "files");
  const kinds = new Set(Object.values(tensors).flatMap((t) => t.derived?.name ?? []));
  for (const name of ["q2_k_elements", "q3_k_factors", "q4_k_scales", "q5_k_high", "q6_k_low"]) if (!kinds.has(name)) throw new Error(`no ${name} in ${[...kinds]}`);
  // Small tensors that the compiler has read are in the plan's own file.
  if (source[""].length > files[0].bytes / 20) throw new Error(`${source[""].length} of ${files[0].bytes} bytes`);
}

export async function a_gguf_file_brings_its_tokenizer_and_template() {
  const { Generator } = await import("/dist/generate.js");
  const file = new Uint8Array(await (await fetch("/fixtures/decoders/llama/model.gguf")).arrayBuffer());
  const letters = [..."abcdefghijklmnopqrstuvwxyz"];
  const tokens = ["<s>", "</s>", ...letters, "th", "the", "\u0120", ...Array.from({ length: 65 }, (_, i) => `[unused${i}]`)];
  const metadata = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "default", "tokenizer.ggml.tokens": tokens.slice(0, 96), "tokenizer.ggml.merges": ["t h", "th e"],
    "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.role }} {{ m.content }}{{ eos_token }}{% endfor %}",
  };
  const generator = await Generator.load(new Blob([withMetadata(file, metadata)]), { plans: ["decode"] });
  try {
    const messages = [{ role: "user", content: "the sea" }];
    equal(await generator.chatPrompt(messages), "<s>user the sea</s>", "the prompt");
    equal(generator.tokenizer.encode("the sea"), [29, 30, 20, 6, 2], "tokens");
    let text = "";
    for await (const piece of generator.chat(messages, { maxTokens: 4 })) text += piece;
    equal(typeof text, "string", "an answer");
    // <s> u s e r, a space, the, a space, s e a, </s>, and what was generated.
    if (generator.length <= 12 || generator.length > 16) throw new Error(`${generator.length} tokens`);
  } finally {
    generator.dispose();
  }
  const cut = file.slice(0, file.length - 100);
  await refused(Generator.load(new Blob([cut])), "model", /the file ends before its last byte/);
  await refused(Generator.load(new Blob([file.slice(0, 300)])), "model", /ends within its header/);
}

export async function without_an_adapter_it_says_why() {
  const { requestAdapter } = GPU.prototype;
  GPU.prototype.requestAdapter = async () => null;
  try {
    await refused(load(mlp), "no-webgpu", /no adapter.*Update the driver/);
    await refused(load("/program/small/mlp"), "no-webgpu", /no adapter/);
  } finally {
    GPU.prototype.requestAdapter = requestAdapter;
  }
}

export async function devices_are_measured() {
  const { measure } = await import("/dist/measure.js");
  const name = "measured";
  const stages = [];
  const begin = performance.now();
  try {
    const profile = await measure(undefined, { cache: name, onProgress: ({ stage }) => stages.push(stage) });
    console.log(`measured in ${((performance.now() - begin) / 1000).toFixed(1)} s: ${JSON.stringify(profile)}`);
    equal(stages.length, new Set(stages).size, "stages");
    for (const [speed, n] of Object.entries(profile.speeds)) if (!(n > 0 && n < 1e18)) throw new Error(`${speed} is ${n}`);
    // Models that are compiled from now on are compiled for these speeds, and others are not.
    const adapter = await navigator.gpu.requestAdapter();
    const made = async (options) => (await compile(inside(), { cache: name, ...options })).plan.plans[0];
    const [measured, given] = [await made({ device: adapter }), await made({ profile })];
    equal(measured, given, "the plan for the measured device");
  } finally {
    await clearCache(name);
  }
}

export async function kernels_are_tuned() {
  const { tune } = await import("/dist/tune.js");
  const { trials } = await import("/dist/compiler/index.js");
  const name = "tuned";
  const seen = [];
  try {
    const options = { cache: name, most: 3, budget: 60_000, onKernel: ({ done, total, kernel }) => seen.push([done, total, kernel?.title]) };
    const { kernels, left, table } = await tune(inside(), options);
    console.log(`tuned ${kernels.map((k) => `${k.title}: ${k.own.schedule} ${k.own.microseconds}, ${k.best.schedule} ${k.best.microseconds}`).join("; ")}; ${table}`);
    if (!kernels.length || left) throw new Error(`${kernels.length} kernels were tuned and ${left} left`);
    equal(seen.map(([done]) => done), kernels.map((_, i) => i + 1), "progress");
    for (const { own, best } of kernels)
      if (!(own.microseconds > 0 && best.microseconds <= own.microseconds)) throw new Error(`${own.microseconds} and ${best.microseconds} µs`);
    const again = await tune(inside(), options);
    equal([again.kernels, again.left, again.table], [[], 0, table], "what is known is not measured again");
    // Of what is kept, another schedule is made the fastest: compilations obey.
    const adapter = await navigator.gpu.requestAdapter();
    const asked = await trials(inside(), { device: adapter }, { most: 3, values: {}, known: [] });
    equal(asked.trials.length, kernels.length, "kernels");
    const { key, candidates } = asked.trials[0];
    const other = candidates.at(-1).schedule;
    const cache = await caches.open(name);
    const [kept] = (await cache.keys()).filter((k) => k.url.includes("choices"));
    await cache.put(kept, new Response(JSON.stringify({ version: asked.version, choices: { [key]: other } })));
    const { schedules } = await compile(inside(), { cache: name, device: adapter, listSchedules: true });
    if (!Object.values(JSON.parse(schedules).choices).includes(other)) throw new Error(`${other} is not in ${schedules}`);
    const untuned = await compile(inside(), { cache: false, device: adapter, listSchedules: true });
    if (Object.values(JSON.parse(untuned.schedules).choices).includes(other)) throw new Error(`${other} is chosen without a table`);
  } finally {
    await clearCache(name);
  }
}
