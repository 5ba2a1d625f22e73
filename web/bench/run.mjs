// Compares wgfc with onnxruntime-web on WebGPU in one Chromium: what is downloaded, when the first result is there, and what a run takes.
// Each engine has browsers of its own; they take turns.
//
//   npm run bench -- [--only NAME,…] [--cold N] [--rounds N] [--seconds S] [--speeds portable|software] [--ort webgpu|jspi] [--limits default] [--clear] [--times]
//     [--json FILE] [--svg FILE]
//
// --speeds names the device profile that plans are compiled with, always for the limits that every browser has; --limits default gives wgfc a device with no more than
// every device has; --clear lets Chromium clear workgroup
// memory, as it does where it is not told otherwise, for which SwiftShader writes out a store for each word; --times prints what each kernel of wgfc takes.
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { parseArgs } from "node:util";
import { launch, visit } from "../test/chromium.mjs";
import { MODELS } from "./models.mjs";
import { chart, table } from "./report.mjs";
import { fileOf, prepare, start, takeSent, work } from "./server.mjs";

const root = new URL("../..", import.meta.url).pathname;
const { values: flags } = parseArgs({
  options: {
    only: { type: "string" },
    cold: { type: "string", default: "3" },
    rounds: { type: "string", default: "5" },
    seconds: { type: "string", default: "2" },
    ort: { type: "string", default: "webgpu" },
    clear: { type: "boolean", default: false },
    speeds: { type: "string", default: "software" },
    limits: { type: "string", default: "" },
    times: { type: "boolean", default: false },
    json: { type: "string" },
    svg: { type: "string" },
  },
});
const ENGINES = ["wgfc", "ort"];
const wgfc = process.env.WGFC ?? [join(root, "target/release/wgfc"), join(root, "target/debug/wgfc")].find(existsSync);
const python = process.env.PYTHON ?? [join(root, "target/venv/bin/python"), "python3"].find((p) => p === "python3" || existsSync(p));

/** Puts a model and its plan where the server has them; returns the bytes of weights. */
function place({ name, fixture, file, dims = {}, compile = [] }) {
  const folder = join(work, "models", name);
  mkdirSync(folder, { recursive: true });
  const model = join(folder, `${name}.onnx`);
  copyFileSync(fixture ? join(root, `fixtures/${name}.onnx`) : file, model);
  if (fixture && !existsSync(`${model}.data`)) execFileSync(python, [join(root, "fixtures/weights.py"), model]);
  const fixed = Object.entries(dims).flatMap(([dim, n]) => ["--dim", `${dim}=${n}`]);
  const plan = join(work, "plans", name);
  rmSync(plan, { recursive: true, force: true });
  const said = execFileSync(wgfc, ["compile", model, "-o", plan, "--target", "web", "--profile", flags.speeds, "--json", ...fixed, ...compile]);
  const kernels = readdirSync(join(plan, "kernels")).map((k) => join(plan, "kernels", k));
  prepare([model, join(plan, "plan.json"), ...kernels]);
  return JSON.parse(said).weight_bytes;
}

/** Opens a page of an engine in a browser of its own. */
async function open(engine, address, more = "") {
  const browser = await launch(flags.clear ? [] : undefined);
  const processes = await browser.newBrowserCDPSession();
  /** Processor time in ms, of the process that runs the GPU's work and of all. */
  const cpu = async () => {
    const { processInfo } = await processes.send("SystemInfo.getProcessInfo");
    const sum = (of) => 1000 * of.reduce((s, p) => s + p.cpuTime, 0);
    return { gpu: sum(processInfo.filter((p) => p.type === "GPU")), all: sum(processInfo) };
  };
  const page = await visit(browser, `${address}/bench/page.html?engine=${engine}&ort=${flags.ort}&limits=${flags.limits}${more}`);
  await page.waitForFunction(() => window.ready);
  return { browser, page, cpu };
}

/** A model from nothing to its first result. */
async function cold(engine, spec, address) {
  takeSent();
  const at = await open(engine, address);
  const before = await at.cpu();
  const times = await at.page.evaluate((spec) => window.first(spec), spec);
  const after = await at.cpu();
  return { ...at, result: { ...times, cpu: after.all - before.all, sent: takeSent() } };
}

