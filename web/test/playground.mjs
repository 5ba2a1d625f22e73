// Drives the playground as a person would: opens models, reads the numbers, edits kernels, follows a link, plays with the demos. Pictures of it are
// written to the folder that SHOTS names.
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { after, afterEach, before, test } from "node:test";
import { openPage } from "./chromium.mjs";

const dist = new URL("../playground/dist/", import.meta.url).pathname;
const shots = process.env.SHOTS;
if (shots) mkdirSync(shots, { recursive: true });

let opened;
let page;
const errors = [];
before(async () => {
  assert(existsSync(`${dist}main.js`), "build it first: node playground/build.mjs");
  opened = await openPage("/playground/index.html");
  page = opened.page;
  page.on("pageerror", (e) => errors.push(e.message));
  await page.setViewportSize({ width: 1360, height: 900 });
  page.setDefaultTimeout(40_000);
});
after(() => opened?.close());
afterEach(() => assert.deepEqual(errors.splice(0), []));

const shot = (name) => shots && page.screenshot({ path: `${shots}/${name}.png` });
const text = (selector) => page.locator(selector).first().textContent();
const open = async (hash) => {
  await page.goto("about:blank");
  await page.goto(opened.address + hash);
};
/** The page is as wide as a phone. */
async function fitsAPhone(name) {
  await page.setViewportSize({ width: 390, height: 844 });
  const [wide, screen] = await page.evaluate(() => [document.querySelector("main").scrollWidth, document.documentElement.clientWidth]);
  assert.ok(wide <= screen, `${name}: ${wide} pixels`);
  await shot(`${name}-phone`);
  await page.setViewportSize({ width: 1360, height: 900 });
}

/** Presses a button of the workbench, and waits until that is done. */
async function does(action) {
  await page.evaluate(() => delete document.querySelector(".workbench").dataset.done);
  await page.click(`[data-action="${action}"]`);
  await page.waitForFunction(() => document.querySelector(".workbench").dataset.done !== undefined);
  return page.evaluate(() => document.querySelector(".workbench").dataset.done);
}

/** A program's files, of a bundle. */
function unpacked(name) {
  const whole = readFileSync(`${dist}models/${name}.wgfc`);
  const length = Number(whole.readBigUInt64LE());
  const { __metadata__: texts } = JSON.parse(whole.subarray(8, 8 + length).toString());
  const files = Object.entries(texts).filter(([n]) => n === "plan.json" || n.startsWith("kernels/"));
  const named = files.map(([n, t]) => ({ name: n.replace("kernels/", ""), mimeType: "text/plain", buffer: Buffer.from(t) }));
  return [...named, { name: "weights.safetensors", mimeType: "application/octet-stream", buffer: whole }];
}

test("an example: from a node to its kernel, a run, its numbers", async () => {
  await shot("welcome");
  await fitsAPhone("welcome");
  await page.click('[data-example="digits"]');
  await page.waitForSelector(".kernels button");
  assert.match(await text('[data-figure="dispatches"]'), /5of 8 nodes unfused/);
  assert.match(await text('[data-figure="bytes moved"]'), /48\.2 kBof 66\.7 kB unfused/);
  // A node of the model leads to its kernel, and a kernel to its nodes; by keys, too.
  await page.locator('.box[aria-label^="Softmax softmax"]').press("Enter");
  assert.match(await text(".detail h2"), /row_softmax\.wgsl/);
  assert.match(await text(".cm-content"), /fn main\(/);
  await page.click(".kernels button >> nth=0");
  assert.deepEqual(await page.locator(".box.selected title").allTextContents(), ["Conv\nconv1", "Relu\nrelu1"]);
  assert.equal(await does("run"), "run");
  assert.match(await text('[data-figure="run"]'), /\d m?µ?s/);
  assert.match(await text(".histogram"), /f32\[batch, 12, 8, 8\].*elements768/);
  assert.equal(await does("time"), "time");
  assert.equal(await page.locator(".dot").count(), 5);
  await shot("model-light");
  await page.emulateMedia({ colorScheme: "dark" });
  await shot("model-dark");
  await fitsAPhone("model");
  await page.emulateMedia({ colorScheme: "light" });
});

test("a kernel is edited and compared, and a link has it", async () => {
  await page.click(".kernels button >> nth=4");
  const end = async (words) => {
    await page.click(".cm-content");
    await page.keyboard.press("Control+End");
    await page.keyboard.insertText(words);
  };
  await end("\n// a comment\n");
  assert.equal(await does("run"), "run");
  assert.match(await text(".comparison"), /probabilitiesthe same bits/);
  const link = await page.evaluate(() => location.hash);
  await end("fn broken(");
  assert.equal(await does("run"), "run failed");
  assert.match(await text(".status.error"), /kernel|WGSL|error|expected/i);
  await page.click('[data-action="revert"]');
  assert.equal(await does("run"), "run");
  assert.equal(await text(".comparison"), "");
  await open(link);
  await page.waitForSelector(".kernels button");
  assert.equal(await page.locator(".kernels em").count(), 1);
  assert.match(await text(".detail h2"), /row_softmax/);
  await page.fill('.dims input[name="batch"]', "3");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector('[data-figure="bytes moved"]').textContent.includes("145 kB") || document.querySelector(".figures").textContent.includes("kB"));
});

