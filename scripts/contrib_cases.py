#!/usr/bin/env python3
"""Write test cases of the operators that exporters of language models emit, in ONNX's own layout.

    python3 scripts/contrib_cases.py [FOLDER]      (needs: pip install onnx==1.23.2 onnxruntime numpy)

FOLDER (target/conformance by default) gets, for each case,

    contrib/NAME/model.onnx
    contrib/NAME/test_data_set_0/input_I.pb, output_I.pb

and `contrib.tsv`, a list of them: name, rtol, atol, operators. ONNX Runtime's CPU provider computes
the outputs; a case that it refuses is left out, with a message. Cases of f16 that it refuses are
computed in f32 from the same values. A folder made by the same version is left alone.
"""
import hashlib
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
SOURCE = Path(__file__).read_bytes()
VERSION = f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, {hashlib.sha256(SOURCE).hexdigest()}\n"
TOLERANCE = {np.float32: (1e-3, 1e-4), np.float16: (1e-2, 1e-2)}
F16, F32 = np.float16, np.float32

CASES = []


def numbers(name, *shape, scale=1.0, dtype=F32):
    """Normally distributed, the same for the same name and shape."""
    seed = int.from_bytes(hashlib.sha256(f"{name} {shape}".encode()).digest()[:4], "little")
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def integers(name, low, high, *shape, dtype=np.int64):
    seed = int.from_bytes(hashlib.sha256(f"{name} {shape}".encode()).digest()[:4], "little")
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def case(name, op, inputs, outputs=1, dims=None, domain=MICROSOFT, opset=20, tolerance=None, **attributes):
    """One node. `inputs` are arrays, in order: one wrapped in a list is a constant, None is left out.
    `dims` gives names to extents of inputs: position to a list."""
    CASES.append((name, op, inputs, outputs, dims or {}, domain, opset, tolerance, attributes))


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
    node = helper.make_node(op, names, made, name=op, domain=domain, **attributes)
    declared = [onnx.ValueInfoProto(name=y) for y in made if y]
    graph = helper.make_graph([node], "g", graph_inputs, declared, constants)
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feed


def session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def widened(inputs):
    """The same values in f32."""
    def one(v):
        if isinstance(v, list):
            return [one(v[0])]
        return v.astype(F32) if isinstance(v, np.ndarray) and v.dtype == F16 else v
    return [one(v) for v in inputs]


def reference(op, inputs, outputs, dims, domain, opset, attributes):
    """The model, what it is fed, and its outputs."""
    model, feed = build(op, inputs, outputs, dims, domain, opset, attributes)
    half = any(isinstance(v, np.ndarray) and v.dtype == F16 for v in feed.values())
    try:
        run = session(model)
        values = run.run(None, feed)
    except Exception:
        if not half:
            raise
        wide, wide_feed = build(op, widened(inputs), outputs, dims, domain, opset, attributes)
        values = session(wide).run(None, wide_feed)
        values = [v.astype(F16) if v.dtype == F32 else v for v in values]
    for y, v in zip(model.graph.output, values):
        y.CopyFrom(helper.make_tensor_value_info(y.name, helper.np_dtype_to_tensor_dtype(v.dtype), [None] * v.ndim))
    return model, feed, values


