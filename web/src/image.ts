/** Conversion of pictures to tensors on the device. This module is loaded with the first picture. */

import type { DType } from "./dtypes.js";
import { COPY_DST, COPY_SRC, RENDER_ATTACHMENT, STORAGE, TEXTURE_BINDING, TEXTURE_COPY_DST, UNIFORM } from "./usage.js";

export type ImageSource =
  | ImageBitmap | ImageData | HTMLImageElement | HTMLVideoElement | HTMLCanvasElement | OffscreenCanvas | VideoFrame;

export interface ImageOptions {
  /** The shape of the input: `[1, 3, height, width]`, or `[1, height, width, 3]` for the layout NHWC. The 1 may be omitted. */
  readonly shape: readonly number[];
  readonly layout?: "NCHW" | "NHWC";
  /** `f32` (the default), `f16`, or `u8`. */
  readonly dtype?: DType;
  /** Means of red, green and blue, which are subtracted from values in 0 to 1 (0 to 255 for `u8`). */
  readonly mean?: readonly number[];
  /** Standard deviations, by which the differences are divided. */
  readonly std?: readonly number[];
}

/** The number of elements in a word, and the WGSL expression that packs them. */
const PACKED: Partial<Record<DType, [elements: number, expression: string]>> = {
  f32: [1, "bitcast<u32>(element(i))"],
  f16: [2, "pack2x16float(vec2(element(i), element(i + 1)))"],
  u8: [4, "dot(vec4<u32>(round(clamp(vec4(element(i), element(i + 1), element(i + 2), element(i + 3)), vec4(0.0), vec4(255.0)))), vec4(1u, 256u, 65536u, 16777216u))"],
};

/** Each invocation makes one word of the tensor. The picture is sampled with interpolation and stretched to the shape. */
const TEXT = (dtype: DType, nchw: boolean) => {
  const [elements, word] = PACKED[dtype]!;
  return `
struct Image { width: u32, height: u32, words: u32, stride: u32, mean: vec4<f32>, scale: vec4<f32> }
@group(0) @binding(0) var picture: texture_2d<f32>;
@group(0) @binding(1) var linear: sampler;
@group(0) @binding(2) var<uniform> image: Image;
@group(0) @binding(3) var<storage, read_write> tensor: array<u32>;

fn element(i: u32) -> f32 {
  let area = image.width * image.height;
  let channel = ${nchw ? "i / area" : "i % 3"};
  let pixel = ${nchw ? "i % area" : "i / 3"};
  if (channel > 2 || pixel >= area) { return 0.0; }
  let at = vec2<f32>(vec2(pixel % image.width, pixel / image.width)) + 0.5;
  let colour = textureSampleLevel(picture, linear, at / vec2<f32>(vec2(image.width, image.height)), 0.0);
  return (colour[channel] - image.mean[channel]) * image.scale[channel];
}

@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let word = id.y * image.stride + id.x;
  if (word >= image.words) { return; }
  let i = word * ${elements};
  tensor[word] = ${word};
}`;
};

const pipelines = new WeakMap<GPUDevice, Map<string, GPUComputePipeline>>();

function pipelineOf(device: GPUDevice, dtype: DType, nchw: boolean): GPUComputePipeline {
  const known = pipelines.get(device) ?? new Map<string, GPUComputePipeline>();
  pipelines.set(device, known);
  const key = `${dtype} ${nchw}`;
  const make = () => {
    const module = device.createShaderModule({ label: "image", code: TEXT(dtype, nchw) });
    return device.createComputePipeline({ label: "image", layout: "auto", compute: { module } });
  };
  const pipeline = known.get(key) ?? make();
  known.set(key, pipeline);
  return pipeline;
}

/** A buffer with the elements of a picture as a tensor of the requested shape. */
export async function imageBuffer(
  device: GPUDevice,
  source: ImageSource,
  options: ImageOptions,
  refuse: (why: string) => never,
): Promise<GPUBuffer> {
  const { shape, layout = "NCHW", dtype = "f32" } = options;
  const nchw = layout === "NCHW";
  const [height, width, channels] = nchw ? [shape.at(-2), shape.at(-1), shape.at(-3)] : [shape.at(-3), shape.at(-2), shape.at(-1)];
  if (!height || !width || channels !== 3 || shape.length > 4 || (shape.length === 4 && shape[0] !== 1) || !PACKED[dtype])
    return refuse(`a picture is no ${dtype}[${shape.join(", ")}] of layout ${layout}: it has three channels, and is f32, f16 or u8`);
  const size = sizeOf(source);
  const texture = device.createTexture({ size, format: "rgba8unorm", usage: TEXTURE_COPY_DST | TEXTURE_BINDING | RENDER_ATTACHMENT });
  try {
    device.queue.copyExternalImageToTexture({ source }, { texture }, size);
  } catch (e) {
    // Video frames in CPU memory must be converted to bitmaps first.
    if (!("displayWidth" in source || "videoWidth" in source)) throw e;
    const bitmap = await createImageBitmap(source);
    device.queue.copyExternalImageToTexture({ source: bitmap }, { texture }, size);
    bitmap.close();
  }

  const elements = 3 * width * height;
  const words = Math.ceil(elements / PACKED[dtype][0]);
  const buffer = device.createBuffer({ label: "picture", size: Math.max(16, 4 * words), usage: STORAGE | COPY_SRC | COPY_DST });
  const groups = Math.ceil(words / 64);
  const across = Math.min(groups, 32768);
  const unit = dtype === "u8" ? 255 : 1;
  const channel = (of: readonly number[] | undefined, otherwise: number) => [0, 1, 2].map((i) => (of?.[i] ?? otherwise) / unit);
  const uniform = device.createBuffer({ size: 48, usage: UNIFORM, mappedAtCreation: true });
  const mapped = uniform.getMappedRange();
  new Uint32Array(mapped).set([width, height, words, across * 64]);
  new Float32Array(mapped).set([...channel(options.mean, 0), 0, ...channel(options.std, 1).map((s) => 1 / s)], 4);
  uniform.unmap();

  const pipeline = pipelineOf(device, dtype, nchw);
  const sampler = device.createSampler({ magFilter: "linear", minFilter: "linear" });
  const resources: GPUBindingResource[] = [texture.createView(), sampler, { buffer: uniform }, { buffer }];
  const entries = resources.map((resource, binding) => ({ binding, resource }));
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
  pass.dispatchWorkgroups(across, Math.ceil(groups / across));
  pass.end();
  device.queue.submit([encoder.finish()]);
  texture.destroy();
  uniform.destroy();
  return buffer;
}

function sizeOf(source: ImageSource): [number, number] {
  if ("displayWidth" in source) return [source.displayWidth, source.displayHeight];
  if ("videoWidth" in source) return [source.videoWidth, source.videoHeight];
  if ("naturalWidth" in source) return [source.naturalWidth, source.naturalHeight];
  return [source.width, source.height];
}
