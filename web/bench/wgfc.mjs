// wgfc in the page.
import { Tensor, load } from "/wgfc/index.js";
import { tensors, tokens } from "./inputs.mjs";

const ids = (numbers) => new Tensor("i64", [1, numbers.length], BigInt64Array.from(numbers, BigInt));

export async function open(spec) {
  // With the limits that every device has, where that is asked for.
  const least = new URLSearchParams(location.search).get("limits") === "default";
  const device = least ? await (await navigator.gpu.requestAdapter()).requestDevice() : undefined;
  const model = await load(`/plans/${spec.name}/`, device ? { device } : {});
  if (!spec.decode) {
    const inputs = tensors(spec.inputs, false);
    return { model, inputs, run: () => model.run(inputs) };
  }
  const { decode } = spec;
  let [at, runs] = [0, 0];
  const run = async () => {
    const now = tokens(decode, at === 0 ? undefined : runs++);
    const positions = now.map((_, i) => at + i);
    at += now.length;
    const inputs = { [decode.ids]: ids(now), [decode.positions]: ids(positions) };
    return model.run(inputs);
  };
  return { model, inputs: { [decode.ids]: ids([5]), [decode.positions]: ids([decode.prompt]) }, run };
}

export function results(outputs) {
  return Object.fromEntries(Object.entries(outputs).map(([name, t]) => [name, t.data]));
}
