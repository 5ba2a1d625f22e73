// Measures an engine as `wgfc bench suite` measures a device, with rows of the same names, for `wgfc bench report NATIVE.json THIS.json`.
//
//   node web/engines/suite.mjs [--browser] [--toggle NAME]... [--passes N] [--quick] [--only TASK]... [--ort] FILE.json
//
// It measures the device's speeds and dispatches, and the programs in target/web/plans (WGFC_PLANS) that `wgfc compile` wrote: mobilenetv2, resnet50 and bert-base in
// folders of these names, Qwen2.5-0.5B in f32, f16 and 4 bits in qwen-f32, qwen-f16 and qwen-q4. --quick leaves the programs out. --browser measures in a page of headless
// Chromium (CHROMIUM, WGFC_GPU=1 for a GPU) instead of Dawn in this process. --ort measures onnxruntime-web (the package's files in WGFC_ORT) on the graphs in fixtures/
// instead of wgfc.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import os from "node:os";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { median } from "../dist/suite.js";
import { answerFiles, serve } from "../test/server.mjs";
import { engine, open } from "./open.mjs";

const { values: flags, positionals } = parseArgs({
  args: process.argv.slice(2),
  allowPositionals: true,
  options: {
    browser: { type: "boolean", default: false },
    quick: { type: "boolean", default: false },
    only: { type: "string", multiple: true, default: [] },
    ort: { type: "boolean", default: false },
    passes: { type: "string", default: "2" },
    toggle: { type: "string", multiple: true, default: [] },
  },
});
const [file = "suite.json"] = positionals;
const PLANS = process.env.WGFC_PLANS ?? new URL("../../target/web/plans/", import.meta.url).pathname;
const picture = [{ name: "pixel_values", dtype: "f32", shape: [1, 3, 224, 224] }];
const text = [{ name: "input_ids", dtype: "i64", shape: [1, 128], value: 5 }, { name: "attention_mask", dtype: "i64", shape: [1, 128], value: 1 }];
const MODELS = [["mobilenetv2", "mobilenetv2", picture, { batch: 1 }], ["resnet50", "resnet50", picture, { batch: 1 }], ["bert-base 1 x 128", "bert-base", text, { batch: 1, seq: 128 }]];
// The last is the fixture that onnxruntime-web takes.
const DECODERS = [["qwen2.5-0.5b f32", "qwen-f32", "qwen2.5-0.5b"], ["qwen2.5-0.5b f16", "qwen-f16", "qwen2.5-0.5b-f16"], ["qwen2.5-0.5b 4 bits", "qwen-q4", "qwen2.5-0.5b-q4f16"]];

async function start() {
  if (flags.browser) {
    const { openPage } = await import("../test/chromium.mjs");
    const { page, close } = await openPage("/test/page.html");
    const version = page.context().browser().version();
    const call = (name, ...args) => page.evaluate(async ([name, args]) => (await import("/engines/readings.mjs"))[name](...args), [name, args]);
    return { call, close, implementation: `Chromium ${version}` };
  }
  const { server, address } = await serve(answerFiles);
  await open(`${address}/test/page.html`, flags.toggle);
  const readings = await import(`${address}/engines/readings.mjs`);
  return { call: (name, ...args) => readings[name](...args), close: () => server.close(), implementation: engine === "deno" ? `Deno ${Deno.version.deno}` : "Dawn in node" };
}

const { call, close, implementation } = await start();
const present = ([, folder]) => existsSync(join(PLANS, folder, "plan.json"));
const of = (name, ...call) => [name, ...(call.length ? call : [`there is no program in ${PLANS}`])];
const parts = flags.ort
  ? [...MODELS.map((m) => of(`models/${m[0]}`, "ortModel", ...m)), ...DECODERS.map((d) => of(`decode/${d[0]}`, "ortDecode", d[0], d[2]))]
  : [...MODELS.map((m) => of(`models/${m[0]}`, ...(present(m) ? ["model", ...m] : []))), ...DECODERS.map((d) => of(`decode/${d[0]}`, ...(present(d) ? ["decode", ...d] : [])))];
const only = flags.only.length ? flags.only : flags.quick ? ["device", "dispatch"] : flags.ort ? ["models/", "decode/"] : [""];
const ort = flags.ort ? [`onnxruntime-web ${await call("ortVersion")}`] : [];
const made = await call("record", {
  parts, only, passes: Number(flags.passes), iterations: flags.quick ? 10 : 40, implementation: [...ort, implementation, ...flags.toggle].join(", "),
});
const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
const record = {
  ...made, producer: `wgfc ${version}`, quick: flags.quick, device: { ...made.device, backend: "vulkan" },
  host: { os: os.platform(), architecture: os.arch() === "x64" ? "x86_64" : os.arch(), processor: os.cpus()[0]?.model ?? "", threads: os.cpus().length || 1 },
};
writeFileSync(file, `${JSON.stringify(record)}\n`);
for (const row of record.rows) console.log(`${row.id.padEnd(60)} ${row.missing ?? `${median(row.passes.flat()).toPrecision(4)} ${row.unit}`}`);
await close();
process.exit(0);
