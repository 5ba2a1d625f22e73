#!/usr/bin/env python3
"""Write test cases of the operators that exporters of language models emit, and of forms of others that ONNX's
own cases leave out, in ONNX's own layout.

    python3 scripts/contrib_cases.py [FOLDER]      (needs: pip install onnx==1.23.2 onnxruntime numpy)

FOLDER (target/conformance by default) gets, for each case,

    contrib/NAME/model.onnx
    contrib/NAME/test_data_set_0/input_I.pb, output_I.pb

and `contrib.tsv`, a list of them: name, rtol, atol, operators. ONNX Runtime's CPU provider computes
the outputs; a case that it refuses is left out, with a message. Cases of f16 that it refuses are
computed in f32 from the same values. A folder made by the same version is left alone.
"""
import hashlib
import shutil
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


def case(name, op, inputs, outputs=1, dims=None, domain=MICROSOFT, opset=20, like=None, also=None, **attributes):
    """One node. `inputs` are arrays, in order: one wrapped in a list is a constant, None is left out.
    `dims` gives names to extents of inputs: position to a list. ONNX Runtime computes with the inputs
    `like`, where they are given: the same in a form that it knows. `op` may be a list of nodes, which
    read x0, x1, … and write y0, y1, …. `also` are attributes whose names are taken here."""
    outputs = range(outputs) if isinstance(outputs, int) else outputs
    CASES.append((name, op, inputs, outputs, dims or {}, domain, opset, like, attributes | (also or {})))


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
    declared = [onnx.ValueInfoProto(name=y) for y in made if y]
    graph = helper.make_graph(nodes, "g", graph_inputs, declared, constants)
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feed


def session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def widened(inputs, dtype=F32):
    """The same values, floats in this type."""
    def one(v):
        if isinstance(v, list):
            return [one(v[0])]
        return v.astype(dtype) if isinstance(v, np.ndarray) and v.dtype in (F16, F32) else v
    return [one(v) for v in inputs]


def reference(op, inputs, outputs, dims, domain, opset, like, attributes):
    """The model, what it is fed, and its outputs."""
    model, feed = build(op, inputs, outputs, dims, domain, opset, attributes)
    half = any(isinstance(v, np.ndarray) and v.dtype == F16 for v in feed.values())
    try:
        known, fed = (model, feed) if like is None else build(op, like, outputs, {}, domain, opset, attributes)
        values = session(known).run(None, fed)
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
    shutil.rmtree(folder / "contrib", ignore_errors=True)
    lines, refused = [], 0
    for name, op, inputs, outputs, dims, domain, opset, like, attributes in CASES:
        try:
            model, feed, values = reference(op, inputs, outputs, dims, domain, opset, like, attributes)
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
        rtol, atol = TOLERANCE[F16 if any(v.dtype == F16 for v in values) else F32]
        used = {f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in model.graph.node}
        lines.append(f"contrib/{name}\t{rtol}\t{atol}\t{','.join(sorted(used))}\n")
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


def norms():
    for dtype, t in [(F32, ""), (F16, "_f16")]:
        def x(name, *shape):
            return numbers(name, *shape, dtype=dtype)
        for op, tag, extra in [("SkipLayerNormalization", "skip_layer_norm", 1), ("SkipSimplifiedLayerNormalization", "skip_simplified_layer_norm", 0)]:
            base = [x("a", 3, 7, 37), x("b", 3, 7, 37), x("g", 37)]
            beta = [x("beta", 37)] * extra
            dims = {0: ["batch", "seq", 37], 1: ["batch", "seq", 37]}
            case(f"{tag}{t}", op, base + beta, dims=dims, epsilon=1e-5)
            case(f"{tag}_sum{t}", op, base + beta, [0, 3], dims, epsilon=1e-5)
            case(f"{tag}_bias{t}", op, base + beta + [x("bias", 37)], [0, 3], dims, epsilon=1e-6)
            case(f"{tag}_rows{t}", op, [x("a", 5, 37), x("b", 5, 37), x("g", 37)], dims={0: ["n", 37], 1: ["n", 37]})
        case(f"skip_layer_norm_broadcast{t}", "SkipLayerNormalization", [x("a", 3, 7, 37), x("b", 7, 37), x("g", 37)], [0, 3])
        case(f"skip_layer_norm_no_beta{t}", "SkipLayerNormalization", [x("a", 3, 7, 37), x("b", 1, 7, 37), x("g", 37), None, x("bias", 37)])
        case(f"simplified_layer_norm{t}", "SimplifiedLayerNormalization", [x("a", 3, 7, 37), x("g", 37)], domain="", epsilon=1e-5)
        case(f"simplified_layer_norm_axis{t}", "SimplifiedLayerNormalization", [x("a", 3, 5, 11), x("g", 5, 11)], domain="", axis=1)
        case(f"bias_gelu{t}", "BiasGelu", [x("a", 3, 5, 11), x("g", 11)])
        case(f"fast_gelu{t}", "FastGelu", [x("a", 3, 5, 11)])
        case(f"fast_gelu_bias{t}", "FastGelu", [x("a", 3, 5, 11), x("g", 11)])
        case(f"gelu{t}", "Gelu", [x("a", 3, 5, 11)])
        case(f"quick_gelu{t}", "QuickGelu", [x("a", 3, 5, 11)])
        case(f"quick_gelu_alpha{t}", "QuickGelu", [x("a", 3, 5, 11)], alpha=1.0)
    a, b = numbers("a", 3, 5, 11, 7), numbers("b", 3, 5, 7, 13)
    swap = (0, 1, 3, 2)
    case("fused_matmul", "FusedMatMul", [a, b], alpha=0.25)
    case("fused_matmul_trans", "FusedMatMul", [a.transpose(swap).copy(), b.transpose(swap).copy()], transA=1, transB=1)
    roll = (2, 0, 1, 3)
    case("fused_matmul_trans_batch", "FusedMatMul", [a.transpose(roll).copy(), b.transpose(roll).copy()], transBatchA=1, transBatchB=1, alpha=2.0)
    both = (3, 0, 1, 2)
    case("fused_matmul_trans_both", "FusedMatMul", [a.transpose(both).copy(), b], transBatchA=1, transA=1)


