/** Waiting for work on a device. */

/** How often the browser is asked at most to look for work that is done. Each time takes it 0.1 to 0.2 ms. */
const LOOKS = 16;

/**
 * The promise's value, soon after it is there. Chromium looks for work that is done when calls arrive, and otherwise every 2 ms, so calls that do
 * nothing are made meanwhile, at most `looks` times.
 */
export async function soon<T>(device: GPUDevice, work: Promise<T>, looks = LOOKS): Promise<T> {
  let waits = true;
  const done = work.finally(() => (waits = false));
  done.catch(() => {});
  for (let n = 0; waits && n < looks; n++) {
    device.pushErrorScope("internal");
    await device.popErrorScope().catch(() => {});
  }
  return done;
}
