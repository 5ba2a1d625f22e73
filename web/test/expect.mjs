// Tools for checks in a page.
import { WgfcError, load } from "/dist/index.js";
import { compare } from "/dist/verify.js";

export function equal(got, want, what) {
  if (JSON.stringify(got) !== JSON.stringify(want)) throw new Error(`${what}: ${JSON.stringify(got)} instead of ${JSON.stringify(want)}`);
}
export function close(got, want) {
  for (const [name, tensor] of Object.entries(want)) {
    const { problem } = compare(got[name], tensor, { rtol: 1e-4, atol: 1e-5 });
    if (problem) throw new Error(`${name}: ${problem}`);
  }
}
export async function refused(promise, kind, message) {
  const e = await promise.then(() => undefined, (e) => e);
  if (!(e instanceof WgfcError) || e.kind !== kind || !message.test(e.message)) throw new Error(`${e?.kind} ${e} instead of ${kind} ${message}`);
  return e;
}

/** Loads a program, gives it to `f`, and disposes of it. */
export async function using(source, options, f) {
  const model = await load(source, options);
  try {
    return await f(model);
  } finally {
    model.dispose();
  }
}
