// Compares what the engines in target/parity have made of the same cases: the evaluator, native adapters and Chromium. Integers, bools, floats of 8 bits
// and what is only moved have equal bits; other floats may differ as BOUNDS says, or as a line of tests/conformance/parity.tsv does, with a
// reason. Writes target/parity/report.md.
import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";

const root = new URL("../../", import.meta.url);
const parity = new URL("target/parity/", root);
const listed = new URL("tests/conformance/parity.tsv", root);

/** Units in the last place of an element, or of the largest element of its tensor, where sums cancel. */
const BOUNDS = { f64: [4, 16], f32: [4, 16], f16: [1, 2], bf16: [1, 2] };
/** Operators that only move elements, or choose among them. */
const MOVES = new Set(
  ("CenterCropPad Compress Concat ConcatFromSequence Constant ConstantOfShape DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Pad Reshape " +
    "ReverseSequence ScatterElements ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unsqueeze Where").split(" "),
);

/** The outputs of each run: `{ dtype, shape, bytes }` by name. */
function read(engine, name) {
  const file = new URL(`${engine}/${name}.out`, parity);
  if (!existsSync(file)) return undefined;
  const bytes = readFileSync(file);
  const start = 8 + Number(bytes.readBigUInt64LE());
  const at = ([offset, size]) => Uint8Array.prototype.slice.call(bytes, start + offset, start + offset + size);
  const { runs } = JSON.parse(bytes.subarray(8, start));
  return runs.map((r) => Object.fromEntries(Object.entries(r).map(([n, t]) => [n, { ...t, bytes: at(t.at) }])));
}

/** Why an engine has made nothing of a case. */
function failure(engine, name) {
  const file = new URL(`${engine}-failed.json`, parity);
  return (existsSync(file) && JSON.parse(readFileSync(file, "utf8"))[name]) || "it did not run";
}

/** A float type's bits, those of its exponent, and its elements as integers. */
const FLOATS = { f64: [64, 11, BigInt64Array], f32: [32, 8, Int32Array], f16: [16, 5, Int16Array], bf16: [16, 8, Int16Array] };

/** The largest distance of two elements in units in the last place: of themselves, and of the largest of the tensor. */
function distance(a, b) {
  if (a.dtype !== b.dtype || `${a.shape}` !== `${b.shape}`) return { what: `${a.dtype}[${a.shape}] and ${b.dtype}[${b.shape}]` };
  const count = a.shape.reduce((x, y) => x * y, 1);
  const equal = Buffer.from(a.bytes.buffer, 0, a.bytes.length).equals(Buffer.from(b.bytes.buffer, 0, b.bytes.length));
  if (equal) return { bits: true, ulps: 0, scaled: 0 };
  if (!FLOATS[a.dtype]) return { what: `elements of ${a.dtype}` };
  const [bits, exponent, Words] = FLOATS[a.dtype];
  const mantissa = bits - exponent - 1;
  // Numbers of f64 are those of f32.
  const unit = a.dtype === "f64" ? 2 ** 29 : 1;
  const [x, y] = [a, b].map((t) => Array.from(new Words(t.bytes.buffer, 0, count), Number));
  const magnitude = (n) => (n < 0 ? n + 2 ** (bits - 1) : n);
  const order = (n) => (n < 0 ? -magnitude(n) : n);
  const infinity = (2 ** exponent - 1) * 2 ** mantissa;
  const isNaN = (n) => magnitude(n) > infinity;
  const value = (n) => {
    const m = magnitude(n);
    const e = Math.floor(m / 2 ** mantissa);
    const f = m % 2 ** mantissa;
    const scale = 2 ** (Math.max(e, 1) - (2 ** (exponent - 1) - 1) - mantissa);
    return (n < 0 ? -1 : 1) * (e ? f + 2 ** mantissa : f) * scale;
  };
  let [ulps, largest, apart, same] = [0, 0, 0, true];
  for (let i = 0; i < count; i++) {
    if (isNaN(x[i]) && isNaN(y[i])) continue;
    if (isNaN(x[i]) !== isNaN(y[i])) return { what: `NaN and ${value(isNaN(x[i]) ? y[i] : x[i])}` };
    if (x[i] !== y[i]) same = false;
    ulps = Math.max(ulps, Math.abs(order(x[i]) - order(y[i])) / unit);
    if (magnitude(x[i]) === infinity || magnitude(y[i]) === infinity) {
      if (x[i] !== y[i]) return { what: "an infinity and a number" };
      continue;
    }
    largest = Math.max(largest, Math.abs(value(x[i])));
    apart = Math.max(apart, Math.abs(value(x[i]) - value(y[i])));
  }
  const last = 2 ** (Math.floor(Math.log2(largest || 1)) - (a.dtype === "f64" ? 23 : mantissa));
  return { bits: same, ulps, scaled: Math.round(apart / last) };
}

