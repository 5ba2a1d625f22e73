// Promises of `wgfc/cpu`, in a browser.
import { Tensor } from "/dist/index.js";
import { load } from "/dist/cpu/index.js";
import { close, equal, refused } from "./expect.mjs";

const mlp = "/fixtures/small/mlp/model.onnx";

export async function models_run_on_the_cpu_in_a_worker(readCase) {
  for (const name of ["mlp", "conv", "decoder"]) {
    const { runs } = await readCase(`small/${name}`);
    const progress = [];
    const model = await load(`/fixtures/small/${name}/model.onnx`, { onProgress: (p) => progress.push(p.stage) });
    equal([...new Set(progress)].sort(), ["compile", "model"], "stages");
    const all = await Promise.all(runs.map(({ inputs }) => model.run(inputs)));
    runs.forEach(({ outputs }, i) => close(all[i], outputs));
    model.dispose();
  }
}

export async function runs_on_the_cpu_end_with_the_model() {
  const model = await load(await (await fetch(mlp)).blob(), { cache: false });
  const x = Tensor.from("f32", [2, 13], Array(26).fill(0.5));
  await refused(model.run({ x: { ...x, shape: [26] } }), "shape", /must have shape \[batch, 13\]/);
  const [first, second] = [model.run({ x }), model.run({ x })];
  await first;
  model.dispose();
  await refused(second, "disposed", /disposed of/);
  await refused(model.run({ x }), "disposed", /disposed of/);
  const stop = new AbortController();
  const loading = load(mlp, { signal: stop.signal, onProgress: ({ stage }) => stage === "compile" && stop.abort() });
  await refused(loading, "aborted", /aborted/);
}
