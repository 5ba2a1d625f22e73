/** The number of runs in flight while tokens are generated. */

/** The number of tokens of which the time is taken. */
const TRIAL = 8;
const LEAST = 2;
const MOST = 8;
/** The milliseconds of work that are in flight. */
const AHEAD = 24;

/**
 * A browser tells the page that a run is done some milliseconds late, up to ten, and the device has nothing to do meanwhile unless further runs are
 * submitted. Those in flight when a text ends were in vain. So there are as many as take {@link AHEAD} milliseconds.
 */
export class Flight {
  #size = LEAST;
  #began = 0;
  #tokens = 0;

  get size(): number {
    return this.#size;
  }

  /** A text begins. */
  begin(): void {
    this.#tokens = 0;
  }

  /** A token has come, at this time in milliseconds. */
  token(now: number): void {
    if (this.#tokens++ === 0) this.#began = now;
    if (this.#tokens <= TRIAL) return;
    const ms = (now - this.#began) / TRIAL;
    this.#size = Math.min(MOST, Math.max(LEAST, Math.ceil(AHEAD / ms)));
    [this.#began, this.#tokens] = [now, 1];
  }
}
