/** The kind of an error, for programs; the message is for people. */
export type ErrorKind =
  /** The plan has a version of the format that this package does not read. */
  | "unsupported-version"
  /** A file contradicts itself, is cut off, or is not the one whose hash the plan has. */
  | "corrupt"
  /** A file cannot be fetched. */
  | "network"
  /** The model needs more than the device, a state or a loop may have. */
  | "limits"
  /** There is no WebGPU, or the device lacks a feature that the model needs. */
  | "feature"
  /** Inputs are missing, unknown, or have another type or shape than the model takes. */
  | "shape"
  /** The device went away. `load` again opens another. */
  | "device-lost"
  | "out-of-memory"
  /** WebGPU refused a call or a shader: the plan was edited, or this is a bug. */
  | "validation"
  /** The model that is to be compiled contradicts itself, or ONNX. */
  | "model"
  /** The compiler does not know what the model has. */
  | "unsupported"
  /** A bug of the compiler. */
  | "internal"
  | "aborted"
  /** The model was disposed of. */
  | "disposed";

/** Where in a model something went wrong. */
export interface Origin {
  /** The node of the model. */
  node?: string | undefined;
  /** The kernel that computes it. */
  kernel?: string | undefined;
  cause?: unknown;
  diagnostics?: readonly Diagnostic[] | undefined;
}

/** One of the things that are wrong with a model. */
export interface Diagnostic {
  readonly kind: "model" | "unsupported" | "internal";
  readonly message: string;
  /** Where it is. */
  readonly node?: string | null;
  readonly operator?: string | null;
  readonly opset?: number | null;
  /** Which part of the node, as `input B`. */
  readonly part?: string | null;
  /** The line of the program in PyTorch. */
  readonly source?: string | null;
  /** How to solve the problem, in a sentence. */
  readonly help?: string | null;
}

/** Every error that this package throws. Names from a model stand in its text as they are: show it as text, never as HTML. */
export class WgfcError extends Error {
  override readonly name = "WgfcError";
  readonly kind: ErrorKind;
  readonly node: string | undefined;
  readonly kernel: string | undefined;
  /** All problems of a model that the compiler refuses. */
  readonly diagnostics: readonly Diagnostic[];

  constructor(kind: ErrorKind, message: string, origin: Origin = {}) {
    super(message, { cause: origin.cause });
    this.kind = kind;
    this.node = origin.node;
    this.kernel = origin.kernel;
    this.diagnostics = origin.diagnostics ?? [];
  }
}
