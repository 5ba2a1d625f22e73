import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { ChatTemplates, openTemplate, readChatFiles } from "../build/chat.js";
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
  assert.deepEqual(readDefaults('{"eos_token_id": 3, "temperature": 0.5}'), {
    stop: [3], sample: false, temperature: undefined, topK: undefined, topP: undefined, minP: undefined, repetitionPenalty: undefined,
  });
  assert.equal(readDefaults('{"do_sample": true, "temperature": 0.5, "eos_token_id": [1, 2]}').temperature, 0.5);
  assert.equal(readDefaults('{"repetition_penalty": 1.1, "min_p": 0.1}').repetitionPenalty, 1.1);
});

test("min-p keeps a share of the largest probability, and penalties change single logits", () => {
  const logits = [Math.log(8), Math.log(4), Math.log(3), Math.log(1)].map(Math.fround);
  const drawn = (how, before = []) => {
    const choice = new Choice({ temperature: 1, seed: 3, ...how }, 4);
    assert.ok(choice.limited);
    choice.follow(before);
    return [...new Set(Array.from({ length: 300 }, () => choice.draw(logits)))].sort();
  };
  assert.deepEqual(drawn({ minP: 0.4 }), [0, 1]);
  assert.deepEqual(drawn({ minP: 0.3, topK: 3 }), [0, 1, 2]);
  assert.deepEqual(drawn({ minP: 0.4, logitBias: [[0, -9]] }), [1, 2]);
  const greedy = new Choice({ temperature: 0, seed: 0, repetitionPenalty: 2, presencePenalty: 0.5, frequencyPenalty: 0.25 }, 4);
  greedy.follow([0]);
  const chosen = [];
  for (let i = 0; i < 4; i++) {
    chosen.push(greedy.draw(logits));
    greedy.add(chosen.at(-1));
  }
  // ln 8 / 2 is less than ln 4 and ln 3, and these are less than it by the penalties of the tokens chosen.
  assert.deepEqual(chosen, [1, 2, 0, 0]);
  assert.equal(new Choice({ temperature: 1, seed: 0, repetitionPenalty: 1, logitBias: [] }, 4).limited, false);
});

const chats = JSON.parse(read("../../fixtures/chat/cases.json"));
/** A template that calls all of Python's methods, more than the engine has. */
const BEYOND = "python";

test("conversations are written as transformers writes them", async (t) => {
  // Templates write the date, in the local time.
  process.env.TZ = "UTC";
  t.mock.timers.enable({ apis: ["Date"], now: chats.now * 1000 });
  const wrong = [];
  for (const [i, { template, messages, options, text, error }] of chats.cases.entries()) {
    const { tools, add_generation_prompt = true, ...variables } = options;
    if (template === BEYOND) continue;
    const made = await openTemplate(read(`../../fixtures/chat/${template}.jinja`), chats.special);
    let got;
    try {
      got = made.render(messages, { ...(tools ? { tools } : {}), variables: { ...variables, add_generation_prompt } });
    } catch (e) {
      got = e.message;
    }
    if (text !== undefined ? got !== text : !got.endsWith(`refuses the messages, or fails: ${error}`)) wrong.push([i, template, got, text ?? error]);
  }
  assert.deepEqual(wrong, []);
});

test("templates come from the files, and take content in the form that they know", async () => {
  const config = read("../../fixtures/chat/decoder/tokenizer_config.json");
  const said = [{ role: "user", content: "the sea" }];
  const render = (config, template, options) => new ChatTemplates(readChatFiles(config, template)).render(said, options);
  assert.equal(await render(config), "<s><|user|> the sea<|assistant|>");
  assert.equal(await render(config, undefined, { tools: [{}] }), "<s><|system|> 1<|user|> the sea<|assistant|>");
  assert.equal(await render(config, "own: {{ messages[0].content }}{{ eos_token }}{{ extra }}", { variables: { extra: "!" } }), "own: the sea</s>!");
  assert.equal(await render(undefined, "{{ messages[0].content[0].text }}"), "the sea");
  const parts = [{ type: "text", text: "a" }, { type: "text", text: "b" }];
  const plain = await openTemplate("{% for m in messages %}{{ m.content.strip() }}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.n }}{% endif %}{% endfor %}", {});
  assert.equal(plain.render([{ role: "user", content: parts, tool_calls: [{ function: { arguments: '{"n": 5}' } }] }]), "a\nb5");
  assert.throws(() => plain.render([{ role: "user", content: [{ type: "image" }] }]), /message 1 has a part of type "image"/);
  for (const [given, template, says] of [
    ["{", undefined, /tokenizer_config\.json is no JSON/], ["{}", undefined, /no chat template/], ['{"chat_template": 1}', undefined, /neither a string nor a list/],
    ['{"chat_template": [{"name": "default"}]}', undefined, /without `name` or `template`/], ['{"chat_template": [{"name": "rag", "template": ""}]}', undefined, /only rag/],
    ["{}", "{% if %}", /not valid/], ["{}", "{{ raise_exception('No!') }}", /refuses the messages, or fails: No!/],
  ]) await assert.rejects(async () => render(given, template), (e) => e.name === "WgfcError" && says.test(e.message), `${given} ${template}`);
});
