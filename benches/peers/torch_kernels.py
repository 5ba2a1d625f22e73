#!/usr/bin/env python3
"""The problems of `wgfc bench kernels` in PyTorch, on CUDA.

    wgfc bench kernels --list --json --seed 7 > problems.json
    python3 benches/peers/torch_kernels.py problems.json --out torch.json      (needs: pip install torch)
    wgfc bench kernels --seed 7 --peer torch.json

Takes the list, or what `wgfc bench kernels --json` wrote, and then says how the times compare. Inputs stay on the device and
are the same in each run; runs are recorded as a CUDA graph, so that the CPU is not measured. TF32 is off.
"""
import statistics
import time

import kernels
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
    """The mean time of ``runs`` runs, in seconds."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(runs):
        start()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / runs


def measure(problem):
    """The median of the samples in seconds, or None if PyTorch has no such operator."""
    found = samples(problem)
    return found and statistics.median(found)


def samples(problem):
    """Times of a run in seconds, or None if PyTorch has no such operator."""
    if problem["torch"] is None:
        return None
    try:
        return measured(problem)
    finally:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def measured(problem):
    tensors = {o["name"]: operand(o) for o in problem["inputs"] + problem["weights"]}
    code = compile(problem["torch"], problem["name"], "eval")
    names = {"torch": torch, "F": F, **tensors}

    def run():
        return eval(code, names)

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    # An idle device lowers its clock, which takes some tenths of a second to rise again.
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
        return [timed(graph.replay, max(1, runs // each)) / each for _ in range(SAMPLES)]
    return [timed(run, runs) for _ in range(SAMPLES)]


def settle():
    """Sets what decides how PyTorch computes."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)


def prepare(_):
    def begin(_):
        settle()
        return {"torch": torch.__version__, "device": torch.cuda.get_device_name()}, measure

    return begin


if __name__ == "__main__":
    with torch.inference_mode():
        kernels.main(__doc__, "torch", prepare)
