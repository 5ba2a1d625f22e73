/** Selection of a program's plans that a device can run and that can share weights and states. */

import { WgfcError } from "./errors.js";
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

/** The features and limits that a plan needs and the device lacks. */
export function lacking(plan: Plan, of: Capabilities): { features: string[]; limits: string[] } {
  const { needs } = plan;
  const features = needs.features.filter((f) => !of.features.has(f)).map((f) => `the feature ${f}`);
  const sizes = needs.subgroup_sizes;
  if (sizes && features.length === 0) {
    const [least, most] = of.subgroups ?? [];
    if (least !== most || least === undefined || !sizes.includes(least))
      features.push(
        `subgroups of ${sizes.join(" or ")} (${of.subgroups ? `it has ${least} to ${most}` : "the browser reports no subgroup sizes"})`,
      );
  }
  const limits = Object.entries(needs.limits)
    .filter(([limit, n]) => n > (of.limits[limit] ?? 0))
    .map(([limit, n]) => `${limit} of ${n} (it has ${of.limits[limit] ?? "none"})`);
  return { features, limits };
}

/** The plans that a device can run with one set of weights and states, in order; those for adapters of other kinds only if there are no others. */
export function choose(plans: readonly Plan[], of: Capabilities): Plan[] {
  const lacks = plans.map((p) => lacking(p, of));
  const able = plans.filter((_, i) => !(lacks[i]!.features.length + lacks[i]!.limits.length));
  const kind = of.kind === "swiftshader" ? "software" : of.kind;
  const meant = [...able.filter((p) => p.adapter && p.adapter === kind), ...able.filter((p) => !p.adapter)];
  const fit = meant.length ? meant : able;
  const [first] = fit;
  if (first) return fit.filter((p) => signature(p) === signature(first));
  const lines = plans.map((p, i) => `${label(p, i)} needs ${[...lacks[i]!.features, ...lacks[i]!.limits].join(", ")}`);
  const lacked = lacks.every((l) => l.features.length) ? "feature" : "limits";
  throw new WgfcError(lacked, `this device cannot run the model: ${lines.join("; ")}. Compile a variant for such devices.`);
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
