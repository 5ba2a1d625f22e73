#!/usr/bin/env python3
"""Write test cases of the operators that exporters of language models emit, and of forms of other operators that ONNX's own cases
do not cover, in ONNX's own layout.

    python3 scripts/contrib_cases.py [FOLDER]      (needs: pip install onnx==1.23.2 onnxruntime numpy)

FOLDER (target/conformance by default) gets, for each case,

    contrib/NAME/model.onnx
    contrib/NAME/test_data_set_0/input_I.pb, output_I.pb

and `contrib.tsv`, which lists the cases: name, rtol, atol, operators. ONNX Runtime's CPU provider computes the outputs. A case
that it rejects is omitted with a message; if it is of f16, it is computed in f32 from the same values. A folder made by the same
version is left unchanged.
"""
import math
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

import contrib_features
import contrib_fused
import contrib_loops
from contrib_harness import F16, F32, MICROSOFT, case, integers, main, numbers


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


def split_gelu(x, bias):
    left, right = np.split(x + bias, 2, axis=-1)
    return left * right * 0.5 * (1 + np.vectorize(math.erf)(right / math.sqrt(2)))


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
        case(f"bias_add{t}", "BiasAdd", [x("a", 3, 5, 11), x("g", 11), x("b", 3, 5, 11)], dims={0: ["n", 5, 11], 2: ["n", 5, 11]},
             by=lambda x, bias, skip: x + bias + skip)
        case(f"bias_split_gelu{t}", "BiasSplitGelu", [x("a", 3, 5, 14), x("g", 14)], dims={0: ["n", 5, 14]}, by=split_gelu)
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
            make("first_rank_0", flat, np.array(4), dims={0: ["batch", "seq", 36]})
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
        """`past` is the length of the buffers, which are omitted if it is None. Elements beyond the past are 0, as in ONNX
        Runtime's results if it cannot write to the given buffer."""
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
    """Two layers of a decoder in the form that exporters write: four-bit weights, a cache, lengths from a mask."""
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
    """ONNX operators with shapes, types and forms that ONNX's own cases do not cover."""
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
    b = x("b", 2, 3, 4, 5)
    each, channel = [x("each", 3, 4, 5), np.abs(x("v", 3, 4, 5)) + F32(0.3)], [x("each", 3), np.abs(x("v", 3)) + F32(0.3)]
    for name, (v, var), more in [("positions", each, {"spatial": 0}), ("channels", channel, {})]:
        case(f"batch_norm_{name}", "BatchNormalization", [b, [v], [v[::-1].copy()], [v * 2], [var]], dims={0: ["n", 3, 4, 5]}, domain="", opset=7, **more)
    case("image_scaler", "ImageScaler", [b], dims={0: ["n", 3, "h", "w"]}, domain="", opset=8, bias=[0.25, -1.5, 3.0], scale=0.7)
    make("pad_with_data", "Pad", [x("a", 3, 4), [np.array([1, -1, 2, 3])], np.array(2.5, F32)], dims={0: ["a", "b"]})


if __name__ == "__main__":
    matmul_nbits()
    gather_block_quantized()
    norms()
    rotary()
    multi_head()
    group_query()
    decoder()
    arrays()
    contrib_fused.packed_attention()
    contrib_fused.quantised()
    contrib_fused.fused()
    contrib_fused.quantised_lstm()
    contrib_features.features()
    contrib_loops.counted()
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "target/conformance"))
