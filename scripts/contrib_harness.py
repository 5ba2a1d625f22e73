"""Helpers of scripts/contrib_cases.py for writing cases of one node each, computed by ONNX Runtime's CPU provider."""
import functools
import hashlib
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import onnx_data

MICROSOFT = "com.microsoft"
SOURCE = b"".join(p.read_bytes() for p in [*sorted(Path(__file__).parent.glob("contrib*.py")), Path(onnx_data.__file__)])
VERSION = f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, {hashlib.sha256(SOURCE).hexdigest()}\n"
TOLERANCE = {np.float32: (1e-3, 1e-4), np.float16: (1e-2, 1e-2)}
F16, F32 = np.float16, np.float32
# The smallest element of each type of 8 bits.
LOW = {np.uint8: 0, np.int8: -128}

CASES = []


def generator(name, shape):
    return np.random.default_rng(int.from_bytes(hashlib.sha256(f"{name} {shape}".encode()).digest()[:4], "little"))


def numbers(name, *shape, scale=1.0, dtype=F32):
    """Normally distributed numbers that depend only on name and shape."""
    return (generator(name, shape).standard_normal(shape) * scale).astype(dtype)


def integers(name, low, high, *shape, dtype=np.int64):
    return generator(name, shape).integers(low, high, shape).astype(dtype)


def case(name, op, inputs, outputs=1, dims=None, domain=MICROSOFT, opset=20, like=None, by=None, also=None, **attributes):
    """A case of one node. `inputs` are arrays in order: an array wrapped in a list is a constant, and None is an omitted input.
    `dims` maps positions of inputs to lists of names for their extents. If `like` is given, ONNX Runtime gets these inputs
    instead, which must be equivalent ones in a form that it supports. `op` may be a list of nodes, which read x0, x1, … and write
    y0, y1, …. `by` computes the only output from the inputs if ONNX Runtime's CPU provider lacks the operator. `also` has
    attributes whose names are parameters of this function."""
    outputs = range(outputs) if isinstance(outputs, int) else outputs
    CASES.append((name, functools.partial(reference, op, inputs, outputs, dims or {}, domain, opset, like or by, attributes | (also or {}))))


def build(op, inputs, outputs, dims, domain, opset, attributes):
    names, graph_inputs, constants, feed = [], [], [], {}
    for i, value in enumerate(inputs):
        if value is None:
            names.append("")
            continue
        name = f"x{i}"
        names.append(name)
        if isinstance(value, onnx.TensorProto):
            value.name = name
            constants.append(value)
        elif isinstance(value, list):
            constants.append(numpy_helper.from_array(value[0], name))
        else:
            feed[name] = value
            shape = dims.get(i, value.shape)
            graph_inputs.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape))
    made = [f"y{i}" if i in outputs else "" for i in range(max(outputs) + 1)]
    nodes = op if isinstance(op, list) else [helper.make_node(op, names, made, name=op, domain=domain, **attributes)]
    results = [onnx.ValueInfoProto(name=y) for y in made if y]
    graph = helper.make_graph(nodes, "g", graph_inputs, results, constants)
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feed


def run(model, feed):
    return onnx_data.session(model, optimised=False).run(None, feed)


def widened(inputs, dtype=F32):
    """Converts those of the values that are floats to this type."""
    def one(v):
        if isinstance(v, list):
            return [one(v[0])]
        return v.astype(dtype) if isinstance(v, np.ndarray) and v.dtype in (F16, F32) else v
    return [one(v) for v in inputs]


def declared(model, values):
    """Declares the types of the outputs."""
    for y, v in zip(model.graph.output, values):
        y.CopyFrom(helper.make_tensor_value_info(y.name, helper.np_dtype_to_tensor_dtype(v.dtype), [None] * v.ndim))


def reference(op, inputs, outputs, dims, domain, opset, like, attributes):
    """The model, its inputs and its outputs."""
    model, feed = build(op, inputs, outputs, dims, domain, opset, attributes)
    if callable(like):
        exact = like(*(v.astype(np.float64) for v in feed.values()))
        values = [exact.astype(next(iter(feed.values())).dtype)]
        declared(model, values)
        return model, feed, values
    half = any(isinstance(v, np.ndarray) and v.dtype == F16 for v in feed.values())
    try:
        known, fed = (model, feed) if like is None else build(op, like, outputs, {}, domain, opset, attributes)
        values = run(known, fed)
    except Exception:
        if not half:
            raise
        wide, wide_feed = build(op, widened(inputs), outputs, dims, domain, opset, attributes)
        values = widened(run(wide, wide_feed), F16)
    declared(model, values)
    return model, feed, values


def write(folder):
    shutil.rmtree(folder / "contrib", ignore_errors=True)
    lines = []
    for name, computed in CASES:
        try:
            model, feed, values = computed()
        except Exception as e:
            print(f"{name}: ONNX Runtime: {str(e).splitlines()[0][:200]}")
            continue
        rtol, atol = TOLERANCE[F16 if any(v.dtype == F16 for v in values) else F32]
        used = {onnx_data.operator(n) for n in model.graph.node}
        lines.append(onnx_data.write_case(folder, f"contrib/{name}", model, (feed.values(), values), rtol=rtol, atol=atol, used=used))
    onnx_data.write_index(folder / "contrib.tsv", lines)


def main(folder):
    onnx_data.once(folder / "contrib.version", VERSION, lambda: write(folder))