test("a program is dropped; names in it are text", async () => {
  const name = '<img src="x" onerror="window.hacked = 1">';
  const files = unpacked("digits");
  const plan = files.find((f) => f.name === "plan.json");
  const root = JSON.parse(plan.buffer);
  for (const file of root.weights?.files ?? []) file.name ||= "weights.safetensors";
  plan.buffer = Buffer.from(JSON.stringify(root).replaceAll('"conv1"', JSON.stringify(name)).replaceAll('"image"', JSON.stringify(`${name} image`)));
  await open("");
  await page.waitForSelector(".welcome");
  await page.setInputFiles('input[type="file"]', files);
  await page.waitForSelector(".kernels button");
  assert.ok((await page.textContent(".workbench")).includes(name));
  assert.equal(await does("run"), "run");
  assert.deepEqual(await page.evaluate(() => [window.hacked, document.querySelectorAll("img").length]), [undefined, 0]);
  await page.click('[data-action="another"]');
  await page.setInputFiles('input[type="file"]', [{ name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("?") }]);
  await page.waitForSelector(".failed");
  assert.match(await text(".failed pre"), /notes\.txt is no \.onnx/);
});

test("without timestamps kernels are timed by repeating them", async () => {
  await page.addInitScript(() => {
    const prototype = globalThis.GPUSupportedFeatures?.prototype ?? {};
    const { has } = prototype;
    prototype.has = function (name) {
      return name !== "timestamp-query" && has.call(this, name);
    };
  });
  await open("#model=./models/cartpole.onnx");
  await page.waitForSelector(".kernels button");
  await page.fill('.dims input[name="population"]', "4096");
  await page.keyboard.press("Enter");
  assert.equal(await does("time"), "time");
  assert.match(await text(".kernels .value"), /\d [mµ]s/);
  assert.equal(await page.locator(".dot").count(), 1);
});

test("a model is compiled in the page", async () => {
  await open("");
  await page.waitForSelector(".welcome");
  await page.setInputFiles('input[type="file"]', `${dist}models/digits.onnx`);
  await page.waitForSelector(".kernels button");
  assert.match(await text('[data-figure="device"]'), /compiled here/);
  assert.equal(await does("unfused"), "unfused");
  assert.match(await text(".status"), /Unfused: \d+ dispatches.*Fused: 5/);
  assert.equal(await does("device"), "device");
  const kept = decodeURIComponent((await page.getAttribute(".status a", "href")).split(",").slice(1).join());
  assert.ok(JSON.parse(kept).speeds.bandwidth > 0, kept);
  assert.match(await text("table[aria-label^=Compared]"), /before/);
  // The inside of a kernel can be looked at, too.
  await page.evaluate(() => delete document.querySelector(".workbench").dataset.done);
  await page.fill(".tap input", "conv2");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".workbench").dataset.done !== undefined);
  assert.match(await text(".histogram"), /conv2  f32\[1, 24, 8, 8\].*elements1536/);
  // Kernels can be computed in other ways.
  await page.click('[data-action="schedule"]');
  const area = page.locator("dialog textarea");
  await area.waitFor();
  const before = await area.inputValue();
  assert.ok(before.includes("map threads=256"), before);
  await area.fill(before.replaceAll("map threads=256", "map threads=32"));
  await page.evaluate(() => delete document.querySelector(".workbench").dataset.done);
  await page.click("dialog .primary");
  await page.waitForFunction(() => document.querySelector(".workbench").dataset.done !== undefined);
  assert.equal(await text(".status"), "");
  await page.click('.kernels button:has-text("map_pool")');
  assert.match(await text(".cm-content"), /@workgroup_size\(32\)/);
});

