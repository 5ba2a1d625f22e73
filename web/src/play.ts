/** The order in which the dispatches of a plan run. */

import { WgfcError } from "./errors.js";
import { type Computed, type Plan, type Repeat, nodesOf } from "./plan.js";
import type { Values } from "./sizes.js";

/** The callbacks of a walk through a plan. */
export interface Stage {
  dispatch(number: number): void;
  /** The value of a symbol has been computed. */
  known(computed: Computed): void;
}

/** The largest number of dispatches of one run. */
const MOST_DISPATCHES = 2 ** 22;

/** Walks through a run. At the end of each round it yields the repeat and must be told whether there is another round. */
export function* play(plan: Plan, values: Values, stage: Stage): Generator<Repeat, void, boolean> {
  const { dispatches, repeats } = plan;
  let count = 0;

  /** Reports the symbols that are computed after dispatches `from` to `to`. */
  const known = (from: number, to: number) => {
    for (const c of plan.computed) if (c.after >= from && c.after < to) stage.known(c);
  };
  const dispatch = (i: number) => {
    stage.dispatch(i);
    if (++count <= MOST_DISPATCHES) return;
    const { nodes } = dispatches[i]!;
    throw new WgfcError("limits", `a run takes more than ${MOST_DISPATCHES} dispatches, by the loop of ${nodesOf(nodes)}`, { node: nodes[0] });
  };
  /**
   * Walks through a range of dispatches. `next` is the index of the first repeat that may lie in it; inner repeats come after the
   * repeats around them.
   */
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