def main(folder):
    stamp = folder / "contrib.version"
    if stamp.exists() and stamp.read_text() == VERSION:
        return
    lines, refused = [], 0
    for name, op, inputs, outputs, dims, domain, opset, tolerance, attributes in CASES:
        outputs = range(outputs) if isinstance(outputs, int) else outputs
        try:
            model, feed, values = reference(op, inputs, outputs, dims, domain, opset, attributes)
        except Exception as e:
            refused += 1
            print(f"{name}: ONNX Runtime: {str(e).splitlines()[0][:200]}")
            continue
        data = folder / "contrib" / name / "test_data_set_0"
        data.mkdir(parents=True, exist_ok=True)
        (data.parent / "model.onnx").write_bytes(model.SerializeToString())
        for kind, arrays in [("input", feed.values()), ("output", values)]:
            for i, array in enumerate(arrays):
                (data / f"{kind}_{i}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
        rtol, atol = tolerance or TOLERANCE[F16 if any(v.dtype == F16 for v in values) else F32]
        lines.append(f"contrib/{name}\t{rtol}\t{atol}\t{domain + '.' if domain else ''}{op}\n")
    (folder / "contrib.tsv").write_text("".join(sorted(lines)))
    stamp.write_text(VERSION)
    print(f"{len(lines)} cases in {folder / 'contrib.tsv'}, {refused} refused")


def matmul_nbits():
    def make(name, m, n, k, bits, block, zero=None, dtype=F32, bias=False, groups=False, constant=True, lead=(), **attributes):
        blocks = -(-k // block)
        wrap = (lambda v: [v]) if constant else (lambda v: v)
        row = -(-blocks * bits // 8)
        points = {
            None: None,
            "packed": lambda: integers(name + "z", 0, 256, n, row, dtype=np.uint8),
            "float": lambda: numbers(name + "z", n, blocks, scale=2, dtype=dtype) + dtype(2 ** (bits - 1)),
        }[zero]
        inputs = [
            numbers(name + "x", *lead, m, k, dtype=dtype),
            wrap(integers(name + "w", 0, 256, n, blocks, block * bits // 8, dtype=np.uint8)),
            wrap(np.abs(numbers(name + "s", n, blocks, scale=2.0**-bits / 4, dtype=dtype)) + dtype(2.0**-bits / 16)),
            wrap(points()) if points else None,
            [integers(name + "g", 0, blocks, k, dtype=np.int32)] if groups else None,
            [numbers(name + "b", n, dtype=dtype)] if bias else None,
        ]
        while inputs[-1] is None:
            inputs.pop()
        dims = {0: [*["batch"][: len(lead)], "seq", k]}
        case("matmul_nbits_" + name, "MatMulNBits", inputs, dims=dims, bits=bits, block_size=block, K=k, N=n, **attributes)

    for bits in [2, 4, 8]:
        for dtype, t in [(F32, ""), (F16, "_f16")]:
            make(f"{bits}bit{t}", 5, 37, 192, bits, 32, dtype=dtype)
            make(f"{bits}bit_row{t}", 1, 129, 256, bits, 64, dtype=dtype)
            make(f"{bits}bit_zero{t}", 3, 41, 160, bits, 32, "packed", dtype=dtype)
            make(f"{bits}bit_zero_float{t}", 3, 41, 160, bits, 32, "float", dtype=dtype)
        make(f"{bits}bit_ragged", 3, 131, 150, bits, 16, "packed")
        make(f"{bits}bit_odd_blocks", 7, 67, 17 * 16 + 5, bits, 16)
        make(f"{bits}bit_small", 2, 3, 19, bits, 16, "packed")
        make(f"{bits}bit_computed", 3, 9, 100, bits, 32, "packed", constant=False)
    make("bias", 5, 61, 160, 4, 32, bias=True)
    make("bias_zero_f16", 2, 61, 160, 4, 32, "packed", dtype=F16, bias=True)
    make("groups", 5, 61, 160, 4, 32, groups=True)  # ONNX Runtime drops zero points with groups
    make("batch", 5, 61, 160, 4, 32, lead=(3,))
    make("wide_block", 2, 67, 512, 4, 256, "packed")
    make("block_beyond", 2, 67, 100, 4, 128)


def gather_block_quantized():
    def make(name, rows, width, bits, block, zero, dtype=F32, indices=(2, 3), offset=0):
        blocks = -(-width // block)
        shape = list(indices)
        inputs = [
            [integers(name + "w", 0, 256, rows, width * bits // 8, dtype=np.uint8)],
            integers(name + "i", -rows if offset else 0, rows, *shape),
            [numbers(name + "s", rows, blocks, scale=0.1, dtype=dtype)],
        ]
        if zero:
            inputs.append([integers(name + "z", 0, 256, rows, -(-blocks * bits // 8), dtype=np.uint8)])
        case("gather_block_quantized_" + name, "GatherBlockQuantized", inputs, dims={1: ["batch", "seq"]} if len(shape) == 2 else None,
             bits=bits, block_size=block, quantize_axis=1, gather_axis=0)

    def typed(name, dtype, code, zero, quantize, gather, block=16):
        shape = (5, 39, 17) if quantize == 1 else (37, 3, 50)
        low, high = (-8, 8) if code == TensorProto.INT4 else (0, 16)
        per_block = list(shape)
        per_block[quantize] = -(-shape[quantize] // block)
        def tensor(tag, s):
            return helper.make_tensor("t", code, s, integers(name + tag, low, high, *s).flatten().tolist())
        inputs = [tensor("w", shape), integers(name + "i", 0, shape[gather], 4), [numbers(name + "s", *per_block, dtype=dtype)]]
        if zero:
            inputs.append(tensor("z", per_block))
        case("gather_block_quantized_" + name, "GatherBlockQuantized", inputs, dims={1: ["n"]},
             block_size=block, quantize_axis=quantize, gather_axis=gather)

    for bits in [4, 8]:
        make(f"{bits}bit", 61, 128, bits, 32, False)
        make(f"{bits}bit_zero", 61, 160, bits, 32, True, offset=1)
        make(f"{bits}bit_f16", 61, 160, bits, 32, True, dtype=F16)
    make("2bit", 61, 128, 2, 32, False)
    make("ragged", 61, 70, 4, 16, True)
    make("vector", 61, 64, 4, 16, False, indices=(7,))
    typed("int4", F32, TensorProto.INT4, False, 2, 0)
    typed("uint4_zero", F32, TensorProto.UINT4, True, 1, 0)
    typed("int4_zero_other_axis", F32, TensorProto.INT4, True, 0, 1)
    typed("uint4_f16", F16, TensorProto.UINT4, False, 1, 2)


if __name__ == "__main__":
    matmul_nbits()
    gather_block_quantized()
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "target/conformance"))
