/** The order in which the dispatches of a plan run. */

import { WgfcError } from "./errors.js";
import { type Computed, type Plan, type Repeat, nodesOf } from "./plan.js";
import type { Values } from "./sizes.js";

/** The operations that a walk through a plan calls. */
export interface Stage {
  dispatch(number: number): void;
  /** The value of a symbol has been computed. */
  known(computed: Computed): void;
}

/** Dispatches that one run may take. */
const MOST_DISPATCHES = 2 ** 22;

/** Goes through a run. At the end of a round it yields the repeat, and goes on by what it is told: whether there is another. */
export function* play(plan: Plan, values: Values, stage: Stage): Generator<Repeat, void, boolean> {
  const { dispatches, repeats } = plan;
  let count = 0;

  /** The symbols that are known once a number of dispatches have run. */
  const known = (from: number, to: number) => {
    for (const c of plan.computed) if (c.after >= from && c.after < to) stage.known(c);
  };
  const dispatch = (i: number) => {
    stage.dispatch(i);
    if (++count <= MOST_DISPATCHES) return;
    const { nodes } = dispatches[i]!;
    throw new WgfcError("limits", `a run takes more than ${MOST_DISPATCHES} dispatches, by the loop of ${nodesOf(nodes)}`, { node: nodes[0] });
  };
  /** A stretch, of which the repeats from number `next` on may be a part; of two that overlap the one inside comes later. */
  function* range(from: number, to: number, next: number): Generator<Repeat, void, boolean> {
    for (let i = from; i < to; i++) {
      known(i, i + 1);
      while (next < repeats.length && repeats[next]!.first < i) next++;
      const repeat = repeats[next];
      if (repeat?.first !== i) {
        dispatch(i);
        continue;
      }
      const times = repeat.times.at(values);
      if (!(times > 0)) known(i + 1, i + repeat.count);
      for (let round = 1; times > 0; round++) {
        for (let n = 0; n < times; n++) yield* range(i, i + repeat.count, next + 1);
        if (!repeat.until || !(yield repeat)) break;
        if (round < repeat.until.rounds) continue;
        const { nodes } = dispatches[i]!;
        throw new WgfcError("limits", `the loop of ${nodesOf(nodes)} has not ended after ${round} rounds: ${repeat.why}`, { node: nodes[0] });
      }
      i += repeat.count - 1;
    }
  }

  yield* range(0, dispatches.length, 0);
  known(dispatches.length, dispatches.length + 1);
}
