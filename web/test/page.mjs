// Runs cases and checks in a page. `browser.mjs` calls what is put on `window` here.
import { Tensor, WgfcError, load } from "/dist/index.js";
import { compare } from "/dist/verify.js";
import { profileOf } from "/build/compiler/profile.js";
import { compile } from "/dist/compiler/index.js";
import * as checks from "./checks.mjs";
import * as compiling from "./compiling.mjs";
import * as oncpu from "./oncpu.mjs";
import * as training from "./training.mjs";

/** Relative errors that outputs of whole models may have, by type; others must be equal. */
const RELATIVE = { f32: 1e-4, f64: 1e-4, f16: 5e-3, bf16: 4e-2 };

/** The limits that every device has, a phone too. */
const LEAST = {
  maxStorageBuffersPerShaderStage: 8, maxComputeWorkgroupStorageSize: 16384, maxComputeInvocationsPerWorkgroup: 256,
  maxStorageBufferBindingSize: 128 << 20, maxBufferSize: 256 << 20,
};
/** The features of the device, which then has all limits of the adapter; without it the device has what every device has. */
const FEATURES = new URLSearchParams(location.search).get("features")?.split(",").filter(Boolean) ?? [];
let device;
async function deviceOf() {
  if (device) return device;
  const adapter = await navigator.gpu.requestAdapter();
  const made = FEATURES.length ? await wide(adapter) : least(await adapter.requestDevice());
  made.lost.then(() => (device = undefined));
  return (device = made);
}
function wide(adapter) {
  const requiredLimits = Object.fromEntries(Object.keys(LEAST).map((l) => [l, adapter.limits[l]]));
  return adapter.requestDevice({ requiredFeatures: FEATURES, requiredLimits });
}
function least(made) {
  for (const [limit, least] of Object.entries(LEAST))
    if (made.limits[limit] !== least) throw new Error(`${limit} is ${made.limits[limit]}, not ${least}: cases must run on a device that has only what every device has`);
  for (const feature of ["shader-f16", "subgroups", "timestamp-query"]) if (made.features.has(feature)) throw new Error(`cases must run without ${feature}`);
  return made;
}

/** Reads a file that tests/it/web.rs has written. */
async function readCase(name) {
  const bytes = new Uint8Array(await (await fetch(`/cases/${name}.case`)).arrayBuffer());
  const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const at = ([offset, size]) => bytes.subarray(8 + length + offset, 8 + length + offset + size);
  const tensors = (all) =>
    Object.fromEntries(Object.entries(all).map(([n, t]) => [n, Tensor.fromBytes(t.dtype, t.shape, at(t.at).slice())]));
  return {
    ...header,
    files: Object.fromEntries(Object.entries(header.files).map(([n, f]) => [n, at(f)])),
    runs: header.runs.map(({ inputs, outputs }) => ({ inputs: tensors(inputs), outputs: tensors(outputs) })),
  };
}

/** The fault of an output by the rules of the native tests. */
function differs(got, want, rule) {
  if (rule.kind === "drawn")
    return `${got}` === `${want}` ? undefined : `${got} instead of ${want}`;
  // numpy has no bf16.
  if (got.dtype === "bf16" && want.dtype !== "bf16") got = Tensor.from(want.dtype, got.shape, got.toNumbers());
  if (rule.kind === "equal") return compare(got, want, rule).problem;
  const { problem, relative } = compare(got, want, { rtol: 0, atol: 0 });
  if (!problem || relative <= (RELATIVE[want.dtype] ?? 0)) return undefined;
  return Number.isNaN(relative) ? problem : `relative error ${relative}: ${problem}`;
}

/** The outputs of runs as `tests/it/parity.rs` writes them, in base64. */
function packed(runs) {
  const pieces = [];
  let at = 0;
  const put = ({ dtype, shape, data }) => {
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    const space = -at & 7;
    pieces.push(new Uint8Array(space), bytes);
    at += space + bytes.length;
    return { dtype, shape, at: [at - bytes.length, bytes.length] };
  };
  const header = runs.map((outputs) => Object.fromEntries(Object.entries(outputs).map(([n, t]) => [n, put(t)])));
  let text = JSON.stringify({ runs: header });
  text += " ".repeat(-new TextEncoder().encode(text).length & 7);
  const head = new TextEncoder().encode(text);
  const length = new Uint8Array(BigUint64Array.of(BigInt(head.length)).buffer);
  const text64 = [length, head, ...pieces].map((bytes) => {
    const parts = [];
    for (let i = 0; i < bytes.length; i += 0x8000) parts.push(String.fromCharCode(...bytes.subarray(i, i + 0x8000)));
    return parts.join("");
  });
  return btoa(text64.join(""));
}

async function runCase(name, keep) {
  const { files, rule, capacity, runs } = await readCase(name);
  const model = await load(files, { device: await deviceOf(), ...(capacity ? { capacity } : {}) });
  const all = [];
  let problems = "";
  try {
    for (const [i, { inputs, outputs }] of runs.entries()) {
      const got = await model.run(inputs);
      if (keep) all.push(got);
      for (const [output, want] of Object.entries(outputs)) {
        const problem = got[output] ? differs(got[output], want, rule) : "it is missing";
        if (problem) problems ||= `run ${i}, output "${output}": ${problem}`;
      }
    }
  } finally {
    model.dispose();
  }
  return { status: problems ? "wrong" : "pass", reason: problems, ...(keep ? { outputs: packed(all) } : {}) };
}

/** Runs cases; of those in `kept` the outputs are returned, too. */
window.runCases = async (names, kept = []) => {
  const results = [];
  for (const name of names) {
    const start = performance.now();
    const result = await runCase(name, kept.includes(name)).catch((e) => ({
      status: e instanceof WgfcError ? e.kind : "error",
      reason: `${e.message}`,
    }));
    results.push({ name, ...result, seconds: (performance.now() - start) / 1000 });
  }
  return results;
};
/** Compiles a fixture for this device and runs it on a case's inputs. */
window.compileCase = async (name) => {
  const { rule, runs } = await readCase(name);
  const address = `/fixtures/${name}/model.onnx`;
  const profile = profileOf(await deviceOf());
  const { plan, kernels } = await compile(address, { device: await deviceOf() });
  const model = await load(address, { device: await deviceOf() });
  let problem;
  try {
    for (const [i, { inputs, outputs }] of runs.entries()) {
      const got = await model.run(inputs);
      for (const [output, want] of Object.entries(outputs)) {
        const wrong = differs(got[output], want, rule);
        if (wrong) problem ??= `run ${i}, output "${output}": ${wrong}`;
      }
    }
  } finally {
    model.dispose();
  }
  return { profile, producer: plan.producer, plan: plan.plans[0], kernels, problem };
};
window.load = load;
window.compile = compile;
window.refuse = async (bytes) => {
  const e = await compile(new Blob([Uint8Array.from(bytes)])).catch((e) => e);
  return { kind: e.kind, message: e.message, diagnostics: e.diagnostics };
};
window.checkNames = Object.keys(checks);
window.compileCheckNames = [...Object.keys(compiling), ...Object.keys(oncpu), ...Object.keys(training)];
window.runCheck = async (name) => {
  try {
    await { ...checks, ...compiling, ...oncpu, ...training }[name](readCase);
  } catch (e) {
    return `${e.name}: ${e.message}\n${e.stack}`;
  }
};
window.ready = true;
