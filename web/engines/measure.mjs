// Measurements in a page or in an engine: the speeds of the device, dispatches, runs of models, tokens.
import { Tensor, load } from "/dist/index.js";
import { Generator } from "/dist/generate.js";
import { Trainer } from "/dist/train.js";
import { calls, dispatches, median, waitedFor } from "./dispatch.mjs";
import { outside } from "./fixture.mjs";

/** Tokens a second of the program at an address, behind `past` positions, and the time to the first token of such a prompt. */
export async function decode(address, { past = 64, tokens = 192, rounds = 3, capacity = 1024, device } = {}) {
  const start = performance.now();
  const generator = await Generator.load(address, { capacity, ...(device ? { device } : {}) });
  const loaded = performance.now() - start;
  const vocabulary = generator.model.outputs.find((o) => o.name === "logits").shape.at(-1);
  const prompt = Array.from({ length: past }, (_, i) => (100 + 7 * i) % vocabulary);
  const once = async () => {
    await generator.reset();
    const ids = [];
    const start = performance.now();
    let first;
    for await (const id of generator.tokens(prompt, { maxTokens: tokens + 1, temperature: 0 })) if (ids.push(id) === 1) first = performance.now();
    return { perSecond: (1000 * tokens) / (performance.now() - first), first: first - start, ids };
  };
  try {
    await once();
    const all = [];
    for (let i = 0; i < rounds; i++) all.push(await once());
    const [rates, firsts] = [all.map((r) => r.perSecond), all.map((r) => r.first)];
    return { rates, firsts, perSecond: median(rates), first: median(all.map((r) => r.first)), all: all.map((r) => [Math.round(r.perSecond), Number(r.first.toFixed(1))]), loaded, ids: all[0].ids.slice(0, 8), last: all[0].ids.at(-1) };
  } finally {
    generator.dispose();
  }
}

/**
 * Milliseconds of a run of the program at an address: of one that is waited for (`ms`), of one of many of which four are in flight (`row`), and
 * to the first result.
 */
export async function times(source, inputs, { seconds = 1, device, ...options } = {}) {
  const start = performance.now();
  const model = await load(source, device ? { device, ...options } : options);
  try {
    const given = Object.fromEntries(inputs.map(({ name, dtype, shape, value }) => [name, filled(dtype, shape, value)]));
    const first = await model.run(given);
    const firstMs = performance.now() - start;
    const { ms, runs, all } = await waitedFor(() => model.run(given), seconds);
    const [flight, count] = [[], Math.max(8, Math.ceil((500 * seconds) / ms))];
    const begin = performance.now();
    for (let i = 0; i < count; i++) {
      flight.push(model.run(given));
      if (flight.length > 3) await flight.shift();
    }
    await Promise.all(flight);
    const row = (performance.now() - begin) / count;
    const [output] = Object.values(first);
    return { ms, all, row, first: firstMs, runs, sum: Array.from(output.data).reduce((s, v) => s + Number(v), 0) };
  } finally {
    model.dispose();
  }
}

/** Runs of a graph in fixtures/, compiled in the page for its device: by the speeds of the device's kind, by measured ones, and with tuned kernels. */
async function tuned(name, inputs, { dims, budget = 60_000 }) {
  const { address, weights } = await outside(name);
  const source = Object.fromEntries(Object.entries({ [`${name}.onnx`]: address, ...weights }).map(([file, at]) => [file, new URL(at)]));
  const options = { dims: Object.fromEntries(Object.entries(dims).filter(([dim]) => inputs.length > 1 || dim === "batch")), cache: "tuning" };
  const run = async () => {
    const { ms, row } = await times(source, inputs, options);
    return { ms, row };
  };
  const { measure } = await import("/dist/measure.js");
  const { tune } = await import("/dist/tune.js");
  const given = await run();
  await measure(undefined, { cache: options.cache });
  const measured = await run();
  const start = performance.now();
  const { kernels, left } = await tune(source, { ...options, budget, idle: false });
  const seconds = (performance.now() - start) / 1000;
  const gain = kernels.map((k) => k.own.microseconds / k.best.microseconds).filter((g) => g > 1).sort((a, b) => b - a);
  return { given, measured, tuned: await run(), seconds, kernels: kernels.length, left, faster: gain.length, most: gain[0] };
}

