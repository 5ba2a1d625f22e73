/** Binding of a plan's symbols to the shapes of a run's inputs. */

import { WgfcError } from "./errors.js";
import type { Plan, Port } from "./plan.js";
import { type Size, type Values, loneSymbol, showShape, solve } from "./sizes.js";
import { type TensorLike, elementsOf } from "./tensor.js";

export type Inputs = Readonly<Record<string, TensorLike>>;
/** The inputs of a run by name. Names come from the model and may be any text, so this is a map. */
export type Given = ReadonlyMap<string, TensorLike>;

/** The largest value of a symbol, as kernels count in 32 bits. */
const MOST = 2 ** 31 - 1;

/** Checks the names and types of the given inputs. */
export function checkInputs(plan: Plan, given: Given): void {
  const problems: string[] = [];
  const known = plan.inputs.map((p) => `"${p.name}"`).join(", ") || "none";
  for (const name of given.keys())
    if (!plan.inputs.some((p) => p.name === name)) problems.push(`"${name}": the model has no such input; it has ${known}`);
  for (const p of plan.inputs) {
    const tensor = given.get(p.name);
    const fail = (what: string) => problems.push(`"${p.name}": ${what}`);
    if (!tensor) {
      if (!p.broadcast) fail(`it is missing; it is ${p.dtype}${showShape(p.shape)}`);
    } else if (tensor.dtype !== p.dtype) fail(`it must be ${p.dtype}, not ${tensor.dtype}`);
    else if (p.broadcast ? tensor.shape.length > p.shape.length : tensor.shape.length !== p.shape.length)
      fail(`it must have shape ${showShape(p.broadcast ?? p.shape)}, not [${tensor.shape.join(", ")}]`);
  }
  if (problems.length) throw misfit(problems);
}

function misfit(problems: readonly string[]): WgfcError {
  return new WgfcError("shape", `the inputs do not fit the model: ${problems.join("; ")}`);
}

/** The shape with which kernels read an input. All extents of an optional input are 0 if it is omitted or has no elements. */
export function shapeOf(port: Port, given: TensorLike | undefined): readonly number[] {
  if (!port.broadcast) return given!.shape;
  const rank = port.shape.length;
  if (!given || elementsOf(given.shape) === 0) return Array<number>(rank).fill(0);
  return [...Array<number>(rank - given.shape.length).fill(1), ...given.shape];
}

/** The values of all symbols; computed symbols are 0. `known` has the values that no input determines. */
export function bind(plan: Plan, given: Given, known: ReadonlyMap<string, number>): number[] {
  const values = plan.symbols.map((s) => known.get(s) ?? NaN);
  const computed = new Set(plan.computed.map((c) => c.symbol));
  const extents = plan.inputs.flatMap((port) => {
    const shape = shapeOf(port, given.get(port.name));
    return port.shape.map((size, axis) => ({ port, size, axis, extent: shape[axis]! }));
  });
  for (const { size, extent } of extents) {
    const symbol = loneSymbol(size);
    if (symbol !== undefined && Number.isNaN(values[symbol])) values[symbol] = extent;
  }
  for (let found = true; found; ) {
    found = false;
    for (const { size, extent } of extents) {
      const solved = solve(size, extent, values);
      if (solved) [values[solved[0]], found] = [solved[1], true];
    }
  }
  const problems = extents
    .filter((e) => e.size.at(values) !== e.extent)
    .map((e) => `"${e.port.name}": axis ${e.axis} must have ${explain(plan, e.size, values)} elements, not ${e.extent}`);
  plan.symbols.forEach((s, i) => {
    if (computed.has(i)) values[i] = 0;
    else if (Number.isNaN(values[i])) problems.push(`the shapes do not determine \`${s}\`: set it in \`symbols\``);
    else if (!(values[i]! >= 0 && values[i]! <= MOST)) problems.push(`\`${s}\` is ${values[i]}, outside of 0 to ${MOST}`);
  });
  if (problems.length) throw misfit(problems);
  checkBroadcasts(plan, given, values);
  checkConstraints(plan, values, false);
  return values;
}

function checkBroadcasts(plan: Plan, given: Given, values: Values): void {
  for (const port of plan.inputs) {
    const shape = shapeOf(port, given.get(port.name));
    if (!port.broadcast || shape.every((n) => n === 0)) continue;
    const axis = shape.findIndex((n, i) => n !== 1 && n !== port.broadcast![i]!.at(values));
    if (axis >= 0)
      throw misfit([`"${port.name}": axis ${axis} must have ${explain(plan, port.broadcast[axis]!, values)} elements or 1, not ${shape[axis]}`]);
  }
}

/** Checks the constraints that use computed symbols if `late`, otherwise those that do not. */
export function checkConstraints(plan: Plan, values: Values, late: boolean): void {
  for (const { a, b, node } of plan.constraints) {
    if (isLate(plan, [a, b]) !== late || a.at(values) === b.at(values)) continue;
    const message = `node "${node}" needs ${explain(plan, a, values)} and ${explain(plan, b, values)} to be equal`;
    throw new WgfcError("shape", message, { node });
  }
}

/** Whether any of the sizes is known only after the run. */
export function isLate(plan: Plan, sizes: readonly Size[]): boolean {
  return plan.computed.some((c) => sizes.some((s) => s.powers.has(c.symbol)));
}

/** A size with its value for messages, as in `past + seq = 7 (past = 4, seq = 3)`. */
function explain(plan: Plan, size: Size, values: Values): string {
  const value = size.at(values);
  const parts = [...size.powers.keys()].map((s) => `${plan.symbols[s]} = ${values[s]}`);
  return parts.length === 0 ? size.text : loneSymbol(size) === undefined ? `${size.text} = ${value} (${parts.join(", ")})` : parts[0]!;
}
