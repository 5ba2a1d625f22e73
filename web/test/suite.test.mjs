import assert from "node:assert/strict";
import { test } from "node:test";
import { median, rowsOf, suite } from "../dist/suite.js";

test("rows have the samples of all passes, or a reason", () => {
  const row = { id: "dispatch/single-op/wall", unit: "s", better: "less" };
  const [one, two] = rowsOf([
    [{ ...row, samples: [1, 2, 3] }, { ...row, id: "models/a/b", missing: "it does not fit" }],
    [{ ...row, samples: [2, 2, 2] }],
  ]);
  assert.deepEqual(one, { ...row, passes: [[1, 2, 3], [2, 2, 2]] });
  assert.deepEqual(two, { ...row, id: "models/a/b", missing: "it does not fit" });
  assert.deepEqual([[3, 1, 2], [4, 1, 2, 3], []].map(median), [2, 2.5, 0]);
});

/** An adapter that gives no device. */
const adapter = { info: { vendor: "maker", architecture: "one", device: "", description: "a driver" }, features: new Set(["shader-f16"]), limits: {}, requestDevice: () => Promise.reject(new Error("it is gone\nfor ever")) };

test("tasks run in passes, and those that fail are rows with the reason", async () => {
  const seen = [];
  const ok = { name: "models/a", run: async () => [{ id: "models/a/a run", unit: "s", better: "less", samples: [1] }] };
  const record = await suite({ adapter, tasks: [ok], passes: 2, implementation: "node", onProgress: ({ task, done, total }) => seen.push(`${task} ${done}/${total}`) });
  assert.deepEqual(seen, ["device 0/6", "dispatch 1/6", "models/a 2/6", "device 3/6", "dispatch 4/6", "models/a 5/6"]);
  assert.deepEqual(record.rows.map((r) => r.missing ?? r.passes), ["it is gone", "it is gone", [[1], [1]]]);
  assert.deepEqual([record.device.name, record.device.driver, record.device.implementation, record.device.features], ["maker one", "a driver", "node", ["shader-f16"]]);
  const some = await suite({ adapter, tasks: [ok], passes: 1, only: ["models"] });
  assert.deepEqual(some.tasks.map((t) => t.name), ["models/a"]);
  const stopped = AbortSignal.abort(new Error("enough"));
  await assert.rejects(suite({ adapter, signal: stopped }), /enough/);
});
