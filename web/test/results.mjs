// The results of cases beside the lists in tests/conformance: cases that passed before must pass, and others are excused by a reason.
import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";

const root = new URL("../../", import.meta.url);
const list = new URL("tests/conformance/browser_passing.txt", root);
const failing = new URL("tests/conformance/browser_failing.tsv", root);

/** Compares the results of the `chosen` cases with the lists. `update` writes the lists, that of failures if `whole`. */
export function hold(results, { chosen, whole, update }) {
  report(results);
  const passed = results.filter((r) => r.status === "pass").map((r) => r.name);
  const known = existsSync(list) ? readFileSync(list, "utf8").split("\n").filter(Boolean) : [];
  if (update) {
    writeFileSync(list, [...new Set([...known, ...passed])].sort().map((n) => `${n}\n`).join(""));
    if (whole) writeFileSync(failing, results.filter((r) => r.status !== "pass").map(line).join(""));
    return;
  }
  const lost = known.filter((n) => chosen(n) && !passed.includes(n));
  const why = (n) => results.find((r) => r.name === n)?.reason ?? "there is no such case";
  assert.deepEqual(lost.map((n) => `${n}: ${why(n)}`), [], "cases that passed before");
  const excused = readFileSync(failing, "utf8").split("\n").map((l) => l.split("\t")[0]);
  const unlisted = results.filter((r) => r.status !== "pass" && !excused.includes(r.name));
  assert.deepEqual(unlisted.map(line), [], "cases that fail without a reason in browser_failing.tsv");
  const fresh = passed.filter((n) => !known.includes(n));
  if (fresh.length) console.log(`${fresh.length} cases pass that are not on the list; UPDATE_EXPECT=1 adds them: ${fresh.join(" ")}`);
}

function line({ name, status, reason }) {
  return `${name}\t${status}\t${reason.split("\n")[0].replaceAll("\t", " ")}\n`;
}

function report(results) {
  const seconds = results.reduce((s, r) => s + r.seconds, 0);
  const groups = new Map();
  for (const r of results) {
    const group = r.name.split("/")[0];
    const counts = groups.get(group) ?? {};
    counts[r.status] = (counts[r.status] ?? 0) + 1;
    groups.set(group, counts);
  }
  for (const [group, counts] of groups)
    console.log(`${group}: ${Object.entries(counts).map(([s, n]) => `${n} ${s}`).join(", ")}`);
  for (const r of results) if (r.status !== "pass") console.log(line(r).trimEnd().slice(0, 300));
  const slow = results.filter((r) => r.seconds > 5).map((r) => `${r.name} ${r.seconds.toFixed(1)} s`);
  console.log(`${results.length} cases in ${seconds.toFixed(0)} s${slow.length ? `; slow: ${slow.join(", ")}` : ""}`);
}