/** Bytes of the downloads, compressed and not: the engine, the plan or graph, and weights. */
function bytes(sent, weights) {
  const sum = (of) => of.reduce((s, f) => ({ wire: s.wire + f.bytes, size: s.size + f.size }), { wire: 0, size: 0 });
  const data = /\.(data|safetensors)$/;
  const engine = sum(sent.filter((f) => /^\/(wgfc|ort)\//.test(f.path)));
  const others = sent.filter((f) => /^\/(plans|models)\//.test(f.path) && !data.test(f.path));
  // Weights inside of the model's file do not compress.
  const inside = sent.some((f) => data.test(f.path)) ? 0 : weights;
  const graph = sum(others);
  return { engine, graph: { wire: Math.max(0, graph.wire - inside), size: Math.max(0, graph.size - inside) }, weights };
}

/** The largest ‖a − b‖ / ‖b‖ of any output. */
function difference(a, b) {
  let largest = 0;
  for (const name of Object.keys(b)) {
    if (!a[name]) return NaN;
    const read = ({ type, base64 }) => {
      const raw = Buffer.from(base64, "base64");
      return new globalThis[type](raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.length));
    };
    const [x, y] = [read(a[name]), read(b[name])];
    if (x.length !== y.length) return NaN;
    let [far, norm] = [0, 0];
    for (let i = 0; i < x.length; i++) {
      far += (Number(x[i]) - Number(y[i])) ** 2;
      norm += Number(y[i]) ** 2;
    }
    largest = Math.max(largest, Math.sqrt(far / (norm || 1)));
  }
  return largest;
}

/** The first result of onnxruntime-web on the CPU. */
async function reference(spec, address) {
  const { browser, page } = await open("ort", address, "&provider=wasm");
  const { outputs } = await page.evaluate((spec) => window.first(spec), spec);
  await browser.close();
  return outputs;
}

const median = (all) => {
  const sorted = [...all].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};

async function compare(spec, address) {
  const weights = place(spec);
  const row = { name: spec.name, title: spec.title ?? spec.name, engines: {} };
  const starts = Object.fromEntries(ENGINES.map((e) => [e, []]));
  const kept = {};
  for (let round = 0; round < Number(flags.cold); round++)
    for (const engine of round % 2 ? [...ENGINES].reverse() : ENGINES) {
      const { result, ...at } = await cold(engine, spec, address);
      starts[engine].push(result);
      if (round === Number(flags.cold) - 1) kept[engine] = at;
      else await at.browser.close();
    }
  const right = await reference(spec, address);
  const errors = Object.fromEntries(ENGINES.map((e) => [e, difference(starts[e][0].outputs, right)]));
  // As many runs as take about --seconds, the same number for both.
  const samples = Object.fromEntries(ENGINES.map((e) => [e, []]));
  let runs = 1;
  for (let round = -1; round < Number(flags.rounds); round++) {
    for (const engine of round % 2 ? [...ENGINES].reverse() : ENGINES) {
      const before = await kept[engine].cpu();
      const sample = await kept[engine].page.evaluate((runs) => window.steady(runs), runs);
      const after = await kept[engine].cpu();
      samples[engine].push({ ms: sample.ms, gpu: (after.gpu - before.gpu) / runs, all: (after.all - before.all) / runs });
    }
    if (round >= 0) continue;
    // The first round warms up, and says how long a run is.
    const longest = Math.max(...ENGINES.map((e) => samples[e][0].ms));
    runs = Math.max(1, Math.min(200, Math.round((1000 * Number(flags.seconds)) / longest)));
    for (const e of ENGINES) samples[e] = [];
  }
  if (flags.times) row.times = await kept.wgfc.page.evaluate(() => window.profile());
  for (const engine of ENGINES) {
    await kept[engine].browser.close();
    const of = (key, all) => median(all.map((s) => s[key]));
    row.engines[engine] = {
      bytes: bytes(starts[engine][0].sent, weights),
      engine_ms: of("imported", starts[engine]),
      loaded_ms: of("loaded", starts[engine]),
      first_ms: of("first", starts[engine]),
      first_cpu_ms: of("cpu", starts[engine]),
      run_ms: of("ms", samples[engine]),
      run_cpu_ms: of("all", samples[engine]),
      run_gpu_process_cpu_ms: of("gpu", samples[engine]),
      samples: samples[engine],
    };
  }
  const { wgfc: ours, ort } = row.engines;
  return { ...row, runs, errors, ratio: { cpu: ort.run_cpu_ms / ours.run_cpu_ms, wall: ort.run_ms / ours.run_ms, first: ort.first_ms / ours.first_ms } };
}

const wanted = MODELS.filter((m) => !flags.only || flags.only.split(",").some((n) => m.name.includes(n)));
const scripts = (folder, all) => all.map((f) => fileOf(`${folder}${f}`));
prepare([
  ...scripts("/wgfc/", readdirSync(join(root, "web/dist")).filter((f) => f.endsWith(".js"))),
  ...scripts("/ort/", [`ort.${flags.ort}.min.mjs`, ...["mjs", "wasm"].map((e) => `ort-wasm-simd-threaded.${flags.ort === "jspi" ? "jspi" : "asyncify"}.${e}`)]),
  ...readdirSync(new URL(".", import.meta.url)).filter((f) => /\.(mjs|html)$/.test(f)).map((f) => fileOf(`/bench/${f}`)),
]);
const { server, address } = await start();
const rows = [];
for (const spec of wanted) {
  try {
    rows.push(await compare(spec, address));
    console.log(table(rows.slice(-1), rows.length === 1));
    for (const t of rows.at(-1).times ?? []) console.log(`  ${(t.microseconds / 1000).toFixed(1)} ms  ${t.kernel}  ${t.workgroups.join("×")}  ${(t.flops / 1e6).toFixed(1)} MFLOP`);
  } catch (e) {
    console.log(`${spec.name}: ${e.message}`);
    process.exitCode = 1;
  }
}
server.close();
const mean = (of) => Math.exp(rows.reduce((s, r) => s + Math.log(of(r)), 0) / rows.length);
const summary = { steady_cpu: mean((r) => r.ratio.cpu), steady_wall: mean((r) => r.ratio.wall), first: mean((r) => r.ratio.first) };
console.log(`geometric means, onnxruntime-web over wgfc: a run ${summary.steady_cpu.toFixed(2)} (processor time), ${summary.steady_wall.toFixed(2)} (wall); first result ${summary.first.toFixed(2)}`);
if (flags.json) writeFileSync(flags.json, `${JSON.stringify({ ort: flags.ort, speeds: flags.speeds, clear: flags.clear, summary, rows }, null, 1)}\n`);
if (flags.svg) writeFileSync(flags.svg, chart(rows));
