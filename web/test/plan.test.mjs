import assert from "node:assert/strict";
import { test } from "node:test";
import { bind, checkConstraints, checkInputs } from "../build/bind.js";
import { choose } from "../build/choose.js";
import { layOut } from "../build/memory.js";
import { readPlans } from "../build/plan.js";
import { play } from "../build/play.js";
import { buffer, bundle, dispatch, kernel, plan, port } from "./plans.mjs";

const read = (...plans) => readPlans(JSON.stringify(bundle(plans))).plans;
const one = (more) => read(plan(more))[0];
const weights = ["v", "w"].map((name) => buffer(1, { kind: "weight", name }));
const given = (shapes) => new Map(Object.entries(shapes).map(([n, shape]) => [n, { dtype: "f32", shape, data: new Float32Array(0) }]));
const is = (kind, message) => (e) => {
  assert.equal(e.kind, kind);
  assert.match(e.message, message);
  return true;
};
const fails = (f, kind, message) => assert.throws(f, is(kind, message));
const rejects = (promise, kind, message) => assert.rejects(promise, is(kind, message));

test("plans have names and needs", () => {
  const needs = { features: ["subgroups"], limits: { maxStorageBuffersPerShaderStage: 9 } };
  const [a, b] = read(plan({ name: "decode", needs }), plan());
  assert.equal(a.name, "decode");
  assert.deepEqual(a.needs, { ...needs, subgroup_sizes: undefined });
  assert.deepEqual(b.needs, { features: [], limits: {}, subgroup_sizes: undefined });
});

