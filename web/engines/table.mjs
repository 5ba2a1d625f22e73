// Prints tables of the JSON files that `scripts/gpu_web.sh bench` wrote.
//
//   node web/engines/table.mjs FILE...
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import process from "node:process";

const files = process.argv.slice(2).map((file) => ({ name: basename(file, ".json"), result: JSON.parse(readFileSync(file, "utf8")) }));
const native = Object.fromEntries(files.filter((f) => f.name.startsWith("native-")).map((f) => [f.name.slice("native-".length), f.result]));
const pages = files.filter((f) => !f.name.startsWith("native-")).map((f) => f.result);
const engines = [...new Set(pages.map((r) => r.engine))];
const digits = (n) => (n === undefined || Number.isNaN(n) ? "–" : n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2));

function print(title, head, rows) {
  if (rows.length === 0) return;
  console.log(`${title}\n\n| ${head.join(" | ")} |\n|---|${head.slice(1).map(() => "--:|").join("")}`);
  for (const row of rows) console.log(`| ${row.join(" | ")} |`);
  console.log("");
}

/** The rows of an engine's results, by name. */
const rowsOf = (engine) => Object.fromEntries(pages.filter((r) => r.engine === engine).flatMap((r) => (r.rows ?? []).map((row) => [row.name, row])));
const by = Object.fromEntries(engines.map((e) => [e, rowsOf(e)]));
const names = [...new Set(engines.flatMap((e) => Object.keys(by[e])))];

const modes = [...new Set(pages.flatMap((r) => Object.keys(r.dispatch ?? {})))];
const micro = Object.fromEntries((native.dispatch?.modes ?? []).map((m) => [m.mode, m.wall_ns.median / 1000]));
const dispatching = pages.filter((r) => r.dispatch);
print("A dispatch, µs", ["", "native", ...dispatching.map((r) => r.engine)], modes.map((m) => [m, digits(micro[m]), ...dispatching.map((r) => digits(r.dispatch[m]?.wall))]));
const callNames = [...new Set(pages.flatMap((r) => Object.keys(r.calls ?? {})))];
print("Other calls, µs", ["", ...dispatching.map((r) => r.engine)], callNames.map((c) => [c, ...dispatching.map((r) => digits(r.calls[c]))]));

const cell = (of, than) => `${digits(of)}${than ? ` (${digits(than / of)})` : ""}`;
const runs = names.filter((n) => engines.some((e) => by[e][n]?.ms));
const nativeMs = (n) => native[n] && native[n].profile.round_trip_ns.median / 1e6;
const nativeRow = (n) => native[n] && native[n].profile.back_to_back_ns / 1e6;
const ms = (of, key) => runs.map((n) => [n, digits(of(n)), ...engines.map((e) => cell(by[e][n]?.[key], of(n)))]);
print("A run that is waited for, ms; in brackets native divided by it", ["", "native", ...engines], ms(nativeMs, "ms"));
print("A run in a row, ms", ["", "native", ...engines], ms(nativeRow, "row"));
print("First result, ms", ["", ...engines], runs.map((n) => [n, ...engines.map((e) => digits(by[e][n]?.first))]));

const steps = names.filter((n) => engines.some((e) => by[e][n]?.steps));
const nativeSteps = (n) => n === "sae" && native.train && 1 / native.train.seconds_per_step;
print("Training steps a second; in brackets divided by native", ["", "native", ...engines], steps.map((n) => [n, digits(nativeSteps(n)), ...engines.map((e) => `${digits(by[e][n]?.perSecond)} (${digits(by[e][n]?.perSecond / nativeSteps(n))})`)]));
const decoders = names.filter((n) => !steps.includes(n) && engines.some((e) => by[e][n]?.perSecond));
const tokens = (n) => native[n] && 1e9 / native[n].past[0].profile.back_to_back_ns;
const perSecond = (n, e) => `${digits(by[e][n]?.perSecond)} (${digits(by[e][n]?.perSecond / tokens(n))})`;
print("Tokens a second; in brackets divided by native", ["", "native", ...engines], decoders.map((n) => [n, digits(tokens(n)), ...engines.map((e) => perSecond(n, e))]));
for (const e of engines) for (const n of names) if (by[e][n]?.error) console.log(`${e}, ${n}: ${by[e][n].error}`);
