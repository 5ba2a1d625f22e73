/** The kind of an error, for programs. The message is for people. */
export type ErrorKind =
  /** The plan has a version of the format that this package does not read. */
  | "unsupported-version"
  /** A file is inconsistent or truncated, or its hash is not the one in the plan. */
  | "corrupt"
  /** A file cannot be fetched. */
  | "network"
  /** The model exceeds a limit of the device, of a state or of a loop. */
  | "limits"
  /** There is no WebGPU, or it has no adapter. */
  | "no-webgpu"
  /** The device lacks a feature that the model needs. */
  | "feature"
  /** Inputs are missing, unknown, or of the wrong type or shape. */
  | "shape"
  /** The device was lost. Calling `load` again opens a new one. */
  | "device-lost"
  | "out-of-memory"
  /** WebGPU rejected a call or a shader: the plan was edited, or this is a bug. */
  | "validation"
  /** The model to compile is invalid. */
  | "model"
  /** The compiler does not support something in the model. */
  | "unsupported"
  /** The loss of a training step is infinite or NaN. */
  | "diverged"
  /** A bug in the compiler. */
  | "internal"
  | "aborted"
  /** The model was disposed of. */
  | "disposed";

/** The place in a model at which an error occurred. */
export interface Origin {
  /** The node of the model. */
  node?: string | undefined;
  /** The kernel that computes it. */
  kernel?: string | undefined;
  cause?: unknown;
  diagnostics?: readonly Diagnostic[] | undefined;
}

/** One problem of a model. */
export interface Diagnostic {
  readonly kind: "model" | "unsupported" | "internal";
  readonly message: string;
  /** The node with the problem. */
  readonly node?: string | null;
  readonly operator?: string | null;
  readonly opset?: number | null;
  /** The part of the node, such as `input B`. */
  readonly part?: string | null;
  /** The line of the program in PyTorch. */
  readonly source?: string | null;
  /** A sentence on how to solve the problem. */
  readonly help?: string | null;
}

/**
 * The class of all errors that this package throws. Messages contain names from the model without escaping: show them as text,
 * never as HTML.
 */
export class WgfcError extends Error {
  override readonly name = "WgfcError";
  readonly kind: ErrorKind;
  readonly node: string | undefined;
  readonly kernel: string | undefined;
  /** All problems of a model that the compiler rejects. */
  readonly diagnostics: readonly Diagnostic[];

  constructor(kind: ErrorKind, message: string, origin: Origin = {}) {
    super(message, { cause: origin.cause });
    this.kind = kind;
    this.node = origin.node;
    this.kernel = origin.kernel;
    this.diagnostics = origin.diagnostics ?? [];
  }
}
