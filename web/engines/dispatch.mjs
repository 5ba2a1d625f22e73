// The cost of a dispatch beside its kernel, in a page or in an engine: the modes of `wgfc bench dispatch`, and the calls of a pass each alone.
import { dispatches as timed } from "/dist/suite.js";

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

/** Microseconds for each dispatch, by mode: `wall`, and its parts `encode`, `finish`, `submit`. Medians of `iterations`. */
export async function dispatches(device, iterations = 40) {
  const parts = (all) => Object.fromEntries(Object.keys(all[0]).map((part) => [part, median(all.map((t) => t[part]))]));
  return Object.fromEntries(Object.entries(await timed(device, iterations)).map(([mode, all]) => [mode, parts(all)]));
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
