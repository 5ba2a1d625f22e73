"""Code that the peers share: sizes, seeded inputs, comparison with the numpy reference, timing, JSON.

Inputs are those of `wgfc bench loops` with the same seed; they are on the device before a generation begins, and
its results stay there. A sample is several generations, waited for at its end.
"""
import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import simulation_reference as reference  # noqa: E402

# The largest numbers of individuals and steps in a comparison with the reference.
COMPARED = 256, 2000
SAMPLE_SECONDS = 0.05


def main(description, about, prepare, names=(*reference.WORKLOADS,)):
    """`names` are those of the simulations that the peer has. `prepare(name, inputs, steps)` returns functions that start a generation, wait for its outputs, and fetch one.

    Inputs are numpy arrays. `about` is printed with the figures.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("workload", nargs="*", metavar="WORKLOAD", help=", ".join(names))
    parser.add_argument("--population", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--dims", type=int, help="of rastrigin")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="of samples of each workload, about")
    parser.add_argument("--out", type=Path, help="write the JSON there")
    a = parser.parse_args()
    rows = []
    for name in a.workload or names:
        if name not in names:
            parser.error(f"{name}: none of {', '.join(names)}")
        population, steps, dims = reference.USUAL[name]
        population, dims = a.population or population, a.dims or dims
        steps = steps if name == "rastrigin" else a.steps or steps
        rows.append(measure(name, population, steps, dims, a, prepare))
    text = json.dumps(about | {"seed": a.seed, "rows": rows}, indent=1)
    print(text)
    if a.out:
        a.out.write_text(text + "\n")


def measure(name, population, steps, dims, a, prepare):
    few, near = min(population, COMPARED[0]), min(steps, COMPARED[1], reference.HORIZON.get(name, steps))
    inputs = reference.draw(name, few, near, dims, a.seed)
    start, _, fetch = prepare(name, inputs, near)
    agreed = float(reference.agree([fetch(start()[0])], reference.run(name, inputs, near)[:1]).mean())
    if agreed < (0.97 if name in reference.HORIZON else 1.0):
        raise SystemExit(f"{name}: after {near} steps only {100 * agreed:.1f}% of the individuals agree")

    start, wait, fetch = prepare(name, reference.draw(name, population, steps, dims, a.seed), steps)
    begin = time.perf_counter()
    outputs = start()
    wait(outputs)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    wait(start())
    one = time.perf_counter() - begin
    each = max(1, round(SAMPLE_SECONDS / one))
    samples = []
    until = time.perf_counter() + a.seconds
    while len(samples) < 3 and one < a.seconds or time.perf_counter() < until and len(samples) < 30:
        begin = time.perf_counter()
        for _ in range(each):
            last = start()
        wait(last)
        samples.append((time.perf_counter() - begin) / each)
    median = statistics.median(samples or [one])
    row = {
        "workload": name, "population": population, "steps": steps, "dims": dims,
        "generations_per_second": 1 / median, "generation_ns": 1e9 * median,
        "fastest_ns": 1e9 * min(samples or [one]), "slowest_ns": 1e9 * max(samples or [one]),
        "samples": len(samples) or 1, "seconds": samples or [one], "first_generation_s": first,
        "agree": agreed, "agree_after_steps": near, "mean": float(fetch(outputs[0]).astype(np.float64).mean()),
    }
    print(f"{name}, {population} × {dims if name == 'rastrigin' else steps}: {1 / median:.3g} generations/s", file=sys.stderr)
    return row
