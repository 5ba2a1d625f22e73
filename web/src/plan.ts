/** Parsing of `plan.json`. */

import { type DType, isDType } from "./dtypes.js";
import { WgfcError } from "./errors.js";
import { Json, count, list, listOrNone, optional, string } from "./json.js";
import { type Size, loneSymbol, parseSize } from "./sizes.js";

const FORMAT_VERSION = 1;

export interface Port {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly Size[];
  readonly buffer: number;
  /** The shape that an optional input is broadcast to. */
  readonly broadcast: readonly Size[] | undefined;
}

export interface Growth {
  readonly axis: number;
  /** The name of the symbol for the number of positions in use. */
  readonly length: string;
  readonly by: Size;
}

export interface State {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly Size[];
  readonly buffer: number;
  readonly growth: Growth | undefined;
  /** The weight with its contents before the first run; zeros if undefined. */
  readonly initial: string | undefined;
}

export interface Computed {
  /** Its index among the symbols. */
  readonly symbol: number;
  readonly bound: Size;
  readonly buffer: number;
  /** The number of dispatches after which its value is known. */
  readonly after: number;
}

export interface Constraint {
  readonly a: Size;
  readonly b: Size;
  readonly node: string;
}

export type BufferKind =
  | { readonly kind: "input" | "output"; readonly index: number }
  | { readonly kind: "weight" | "state"; readonly name: string }
  | { readonly kind: "arena"; readonly arena: number; readonly first: number; readonly last: number };

export interface PlanBuffer {
  readonly kind: BufferKind;
  readonly dtype: DType;
  readonly elements: Size;
}

export type Access = "read" | "read_write";

export interface Kernel {
  readonly name: string;
  readonly bindings: readonly Access[];
  readonly uses_dims: boolean;
  readonly features: readonly string[];
}

export interface Dispatch {
  readonly kernel: number;
  readonly bindings: readonly number[];
  readonly workgroups: readonly Size[];
  readonly nodes: readonly string[];
  readonly bytes: Size;
  readonly flops: Size;
}

export interface Repeat {
  readonly first: number;
  readonly count: number;
  readonly times: Size;
  readonly why: string;
  readonly until: { readonly buffer: number; readonly rounds: number } | undefined;
}

/** The features and limits that the kernels of a plan need, by WebGPU's names. */
export interface Needs {
  readonly features: readonly string[];
  readonly limits: Readonly<Record<string, number>>;
  /** The subgroup sizes, one of which all subgroups must have; undefined if any size will do. */
  readonly subgroup_sizes: readonly number[] | undefined;
}

export interface Plan {
  readonly name: string;
  readonly needs: Needs;
  /** The kind of adapter that it is for; undefined if it is for any. */
  readonly adapter: string | undefined;
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
  readonly states: readonly State[];
  /** The symbols in the order of the `Dims` uniform. */
  readonly symbols: readonly string[];
  readonly computed: readonly Computed[];
  readonly constraints: readonly Constraint[];
  readonly buffers: readonly PlanBuffer[];
  readonly kernels: readonly Kernel[];
  readonly dispatches: readonly Dispatch[];
  readonly repeats: readonly Repeat[];
  readonly stats: {
    /** Whether it was compiled without its weights. */
    readonly weights_absent: boolean;
  };
}

export interface Plans {
  readonly plans: readonly Plan[];
  /** The recipes of weights that are not in `weights.safetensors` or in the bundle. */
  readonly weights: Json | undefined;
  /** The whole of `plan.json`. */
  readonly root: Json;
}

export function readPlans(text: string, where = "plan.json"): Plans {
  const root = Json.parse(text, where);
  const version = root.get("version").count();
  if (version !== FORMAT_VERSION)
    throw new WgfcError(
      "unsupported-version",
      `${where} has version ${version} of the format; this package reads version ${FORMAT_VERSION}. ` +
        (version > FORMAT_VERSION ? "Update the package wgfc." : "Compile the model again."),
    );
  const plans = root.get("plans").list(readPlan);
  if (plans.length === 0) root.get("plans").fail("there is no plan");
  const weights = root.get("weights");
  return { plans, weights: weights.missing ? undefined : weights, root };
}

