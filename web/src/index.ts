/** Runs models that wgfc has compiled, on WebGPU. */

export { type DType, type TypedArray } from "./dtypes.js";
export type { CompileSettings, DeviceProfile, PlanOptions } from "./compiler/index.js";
export { type Diagnostic, type ErrorKind, WgfcError } from "./errors.js";
export type { Inspection, KernelInfo, PlanInfo } from "./inspect.js";
export type { ImageOptions, ImageSource } from "./image.js";
export {
  type Destination, type LoadOptions, Model, type PortInfo, type Progress, type RunOptions,
  type StateInfo, load,
} from "./model.js";
export { clearCache } from "./program.js";
export type { Files, ModelSource } from "./source.js";
export type { DispatchTime } from "./timestamps.js";
export { Tensor, type TensorData, type TensorLike } from "./tensor.js";
export type { Comparison, Tensors, Tolerance } from "./verify.js";
