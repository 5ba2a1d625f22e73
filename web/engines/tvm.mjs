// Measures kernels that benches/peers/tvm_kernels.py wrote, under Dawn in node, with rows of the names of `wgfc bench suite`.
//
//   node web/engines/tvm.mjs [--toggle NAME]... [--only WORD]... KERNELS.json RECORD.json
import { readFileSync, writeFileSync } from "node:fs";
import os from "node:os";
import process from "node:process";
import { parseArgs } from "node:util";
import { answerFiles, serve } from "../test/server.mjs";
import { open } from "./open.mjs";

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: { toggle: { type: "string", multiple: true, default: [] }, only: { type: "string", multiple: true } },
});
const [from, to] = positionals;
const { version, kernels } = JSON.parse(readFileSync(from, "utf8"));
/** The shortest time of a sample in nanoseconds, the samples, and the most dispatches of one. */
const [SAMPLE, SAMPLES, MOST] = [3e6, 7, 200];
/** The largest relative error of f32 and f16, of sums of up to 131,072 terms. */
const NEAR = [1e-3, 3e-2];

const { address } = await serve(answerFiles);
await open(`${address}/test/page.html`, flags.toggle);
const { suite } = await import(`${address}/dist/suite.js`);
const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
const limits = ["maxBufferSize", "maxStorageBufferBindingSize", "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup"];
const device = await adapter.requestDevice({
  requiredFeatures: ["shader-f16", "timestamp-query"].filter((f) => adapter.features.has(f)),
  requiredLimits: Object.fromEntries(limits.map((l) => [l, adapter.limits[l]])),
});

/** The f16 of a number between 2^-14 and 65504, or 0. */
function half(x) {
  if (x === 0) return 0;
  const e = Math.floor(Math.log2(Math.abs(x)));
  const m = Math.round((Math.abs(x) / 2 ** e - 1) * 1024);
  return (x < 0 ? 0x8000 : 0) + ((e + 15) << 10) + m;
}
function ofHalf(h) {
  const [sign, e, m] = [h & 0x8000 ? -1 : 1, (h >> 10) & 31, h & 1023];
  return sign * (e ? 2 ** (e - 15) * (1 + m / 1024) : 2 ** -14 * (m / 1024));
}
/** The inputs' period, as numbers of a type. */
const period = Array.from({ length: 13 }, (_, i) => ((i * 7) % 13) / 6 - 1);

async function measured({ id, wgsl, entry, grid, half: halves, bindings, inputs, output, compared }) {
  const [Type, size] = halves ? [Uint16Array, 2] : [Float32Array, 4];
  const bytes = (n) => Math.ceil((n * size) / 4) * 4;
  const [COPY_SRC, COPY_DST, UNIFORM, STORAGE, MAP_READ, RESOLVE] = [4, 8, 64, 128, 1, 512];
  const own = [];
  const buffer = (length, usage) => own[own.push(device.createBuffer({ size: length, usage })) - 1];
  try {
    device.pushErrorScope("validation");
    const code = halves && !/enable f16/.test(wgsl) ? `enable f16;\n${wgsl}` : wgsl;
    const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module: device.createShaderModule({ code }), entryPoint: entry } });
    const values = period.map((x) => (halves ? half(x) : x));
    const operands = inputs.map((n) => {
      const b = buffer(bytes(n), STORAGE | COPY_DST);
      device.queue.writeBuffer(b, 0, Type.from({ length: bytes(n) / size }, (_, i) => (i < n ? values[i % 13] : 0)));
      return b;
    });
    const result = buffer(bytes(output), STORAGE | COPY_SRC);
    const [x, y, z] = grid;
    const pods = buffer(16, UNIFORM | COPY_DST);
    device.queue.writeBuffer(pods, 0, Uint32Array.of(x - 1));
    // TVM spreads workgroups beyond the limit over the third axis.
    const spread = x > 65535 ? [65535, y, Math.ceil(x / 65535)] : [x, y, z];
    const others = { output: result, arguments: pods };
    const entries = bindings.map((of, binding) => ({ binding, resource: { buffer: others[of] ?? operands[of] } }));
    const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
    const query = device.createQuerySet({ type: "timestamp", count: 2 });
    const [times, read] = [buffer(16, RESOLVE | COPY_SRC), buffer(16, MAP_READ | COPY_DST)];
    /** The nanoseconds of a dispatch, of `count` in one pass. */
    const each = async (count) => {
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass({ timestampWrites: { querySet: query, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 } });
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      for (let i = 0; i < count; i++) pass.dispatchWorkgroups(...spread);
      pass.end();
      encoder.resolveQuerySet(query, 0, 2, times, 0);
      encoder.copyBufferToBuffer(times, 0, read, 0, 16);
      device.queue.submit([encoder.finish()]);
      await read.mapAsync(1);
      const [begin, end] = new BigUint64Array(read.getMappedRange().slice(0));
      read.unmap();
      return Number(end - begin) / count;
    };
    const first = await each(2);
    const wrong = await device.popErrorScope();
    if (wrong) throw new Error(wrong.message.split("\n")[0]);
    const host = buffer(bytes(output), MAP_READ | COPY_DST);
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(result, 0, host, 0, bytes(output));
    device.queue.submit([encoder.finish()]);
    await host.mapAsync(1);
    const got = new Type(host.getMappedRange());
    const scale = Math.max(...compared.map(([, v]) => Math.abs(v)), 1e-3);
    const error = Math.max(...compared.map(([i, v]) => Math.abs((halves ? ofHalf(got[i]) : got[i]) - v) / scale));
    if (!(error < NEAR[halves ? 1 : 0])) throw new Error(`its results are wrong: a relative error of ${error.toPrecision(2)}`);
    const count = Math.max(1, Math.min(MOST, Math.round(SAMPLE / first)));
    await each(count);
    const samples = [];
    for (let i = 0; i < SAMPLES; i++) samples.push((await each(count)) * 1e-9);
    return [{ id, unit: "s", better: "less", samples }];
  } finally {
    for (const b of own) b.destroy();
  }
}

const tasks = kernels.map((k) => ({
  name: k.id,
  run: () => (k.missing ? Promise.reject(new Error(k.missing)) : measured(k)),
}));
const made = await suite({
  tasks, only: flags.only ?? ["kernels/"], passes: 1, implementation: [version, "Dawn in node", ...flags.toggle].join(", "),
  onProgress: ({ task, done, total }) => process.stderr.write(`${task} (${done + 1} of ${total})\n`),
});
const record = {
  ...made, producer: "web/engines/tvm.mjs", device: { ...made.device, backend: "vulkan" },
  host: { os: os.platform(), architecture: os.arch() === "x64" ? "x86_64" : os.arch(), processor: os.cpus()[0]?.model ?? "", threads: os.cpus().length || 1 },
};
writeFileSync(to, `${JSON.stringify(record)}\n`);
for (const row of record.rows) console.log(`${row.id.padEnd(64)} ${row.missing ?? `${(1e6 * [...row.passes.flat()].sort((a, b) => a - b)[SAMPLES >> 1]).toPrecision(4)} µs`}`);
process.exit(0);
