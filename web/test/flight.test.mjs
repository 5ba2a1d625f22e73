import assert from "node:assert/strict";
import { test } from "node:test";
import { Flight } from "../build/flight.js";

/** The number of runs in flight after texts on a device that takes `ms` for a token, in a browser that says so `late` ms late. */
function settled(ms, late, texts = 4) {
  const flight = new Flight();
  let now = 0;
  for (let t = 0; t < texts; t++) {
    flight.begin();
    for (let i = 0; i < 40; i++) flight.token((now += Math.max(ms, (ms + late) / flight.size)));
  }
  return flight.size;
}

test("as many runs are in flight as take 24 ms", () => {
  assert.equal(settled(1, 0), 8);
  assert.equal(settled(1, 10), 8);
  assert.equal(settled(5, 2), 5);
  assert.equal(settled(10, 2), 3);
  assert.equal(settled(200, 300), 2);
});

test("a text that ends early decides nothing", () => {
  const flight = new Flight();
  for (let t = 0; t < 20; t++) {
    flight.begin();
    for (let i = 0; i < 5; i++) flight.token(100 * t + i);
  }
  assert.equal(flight.size, 2);
});
