/** Selection of a program's plans that a device can run and that can share weights and states. */

import type { Kind } from "./kind.js";
import type { Plan, Port } from "./plan.js";

/** The features and limits of a device. */
export interface Capabilities {
  readonly features: ReadonlySet<string>;
  readonly limits: Readonly<Record<string, number | undefined>>;
  /** The smallest and the largest subgroup size; undefined if the browser does not report them. */
  readonly subgroups: readonly [number, number] | undefined;
  /** The kind of adapter; undefined if it is not known. */
  readonly kind?: Kind | undefined;
}

/** Whether a device has all features and limits that a plan needs. */
function fits({ needs }: Plan, of: Capabilities): boolean {
  const [sizes, [least, most]] = [needs.subgroup_sizes, of.subgroups ?? []];
  return needs.features.every((f) => of.features.has(f)) && (!sizes || (least === most && sizes.includes(least!))) &&
    Object.entries(needs.limits).every(([limit, n]) => n <= (of.limits[limit] ?? 0));
}

/**
 * The plans that a device can run with one set of weights and states, in order; those for adapters of other kinds only if there are no others.
 * Rejects if it can run none.
 */
export async function choose(plans: readonly Plan[], of: Capabilities): Promise<Plan[]> {
  const able = plans.filter((p) => fits(p, of));
  const kind = of.kind === "swiftshader" ? "software" : of.kind;
  const meant = [...able.filter((p) => p.adapter && p.adapter === kind), ...able.filter((p) => !p.adapter)];
  const fit = meant.length ? meant : able;
  const [first] = fit;
  if (first) return fit.filter((p) => signature(p) === signature(first));
  throw (await import("./absent.js")).unfit(plans, of);
}

export function label(plan: Plan, i: number): string {
  return plan.name ? `plan "${plan.name}"` : `plan ${i}`;
}

/** The names and types of inputs, outputs and states, which must be equal for plans that share states. */
function signature(plan: Plan): string {
  const ports = (all: readonly Port[]) => all.map((p) => [p.name, p.dtype]);
  const states = plan.states.map((s) => [
    s.name, s.dtype, s.shape.map((d) => d.text), s.growth && [s.growth.axis, s.growth.length], s.initial,
  ]);
  return JSON.stringify([ports(plan.inputs), ports(plan.outputs), states]);
}
