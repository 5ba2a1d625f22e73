import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { rowsOf, statistics } from "../engines/record.mjs";

test("statistics are those of wgfc bench suite", () => {
  const { rows } = JSON.parse(readFileSync(new URL("../../measurements/nvidia-h200-vulkan.json", import.meta.url), "utf8"));
  const measured = rows.filter((r) => r.passes);
  assert.ok(measured.length > 200);
  for (const { id, unit, better, ...want } of measured) {
    const got = statistics(want.passes);
    assert.deepEqual([got.outliers, got.unstable], [want.outliers, want.unstable], id);
    for (const part of ["median", "low", "high", "variation"])
      assert.ok(Math.abs(got[part] - want[part]) <= 1e-9 * Math.abs(want[part]), `${id}: ${part} is ${got[part]}, not ${want[part]}`);
  }
});

test("rows have the samples of all passes, or a reason", () => {
  const row = { id: "dispatch/single-op/wall", unit: "s", better: "less" };
  const [one, two] = rowsOf([
    [{ ...row, samples: [1, 2, 3] }, { ...row, id: "models/a/b", missing: "it does not fit" }],
    [{ ...row, samples: [2, 2, 2] }],
  ]);
  assert.deepEqual([one.median, one.passes], [2, [[1, 2, 3], [2, 2, 2]]]);
  assert.deepEqual(two, { ...row, id: "models/a/b", missing: "it does not fit" });
});