test("a chat streams, stops and begins anew", async () => {
  await open("#chat");
  await page.waitForSelector(".chat .primary");
  const done = async (messages) => page.waitForSelector(`.chat .status[data-done="${messages}"]`, { state: "attached" });
  const said = () => page.locator(".messages .assistant").allTextContents();
  assert.equal(await text(".choose b"), "stories");
  await page.click(".chat .primary");
  await page.waitForFunction(() => /[1-9]\d tokens, \d+ a second/.test(document.querySelector(".chat .status").textContent));
  await page.click('.chat .primary:has-text("Stop")');
  await done(2);
  const [first] = await said();
  assert.match(first, /^ \w/);
  // The conversation goes on with a second story.
  await page.fill(".tell input", "Lily was a");
  await page.keyboard.press("Enter");
  // The status still has the first story's numbers until the second one has begun.
  await page.waitForFunction(() => document.querySelectorAll(".messages .assistant")[1]?.textContent.length > 20);
  await page.click('.chat .primary:has-text("Stop")');
  await done(4);
  assert.match((await said())[1], /^ \w/);
  await shot("chat");
  await fitsAPhone("chat");
  await page.click('[data-action="reset"]');
  await page.waitForFunction(() => document.querySelectorAll(".messages li").length === 0);
  // Files that have no chat template answer with the error, and an address that is wrong, too.
  const names = ["tokenizer.json", "stories.wgfc"].map((n) => `${dist}models/${n}`);
  await page.setInputFiles('.choose input[type="file"]', names);
  await page.waitForFunction(() => document.querySelector(".choose b").textContent === "stories.wgfc");
  await page.fill(".tell input", "Tom");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".chat .status.error");
  assert.match(await text(".chat .status"), /no chat template/);
  await page.fill('.choose input[type="text"]', "./models/nothing.wgfc");
  await page.click('.choose button[type="submit"]');
  await page.waitForFunction(() => /404/.test(document.querySelector(".chat .status").textContent));
});

test("digits, carts and stories", async () => {
  await open("#digits");
  for (const digit of ["3", "7"]) {
    await page.locator(".pad").press(digit);
    await page.waitForSelector(`.digits .status[data-digit="${digit}"]`);
  }
  await page.locator(".pad").press("3");
  await page.waitForSelector('.digits .status[data-digit="3"]');
  await shot("digits");
  await fitsAPhone("digits");
  await page.click('a[data-view="cartpole"]');
  await page.selectOption(".cartpole select >> nth=0", "50");
  await page.waitForSelector('.cartpole .status[data-generation="3"]', { state: "attached" });
  await shot("cartpole");
  await fitsAPhone("cartpole");
  await page.click('a[data-view="stories"]');
  await page.waitForFunction(() => /[1-9]\d tokens/.test(document.querySelector(".stories .status")?.textContent ?? ""));
  assert.match(await text(".story"), /^Once upon a time \w/);
  await shot("stories");
  await fitsAPhone("stories");
  await page.click('.stories .primary:has-text("Stop")');
});

test("a story is steered along a direction of the residual stream", async () => {
  await open("#stories");
  await page.waitForFunction(() => /[1-9]\d tokens/.test(document.querySelector(".stories .status")?.textContent ?? ""));
  await page.click('.stories .primary:has-text("Stop")');
  await page.waitForSelector('.stories .primary:has-text("Tell")');
  await page.click(".steer summary");
  const told = async (strength) => {
    await page.fill('.steer input[type="range"]', String(strength));
    await page.evaluate(() => delete document.querySelector(".stories .status").dataset.done);
    await page.click('.stories .primary:has-text("Tell")');
    await page.waitForFunction(() => document.querySelector(".stories .status").dataset.done !== undefined || document.querySelector(".stories .status.error"));
    assert.equal(await page.locator(".stories .status.error").count(), 0, await text(".stories .status"));
    return text(".story");
  };
  const plain = await told(0);
  assert.match(plain, /^Once upon a time \w/);
  const steered = await told(4);
  assert.match(steered, /^Once upon a time/);
  assert.notEqual(steered, plain);
  assert.ok((await page.locator(".story .along").count()) > 0 && (await page.locator(".story .against").count()) > 0, "words are shaded");
  assert.equal(await told(0), plain);
  await shot("steering");
  await fitsAPhone("steering");
});

