import assert from "node:assert/strict";
import { test } from "node:test";
import { loneSymbol, parseSize, solve } from "../build/sizes.js";

const names = ["a", "b", "h"];
const symbol = (name) => {
  const i = names.indexOf(name);
  if (i < 0) throw new Error(`no symbol ${name}`);
  return i;
};
const at = (text, values = [5, 3, 14]) => parseSize(text, symbol).at(values);

test("sizes are evaluated", () => {
  const cases = [
    [7, 7], ["2*a*b + 1", 31], ["a - b - 1", 1], ["-a + b", -2], ["(h + 1)/2", 7], ["(a - h)/4", -3], ["(a - h)//4", -3],
    ["h % 4", 2], ["(a - h) % 4", 3], ["max(a, b*2) - min(a, b)", 3], ["max(min(a, 2), b/0)", NaN], ["a%0", NaN],
    ["2147483647*2147483647*4", NaN], ["9007199254740993", NaN], ["((((a))))", 5], ["a*(b/2)*2", 10],
  ];
  for (const [text, want] of cases) assert.deepEqual(at(text), want, String(text));
});

test("what depends on a symbol without a value is not a number", () => {
  assert.ok(Number.isNaN(at("a + b", [NaN, 3])));
  assert.ok(Number.isNaN(at("max(a, 7)", [NaN])));
  assert.ok(Number.isNaN(at("b", [])));
});

test("what is no size is refused, and nothing of it is run", () => {
  for (const text of ["", "a +", "a b", "(a", "max(a)", "a..b c", "alert(1)", "constructor", "2^3", `${"(".repeat(100)}a${")".repeat(100)}`])
    assert.throws(() => at(text), undefined, text);
});

test("equations linear in the one symbol without a value are solved", () => {
  const solved = (text, extent, values) => solve(parseSize(text, symbol), extent, values);
  assert.deepEqual(solved("a + b", 9, [NaN, 4, NaN]), [0, 5]);
  assert.deepEqual(solved("2*a + 1", 7, [NaN, NaN, NaN]), [0, 3]);
  assert.deepEqual(solved("a*b", 12, [NaN, 4, NaN]), [0, 3]);
  assert.deepEqual(solved("(h + 3)/4*b", 6, [NaN, NaN, 5]), [1, 3]);
  for (const [text, extent] of [["a*a", 4], ["a/2", 4], ["max(a, 2)", 4], ["2*a + 1", 8], ["a + 5", 4], ["a + b", 4], ["7", 7]])
    assert.equal(solved(text, extent, [NaN, NaN, NaN]), undefined, text);
});

test("lone symbols are told from expressions", () => {
  assert.equal(loneSymbol(parseSize("b", symbol)), 1);
  for (const text of ["b + 0", 4, "2*b"]) assert.equal(loneSymbol(parseSize(text, symbol)), undefined);
});
