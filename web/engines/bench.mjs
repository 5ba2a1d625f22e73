// Measures what pages do under an engine: the speeds of the device, dispatches, runs of models, tokens.
//
//   node web/engines/bench.mjs [--browser] [--toggle NAME]... [--json FILE] [--least] WHAT
//
// WHAT is measure, dispatch, model NAME INPUTS..., train NAME INPUTS..., decode NAME..., tune NAME INPUTS..., ort NAME INPUTS... or ort-decode NAME...
//
// NAME is a folder in target/web/plans (WGFC_PLANS), which `wgfc compile --target web` wrote; for tune and onnxruntime-web (WGFC_ORT,
// web/bench/node_modules) a graph in fixtures/ with sizes from --dims, as in batch=1,seq=128. INPUTS are as in
// `pixel_values:f32:1x3x224x224` or `input_ids:i64:1x128=5`, and `rate:f32:=0.001` for one number. --least takes a device with the limits
// that every device has. --browser measures in a page of headless Chromium (CHROMIUM, WGFC_GPU=1 for a GPU) instead of in this process.
import { writeFileSync } from "node:fs";
import process from "node:process";
import { parseArgs } from "node:util";
import { answerFiles, serve } from "../test/server.mjs";
import { engine, open } from "./open.mjs";

const { values: flags, positionals } = parseArgs({
  args: process.argv.slice(2),
  allowPositionals: true,
  options: {
    browser: { type: "boolean", default: false },
    dims: { type: "string", default: "batch=1,seq=128" },
    least: { type: "boolean", default: false },
    toggle: { type: "string", multiple: true, default: [] },
    json: { type: "string" },
    past: { type: "string", default: "64" },
    tokens: { type: "string", default: "192" },
    capacity: { type: "string", default: "1024" },
  },
});

/** Calls an export of measure.mjs under the engine. */
async function start() {
  if (flags.browser) {
    const { openPage } = await import("../test/chromium.mjs");
    const { page, close } = await openPage("/test/page.html");
    const call = (name, ...args) => page.evaluate(async ([name, args]) => (await import("/engines/measure.mjs"))[name](...args), [name, args]);
    return { call, close };
  }
  const { server, address } = await serve(answerFiles);
  await open(`${address}/test/page.html`, flags.toggle);
  const measure = await import(`${address}/engines/measure.mjs`);
  return { call: (name, ...args) => measure[name](...args), close: () => server.close() };
}

function inputsOf(text) {
  return text.split(",").map((one) => {
    const [, name, dtype, shape, value] = /^(.+):(\w+):([\dx]*)(?:=([\d.]+))?$/.exec(one);
    return { name, dtype, shape: shape ? shape.split("x").map(Number) : [], value: value && Number(value) };
  });
}

const { call, close } = await start();
const [what, ...rest] = positionals;
const result = { engine: what.startsWith("ort") ? "onnxruntime-web" : flags.browser ? "chromium" : engine, toggles: flags.toggle, ...(await call("describe")) };
console.log(`${result.engine} on ${result.name}`);
const { past, tokens, capacity } = flags;
const options = { past: Number(past), tokens: Number(tokens), capacity: Number(capacity), least: flags.least, dims: Object.fromEntries(flags.dims.split(",").map((d) => [d.split("=")[0], Number(d.split("=")[1])])) };
const programs = ["model", "train", "tune", "ort"].includes(what) ? rest.flatMap((name, i) => (i % 2 ? [] : [[name, inputsOf(rest[i + 1])]])) : rest.map((name) => [name]);
Object.assign(result, await call("measure", what, programs, options));
if (result.profile) console.log(`measured in ${result.seconds.toFixed(1)} s: ${JSON.stringify(result.profile.speeds)}`);
for (const [mode, parts] of Object.entries(result.dispatch ?? {}))
  console.log(`${mode.padEnd(44)}${Object.entries(parts).map(([p, us]) => `${p} ${us.toFixed(2).padStart(6)}`).join("  ")} µs`);
for (const [name, us] of Object.entries(result.calls ?? {})) console.log(`${name.padEnd(44)}${us.toFixed(1)} µs`);
for (const { name, all, rates, firsts, ...row } of result.rows ?? []) console.log(name, JSON.stringify(row));
// A profile is a file of its own, which `wgfc compile --profile` takes.
if (flags.json) writeFileSync(flags.json, `${JSON.stringify(result.profile ?? result, null, 1)}\n`);
await close();
process.exit(0);
