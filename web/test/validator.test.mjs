// The modules of the compiler and of naga, one behind the other as `src/compiler/worker.ts` runs them.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const load = (name) => new WebAssembly.Module(readFileSync(new URL(`../dist/compiler/${name}.wasm`, import.meta.url)));
const [compiler, validator] = [load("compiler"), load("validator")];

function put({ memory, allocate }, bytes) {
  const at = allocate(bytes.length) >>> 0;
  new Uint8Array(memory.buffer, at, bytes.length).set(bytes);
  return [at, bytes.length];
}
const words = ({ memory }, at, n) => new Uint32Array(memory.buffer, at >>> 0, n);
const text = ({ memory }, [at, length]) => new TextDecoder().decode(new Uint8Array(memory.buffer, at, length));
const encode = (value) => new TextEncoder().encode(JSON.stringify(value));

/** The compiler's answer about a fixture. */
function compiled(name) {
  const { exports } = new WebAssembly.Instance(compiler, { wgfc: { read: () => 0 } });
  const model = readFileSync(new URL(`../../fixtures/small/${name}/model.onnx`, import.meta.url));
  const answer = exports.compile(...put(exports, model), ...put(exports, encode({})));
  return JSON.parse(text(exports, words(exports, answer, 2)));
}

const mlp = compiled("mlp");

/** naga's errors about an answer. */
function problems(answer) {
  const { exports } = new WebAssembly.Instance(validator, {});
  return text(exports, words(exports, exports.validate(...put(exports, encode(answer))), 2));
}

test("naga accepts the kernels that the compiler's module writes", () => {
  for (const [name, answer] of [["mlp", mlp], ["attention", compiled("attention")]]) {
    assert.ok(Object.keys(answer.kernels).length > 0, name);
    assert.equal(problems(answer), "", name);
  }
});

test("naga refuses a kernel that is not WGSL, or not what its plan says", () => {
  const [{ name, workgroup_size }] = mlp.plan.plans[0].kernels;
  const spoilt = (change) => {
    const copy = structuredClone(mlp);
    change(copy.plan.plans[0].kernels[0], copy.kernels);
    return problems(copy);
  };
  const said = (problem, pattern) => {
    assert.match(problem, pattern);
    assert.ok(problem.startsWith(`kernel ${name}: `), problem);
  };
  said(spoilt((_, texts) => (texts[name] += "fn broken(")), /expected/);
  said(spoilt((_, texts) => (texts[name] += "fn wrong() -> u32 { return 1.5; }")), /wrong/);
  said(spoilt((_, texts) => (texts[name] = `enable f16;\n${texts[name]}\nfn half() -> f16 { return 1.0h; }`)), /f16|FLOAT16/i);
  said(spoilt((_, texts) => delete texts[name]), /entry point/);
  said(spoilt((kernel) => (kernel.workgroup_size = [workgroup_size[0] + 1, 1, 1])), /workgroup size/);
  said(spoilt((kernel) => kernel.bindings.pop()), /binding/);
  said(spoilt((kernel) => (kernel.bindings[0] = kernel.bindings[0] === "read" ? "read_write" : "read")), /bindings/);
  assert.match(problems({ plan: {} }), /answer is not what it should be/);
});
