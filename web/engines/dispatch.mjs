// The cost of a dispatch beside its kernel, in a page or in an engine: the modes of `wgfc bench dispatch`, and the calls of a pass each alone.
import { soon } from "/build/soon.js";

const WGSL = `
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  y[id.x] = x[id.x] + 1.0;
}`;
/** Dispatches of an iteration. */
const COUNT = 100;
/** Pipelines and bind groups of the mode that changes both, as a model's kernels do. */
const KINDS = 8;
const STORAGE = 128, COPY_SRC = 4, COPY_DST = 8;

export const median = (all) => [...all].sort((a, b) => a - b)[all.length >> 1];

/** Milliseconds of a run that is waited for: the median of `seconds` of runs, after others that are not counted. */
export async function waitedFor(run, seconds) {
  for (const until = performance.now() + 300; performance.now() < until; ) await run();
  const all = [];
  for (const until = performance.now() + 1000 * seconds; performance.now() < until; ) {
    const start = performance.now();
    await run();
    all.push(performance.now() - start);
  }
  return { ms: median(all), runs: all.length, all };
}

const idle = (device) => soon(device, device.queue.onSubmittedWorkDone(), 64);

/** Microseconds for each dispatch, by mode: `wall`, and its parts `encode`, `finish`, `submit`. Medians of `iterations`, of which `samples` gets all. */
export async function dispatches(device, iterations = 40, samples = {}) {
  const module = device.createShaderModule({ code: WGSL });
  const layout = device.createBindGroupLayout({
    entries: ["read-only-storage", "storage"].map((type, binding) => ({ binding, visibility: 4, buffer: { type } })),
  });
  const pipelineLayout = device.createPipelineLayout({ bindGroupLayouts: [layout] });
  const pipelines = Array.from({ length: KINDS }, () => device.createComputePipeline({ layout: pipelineLayout, compute: { module, entryPoint: "main" } }));
  const buffers = Array.from({ length: KINDS }, () => device.createBuffer({ size: 1024, usage: STORAGE | COPY_SRC | COPY_DST }));
  const group = (i) => {
    const entries = [i, i + 1].map((b, binding) => ({ binding, resource: { buffer: buffers[b % KINDS] } }));
    return device.createBindGroup({ layout, entries });
  };
  const groups = Array.from({ length: KINDS }, (_, i) => group(i));
  const { queue } = device;

  /** Times of `COUNT` dispatches: `together` in a submission, `pass` in a pass, each with a pipeline and a bind group of its own if `vary`. */
  const once = async ({ together = COUNT, pass = COUNT, vary = false, wait = false }) => {
    const parts = { encode: 0, finish: 0, submit: 0 };
    const begin = performance.now();
    for (let i = 0; i < COUNT; i += together) {
      const [start, encoder] = [performance.now(), device.createCommandEncoder()];
      for (let j = i; j < i + together; j += pass) {
        const p = encoder.beginComputePass();
        for (let k = j; k < j + pass; k++) {
          const n = vary ? k % KINDS : 0;
          if (vary || k === j) p.setPipeline(pipelines[n]);
          p.setBindGroup(0, groups[vary ? n : k % 2]);
          p.dispatchWorkgroups(4);
        }
        p.end();
      }
      const encoded = performance.now();
      const commands = encoder.finish();
      const finished = performance.now();
      queue.submit([commands]);
      const submitted = performance.now();
      parts.encode += encoded - start;
      parts.finish += finished - encoded;
      parts.submit += submitted - finished;
      if (wait) await idle(device);
    }
    await idle(device);
    return { wall: performance.now() - begin, ...parts };
  };
  const modes = {
    "single-op": { together: 1, pass: 1, wait: true },
    sequential: { together: 1, pass: 1 },
    "one encoder, a pass each": { pass: 1 },
    "one encoder, one pass": {},
    "one pass, pipelines and bind groups change": { vary: true },
  };
  const out = {};
  for (const [name, mode] of Object.entries(modes)) {
    for (let i = 0; i < 5; i++) await once(mode);
    const all = [];
    for (let i = 0; i < iterations; i++) all.push(await once(mode));
    samples[name] = all.map((t) => Object.fromEntries(Object.entries(t).map(([part, ms]) => [part, (1000 * ms) / COUNT])));
    out[name] = Object.fromEntries(Object.keys(all[0]).map((part) => [part, median(samples[name].map((t) => t[part]))]));
  }
  for (const b of buffers) b.destroy();
  return out;
}

/** Microseconds of calls that a run makes beside its dispatches. */
export async function calls(device) {
  const { queue } = device;
  const [uniform, storage] = [64 | COPY_DST, STORAGE | COPY_SRC | COPY_DST].map((usage) => device.createBuffer({ size: 1024, usage }));
  const words = new Int32Array(8);
  const each = async (n, f) => {
    const start = performance.now();
    for (let i = 0; i < n; i++) await f();
    return (1000 * (performance.now() - start)) / n;
  };
  const scopes = () => {
    for (const filter of ["internal", "out-of-memory", "validation"]) device.pushErrorScope(filter);
    return Promise.all([0, 1, 2].map(() => device.popErrorScope()));
  };
  const staging = device.createBuffer({ size: 16, usage: 1 | COPY_DST });
  const read = async () => {
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(storage, 0, staging, 0, 16);
    queue.submit([encoder.finish()]);
    await staging.mapAsync(1);
    staging.getMappedRange();
    staging.unmap();
  };
  const out = {};
  for (const [name, n, f] of [
    ["writeBuffer of 32 bytes", 1000, () => queue.writeBuffer(uniform, 0, words)],
    ["three error scopes, waited for", 200, scopes],
    ["an empty submission", 200, () => queue.submit([device.createCommandEncoder().finish()])],
    ["a submission, waited for", 200, () => (queue.submit([device.createCommandEncoder().finish()]), queue.onSubmittedWorkDone())],
    ["a copy of 16 bytes, mapped and read", 200, read],
  ]) {
    await each(20, f);
    out[name] = await each(n, f);
    await queue.onSubmittedWorkDone();
  }
  for (const b of [uniform, storage, staging]) b.destroy();
  return out;
}
