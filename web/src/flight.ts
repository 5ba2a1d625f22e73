/** The number of runs in flight while tokens are generated. */

/** The number of tokens by whose times two numbers of runs are compared. */
const TRIAL = 8;
const LEAST = 2;
const MOST = 8;
/** Where a token takes longer than so many milliseconds, no more runs are tried: those in flight when a text ends were in vain. */
const SLOW = 50;
/** More runs must shorten the time of a token to this share. */
const WORTH = 0.95;

/**
 * A browser tells the page that a run is done some milliseconds late, and the device has nothing to do meanwhile unless further runs are
 * submitted. How many suffice depends on the browser and on the model, so their number is doubled as long as tokens then come sooner.
 */
export class Flight {
  #size = LEAST;
  /** The milliseconds of a token with half as many runs. */
  #before = Infinity;
  #began = 0;
  #tokens = 0;
  #settled = false;

  get size(): number {
    return this.#size;
  }

  /** A text begins. */
  begin(): void {
    this.#tokens = 0;
  }

  /** A token has come, at this time in milliseconds. */
  token(now: number): void {
    if (this.#settled) return;
    if (this.#tokens++ === 0) this.#began = now;
    if (this.#tokens <= TRIAL) return;
    const ms = (now - this.#began) / TRIAL;
    const worth = ms < WORTH * this.#before;
    if (!worth) this.#size /= 2;
    if (worth && ms < SLOW && this.#size < MOST) this.#size *= 2;
    else this.#settled = true;
    [this.#before, this.#tokens] = [ms, 0];
  }
}