/**
 * Steps a second of the training step at an address, and its losses. Inputs with axes are data, of which a step takes all rows; scalars are the same in
 * each step. States begin with small random numbers, moments and counts with zeros.
 */
export async function train(address, inputs, { seconds = 2, device } = {}) {
  const start = performance.now();
  const [data, same] = [inputs.filter((i) => i.shape.length), inputs.filter((i) => !i.shape.length)].map((all) =>
    Object.fromEntries(all.map(({ name, dtype, shape, value }) => [name, shape.length ? filled(dtype, shape, value) : Tensor.from(dtype, [], [value])])),
  );
  const trainer = await Trainer.load(address, { data, inputs: same, batch: inputs.find((i) => i.shape.length).shape[0], ...(device ? { device } : {}) });
  const loaded = performance.now() - start;
  try {
    const drawn = trainer.model.states.filter((s) => s.dtype === "f32" && !/(^|\.)(mean|square|count|loss_scale)\b/.test(s.name));
    await trainer.begin(Object.fromEntries(drawn.map(({ name, shape }) => [name, random(shape)])));
    const losses = [];
    const run = async (steps) => {
      for await (const { loss } of trainer.run(steps)) losses.push(loss);
    };
    await run(3);
    let [steps, ms, n] = [0, 0, 4];
    while (ms < 1000 * seconds) {
      const start = performance.now();
      await run(n);
      const took = performance.now() - start;
      [steps, ms, n] = [steps + n, ms + took, took < 500 ? 2 * n : n];
    }
    const bytes = trainer.model.states.reduce((n, s) => n + s.data.size, 0);
    const memory = (await trainer.model.inspect()).bytes;
    return { perSecond: (1000 * steps) / ms, loaded, steps: losses.length, first: losses[0], last: losses.at(-1), states: bytes, memory };
  } finally {
    trainer.dispose();
  }
}

function random(shape) {
  const data = new Float32Array(shape.reduce((a, b) => a * b, 1));
  let x = 1;
  for (let i = 0; i < data.length; i++) {
    x = (Math.imul(x, 1664525) + 1013904223) | 0;
    data[i] = x / 2 ** 31 / Math.sqrt(shape.at(0) || 1);
  }
  return new Tensor("f32", shape, data);
}

function filled(dtype, shape, value) {
  const n = shape.reduce((a, b) => a * b, 1);
  return Tensor.from(dtype, shape, Array.from({ length: n }, (_, i) => value ?? ((i * 7) % 13) / 6 - 1));
}

/** Measures the device's speeds (`measure`), `dispatch`, or runs (`model`), tokens (`decode`) or training steps (`train`) of the named programs, or what tuning a graph gains (`tune`). Programs are `[name, inputs]`. Failures are results, too. */
export async function measure(what, programs, options) {
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (what === "measure") {
    const { measure } = await import("/dist/measure.js");
    const start = performance.now();
    const profile = await measure(adapter, { cache: false });
    return { seconds: (performance.now() - start) / 1000, profile };
  }
  if (what === "dispatch") {
    const device = await adapter.requestDevice();
    return { dispatch: await dispatches(device), calls: await calls(device) };
  }
  const rows = [];
  if (what.startsWith("ort")) {
    const ort = await import("./ort.mjs");
    for (const [name, inputs] of programs) {
      const made = what === "ort" ? ort.times(name, inputs, { dims: options.dims }) : ort.decode(name, { past: options.past, tokens: options.tokens, half: /f16/.test(name) });
      rows.push({ name, ...(await made.catch((e) => ({ error: e.message }))) });
    }
    return { rows };
  }
  for (const [name, inputs] of programs) {
    const address = `/plans/${name}/`;
    // A device that has what every device has, a phone too, and the features of the adapter.
    const device = options.least ? await adapter.requestDevice({ requiredFeatures: ["shader-f16"].filter((f) => adapter.features.has(f)) }) : undefined;
    const made = what === "model" ? times(address, inputs, { device }) : what === "train" ? train(address, inputs, { device }) : what === "tune" ? tuned(name, inputs, options) : decode(address, { ...options, device });
    rows.push({ name, ...(await made.catch((e) => ({ error: e.message }))) });
  }
  return { rows };
}

/** The adapter in words. */
export async function describe() {
  const { info, features } = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  const { vendor, architecture, device, description } = info;
  return { name: [vendor, architecture, device, description].filter(Boolean).join(" "), features: [...features].sort() };
}
