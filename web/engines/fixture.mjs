// Graphs in fixtures/ whose weights are in files that are not there.
import { graphOf } from "/build/compiler/onnx.js";
import { RandomBytes } from "/build/compiler/origin.js";

/** The address of a graph, and for each file that it names one of zeros, which take as long as other weights. */
export async function outside(fixture) {
  const address = new URL(`/fixtures/${fixture}.onnx`, location.href).href;
  const graph = await graphOf(RandomBytes.of(await (await fetch(address)).blob()), fixture);
  return { address, weights: Object.fromEntries([...graph.external].map(([path, bytes]) => [path, new URL(`/zeros/${bytes}`, location.href).href])) };
}