const show = (d) => !d ? "" : d.what ?? (d.ulps === 0 ? (d.bits ? "0" : "±0") : `${d.ulps.toPrecision(3) / 1}${d.ulps > d.scaled ? ` (${d.scaled})` : ""}`);

test("engines compute the same", () => {
  const { cases, engines: ran } = JSON.parse(readFileSync(new URL("cases.json", parity), "utf8"));
  ran.chromium = cases;
  const engines = Object.keys(ran);
  const pairs = engines.flatMap((a, i) => engines.slice(i + 1).map((b) => [a, b]));
  const operators = new Map(
    readFileSync(new URL("target/conformance/node.tsv", root), "utf8").split("\n").filter(Boolean).map((l) => l.split("\t")).map(([n, , , o]) => [`node/${n}`, o.split(",")]),
  );
  // Case or its beginning with *, the pair or *, what is the most, why.
  const known = readFileSync(listed, "utf8").split("\n").filter((l) => l && !l.startsWith("#")).map((l) => l.split("\t"));
  const used = new Set();
  const explained = (name, pair, d) =>
    known.some((line) => {
      const [pattern, which, most] = line;
      const here = pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern;
      const fits = here && which.split("+").every((w) => w === "*" || pair.includes(w)) && (most === "any" || (d.what === undefined && Math.min(d.ulps, d.scaled) <= Number(most)));
      if (fits) used.add(line);
      return fits;
    });
  const rows = [];
  const problems = [];
  let moves = 0;
  for (const name of cases) {
    const made = engines.map((e) => (ran[e].includes(name) ? read(e, name) : undefined));
    for (const [i, e] of engines.entries()) if (ran[e].includes(name) && !made[i]) problems.push(`${name}: nothing of ${e}; ${failure(e, name)}`);
    const moved = operators.get(name)?.every((o) => MOVES.has(o)) ?? false;
    moves += moved;
    const cells = pairs.map(([a, b]) => {
      const [x, y] = [made[engines.indexOf(a)], made[engines.indexOf(b)]];
      if (!x || !y) return undefined;
      let worst = { bits: true, ulps: 0, scaled: 0 };
      for (const [run, outputs] of x.entries())
        for (const output of Object.keys(outputs)) {
          const other = y[run]?.[output];
          const d = other ? distance(outputs[output], other) : { what: `"${output}" is missing` };
          const { dtype } = outputs[output];
          const [most, mostScaled] = BOUNDS[dtype] ?? [0, 0];
          const fits = d.what === undefined && (moved ? d.bits : d.ulps <= most || d.scaled <= mostScaled);
          if (!fits && !explained(name, [a, b], d)) problems.push(`${name}, ${a} and ${b}, "${output}" of ${dtype}: ${show(d)}${moved ? ", which is only moved" : ""}`);
          if (d.what || d.ulps > (worst.ulps ?? Infinity)) worst = d;
        }
      return worst;
    });
    rows.push({ name, cells });
  }
  const heading = ["case", ...pairs.map((p) => p.join(" – "))];
  const differing = rows.filter((r) => r.cells.some((c) => c?.what || c?.ulps));
  const most = pairs.map((_, i) => {
    const all = rows.flatMap((r) => r.cells[i] ?? []);
    return `${all.filter((c) => c.ulps === 0).length} of ${all.length} equal`;
  });
  const line = (cells) => `| ${cells.join(" | ")} |`;
  const report = [
    "# Parity",
    `${cases.length} cases on ${engines.join(", ")}, ${moves} of which only move elements. Units in the last place, of an element and, in parentheses, of the largest element of its tensor where that is less; cases with none are left out.`,
    "",
    line(heading),
    line(["---", ...pairs.map(() => "--:")]),
    line(["all", ...most]),
    ...differing.map((r) => line([r.name, ...r.cells.map(show)])),
  ];
  writeFileSync(new URL("report.md", parity), `${report.join("\n")}\n`);
  console.log(`${cases.length} cases: ${pairs.map((p, i) => `${p.join(" – ")} ${most[i]}`).join(", ")}`);
  assert.deepEqual(problems, [], "differences beyond what is explained in tests/conformance/parity.tsv");
});