test("what a text leaves at a token is patched into a story", async () => {
  await open("#stories");
  await page.waitForFunction(() => /[1-9]\d tokens/.test(document.querySelector(".stories .status")?.textContent ?? ""));
  await page.click('.stories .primary:has-text("Stop")');
  await page.waitForSelector('.stories .primary:has-text("Tell")');
  await page.fill('[aria-label="How the story begins"]', "Lily was a shy");
  await page.click(".patch summary");
  const told = async () => {
    await page.evaluate(() => delete document.querySelector(".stories .status").dataset.done);
    await page.click('.stories .primary:has-text("Tell")');
    await page.waitForFunction(() => document.querySelector(".stories .status").dataset.done !== undefined || document.querySelector(".stories .status.error"));
    assert.equal(await page.locator(".stories .status.error").count(), 0, await text(".stories .status"));
    return text(".story");
  };
  await page.fill('.tell input[type="range"]', "0");
  // A text patched by its own row is what it was.
  await page.fill('[aria-label="The other text"]', "Lily was a shy");
  const plain = await told();
  assert.match(plain, /^Lily was a shy \w/);
  await page.fill('[aria-label="The other text"]', "Once upon a time there was a");
  await page.click('[data-tokens="source"] .chip >> nth=0');
  await page.selectOption('[aria-label="Layer of the patch"]', { index: 2 });
  const patched = await told();
  assert.notEqual(patched, plain);
  assert.match(patched, /^Lily was a shy/);
  await shot("patch");
  await fitsAPhone("patch");
  await page.click(".patch summary");
  assert.equal(await told(), plain);
});

/** The status of a training in the page, once it is done or `enough` is true of it. */
async function trained(enough) {
  await page.waitForFunction(
    (pattern) => {
      const status = document.querySelector(".status.training");
      return status.dataset.done !== undefined || status.classList.contains("error") || new RegExp(pattern).test(status.textContent);
    },
    enough.source, { timeout: 150_000 },
  );
  const said = await text(".status.training");
  assert.equal(await page.locator(".status.training.error").count(), 0, said);
  return said;
}

test("a device is measured, and the record is saved", async () => {
  await open("#measure");
  await page.click('[data-action="measure"]');
  await page.waitForSelector(".measure .status[data-done]", { timeout: 180_000 });
  const rows = await page.$$eval(".measure tr[data-row]", (all) => all.map((r) => [r.dataset.row, r.lastElementChild.textContent]));
  for (const id of ["device/copy", "dispatch/one encoder, one pass/wall", "models/digits/a run, to its outputs", "models/cartpole, 1024 x 50/a run, to its outputs", "decode/stories/a token"])
    assert.match(rows.find(([row]) => row === id)?.[1] ?? "no such row", /^[\d.e+]+ /, id);
  const record = await page.evaluate(async () => (await fetch(document.querySelector('[data-action="save"]').href)).json());
  assert.deepEqual([record.version, record.tasks.length, record.rows.length], [1, 10, rows.length]);
  assert.ok(record.rows.every((r) => r.passes?.length === 2 && r.passes.flat().every((v) => v > 0)), JSON.stringify(record.rows.filter((r) => !r.passes)));
  await shot("measure");
  await fitsAPhone("measure");
});

test("digits are learned from zero, and guesses come from what is learned", async () => {
  await open("#digits");
  await page.waitForSelector('[data-action="train"]');
  await page.click('[data-action="train"]');
  assert.match(await trained(/ (9\d\.\d|100\.0) % of 360/), /[1-9]\d+ steps, \d+ a second; (9\d|100)\.\d %/);
  await page.locator(".pad").press("0");
  await page.waitForSelector('.digits .status[data-digit="0"]');
  await shot("training");
  await fitsAPhone("training");
  await page.click('.training .primary:has-text("Stop")');
  await page.waitForSelector('.training .primary:has-text("Train from zero")');
});

test("features of the residual stream are learned, and one of them steers a story", async () => {
  await open("#stories");
  await page.waitForSelector('[data-action="learn"]');
  await page.click('[data-action="learn"]');
  const said = await trained(/features are active/);
  assert.ok(Number(/loss ([\d.]+)/.exec(said)[1]) < 0.3, said);
  assert.ok((await page.locator(".features li").count()) > 8, "features are shown");
  assert.ok((await page.locator(".features .along").count()) > 20, "words are shaded");
  await shot("features");
  await fitsAPhone("features");
  await page.click(".features .chip >> nth=0");
  await page.waitForFunction(() => /^Once upon a time \w/.test(document.querySelector(".story").textContent));
  assert.match(await text(".steer"), /by feature \d+/);
  await page.click('.steer .chip:has-text("two texts")');
  assert.ok(await page.isVisible('.steer input[aria-label="Towards"]'));
});
