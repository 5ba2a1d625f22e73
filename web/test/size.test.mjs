import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

const LARGEST = 15 * 1024;

test("the package is small", () => {
  const bytes = gzipSync(readFileSync(new URL("../dist/index.js", import.meta.url)), { level: 9 }).length;
  assert.ok(bytes <= LARGEST, `dist/index.js has ${bytes} bytes gzipped, and may have ${LARGEST}`);
});

test("the package has no dependency, and its lock file names no host", () => {
  const read = (name) => readFileSync(new URL(`../${name}`, import.meta.url), "utf8");
  assert.equal(JSON.parse(read("package.json")).dependencies, undefined);
  assert.doesNotMatch(read("package-lock.json"), /"resolved"|https?:/);
});
