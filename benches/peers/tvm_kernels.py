#!/usr/bin/env python3
"""Products and norms of `wgfc bench kernels` by TVM for WebGPU: the WGSL that its default schedules (dlight) make, for web/engines/tvm.mjs to measure.

    wgfc bench kernels --list --json --work 20000 > problems.json
    python3 benches/peers/tvm_kernels.py problems.json kernels.json          (needs: pip install apache-tvm numpy)
    node web/engines/tvm.mjs kernels.json tvm.json && wgfc bench report wgfc.json tvm.json --brief

Inputs are ((7 i) mod 13) / 6 - 1 at element i. The file has some elements of each output, computed by NumPy, with which results are compared.
"""
import json
import re
import sys
from pathlib import Path

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import dlight as dl

TYPES = {"f32": "float32", "f16": "float16"}
COMPARED = 64


def given(shape, dtype):
    n = int(np.prod(shape))
    return (((np.arange(n) * 7) % 13) / 6 - 1).astype(dtype).reshape(shape)


def total(domain, axes, of):
    return te.compute(domain, lambda *i: te.sum(of(*i), axis=axes))


def matmul(x, y):
    (m, k), n = x.shape, y.shape[1]
    r = te.reduce_axis((0, k), "r")
    return total((m, n), r, lambda i, j: x[i, r] * y[r, j])


def linear(x, w, b):
    (m, k), n = x.shape, w.shape[0]
    r = te.reduce_axis((0, k), "r")
    product = total((m, n), r, lambda i, j: x[i, r] * w[j, r])
    return te.compute((m, n), lambda i, j: product[i, j] + b[j])


def batched(x, y):
    (b, m, k), n = x.shape, y.shape[2]
    r = te.reduce_axis((0, k), "r")
    return total((b, m, n), r, lambda h, i, j: x[h, i, r] * y[h, r, j])


def rmsnorm(x, s):
    m, n = x.shape
    r = te.reduce_axis((0, n), "r")
    f32 = lambda v: v.astype("float32")
    square = te.compute((m,), lambda i: te.sum(f32(x[i, r]) * f32(x[i, r]), axis=r))
    return te.compute((m, n), lambda i, j: (f32(x[i, j]) * te.rsqrt(square[i] / n + 1e-5) * f32(s[j])).astype(x.dtype))


def expected(name, inputs, at):
    """Elements of the output, whose indices into its flat form are `at`, in f64."""
    x, *others = (v.astype(np.float64) for v in inputs)
    if name == "rmsnorm":
        n = x.shape[1]
        return [x[i // n, i % n] / np.sqrt((x[i // n] ** 2).mean() + 1e-5) * others[0][i % n] for i in at]
    if name == "batched":
        (_, m, _), n = x.shape, others[0].shape[2]
        return [x[i // (m * n), i // n % m] @ others[0][i // (m * n), :, i % n] for i in at]
    if name == "linear":
        n = others[0].shape[0]
        return [x[i // n] @ others[0][i % n] + others[1][i % n] for i in at]
    n = others[0].shape[1]
    return [x[i // n] @ others[0][:, i % n] for i in at]


FUNCTIONS = {"matmul": matmul, "linear": linear, "batched": batched, "rmsnorm": rmsnorm}


def kernel(problem):
    inputs = problem["inputs"] + problem["weights"]
    shapes = [tuple(i["shape"]) for i in inputs]
    dtype = TYPES[inputs[0]["dtype"]]
    operands = [te.placeholder(s, dtype, i["name"]) for s, i in zip(shapes, inputs)]
    output = FUNCTIONS[problem["name"]](*operands)
    target = tvm.target.Target({"kind": "webgpu"})
    module = tvm.IRModule({"main": te.create_prim_func([*operands, output])})
    rules = [dl.gpu.Matmul(), dl.gpu.GEMV(), dl.gpu.Reduction(), dl.gpu.GeneralReduction(), dl.gpu.Fallback()]
    with target:
        module = dl.ApplyDefaultSchedule(*rules)(module)
    made = tvm.compile(module, target=tvm.target.Target(target, host="llvm"))
    texts = [i.inspect_source() for i in made.mod.imports]
    entries = re.findall(r"@compute[^{]*?\bfn (\w+)", "".join(texts))
    if len(entries) != 1:
        raise ValueError(f"{len(entries)} kernels")
    # Buffers are bound in the order of their names: the number of an input, or what else it is.
    names = [i["name"] for i in inputs]
    bound = re.findall(r"@binding\(\d+\) var<(?:storage, (\w+)|(uniform))> (\w+?)(?:_ptr)? :", texts[0])
    bindings = ["arguments" if uniform else "output" if access == "read_write" else names.index(name) for access, uniform, name in bound]
    # The workgroups of its schedule, by axis.
    grid = {"x": 1, "y": 1, "z": 1}
    for extent, axis in re.findall(r'thread_binding\((\d+), thread="blockIdx\.(\w)"\)', module.script()):
        grid[axis] = max(grid[axis], int(extent))
    arrays = [given(s, dtype) for s in shapes]
    shape = [int(d) for d in output.shape]
    at = np.random.default_rng(1).integers(0, int(np.prod(shape)), COMPARED).tolist()
    return {
        "id": f"kernels/{problem['key']}", "wgsl": texts[0], "entry": entries[0], "grid": [grid[a] for a in "xyz"], "half": dtype == "float16",
        "bindings": bindings, "inputs": [int(np.prod(s)) for s in shapes], "output": int(np.prod(shape)),
        "compared": [[i, float(v)] for i, v in zip(at, expected(problem["name"], arrays, at))],
    }


def main():
    problems, out = map(Path, sys.argv[1:])
    made = []
    for problem in json.loads(problems.read_text())["rows"]:
        if problem["name"] not in FUNCTIONS or problem["family"] not in ("product", "row"):
            continue
        try:
            made.append(kernel(problem))
        except Exception as e:  # any error of a schedule
            made.append({"id": f"kernels/{problem['key']}", "missing": str(e).strip().splitlines()[-1][:200]})
        print(f"{problem['key']}: {made[-1].get('missing', made[-1].get('grid'))}", file=sys.stderr)
    out.write_text(json.dumps({"version": f"TVM {tvm.__version__}", "kernels": made}) + "\n")


if __name__ == "__main__":
    main()
