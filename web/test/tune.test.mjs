// The comparison of the results of two schedules.
import assert from "node:assert/strict";
import test from "node:test";
import { alike } from "../build/tune.js";

test("results of two schedules may differ by rounding alone", () => {
  const of = (...numbers) => Float64Array.from(numbers);
  assert.ok(alike(of(1, -100, 0.5), of(1.5, -99, 0)));
  assert.ok(!alike(of(1, -100, 0.5), of(4, -100, 0.5)));
  assert.ok(!alike(of(1, NaN), of(1, 2)));
  // Random numbers may overflow with every schedule.
  assert.ok(alike(of(1, 7), of(1, NaN)));
  assert.ok(alike(of(), of()));
});
