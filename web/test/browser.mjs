// Runs the cases of target/web/cases, and the checks of checks.mjs, in one page of headless Chromium, and holds the results against
// tests/conformance/browser_passing.txt. UPDATE_EXPECT=1 writes that list and browser_failing.tsv. WGFC_CASES=text runs only the
// cases whose name contains it, WGFC_PARITY=only those that other engines have run. WGFC_FEATURES=a,b runs them on a device with these features,
// and WGFC_CASE_FOLDER names another folder of cases.
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { openPage } from "./chromium.mjs";
import { hold } from "./results.mjs";
import { CASES } from "./server.mjs";

const root = new URL("../../", import.meta.url);
const cases = join(CASES, "index.json");
/** The cases that tests/it/parity.rs has run on other engines; outputs of these cases are kept for parity.mjs. */
const parity = new URL("target/parity/cases.json", root);
const selected = process.env.WGFC_CASES;
const TOGETHER = 40;

let opened;
before(async () => {
  opened = await openPage(`/test/page.html?features=${process.env.WGFC_FEATURES ?? ""}`);
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
  const names = JSON.parse(readFileSync(cases, "utf8")).filter((n) => (process.env.WGFC_PARITY === "only" ? compared.includes(n) : !selected || n.includes(selected)));
  // Another folder has some of the cases.
  const chosen = (n) => (selected ? names.includes(n) : process.env.WGFC_PARITY !== "only" || compared.includes(n));
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
  hold(results, { chosen, whole: !selected, update: process.env.UPDATE_EXPECT });
});
