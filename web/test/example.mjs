// The page in examples/web, which runs plans without this package: it must compute what the cases of tests/it/web.rs expect.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { openPage } from "./chromium.mjs";

const cases = new URL("../../target/web/cases/", import.meta.url);
const ARRAYS = { f32: Float32Array, i64: BigInt64Array, i32: Int32Array, bool: Uint8Array, u8: Uint8Array, i8: Int8Array };

/** The first run of a case: its plan, inputs and outputs. */
function read(name) {
  const bytes = readFileSync(new URL(`${name}.case`, cases));
  const start = 8 + Number(bytes.readBigUInt64LE());
  const { files, runs } = JSON.parse(bytes.subarray(8, start));
  const at = ([offset, size]) => Uint8Array.prototype.slice.call(bytes, start + offset, start + offset + size);
  const numbers = (all) => Object.fromEntries(Object.entries(all).map(([n, t]) => [n, { ...t, data: [...new ARRAYS[t.dtype](at(t.at).buffer)] }]));
  return { plan: JSON.parse(Buffer.from(at(files["plan.json"]))).plans[0], inputs: numbers(runs[0].inputs), outputs: numbers(runs[0].outputs) };
}

let opened;
before(async () => (opened = await openPage("/examples/web/index.html")));
after(() => opened?.close());

// Symbols, integers and bools, a loop that ends in rounds, a size that is computed.
for (const name of ["small/mlp", "small/integers", "small/while", "small/chosen", "node/test_nonzero_example"])
  test(name, async () => {
    const { plan, inputs, outputs } = read(name);
    const query = new URLSearchParams({ plan: `/program/${name}/` });
    const symbols = new Map();
    for (const port of plan.inputs) {
      query.set(port.name, inputs[port.name].data.join());
      port.shape.forEach((size, axis) => /^[A-Za-z_]\w*$/.test(size) && symbols.set(size, inputs[port.name].shape[axis]));
    }
    for (const [symbol, value] of symbols) query.set(symbol, value);
    const { page } = opened;
    await page.goto("about:blank");
    await page.goto(`${opened.address}#${query}`);
    await page.waitForFunction(() => document.getElementById("results").textContent !== "…");
    const text = await page.textContent("#results");
    const got = Object.fromEntries(text.split("\n\n").map((t) => [t.slice(0, t.indexOf(": ")), t.trim().split("\n")]));
    for (const [output, want] of Object.entries(outputs)) {
      assert(got[output], `there is no ${output}: ${text.slice(0, 300)}`);
      const [head, line = ""] = got[output];
      assert.equal(head, `${output}: ${want.dtype}[${want.shape}]`);
      const numbers = line.split(" ").filter(Boolean).map(Number);
      assert.equal(numbers.length, want.data.length, output);
      want.data.forEach((n, i) => assert(Math.abs(numbers[i] - Number(n)) <= 1e-5 + 1e-4 * Math.abs(Number(n)), `${output}[${i}]: ${numbers[i]} instead of ${n}`));
    }
  });