def angles(positions, half, dtype):
    a = np.arange(positions)[:, None] * (0.3 ** (np.arange(half) / half))[None, :]
    return [np.cos(a).astype(dtype), np.sin(a).astype(dtype)]


def rotary():
    for dtype, t in [(F32, ""), (F16, "_f16")]:
        for interleaved, u in [(0, ""), (1, "_interleaved")]:
            def make(name, x, at, heads=0, rotated=0, width=12, dims=None):
                tables = [[v] for v in angles(23, (rotated or width) // 2, dtype)]
                case(f"rotary_embedding_{name}{u}{t}", "RotaryEmbedding", [x, at, *tables], dims=dims, interleaved=interleaved,
                     num_heads=heads, rotary_embedding_dim=rotated)
            flat, apart = numbers("x", 3, 5, 36, dtype=dtype), numbers("x", 3, 7, 5, 12, dtype=dtype)
            at = integers("at", 0, 23, 3, 5)
            make("each", flat, at, dims={0: ["batch", "seq", 36], 1: ["batch", "seq"]})
            make("first", flat, np.array([4]), dims={0: ["batch", "seq", 36]})
            make("heads", apart, at)
            make("partial", flat, at, heads=3, rotated=8)
            make("partial_heads", apart, at, heads=7, rotated=8)


def multi_head():
    n, h, b, s, l, p = 3, 8, 2, 5, 7, 4

    def make(name, query, key, value, rest=(), outputs=1, dtype=F32, **attributes):
        def wide(v):
            return v.astype(dtype) if v is not None and v.dtype == F32 else v
        case("multi_head_attention_" + name, "MultiHeadAttention", [wide(v) for v in [query, key, value, *rest]], outputs,
             num_heads=n, **attributes)

    q, k, v = (numbers(t, b, m, n * h) for t, m in [("q", s), ("k", l), ("v", l)])
    wide_v = numbers("v", b, l, n * 10)
    past = [numbers(t, b, n, p, h) for t in ["pk", "pv"]]
    bias = numbers("bias", 3 * n * h)
    scores = numbers("scores", b, n, s, l)
    key_mask = (np.arange(l)[None, :] < np.array([[l], [4]])).astype(np.int32)
    full_mask = integers("m", 0, 4, b, s, l, dtype=np.int32).clip(0, 1)
    new = [numbers(t, b, s, n * h) for t in ["q", "k", "v"]]
    make("plain", q, k, v)
    make("f16", q, k, v, dtype=F16)
    make("scale", q, k, wide_v, scale=0.2)
    make("bias", q, k, v, [bias])
    qkv, kv = numbers("qkv", b, s, n, 3, h), numbers("kv", b, l, n, 2, h)
    make("packed", qkv, None, None, like=[qkv[:, :, :, i].reshape(b, s, n * h) for i in range(3)])
    make("packed_keys", q, kv, None, like=[q, *(kv[:, :, :, i].reshape(b, l, n * h) for i in range(2))])
    make("split_keys", q, numbers("k4", b, n, l, h), numbers("v4", b, n, l, h))
    make("mask_keys", q, k, v, [None, key_mask])
    make("mask_lengths", q, k, v, [None, np.array([l, 4], np.int32)])
    make("mask_full", q, k, v, [None, full_mask])
    make("scores", q, k, v, [None, None, scores])
    make("scores_broadcast", q, k, v, [None, None, scores[:1, :1]])
    make("mask_filter", q, k, v, [None, key_mask], mask_filter_value=-3.0)
    make("causal", *new, unidirectional=1)
    make("past", *new, [None, None, None, *past], 3)
    make("past_causal_bias", *new, [bias, None, None, *past], 3, unidirectional=1)
    make("past_f16", *new, [None, None, None, *past], 3, dtype=F16, unidirectional=1)
    make("past_mask", *new, [None, (np.arange(p + s)[None, :] >= np.array([[0], [2]])).astype(np.int32), None, *past], 3)


def group_query():
    n, m, h = 6, 2, 16

    def make(name, b, s, past, total, lengths=None, packed=False, dtype=F32, rotary=False, extra=(), constant_total=False, outputs=3,
             dims=None, tables=24, half=None, h=h, **attributes):
        """`past` is the length of the buffers; None leaves them out. What they hold beyond the past is 0,
        as ONNX Runtime makes it where it cannot write to the buffer given."""
        q, k, v = (numbers(name + t, b, s, w * h, dtype=dtype) for t, w in [("q", n), ("k", m), ("v", m)])
        query = [np.concatenate([q, k, v], 2), None, None] if packed else [q, k, v]
        cache = [None, None] if past is None else [numbers(name + t, b, m, past, h, dtype=dtype) for t in ["pk", "pv"]]
        lengths = np.array(lengths or [total] * b, np.int32) - 1
        for kept in cache:
            for i in range(0 if kept is None else b):
                kept[i, :, max(lengths[i] + 1 - s, 0):] = 0
        total = np.array(total, np.int32)
        inputs = [*query, *cache, lengths, [total] if constant_total else total]
        inputs += [[t] for t in angles(tables, half or h // 2, dtype)] if rotary else ([None, None] if extra else [])
        inputs += extra
        case("group_query_attention_" + name, "GroupQueryAttention", inputs, outputs, dims, num_heads=n, kv_num_heads=m,
             do_rotary=int(rotary), **attributes)

    grows = {3: [1, m, "past", h], 4: [1, m, "past", h], 0: [1, "seq", n * h], 1: [1, "seq", m * h], 2: [1, "seq", m * h]}
    ragged = {3: ["batch", m, "past", h], 4: ["batch", m, "past", h]}
    for dtype, t in [(F32, ""), (F16, "_f16")]:
        make("prompt" + t, 2, 7, None, 7, dtype=dtype)
        make("prompt_rotary" + t, 2, 7, None, 7, rotary=True, dtype=dtype)
        make("prompt_packed" + t, 2, 7, None, 7, packed=True, rotary=True, rotary_interleaved=1, dtype=dtype)
        make("grows" + t, 1, 1, 5, 6, rotary=True, dims=grows, dtype=dtype)
        make("grows_packed" + t, 1, 1, 5, 6, packed=True, rotary=True, dims={3: grows[3], 4: grows[4]}, dtype=dtype)
        make("ragged" + t, 3, 1, 9, 10, [10, 4, 7], rotary=True, dims=ragged, dtype=dtype)
    make("ragged_prompt", 3, 5, 0, 5, [5, 5, 5], rotary=True, dims=ragged)
    make("grows_chunk", 1, 3, 5, 8, rotary=True, dims=grows)
    make("appended", 1, 1, 5, 6, rotary=True, constant_total=True)
    make("appended_batch", 3, 1, 5, 6, rotary=True, constant_total=True)
    make("fixed", 1, 1, 12, 6, rotary=True)
    make("fixed_batch", 3, 1, 12, 6, [6, 2, 4], rotary=True)
    make("fixed_chunk", 1, 4, 12, 9, rotary=True)
    make("fixed_prompt", 2, 4, 12, 4, rotary=True)
    make("scale", 1, 1, 5, 6, dims=grows, scale=0.4)
    make("softcap", 1, 3, 5, 8, rotary=True, dims=grows, softcap=2.0)
    make("window", 1, 9, None, 9, rotary=True, local_window_size=3)
    make("window_grows", 1, 1, 9, 10, rotary=True, dims=grows, local_window_size=4)
    make("window_fixed", 3, 1, 9, 8, [8, 3, 7], rotary=True, local_window_size=4)
    make("positions", 1, 3, 5, 8, rotary=True, dims=grows, extra=[np.array([[5, 6, 7]])])
    make("bias", 2, 5, None, 5, extra=[None, numbers("bias", 1, n, 5, 5)])
    make("bias_grows", 1, 1, 5, 6, dims=grows, extra=[None, numbers("bias", 1, 1, 1, 6)])
    make("sink", 2, 5, None, 5, extra=[None, None, numbers("sink", n)])
    make("smooth", 2, 5, None, 5, smooth_softmax=1)
    make("partial_rotary", 1, 3, 5, 8, rotary=True, half=8, h=32, constant_total=True)
    make("not_causal", 2, 5, None, 5, causal=0)


def decoder():
    """Two layers of a decoder as exporters write it: four-bit weights, a cache, lengths from a mask."""
    n, m, h, ffn, vocabulary = 4, 2, 16, 96, 61
    hidden = n * h

    def make(name, b, past, seq, lengths=None, dtype=F32, batch=1):
        nodes, inputs = [], []

        def put(value, constant=True):
            inputs.append([value] if constant else value)
            return f"x{len(inputs) - 1}"

        def node(op, values, made=1, domain=MICROSOFT, outputs=None, **attributes):
            outputs = outputs or [f"n{len(nodes)}_{i}" for i in range(made)]
            nodes.append(helper.make_node(op, values, outputs, name=f"{op}_{len(nodes)}", domain=domain, **attributes))
            return outputs[0] if made == 1 else outputs

        def product(x, rows, columns):
            tag = f"{name}{len(nodes)}"
            weight = integers(tag + "w", 0, 256, rows, columns // 32, 16, dtype=np.uint8)
            scales = np.abs(numbers(tag + "s", rows, columns // 32, scale=0.02, dtype=dtype)) + dtype(0.01)
            return node("MatMulNBits", [x, put(weight), put(scales)], bits=4, block_size=32, K=columns, N=rows)

        def gain():
            return put(numbers(f"{name}{len(nodes)}g", hidden, scale=0.1, dtype=dtype) + dtype(1))

        total = past + seq
        lengths = lengths or [total] * b
        ids = put(integers(name + "ids", 0, vocabulary, b, seq), False)
        mask = put((np.arange(total)[None, :] < np.array(lengths)[:, None]).astype(np.int64), False)
        caches = [[put(numbers(f"{name}{l}{t}", b, m, past, h, dtype=dtype), False) for t in "kv"] for l in range(2)]
        dims = {i: [batch, m, "past", h] for i in range(2, 6)} | {0: [batch, "seq"], 1: [batch, "total"]}
        count = node("ReduceSum", [mask, put(np.array([1]))], domain="", keepdims=0)
        last = node("Cast", [node("Sub", [count, put(np.array(1))], domain="")], domain="", to=TensorProto.INT32)
        extent = node("Gather", [node("Shape", [mask], domain=""), put(np.array(1))], domain="", axis=0)
        extent = node("Cast", [extent], domain="", to=TensorProto.INT32)
        tables = [put(t) for t in angles(40, h // 2, dtype)]
        x = node("Gather", [put(numbers(name + "table", vocabulary, hidden, dtype=dtype)), ids], domain="", axis=0)
        y = node("SimplifiedLayerNormalization", [x, gain()], domain="", epsilon=1e-5)
        for layer, cache in enumerate(caches):
            qkv = product(y, (n + 2 * m) * h, hidden)
            made = [f"attention{layer}", f"y{1 + 2 * layer}", f"y{2 + 2 * layer}"]
            node("GroupQueryAttention", [qkv, "", "", *cache, last, extent, *tables], 3, outputs=made, num_heads=n, kv_num_heads=m,
                 do_rotary=1)
            z = product(made[0], hidden, n * h)
            y, _, _, x = skip(node, [x, z, gain()])
            gate, up = product(y, ffn, hidden), product(y, ffn, hidden)
            gate = node("Mul", [gate, node("Sigmoid", [gate], domain="")], domain="")
            z = product(node("Mul", [gate, up], domain=""), hidden, ffn)
            y, _, _, x = skip(node, [x, z, gain()])
        head = put(numbers(name + "head", hidden, vocabulary, scale=0.125, dtype=dtype))
        node("MatMul", [y, head], domain="", outputs=["y0"])
        case("decoder_" + name, nodes, inputs, 5, dims)

    def skip(node, values):
        made = [f"{values[1]}_normal", "", "", f"{values[1]}_sum"]
        return node("SkipSimplifiedLayerNormalization", values, 4, outputs=made, epsilon=1e-5)

    make("step", 1, 5, 1)
    make("prompt", 1, 0, 7)
    make("chunk", 1, 9, 3)
    make("step_f16", 1, 5, 1, dtype=F16)
    make("batch", 3, 9, 1, [10, 4, 7], batch="batch")


def arrays():
    """Operators of ONNX in shapes, types and forms that its own cases leave out."""
    x, floats = numbers, [(F32, ""), (F16, "_f16")]

    def make(name, op, inputs, **rest):
        case(name, op, inputs, domain="", **rest)

    for i, (equation, *shapes) in enumerate([
        ("...ij,...jk", (2, 5, 3, 4), (2, 5, 4, 7)), ("i...,...i->...", (3, 5, 2), (5, 2, 3)), ("bij,bjk,bkl->bil", (2, 3, 4), (2, 4, 5), (2, 5, 3)),
        ("ij,kl->ikjl", (3, 2), (5, 4)), ("iji->j", (3, 5, 3)), ("ij,j,i->", (7, 5), (5,), (7,)), ("bca", (2, 3, 4)),
        ("bqhd,bkhd->bhqk", (2, 5, 3, 4), (2, 7, 3, 4)), ("ii,ij->ij", (3, 3), (3, 4)), ("ab,cd,bc->da", (3, 4), (5, 2), (4, 5)),
    ]):
        make(f"einsum_{i}", "Einsum", [x(f"einsum{i}{j}", *s) for j, s in enumerate(shapes)], equation=equation)
    make("einsum_dims", "Einsum", [x("a", 3, 5, 7), x("b", 3, 7, 4)], dims={0: ["b", "m", "k"], 1: ["b", "k", 4]}, equation="bmk,bkn->bnm")
    for n in [1, 2, 3, 4, 5, 9]:
        make(f"det_{n}", "Det", [x("det", 2, 3, n, n)])
    make("det_singular", "Det", [np.stack([np.outer(np.arange(1, 5), np.arange(4)), np.zeros((4, 4)), np.eye(4)[::-1]]).astype(F32)])
    make("lp_pool_3", "LpPool", [x("a", 2, 3, 11, 7)], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], p=3, opset=18)
    make("lp_pool_1", "LpPool", [x("a", 2, 3, 13)], kernel_shape=[4], strides=[3], p=1, dims={0: ["n", 3, "l"]}, opset=18)
    make("global_lp_pool", "GlobalLpPool", [x("a", 2, 3, 5, 7)], p=3)
    for p in [1, 2]:
        make(f"lp_normalization_{p}", "LpNormalization", [x("a", 3, 5, 4)], p=p, axis=1)
    for dtype, t in floats:
        scale, bias = x("s", 6, dtype=dtype), x("b", 6, dtype=dtype)
        make(f"instance_norm{t}", "InstanceNormalization", [x("a", 2, 6, 5, 3, dtype=dtype), scale, bias], dims={0: ["n", 6, "h", "w"]})
        make(f"group_norm{t}", "GroupNormalization", [x("a", 2, 6, 5, 3, dtype=dtype), scale, bias], num_groups=3, opset=21)
        make(f"group_norm_of_groups{t}", "GroupNormalization", [x("a", 2, 6, 5, dtype=dtype), scale[:2], bias[:2]], num_groups=2, opset=18)
        make(f"mean_variance{t}", "MeanVarianceNormalization", [x("a", 2, 6, 5, 3, dtype=dtype)], axes=[1, 3])
        make(f"shrink{t}", "Shrink", [x("a", 3, 37, dtype=dtype)], lambd=0.4, bias=0.2)
        make(f"is_inf_negative{t}", "IsInf", [np.array([1, np.inf, -np.inf, np.nan, 0], dtype)], detect_positive=0)
        make(f"reverse_sequence{t}", "ReverseSequence", [x("a", 4, 3, 5, dtype=dtype), np.array([1, 4, 0])], dims={0: ["t", 3, 5]})
        scores, target = x("a", 3, 5, 2, 7, dtype=dtype), integers("t", 0, 5, 3, 2, 7)
        make(f"cross_entropy{t}", "SoftmaxCrossEntropyLoss", [scores, target, np.abs(x("w", 5, dtype=dtype))], outputs=2, ignore_index=2,
             dims={0: ["n", 5, "h", 7], 1: ["n", "h", 7]})
        for op in ["L1", "L2", "LogSumExp", "SumSquare"]:
            make(f"reduce_{op.lower()}{t}", f"Reduce{op}", [x("a", 5, 3, 41, dtype=dtype), [np.array([0, -1])]], keepdims=0)
    make("shrink_int", "Shrink", [integers("a", -9, 9, 3, 7, dtype=np.int32)], lambd=2.5, bias=1.5)
    make("reduce_l2_int", "ReduceL2", [integers("a", -9, 9, 3, 7, dtype=np.int32), [np.array([1])]])
    make("reduce_l1_int", "ReduceL1", [integers("a", -9, 9, 3, 7, dtype=np.int32), [np.array([0])]])
    make("reduce_log_sum_exp_large", "ReduceLogSumExp", [np.array([[1e4, 9.9e3, -1e4], [-np.inf, -np.inf, -np.inf], [np.inf, 0, 1]], F32), [np.array([1])]])
    make("hardmax_11", "Hardmax", [x("a", 2, 3, 5)], axis=1, opset=11)
    for axis in [0, 1, -2]:
        make(f"one_hot_{axis}", "OneHot", [integers("i", -9, 9, 3, 5), [np.array(7)], np.array([-2.5, 4], F32)], axis=axis)
    make("one_hot_of_floats", "OneHot", [np.array([1, 2, -1, 8], F32), [np.array([5], F32)], np.array([0, 1], F32)])
    make("eye_like", "EyeLike", [x("a", 5, 7)], k=-2, dtype=TensorProto.INT32, dims={0: ["r", "c"]})
    make("bit_shift_u64", "BitShift", [integers("a", 0, 2**63, 5, 3, dtype=np.uint64), integers("b", 0, 64, 3, dtype=np.uint64)], direction="RIGHT")
    for op in ["HannWindow", "HammingWindow", "BlackmanWindow"]:
        make(op.lower(), op, [[np.array(37)]], periodic=0)
    make("mel_weights", "MelWeightMatrix", [[np.array(20)], [np.array(256)], np.array(16000), np.array(20, F32), np.array(7600, F32)])
    image, named = x("image", 2, 3, 7, 9), {0: ["n", 3, "h", "w"]}
    sizes, nothing = np.array([2, 3, 5, 13]), [np.array([], F32)]
    for name, size, more in [
        ("cubic_exclude", sizes, dict(mode="cubic", exclude_outside=1)),
        ("symmetric", sizes, dict(mode="linear", coordinate_transformation_mode="half_pixel_symmetric")), ("cubic", sizes, dict(mode="cubic")),
        ("single", np.array([2, 3, 1, 4]), dict(mode="linear", coordinate_transformation_mode="pytorch_half_pixel")),
        ("corners", np.array([2, 3, 1, 4]), dict(mode="linear", coordinate_transformation_mode="align_corners")),
    ]:
        make(f"resize_dims_{name}", "Resize", [image, None, None, [size]], dims=named, **more)
    for mode in ["linear", "nearest"]:
        roi = [np.array([0, 0, 0.2, -0.1, 1, 1, 0.9, 1.2], F32)]
        make(f"resize_dims_crop_{mode}", "Resize", [image, roi, None, [sizes]], dims=named, mode=mode, coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.5)
    scales = [np.array([1, 1, 0.75, 1.5], F32)]
    make("resize_dims_scales", "Resize", [image, None, scales], dims=named, mode="linear", coordinate_transformation_mode="half_pixel_symmetric")
    regions = np.array([[0.5, 1.2, 5.9, 7.3], [1, 0, 2.2, 8], [2.6, 3.1, 8.7, 3.6]], F32)
    whole = np.array([[1, 0, 1, 6, 8], [0, 3, 2, 9, 4], [1, 5, 5, 5, 5], [0, 7, 8, 20, 20]], F32)
    make("max_roi_pool", "MaxRoiPool", [x("roi", 2, 3, 9, 10), whole], pooled_shape=[3, 2], dims={0: ["n", 3, "h", "w"], 1: ["r", 5]})
    make("max_roi_pool_scaled", "MaxRoiPool", [x("roi", 2, 3, 9, 10), whole], pooled_shape=[2, 4], spatial_scale=0.6)
    for mode in ["avg", "max"]:
        make(f"roi_align_adaptive_{mode}", "RoiAlign", [x("roi", 2, 3, 9, 10), regions, np.array([1, 0, 1])], mode=mode, output_height=3, output_width=2, dims={1: ["r", 4], 2: ["r"]})
    make("roi_align_adaptive_10", "RoiAlign", [x("roi", 2, 3, 9, 10), regions, np.array([1, 0, 1])], output_height=3, output_width=2, spatial_scale=0.75, opset=10)
    crop, shape = x("a", 5, 8, 3), [np.array([8, 5])]
    make("center_crop_pad", "CenterCropPad", [crop, shape], axes=[0, 1])
    make("center_crop_pad_dims", "CenterCropPad", [crop, shape], axes=[-2, 0], dims={0: ["a", "b", 3]})
    make("pad_with_data", "Pad", [x("a", 3, 4), [np.array([1, -1, 2, 3])], np.array(2.5, F32)], dims={0: ["a", "b"]})


def packed_attention():
    n, b, s, d, p = 3, 2, 5, 20, 4

    def make(name, rest=(), outputs=1, dtype=F32, sizes=(24, 24, 24), dims=None, bias=True, **attributes):
        total = sum(sizes)
        inputs = [numbers("x", b, s, d), [numbers("w", d, total, scale=0.3)], [numbers("b", total)] if bias else None, *rest]
        narrow = widened(inputs, dtype)
        # ONNX Runtime crashes without a bias.
        like = None if bias else [*inputs[:2], np.zeros(total, F32)]
        case("attention_" + name, "Attention", narrow, outputs, dims or {0: ["batch", "seq", d]}, num_heads=n, like=like, **attributes)

    past = numbers("past", 2, b, n, p, 8)
    keys = (np.arange(s)[None, :] < np.array([[s], [3]])).astype(np.int32)
    for dtype, t in [(F32, ""), (F16, "_f16")]:
        make("plain" + t, dtype=dtype)
        make("causal" + t, dtype=dtype, unidirectional=1)
        make("past" + t, [None, past], 2, dtype=dtype, dims={0: ["batch", "seq", d], 4: [2, "batch", n, "past", 8]}, unidirectional=1)
    make("no_bias", bias=False)
    make("scale", scale=0.3)
    make("sizes", sizes=(24, 24, 30), qkv_hidden_sizes=[24, 24, 30])
    make("present", outputs=2, unidirectional=1)
    make("mask_lengths", [np.array([5, 3], np.int32)])
    make("mask_no_keys", [np.array([5, 0], np.int32)])
    make("mask_ends_starts", [np.array([5, 4, 2, 0], np.int32)], dims={0: [b, "seq", d]})
    make("mask_keys", [keys])
    make("mask_filter", [keys], mask_filter_value=-2.5)
    make("mask_causal", [keys], unidirectional=1)
    make("mask_full", [integers("m", 0, 2, b, s, s, dtype=np.int32)])
    make("mask_past", [(np.arange(p + s)[None, :] >= np.array([[0], [2]])).astype(np.int32), past], 2)
    make("scores", [None, None, numbers("scores", b, n, s, s)])
    make("scores_broadcast", [keys, None, numbers("scores", 1, n, s, s)], unidirectional=1)

    def whole(name, dtype, weights, per_column=False, zero=True, rest=(), outputs=1, **attributes):
        low = {np.uint8: 0, np.int8: -128}
        inputs = [
            integers(name + "x", low[dtype], low[dtype] + 256, b, s, d, dtype=dtype), [integers(name + "w", low[weights], low[weights] + 256, d, 72, dtype=weights)],
            [numbers("b", 72)], np.array(0.02, F32), [np.abs(numbers("s", 72, scale=0.01)) + F32(0.005)] if per_column else [np.array(0.01, F32)],
            None, np.array(low[dtype] + 117, dtype) if zero else None,
            [(integers("z", -20, 20, 72) + low[weights] + 128).astype(weights) if per_column else np.array(low[weights] + 121, weights)] if zero else None, *rest,
        ]
        case("qattention_" + name, "QAttention", inputs, outputs, num_heads=n, **attributes)

    whole("u8", np.uint8, np.uint8)
    whole("i8_weights", np.uint8, np.int8)
    whole("columns", np.uint8, np.int8, per_column=True, unidirectional=1)
    whole("symmetric", np.uint8, np.int8, zero=False)
    whole("past", np.uint8, np.int8, rest=[past], outputs=2, unidirectional=1)


def quantised():
    low = {np.uint8: 0, np.int8: -128}

    def q(name, dtype, *shape):
        return integers(name, low[dtype], low[dtype] + 256, *shape, dtype=dtype)

    def point(scale, zero, dtype):
        """Scale and zero point; no zero point is symmetric. Scales are not round, so that no result lies between two numbers."""
        return [np.array(scale**1.0131, F32), None if zero is None else np.array(zero + low[dtype] + 128, dtype)]

    for dtype, t in [(np.uint8, "_u8"), (np.int8, "_i8")]:
        for zeros, u in [((-11, 23, 4), ""), ((None, None, None), "_symmetric")]:
            za, zb, zc = zeros
            a, b = q("a", dtype, 3, 5, 11), q("b", dtype, 5, 1)
            for op, tag, scale in [("QLinearAdd", "add", 0.041), ("QLinearMul", "mul", 0.0173)]:
                inputs = [a, *point(0.023, za, dtype), b, *point(0.0177, zb, dtype), *point(scale, zc, dtype)]
                # ONNX Runtime cannot tell the types without zero points.
                like = [np.array(0, dtype) if v is None else v for v in inputs]
                case(f"qlinear_{tag}{t}{u}", op, inputs, dims={0: ["n", 5, "k"]}, like=like)
            for op, tag, scale, more in [("QLinearSigmoid", "sigmoid", 0.0041, {}), ("QLinearLeakyRelu", "leaky_relu", 0.031, {"alpha": 0.17})]:
                case(f"qlinear_{tag}{t}{u}", op, [a, *point(0.031, za, dtype), *point(scale, zc, dtype)], dims={0: ["n", 5, "k"]}, **more)
        x = q("x", dtype, 2, 3, 7, 5)
        near, far = point(0.021, 9, dtype), point(0.0157, -6, dtype)
        case(f"qlinear_global_average_pool{t}", "QLinearGlobalAveragePool", [x, *near, *far], dims={0: ["n", 3, "h", "w"]})
        case(f"qlinear_global_average_pool_last{t}", "QLinearGlobalAveragePool", [x, *near, *far], channels_last=1)
        case(f"qlinear_average_pool{t}", "QLinearAveragePool", [x, *near, *far], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
        case(f"qlinear_average_pool_last{t}", "QLinearAveragePool", [x, *near, *far], kernel_shape=[2, 2], channels_last=1)
        parts = [v for i, z in enumerate([5, -9, 0]) for v in [q(f"part{i}", dtype, 2, 1 + 2 * i, 3), *point(0.02 + 0.003 * i, z, dtype)]]
        case(f"qlinear_concat{t}", "QLinearConcat", [*point(0.025, 3, dtype), *parts], axis=1)
        case(f"qlinear_softmax{t}", "QLinearSoftmax", [q("s", dtype, 3, 4, 13), *point(0.04, 7, dtype), np.array(1 / 256, F32), np.array(low[dtype], dtype)], axis=-1, also={"opset": 13})
        case(f"qlinear_softmax_12{t}", "QLinearSoftmax", [q("s", dtype, 3, 4, 13), *point(0.04, 7, dtype), np.array(1 / 256, F32), np.array(low[dtype], dtype)], axis=1, also={"opset": 12})
        choose = integers("choose", 0, 2, 5, 1).astype(bool)
        constant = [[v] for v in [*point(0.03, 2, dtype), *point(0.02, -7, dtype), *point(0.028, 1, dtype)]]
        case(f"qlinear_where{t}", "QLinearWhere", [choose, q("a", dtype, 3, 5, 4), *constant[:2], q("b", dtype, 5, 4), *constant[2:]])
        for weights, v in [(np.uint8, ""), (np.int8, "_i8_weights")]:
            if dtype == np.int8 and weights == np.uint8:
                continue
            w = q("w", weights, 19, 7)
            columns = np.abs(numbers("s", 7, scale=0.02)) + F32(0.01)
            points = (integers("z", -20, 20, 7) + low[weights] + 128).astype(weights)
            za = np.array(low[dtype] + 131, dtype)
            if dtype == np.uint8:
                x = numbers("x", 3, 5, 19)
                bias = numbers("bias", 7)
                case(f"dynamic_quantize_matmul{v}", "DynamicQuantizeMatMul", [x, [w], [np.array(0.02, F32)]], dims={0: ["n", "m", 19]})
                case(f"dynamic_quantize_matmul_bias{v}", "DynamicQuantizeMatMul", [x, [w], [columns], [points], [bias]])
            a = q("a", dtype, 3, 5, 19)
            case(f"matmul_integer_to_float{t}{v}", "MatMulIntegerToFloat", [a, [w], np.array(0.03, F32), [np.array(0.02, F32)]], dims={0: ["n", "m", 19]})
            case(f"matmul_integer_to_float_columns{t}{v}", "MatMulIntegerToFloat", [a, [w], np.array(0.03, F32), [columns], za, [points], [numbers("bias", 7)]])
            a, c = q("a", dtype, 5, 19), integers("c", -900, 900, 7, dtype=np.int32)
            one, many = [np.array(0.02, F32), np.array(low[weights] + 120, weights)], [columns, points]
            out = [np.array(0.9, F32), np.array(low[dtype] + 125, dtype)]
            case(f"qgemm{t}{v}", "QGemm", [a, np.array(0.03, F32), za, w, *one, c, *out], alpha=1.5)
            case(f"qgemm_columns{t}{v}", "QGemm", [a.T.copy(), np.array(0.03, F32), za, w.T.copy(), *many, c, *out], transA=1, transB=1)
            case(f"qgemm_float{t}{v}", "QGemm", [a, np.array(0.03, F32), za, w, *many, c])
    for dtype, t in [(np.uint8, "u8"), (np.int8, "i8"), (np.uint16, "u16"), (np.int16, "i16")]:
        info = np.iinfo(dtype)
        x = numbers("x", 3, 5, 4, scale=3)
        scale, zero = np.abs(numbers("s", 5, scale=0.01)) + F32(0.02), integers("z", info.min, info.max, 5, dtype=dtype)
        case(f"quantize_linear_{t}", "QuantizeLinear", [x, np.array(0.02, F32), zero[:1].reshape(())])
        case(f"quantize_linear_axis_{t}", "QuantizeLinear", [x, scale, zero], axis=1)
        values = integers("q", info.min, info.max, 3, 5, 4, dtype=dtype)
        case(f"dequantize_linear_{t}", "DequantizeLinear", [values, np.array(0.02, F32), zero[:1].reshape(())])
        case(f"dequantize_linear_axis_{t}", "DequantizeLinear", [values, scale, zero], axis=1)


def fused():
    x, w = numbers("x", 2, 6, 9, 7), numbers("w", 4, 3, 3, 2, scale=0.4)
    z = numbers("z", 2, 4, 9, 7)
    conv = dict(group=2, pads=[1, 0, 1, 1], kernel_shape=[3, 2])
    for name, parameters in [("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 1.25]), ("HardSigmoid", [0.3, 0.4])]:
        parameters = {"activation_params": parameters} if parameters else {}
        case(f"fused_conv_{name.lower()}", "FusedConv", [x, w, numbers("b", 4)], activation=name, dims={0: ["n", 6, "h", "w"]}, **conv, **parameters)
    case("fused_conv_sum", "FusedConv", [x, w, None, z], activation="Relu", **conv)
    case("fused_conv_sum_only", "FusedConv", [x, w, numbers("b", 4), z], **conv)
    a, b, c = numbers("a", 5, 11), numbers("b", 11, 7), numbers("c", 5, 1)
    for name, more in [("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.3}), ("Sigmoid", {}), ("Tanh", {}), ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
                       ("Elu", {"activation_alpha": 0.7}), ("Softplus", {}), ("Softsign", {}), ("ThresholdedRelu", {"activation_alpha": 0.5})]:
        case(f"fused_gemm_{name.lower()}", "FusedGemm", [a, b, c], activation=name, alpha=0.5, beta=2.0, dims={0: ["m", 11], 2: ["m", 1]}, **more)
    case("fused_gemm_transposed", "FusedGemm", [a.T.copy(), b.T.copy()], activation="Relu", transA=1, transB=1)
    ids, segments = integers("ids", 0, 31, 3, 7, dtype=np.int32), integers("segments", 0, 2, 3, 7, dtype=np.int32)
    tables = [[numbers("words", 31, 12)], [numbers("places", 9, 12)], [numbers("kinds", 2, 12)], [numbers("g", 12)], [numbers("beta", 12)]]
    dims = {0: ["n", "s"], 1: ["n", "s"], 7: ["n", "s"]}
    mask = (np.arange(7)[None, :] < np.array([[7], [3], [5]])).astype(np.int32)
    case("embed_layer_norm", "EmbedLayerNormalization", [ids, segments, *tables, mask], 2, dims)
    case("embed_layer_norm_sum", "EmbedLayerNormalization", [ids, segments, *tables], 3, dims)
    case("embed_layer_norm_no_segments", "EmbedLayerNormalization", [ids, None, *tables[:2], None, *tables[3:]], 2, dims)
    case("embed_layer_norm_positions", "EmbedLayerNormalization", [ids, segments, *tables, None, integers("at", 0, 9, 3, 7, dtype=np.int32)], 2)


if __name__ == "__main__":
    matmul_nbits()
    gather_block_quantized()
    norms()
    rotary()
    multi_head()
    group_query()
    decoder()
    arrays()
    packed_attention()
    quantised()
    fused()
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "target/conformance"))
