// Runs the checks and cases of the page web/test/page.html outside of a browser: under Dawn in node, or under wgpu in Deno.
//
//   node web/engines/cases.mjs [--toggle NAME]... [--features NAME,...] [--only TEXT] [--without compiler]
//   deno run -A web/engines/cases.mjs ...
//
// --features asks for a device with these features and all that the adapter has, as a model's own device; without it the device has only
// what every device has. WGFC_CASE_FOLDER is the folder of cases (target/web/cases).
import { readFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { hold } from "../test/results.mjs";
import { CASES, answerFiles, serve } from "../test/server.mjs";
import { engine, open } from "./open.mjs";

const { values: flags } = parseArgs({
  args: process.argv.slice(2),
  options: {
    toggle: { type: "string", multiple: true, default: [] },
    features: { type: "string", default: "" },
    only: { type: "string", default: "" },
    without: { type: "string", default: "" },
  },
});
const { server, address } = await serve(answerFiles);
await open(`${address}/test/page.html?features=${flags.features}`, flags.toggle);
const { describe } = await import(`${address}/engines/measure.mjs`);
console.log(`${engine} on ${(await describe()).name}${flags.features ? ` with ${flags.features}` : ""}`);
await import(`${address}/test/page.mjs`);

let failed = 0;
const selected = (name) => name.includes(flags.only);
/** Checks of what only browsers have: a canvas. */
const browsers = ["pictures_become_tensors"];
const checks = [...window.checkNames, ...(flags.without === "compiler" ? [] : window.compileCheckNames)].filter((n) => selected(n) && !browsers.includes(n));
for (const name of checks) {
  const problem = await window.runCheck(name);
  if (!problem) continue;
  failed++;
  console.log(`${name}: ${problem}`);
}
console.log(`${checks.length - failed} of ${checks.length} checks pass`);

const names = JSON.parse(readFileSync(join(CASES, "index.json"), "utf8")).filter(selected);
try {
  hold(await window.runCases(names), { chosen: (n) => names.includes(n), whole: false });
} catch (e) {
  failed++;
  console.log(e.message);
}
server.close();
process.exit(failed ? 1 : 0);
