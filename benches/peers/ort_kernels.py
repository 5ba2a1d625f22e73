#!/usr/bin/env python3
"""The problems of `wgfc bench kernels` in ONNX Runtime, by its WebGPU provider on Vulkan.

    wgfc bench kernels --adapter SwiftShader --work 50 --json > wgfc.json
    wgfc bench kernels --work 50 --models models
    VK_DRIVER_FILES=.../vk_swiftshader_icd.json python3 benches/peers/ort_kernels.py wgfc.json --models models
                                                        (needs: pip install onnxruntime-webgpu onnx numpy)

Takes the list, or what `wgfc bench kernels --json` wrote, and then says how the times compare. Times are of kernels, by the
device's clock, as the provider's profile has them; a problem that the provider leaves to the CPU, in part or whole, has none.
With --check results are compared with those of the provider for the CPU.
"""
import json
import statistics
import tempfile
from collections import Counter
from pathlib import Path

import kernels
import numpy as np
import onnx
import onnxruntime

DTYPES = {
    "f32": np.float32, "f16": np.float16, "f64": np.float64,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8, "bool": np.bool_,
}
# The number of measured runs of each problem, after a warm-up run.
RUNS = 5
# Operator sets in which the listed operators mean the same. The provider has the most kernels for the first;
# the second has more operators.
OPSETS = 21, 23


def operand(o, rng):
    dtype = DTYPES[o["dtype"]]
    if o["below"] is not None:
        return rng.integers(o["below"], size=o["shape"]).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        return rng.standard_normal(o["shape"], np.float32).astype(dtype)
    return rng.integers(2, size=o["shape"]).astype(dtype)


def session(model, provider, folder=None):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if folder:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
    return onnxruntime.InferenceSession(model, options, providers=[provider])


def model_of(problem, models):
    model = onnx.load(models / (problem["key"].replace(" ", "_").replace("/", "_") + ".onnx"))
    known = {n.op_type for n in model.graph.node} <= {s.name for s in onnx.defs.get_all_schemas_with_history() if s.since_version <= OPSETS[0]}
    for opset in model.opset_import:
        if opset.domain == "":
            opset.version = OPSETS[0 if known else 1]
    return model.SerializeToString()


def measure(problem, a):
    model = model_of(problem, a.models)
    rng = np.random.default_rng(1)
    inputs = {o["name"]: operand(o, rng) for o in problem["inputs"]}
    with tempfile.TemporaryDirectory() as folder:
        s = session(model, "WebGpuExecutionProvider", Path(folder))
        try:
            results = [s.run(None, inputs) for _ in range(1 + RUNS)][-1]
        finally:
            profile = s.end_profiling()
        events = json.loads(Path(profile).read_text())
    if a.check:
        for got, want in zip(results, session(model, "CPUExecutionProvider").run(None, inputs)):
            off = np.linalg.norm((got.astype(np.float64) - want).ravel()) / max(np.linalg.norm(want.astype(np.float64).ravel()), 1e-30)
            if got.shape != want.shape or off > 1e-2:
                raise ValueError(f"computes something else: off by {off:.1e}")
    # Kernels in the order of their dispatches, which is equal in all runs.
    times = [e["dur"] * 1e-6 for e in events if e["cat"] == "Api"]
    if not times or len(times) % (1 + RUNS):
        raise ValueError(f"{len(times)} kernels in {1 + RUNS} runs: {dict(Counter(e['name'] for e in events if e['cat'] == 'Api'))}")
    each = len(times) // (1 + RUNS)
    return statistics.median(sum(times[i * each : (i + 1) * each]) for i in range(1, 1 + RUNS))


def prepare(parser):
    parser.add_argument("--models", type=Path, required=True, help="the folder that `wgfc bench kernels --models` wrote")
    parser.add_argument("--check", action="store_true", help="compare with the provider for the CPU")
    return lambda a: ({"onnxruntime": onnxruntime.__version__}, lambda problem: measure(problem, a))


if __name__ == "__main__":
    kernels.main(__doc__, "onnxruntime", prepare)
