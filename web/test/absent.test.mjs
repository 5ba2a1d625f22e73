import assert from "node:assert/strict";
import { test } from "node:test";
import { absent } from "../build/absent.js";

const LINUX = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36";
const FIREFOX = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:140.0) Gecko/20100101 Firefox/140.0";

test("where there is no WebGPU the error says why and what to do", () => {
  const message = (api, secure, agent) => {
    const e = absent({ api, secure, agent });
    assert.equal(e.kind, "no-webgpu");
    assert.match(e.message, /`wgfc\/cpu` runs \.onnx models/);
    return e.message;
  };
  assert.match(message(false, false, LINUX), /secure pages alone: serve this page by https/);
  assert.match(message(false, true, FIREFOX), /Firefox since 141/);
  assert.doesNotMatch(message(false, true, FIREFOX), /Linux/);
  assert.match(message(false, true, LINUX), /enable-unsafe-webgpu/);
  assert.match(message(true, true, FIREFOX), /no adapter.*about:support/);
  assert.match(message(true, true, LINUX), /no adapter.*chrome:\/\/gpu.*--enable-features=Vulkan/);
  assert.match(message(true, undefined, ""), /Update the driver/);
});