function readPlan(root: Json): Plan {
  const symbols = root.get("symbols").list(string);
  const symbol = (name: string) => {
    const known = symbols.indexOf(name);
    if (known < 0) throw new Error(`\`${name}\` is no symbol`);
    return known;
  };
  const size = (j: Json): Size => {
    if (typeof j.value !== "number" && typeof j.value !== "string") return j.fail("it is not a size");
    try {
      return parseSize(j.value, symbol);
    } catch (e) {
      return j.fail(`the size ${JSON.stringify(j.value)}: ${(e as Error).message}`);
    }
  };
  const sizes = list(size);
  const length = (of: string) => root.get(of).list(() => 0).length;
  const below = (n: number) => (j: Json) => j.index(n);
  const [buffer, dispatches] = [below(length("buffers")), length("dispatches")];
  const port = (j: Json) => j.object<Port>({ name: string, dtype, shape: sizes, buffer, broadcast: optional(sizes) });
  const fileName = (j: Json) => (/^[\w-][\w.-]*$/.test(j.string()) ? j.string() : j.fail(`${JSON.stringify(j.value)} cannot be a file's name`));
  const plan = root.object<Plan>({
    name: string,
    needs: readNeeds,
    adapter: optional(string),
    symbols: () => symbols,
    inputs: list(port),
    outputs: list(port),
    states: listOrNone((j) =>
      j.object<State>({
        name: string,
        dtype,
        shape: sizes,
        buffer,
        growth: optional((g) => g.object<Growth>({ axis: (a) => a.index(j.get("shape").list(size).length), length: string, by: size })),
        initial: optional(string),
      }),
    ),
    computed: listOrNone((j) =>
      j.object<Computed>({
        symbol: (s) => s.among(symbols),
        bound: size,
        buffer,
        after: below(dispatches + 1),
      }),
    ),
    constraints: list((j) => j.object<Constraint>({ a: size, b: size, node: string })),
    buffers: list((j) => j.object<PlanBuffer>({ kind: bufferKind(below(length("inputs")), below(length("outputs"))), dtype, elements: size })),
    kernels: list((j) => j.object<Kernel>({ name: fileName, bindings: list(access), uses_dims: flag, features: list(string) })),
    dispatches: list((j) =>
      j.object<Dispatch>({ kernel: below(length("kernels")), bindings: list(buffer), workgroups: sizes, nodes: list(string), bytes: size, flops: size }),
    ),
    repeats: listOrNone((j) =>
      j.object<Repeat>({
        first: below(dispatches),
        count,
        times: size,
        why: (w) => optional(string)(w) ?? "",
        until: optional((u) => u.object({ buffer, rounds: count })),
      }),
    ),
    stats: (j) => j.object({ weights_absent: flag }),
  });
  // A plan may omit states that have only a size.
  const bare = plan.buffers.flatMap(({ kind, dtype, elements }, buffer) =>
    kind.kind === "state" && !plan.states.some((s) => s.name === kind.name)
      ? [{ name: kind.name, dtype, shape: [elements], buffer, growth: undefined, initial: undefined }]
      : [],
  );
  plan.dispatches.forEach((d, i) => {
    if (d.workgroups.length !== 3 || d.bindings.length !== plan.kernels[d.kernel]!.bindings.length)
      root.get("dispatches").fail(`number ${i} does not fit its kernel`);
  });
  plan.repeats.forEach((r, i) => {
    if (r.count === 0 || r.first + r.count > dispatches) root.get("repeats").fail(`number ${i} is beyond the dispatches`);
  });
  return { ...plan, states: [...plan.states, ...bare] };
}

function dtype(j: Json): DType {
  return isDType(j.value) ? j.value : j.fail(`${JSON.stringify(j.value)} is no element type`);
}

function flag(j: Json): boolean {
  return j.value === true;
}

function access(j: Json): Access {
  const all: readonly Access[] = ["read", "read_write"];
  return all[j.among(all)]!;
}

function bufferKind(input: (j: Json) => number, output: (j: Json) => number) {
  return (j: Json): BufferKind => {
    const kind = j.get("kind").string();
    switch (kind) {
      case "input":
      case "output":
        return { kind, ...j.object({ index: kind === "input" ? input : output }) };
      case "weight":
      case "state":
        return { kind, ...j.object({ name: string }) };
      case "arena":
        return { kind, ...j.object({ arena: count, first: count, last: count }) };
      default:
        return j.fail(`${JSON.stringify(kind)} is no kind of buffer`);
    }
  };
}

const NEEDS = ["features", "limits", "subgroup_sizes"];

function readNeeds(j: Json): Needs {
  return j.object<Needs>({
    // An unknown kind of need counts as a feature that is lacking.
    features: (f) => [...listOrNone(string)(f), ...j.entries().flatMap(([k]) => (NEEDS.includes(k) ? [] : [k]))],
    limits: (l) => Object.fromEntries(l.entries().map(([k, v]) => [k, v.count()])),
    subgroup_sizes: optional(list(count)),
  });
}

/** The symbol for a state's capacity, if the capacity is not a number. */
export function capacitySymbol(plan: Plan, state: State): string | undefined {
  const symbol = state.growth && loneSymbol(state.shape[state.growth.axis]!);
  return symbol === undefined ? undefined : plan.symbols[symbol];
}

/** Whether a state is a window of the latest positions. */
export function isWindow(plan: Plan, state: State): boolean {
  const growth = state.growth;
  return growth !== undefined && growth.by.powers.has(plan.symbols.indexOf(growth.length));
}

export function nodesOf(nodes: readonly string[]): string {
  const [first, ...rest] = nodes;
  if (first === undefined) return "no node";
  return `node "${first}"` + (rest.length ? ` and ${rest.length} others` : "");
}
