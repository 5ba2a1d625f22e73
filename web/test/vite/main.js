import { Tensor, WgfcError, load } from "wgfc";
import { compile } from "wgfc/compiler";
import { load as loadOnCpu } from "wgfc/cpu";

async function run(source, how = load) {
  const model = await how(source);
  const { shape } = model.inputs[0];
  const { y } = await model.run({ x: Tensor.from("f32", [1, shape[1]], Array.from({ length: shape[1] }, (_, i) => i % 5)) });
  model.dispose();
  return [...y.data.subarray(0, 4)];
}

async function all() {
  const { source } = await compile("model.onnx");
  const refused = await load(new Blob(["no model"])).catch((e) => e instanceof WgfcError && e.kind);
  return [await run("model.onnx"), await run(source), await run("model.onnx", loadOnCpu), refused];
}
all().then(
  (results) => (window.results = results),
  (e) => (window.results = String(e)),
);
