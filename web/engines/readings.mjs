// Readings of the suite in a page or in an engine: rows with their samples, named as those of `wgfc bench suite`.
import { kindOf } from "/build/kind.js";
import { decode as tokens, times } from "./measure.mjs";
import { dispatches } from "./dispatch.mjs";

const seconds = (id, samples) => ({ id, unit: "s", better: "less", samples });
const adapterOf = () => navigator.gpu.requestAdapter({ powerPreference: "high-performance" });

/** The speeds that the compiler chooses by. */
export async function device() {
  const { measure } = await import("/dist/measure.js");
  const { speeds } = await measure(await adapterOf(), { cache: false });
  const more = (part, unit, n) => ({ id: `device/${part}`, unit, better: "more", samples: [n] });
  return [
    more("copy", "B/s", speeds.bandwidth), more("f32", "FLOP/s", speeds.flops_f32), more("f16", "FLOP/s", speeds.flops_f16),
    more("matrix units", "FLOP/s", speeds.flops_matrix), seconds("device/barrier", [speeds.barrier]),
  ];
}

/** A dispatch of many, by how it is recorded. */
export async function dispatch(iterations) {
  const gpu = await (await adapterOf()).requestDevice();
  const samples = {};
  await dispatches(gpu, iterations, samples);
  gpu.destroy();
  const row = (mode, part, of) => seconds(`dispatch/${mode}/${part}`, samples[mode].map((t) => of(t) * 1e-6));
  return Object.keys(samples).flatMap((mode) => [
    row(mode, "wall", (t) => t.wall), row(mode, "record", (t) => t.encode + t.finish), row(mode, "submit", (t) => t.submit),
  ]);
}

/** Runs of the program in a folder. */
export async function model(name, folder, inputs) {
  const { all, row } = await times(`/plans/${folder}/`, inputs, { seconds: 3 });
  return [seconds(`models/${name}/a run, to its outputs`, all.map((ms) => ms / 1000)), seconds(`models/${name}/a run, in a row`, [row / 1000])];
}

/** Tokens of the decoder in a folder. */
export async function decode(name, folder) {
  const rounds = await tokens(`/plans/${folder}/`, { past: 64, tokens: 192, rounds: 7 });
  const part = (of) => `decode/${name}/${of}`;
  return [
    seconds(part("first token after 64"), rounds.firsts.map((ms) => ms / 1000)),
    seconds(part("a token"), rounds.rates.map((n) => 1 / n)),
    { id: part("tokens"), unit: "1/s", better: "more", samples: rounds.rates },
  ];
}

/** Runs of a graph in fixtures/ by onnxruntime-web. */
export async function ortModel(name, fixture, inputs, dims) {
  const { all, first } = await (await import("./ort.mjs")).times(fixture, inputs, { seconds: 3, dims });
  return [seconds(`models/${name}/a run, to its outputs`, all.map((ms) => ms / 1000)), seconds(`models/${name}/to the first result`, [first / 1000])];
}

/** Tokens of a decoder in fixtures/ by onnxruntime-web, chosen by the page. */
export async function ortDecode(name, fixture) {
  const { decode } = await import("./ort.mjs");
  const half = fixture.endsWith("f16");
  const { perSecond, all } = await decode(fixture, { past: 64, tokens: 96, half });
  return [
    seconds(`decode/${name}/a token`, all.map((ms) => ms / 1000)),
    { id: `decode/${name}/tokens`, unit: "1/s", better: "more", samples: [perSecond] },
  ];
}

export const ortVersion = async () => (await import("./ort.mjs")).version();

/** The device as records have it. */
export async function deviceOf() {
  const adapter = await adapterOf();
  const { vendor, architecture, device, description } = adapter.info;
  const kind = kindOf(adapter.info);
  const limits = {};
  for (const name of ["maxBufferSize", "maxStorageBufferBindingSize", "maxStorageBuffersPerShaderStage", "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupsPerDimension"])
    limits[name] = adapter.limits[name];
  return {
    name: [vendor, architecture, device].filter(Boolean).join(" "), kind: kind === "swiftshader" ? "software" : (kind ?? "other"), driver: description,
    features: [...adapter.features].sort(), limits,
  };
}
