import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Choice } from "../build/sampling.js";
import { StopWords, TextStream, openTokenizer, readDefaults } from "../build/text.js";

const read = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
const { texts } = JSON.parse(read("generate.json"));

for (const { tokenizer, text, ids, pieces } of texts)
  test(`text comes in and goes out with a tokenizer: ${tokenizer}`, async () => {
    const t = await openTokenizer(read(`../../fixtures/tokenizers/${tokenizer}.json`));
    assert.deepEqual(t.encode(text), ids);
    const stream = new TextStream(t);
    assert.deepEqual(ids.map((id) => stream.push(id)), pieces);
    assert.equal(stream.end(), "");
  });

test("characters of several tokens come when they are complete", () => {
  const bytes = [...new TextEncoder().encode("a🐜é")];
  const stream = new TextStream({ encode: () => [], decode: (ids) => new TextDecoder().decode(Uint8Array.from(ids)) });
  assert.deepEqual(bytes.map((b) => stream.push(b)), ["a", "", "", "", "🐜", "", "é"]);
  stream.push(0xf0);
  assert.equal(stream.end(), "\ufffd");
});

test("a text ends before a word, of which nothing has been given", () => {
  const words = new StopWords(["stop", "\n\n"]);
  assert.deepEqual(["a st", "ar st", "\n", "b", "sto", "p it"].map((t) => words.push(t)), ["a ", "star ", "st", "\nb", "", ""]);
  assert.ok(words.found);
});

test("what is drawn follows the probabilities", () => {
  const logits = [1, 2, 3, -Infinity, 0].map((x) => Math.fround(x));
  const counts = [0, 0, 0, 0, 0];
  const choice = new Choice({ temperature: 1, seed: 5 }, 5);
  for (let i = 0; i < 20_000; i++) counts[choice.draw(logits)]++;
  const sum = logits.reduce((s, x) => s + Math.exp(x), 0);
  counts.forEach((n, i) => assert.ok(Math.abs(n / 20_000 - Math.exp(logits[i]) / sum) < 0.015, `${i}: ${n}`));
  const two = new Choice({ temperature: 1, topK: 2, seed: 5 }, 5);
  assert.deepEqual([...new Set(Array.from({ length: 100 }, () => two.draw(logits)))].sort(), [1, 2]);
  assert.equal(two.draw([NaN, 1]), -1);
});

test("recommendations that do not sample have no parameters of sampling", () => {
  assert.deepEqual(readDefaults('{"eos_token_id": 3, "temperature": 0.5}'), { stop: [3], sample: false, temperature: undefined, topK: undefined, topP: undefined });
  assert.equal(readDefaults('{"do_sample": true, "temperature": 0.5, "eos_token_id": [1, 2]}').temperature, 0.5);
});