test("other versions and broken plans are refused", () => {
  for (const [version, what] of [[0, "Compile"], [2, "Update"], [99, "Update"]])
    fails(() => readPlans(JSON.stringify({ version })), "unsupported-version", new RegExp(`version ${version} .* reads version 1. ${what}`));
  fails(() => readPlans('{ "version": "1" }'), "corrupt", /version: it is not a number/);
  fails(() => read(), "corrupt", /plans: there is no plan/);
  fails(() => readPlans("<!doctype html>"), "corrupt", /not JSON: it begins with "<!doctype/);
  const broken = [
    [{ name: undefined }, /name: it is not a string/],
    [{ needs: undefined }, /needs: it is not an object/],
    [{ inputs: undefined }, /inputs: it is not a list/],
    [{ inputs: [port("x", ["n"], 7)] }, /inputs\[0\]: buffer: 7 is beyond the 2/],
    [{ outputs: [port("y", ["n)"])] }, /the size "n\)": unexpected/],
    [{ kernels: [kernel({ name: "../k" })] }, /cannot be a file's name/],
    [{ kernels: [kernel({ bindings: ["read", "write"] })] }, /"write" is not one of read, read_write/],
    [{ dispatches: [dispatch({ bindings: [0] })] }, /number 0 does not fit its kernel/],
    [{ dispatches: [dispatch({ kernel: 1 })] }, /kernel: 1 is beyond/],
    [{ buffers: [buffer(1, { kind: "gone" }), buffer(1, { kind: "weight", name: "w" })] }, /"gone" is no kind/],
    [{ repeats: [{ first: 0, count: 2, times: 1 }] }, /beyond/],
    [{ computed: [{ symbol: "k", bound: 1, buffer: 0, after: 1 }] }, /"k" is not one of n/],
    [{ buffers: [buffer(1, { kind: "input", index: 0 }, "f31"), buffer(1, { kind: "output", index: 0 })] }, /"f31" is no element type/],
  ];
  for (const [more, message] of broken) fails(() => one(more), "corrupt", message);
});

test("needs that are not known are lacking, and states need not be listed", async () => {
  const [p] = read(plan({ needs: { features: ["f"], limits: { maxNothing: 1 }, colours: 3 } }));
  await rejects(choose([p], { features: new Set(["f"]), limits: {} }), "feature", /the feature colours, maxNothing of 1 \(it has none\)/);
  const states = one({ buffers: [...plan().buffers, buffer(6, { kind: "state", name: "s" }, "i8")] }).states;
  assert.deepEqual(states.map((s) => [s.name, s.dtype, s.shape[0].at([]), s.buffer]), [["s", "i8", 6, 2]]);
});

test("a device runs the plans that it has all for, and that share states", async () => {
  const needs = (features, limits = {}, subgroup_sizes) => ({ needs: { features, limits, subgroup_sizes } });
  const state = { name: "s", dtype: "f32", shape: [4], buffer: 0 };
  const plans = read(
    plan({ name: "half", ...needs(["shader-f16"]) }),
    plan({ name: "wide", ...needs(["subgroups"], {}, [32]) }),
    plan({ name: "large", ...needs([], { maxStorageBuffersPerShaderStage: 10 }) }),
    plan({ name: "other", states: [state] }),
    plan({ name: "plain" }),
    plan({ name: "plain too" }),
  );
  const names = async (features, subgroups, buffers = 8) => {
    const limits = new Proxy({ maxStorageBuffersPerShaderStage: buffers }, { get: (t, k) => t[k] ?? 1e9 });
    return (await choose(plans, { features: new Set(features), subgroups, limits })).map((p) => p.name);
  };
  assert.deepEqual(await names([]), ["other"]);
  assert.deepEqual(await names(["shader-f16"]), ["half", "plain", "plain too"]);
  assert.deepEqual(await names(["subgroups"], [32, 32], 10), ["wide", "large", "plain", "plain too"]);
  assert.deepEqual(await names(["subgroups"], [8, 32], 10), ["large", "plain", "plain too"]);
  const kinds = read(plan({ name: "gpu", adapter: "discrete" }), plan({ name: "any" }), plan({ name: "cpu", adapter: "software" }), plan({ name: "new", adapter: "quantum" }));
  const chosen = async (of, kind) => (await choose(of, { features: new Set(), limits: {}, subgroups: undefined, kind })).map((p) => p.name);
  assert.deepEqual(await chosen(kinds, "discrete"), ["gpu", "any"]);
  assert.deepEqual(await chosen(kinds, "swiftshader"), ["cpu", "any"]);
  assert.deepEqual(await chosen(kinds, undefined), ["any"]);
  assert.deepEqual(await chosen([kinds[0], kinds[3]], "integrated"), ["gpu", "new"]);
  await rejects(choose(plans.slice(0, 2), { features: new Set(), limits: {} }), "feature", /plan "half" needs the feature shader-f16; plan "wide" needs the feature subgroups/);
  await rejects(choose([plans[2]], { features: new Set(), limits: { maxStorageBuffersPerShaderStage: 8 } }), "limits", /maxStorageBuffersPerShaderStage of 10 \(it has 8\)/);
});

test("symbols are bound by the shapes", () => {
  const p = one({ symbols: ["past", "seq", "b"], inputs: [port("m", ["b", "past + seq"]), port("t", ["seq"]), port("u", ["2*b + 1"])], outputs: [], buffers: weights });
  assert.deepEqual(bind(p, given({ m: [3, 12], t: [5], u: [7] }), new Map()), [7, 5, 3]);
  fails(() => bind(p, given({ m: [3, 12], t: [5], u: [8] }), new Map()), "shape", /"u": axis 0 must have 2\*b \+ 1 = 7 \(b = 3\) elements, not 8/);
  fails(() => bind(p, given({ m: [3, 12], t: [5], u: [7] }), new Map([["past", 8]])), "shape", /past \+ seq = 13 \(past = 8, seq = 5\)/);
  const q = one({ inputs: [port("x", [4, 4])] });
  fails(() => bind(q, given({ x: [4, 4] }), new Map()), "shape", /set it in `symbols`/);
  assert.deepEqual(bind(q, given({ x: [4, 4] }), new Map([["n", 9]])), [9]);
  fails(() => checkInputs(q, given({ z: [4] })), "shape", /"z": the model has no such input; it has "x"; "x": it is missing; it is f32\[4, 4\]/);
  fails(() => checkInputs(q, given({ x: [4] })), "shape", /must have shape \[4, 4\], not \[4\]/);
});

test("constraints name their node", () => {
  const p = one({ constraints: [{ a: "n % 2", b: 0, node: "Concat_3" }] });
  assert.deepEqual(bind(p, given({ x: [2, 4] }), new Map()), [2]);
  assert.throws(() => bind(p, given({ x: [3, 4] }), new Map()), (e) => e.node === "Concat_3" && /n % 2 = 1 \(n = 3\) and 0 to be equal/.test(e.message));
  checkConstraints(p, [3], true);
});

test("inputs that are broadcast may be left out", () => {
  const p = one({ symbols: ["n", "p", "q"], inputs: [port("x", ["n", 4]), port("mask", ["p", "q"], 0, { broadcast: ["n", 4] })] });
  const values = (shapes) => bind(p, given(shapes), new Map());
  checkInputs(p, given({ x: [3, 4] }));
  assert.deepEqual(values({ x: [3, 4] }), [3, 0, 0]);
  assert.deepEqual(values({ x: [3, 4], mask: [4] }), [3, 1, 4]);
  assert.deepEqual(values({ x: [3, 4], mask: [3, 0] }), [3, 0, 0]);
  fails(() => values({ x: [3, 4], mask: [2, 4] }), "shape", /axis 0 must have n = 3 elements or 1, not 2/);
});

test("buffers that live together have places of their own", () => {
  const lives = [[0, 1, 100], [1, 2, 300], [2, 3, 100], [0, 3, 64], [3, 3, 5000]];
  const arena = (first, last, elements, arena = 0) => buffer(elements, { kind: "arena", arena, first, last });
  const p = one({ buffers: [...lives.map(([f, l, n]) => arena(f, l, n)), arena(0, 3, "n", 1)], inputs: [], outputs: [] });
  for (const largest of [1 << 28, 24 << 10]) {
    const { slots, arenas, bytes } = layOut(p, [7], largest);
    const placed = lives.map(([first, last], i) => ({ first, last, ...slots[i], end: slots[i].offset + bytes[i] }));
    for (const a of placed) {
      assert.equal(a.offset % 256, 0);
      assert.ok(a.end <= arenas[a.arena] && arenas[a.arena] <= largest);
      for (const b of placed)
        assert.ok(a === b || a.arena !== b.arena || a.last < b.first || b.last < a.first || a.end <= b.offset || b.end <= a.offset);
    }
    assert.notEqual(slots[5].arena, slots[0].arena);
  }
  assert.equal(layOut(p, [7], 1 << 28).arenas.length, 2);
  assert.equal(layOut(p, [7], 20_224).arenas.length, 3);
});

test("a layout is that of the last run while buffers take the same room", () => {
  const arena = (elements) => buffer(elements, { kind: "arena", arena: 0, first: 0, last: 3 });
  const p = one({ buffers: [arena(100), arena("n"), arena(64)], inputs: [], outputs: [] });
  const at = (n, last) => layOut(p, [n], 1 << 28, last);
  const first = at(1000);
  const near = at(1001, first);
  const far = at(5000, near);
  assert.deepEqual(near.bytes, [400, 4004, 256]);
  assert.equal(near.slots, first.slots);
  assert.notEqual(far.slots, near.slots);
  for (const [n, m] of [[1001, near], [5000, far], [1000, at(1000, far)]]) assert.deepEqual(at(n), m);
});

/** The operations of a plan of four dispatches; `rounds` says how often each loop goes on. */
function played(more, values = [2], rounds = []) {
  const p = one({ dispatches: [0, 1, 2, 3].map(() => dispatch()), ...more });
  const out = [];
  const steps = play(p, values, { dispatch: (i) => out.push(i), known: (c) => out.push(`s${c.symbol}`) });
  for (let step = steps.next(); !step.done; step = steps.next(rounds.shift() ?? false)) out.push("?");
  return out.join(" ");
}

test("dispatches run in order, repeated ones again", () => {
  assert.equal(played({}), "0 1 2 3");
  const repeats = [{ first: 0, count: 3, times: "n", why: "" }, { first: 1, count: 1, times: 3, why: "" }];
  assert.equal(played({ repeats }), "0 1 1 1 2 0 1 1 1 2 3");
  assert.equal(played({ repeats }, [0]), "3");
  const nested = [{ first: 0, count: 2, times: 2, why: "" }, { first: 0, count: 1, times: "n", why: "" }];
  assert.equal(played({ repeats: nested }), "0 0 1 0 0 1 2 3");
});

test("rounds go on until the word is 0", () => {
  const repeats = [{ first: 1, count: 2, times: 2, why: "a while", until: { buffer: 0, rounds: 3 } }];
  assert.equal(played({ repeats }, [2], [true, true, false]), "0 1 2 1 2 ? 1 2 1 2 ? 1 2 1 2 ? 3");
  fails(() => played({ repeats }, [2], [true, true, true]), "limits", /node "n" has not ended after 3 rounds: a while/);
});

test("computed symbols are known in time, also behind loops that do not run", () => {
  const computed = [1, 2, 4].map((after) => ({ symbol: "n", bound: 9, buffer: 0, after }));
  assert.equal(played({ computed }), "0 s0 1 s0 2 3 s0");
  assert.equal(played({ computed, repeats: [{ first: 1, count: 3, times: 0, why: "" }] }), "0 s0 s0 s0");
  assert.equal(played({ computed, repeats: [{ first: 0, count: 4, times: 2, why: "" }] }), "0 s0 1 s0 2 3 0 s0 1 s0 2 3 s0");
});
