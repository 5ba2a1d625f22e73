#!/usr/bin/env python3
"""The problems of `wgfc bench kernels` in PyTorch, on CUDA.

    wgfc bench kernels --list --json --seed 7 > problems.json
    python3 benches/peers/torch_kernels.py problems.json --out torch.json      (needs: pip install torch)
    wgfc bench kernels --seed 7 --peer torch.json

Takes the list, or what `wgfc bench kernels --json` wrote, and then says how the times compare. Inputs stay on the device and
are the same in each run; runs are recorded as a CUDA graph, so that the CPU is not measured. TF32 is off.
"""
import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

DTYPES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
}
SAMPLES = 7
SAMPLE_SECONDS = 0.01
WARM_UP_SECONDS = 0.3


def operand(o):
    shape, dtype = o["shape"], DTYPES[o["dtype"]]
    if o["below"] is not None:
        return torch.randint(o["below"], shape, device="cuda").to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, device="cuda").to(dtype)
    return torch.randint(2, shape, device="cuda").to(dtype)


def timed(start, runs):
    """Seconds of one of so many runs."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(runs):
        start()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / runs


def measure(problem):
    tensors = {o["name"]: operand(o) for o in problem["inputs"] + problem["weights"]}
    code = compile(problem["torch"], problem["name"], "eval")
    names = {"torch": torch, "F": F, **tensors}

    def run():
        return eval(code, names)

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    # The clock of an idle device goes down, and takes some tenths of a second to go up again.
    until = time.perf_counter() + WARM_UP_SECONDS
    while time.perf_counter() < until:
        run()
        torch.cuda.synchronize()
    once = max(timed(run, 2), 1e-7)
    runs = min(200, max(1, round(SAMPLE_SECONDS / once)))
    if problem["graph"]:
        each = min(runs, 20)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(each):
                run()
        graph.replay()
        times = [timed(graph.replay, max(1, runs // each)) / each for _ in range(SAMPLES)]
    else:
        times = [timed(run, runs) for _ in range(SAMPLES)]
    return statistics.median(times)


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, help="write the JSON there")
    a = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    rows = []
    with torch.inference_mode():
        for problem in json.loads(a.problems.read_text())["rows"]:
            row = {"key": problem["key"], "ns": None}
            if problem["torch"] is not None:
                try:
                    row["ns"] = 1e9 * measure(problem)
                except Exception as e:  # whatever an operator says of sizes or types
                    row["failed"] = str(e).splitlines()[0]
                    torch.cuda.synchronize()
                torch.cuda.empty_cache()
            ours = problem.get("time_ns")
            if row["ns"] and ours:
                row["ratio"] = row["ns"] / ours["median"]
            ratio = f"  torch / wgfc {row['ratio']:.2f}" if "ratio" in row else ""
            took = f"{row['ns'] / 1e3:.1f} µs" if row["ns"] else row.get("failed", "-")
            print(f"{problem['key']}: {took}{ratio}", file=sys.stderr)
            rows.append(row)
    ratios = {}
    for r in rows:
        if "ratio" in r:
            ratios.setdefault(r["key"].split("/")[0], []).append(r["ratio"])
    for family, each in ratios.items():
        print(f"{family}: torch / wgfc {geometric_mean(each):.2f}, least {min(each):.2f}", file=sys.stderr)
    if ratios:
        each = [r for all_of in ratios.values() for r in all_of]
        print(f"all: torch / wgfc {geometric_mean(each):.2f}, least {min(each):.2f}", file=sys.stderr)
    text = json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}, indent=1)
    if a.out:
        a.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
