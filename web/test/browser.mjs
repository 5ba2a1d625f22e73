// Runs the cases of target/web/cases, and the checks of checks.mjs, in one page of headless Chromium, and holds the results against
// tests/conformance/browser_passing.txt. UPDATE_EXPECT=1 writes that list and browser_failing.tsv. WGFC_CASES=text runs only the
// cases whose name contains it, WGFC_PARITY=only those that other engines have run.
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { openPage } from "./chromium.mjs";

const root = new URL("../../", import.meta.url);
const list = new URL("tests/conformance/browser_passing.txt", root);
const failing = new URL("tests/conformance/browser_failing.tsv", root);
const cases = new URL("target/web/cases/index.json", root);
/** The cases that tests/it/parity.rs has run on other engines; outputs of these cases are kept for parity.mjs. */
const parity = new URL("target/parity/cases.json", root);
const selected = process.env.WGFC_CASES;
const TOGETHER = 40;

let opened;
before(async () => {
  opened = await openPage("/test/page.html");
  await opened.page.waitForFunction(() => window.ready, undefined, { timeout: 120_000 });
});
after(() => opened?.close());

test("checks", async (t) => {
  for (const name of await opened.page.evaluate(() => window.checkNames)) {
    if (process.env.WGFC_PARITY === "only" || (selected && !name.includes(selected))) continue;
    await t.test(name, async () => {
      const problem = await opened.page.evaluate((name) => window.runCheck(name), name);
      assert.equal(problem, undefined);
    });
  }
});

test("cases", async () => {
  assert(existsSync(cases), "there are no cases: scripts/web.sh makes them");
  const compared = existsSync(parity) ? JSON.parse(readFileSync(parity, "utf8")).cases : [];
  const chosen = (n) => (process.env.WGFC_PARITY === "only" ? compared.includes(n) : !selected || n.includes(selected));
  const names = JSON.parse(readFileSync(cases, "utf8")).filter(chosen);
  const results = [];
  for (let i = 0; i < names.length; i += TOGETHER) {
    const some = names.slice(i, i + TOGETHER);
    const kept = some.filter((n) => compared.includes(n));
    for (const { outputs, ...result } of await opened.page.evaluate(([n, kept]) => window.runCases(n, kept), [some, kept])) {
      results.push(result);
      if (outputs === undefined) continue;
      const file = new URL(`chromium/${result.name}.out`, parity);
      mkdirSync(new URL(".", file), { recursive: true });
      writeFileSync(file, Buffer.from(outputs, "base64"));
    }
  }
  report(results);
  const passed = results.filter((r) => r.status === "pass").map((r) => r.name);
  const known = existsSync(list) ? readFileSync(list, "utf8").split("\n").filter(Boolean) : [];
  if (process.env.UPDATE_EXPECT) {
    writeFileSync(list, [...new Set([...known, ...passed])].sort().map((n) => `${n}\n`).join(""));
    if (!selected) writeFileSync(failing, results.filter((r) => r.status !== "pass").map(line).join(""));
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
});

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
