/** Errors that several modules throw. */

import { WgfcError } from "./errors.js";

export function corrupt(where: string, what: string): WgfcError {
  return new WgfcError("corrupt", `${where}: ${what}. Download it again, or compile the model again.`);
}

/** The error that rejects a promise whose signal is aborted. */
export function aborted(signal: AbortSignal): WgfcError {
  return new WgfcError("aborted", "aborted by the caller's signal", { cause: signal.reason });
}

export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw aborted(signal);
}

export function messageOf(e: unknown): string {
  return e instanceof Error ? e.message : String(e);
}
