#!/usr/bin/env python3
"""Make the small models in fixtures/ that were not made by an exporter.

    python3 scripts/make_fixtures.py         (needs: pip install onnx numpy onnxruntime)

`fixtures/bandwidth.onnx` and `fixtures/bandwidth-mask.onnx` are for bandwidth measurements: 64 MiB through layer normalisation,
bias, GELU and dropout. `fixtures/small/NAME` are tiny models of odd sizes with inputs and outputs, which ONNX Runtime computes
except for random numbers. The data sets of one model differ in its symbolic dimensions.
`fixtures/phi3-shaped.onnx` is a large decoder without weights.
"""
import sys

import numpy as np
from onnx import helper

from decoders import caches, decoder, decoder_of_several, decoder_ragged, phi3_shaped
from onnx_models import BOOL, FIXTURES, FLOAT, HALF, INT32, INT64, UINT8, Model


def bandwidth(mask):
    n = 4096
    inputs = [("x", FLOAT, [n, n])] + ([("mask", FLOAT, [n, n])] if mask else [])
    m = Model("bandwidth-mask" if mask else "bandwidth", inputs, [("y", FLOAT, [n, n])])
    m.constant("scale", np.ones(n, np.float32))
    m.constant("shift", np.zeros(n, np.float32))
    m.constant("bias", np.full(n, 0.125, np.float32))
    m.op("LayerNormalization", ["x", "scale", "shift"], "normal")
    m.op("Add", ["normal", "bias"], "biased")
    m.op("Gelu", ["biased"], "active")
    if mask:
        m.op("Mul", ["active", "mask"], "y")
    else:
        m.op("Dropout", ["active"], "y")
    (FIXTURES / f"{m.name}.onnx").write_bytes(m.build().SerializeToString())


def mlp():
    m = Model("mlp", [("x", FLOAT, ["batch", 13])], [("probabilities", FLOAT, ["batch", 5])])
    m.op("Gemm", ["x", m.weight("w0", 7, 13), m.weight("b0", 7)], "h", transB=1)
    m.op("Relu", ["h"], "a")
    m.op("Gemm", ["a", m.weight("w1", 7, 5), m.weight("b1", 5)], "logits", alpha=0.5)
    m.op("Softmax", ["logits"], "probabilities", axis=-1)
    m.save(*({"x": m.rng.standard_normal((b, 13), dtype=np.float32)} for b in [1, 3, 65]))


def conv():
    """A stem, a depthwise block with a residual, a grouped dilated convolution, pooling."""
    m = Model("conv", [("image", FLOAT, ["batch", 3, 19, 23])], [("features", FLOAT, ["batch", 10])])

    def norm(x, c, out):
        for n, lift in [("scale", 1), ("bias", 0), ("mean", 0), ("var", 1)]:
            m.constant(f"{out}_{n}", (lift + 0.2 * m.rng.random(c)).astype(np.float32))
        return m.op("BatchNormalization", [x, *(f"{out}_{n}" for n in ["scale", "bias", "mean", "var"])], out)

    m.op("Conv", ["image", m.weight("w0", 10, 3, 3, 5)], "c0", strides=[2, 1], pads=[1, 0, 0, 2])
    m.op("Relu", [norm("c0", 10, "n0")], "stem")
    m.op("Conv", ["stem", m.weight("w1", 10, 1, 3, 3), m.weight("b1", 10)], "c1", group=10, auto_pad="SAME_UPPER")
    m.op("Clip", [norm("c1", 10, "n1"), m.constant("zero", np.float32(0)), m.constant("six", np.float32(6))], "a1")
    m.op("Conv", ["a1", m.weight("w2", 10, 10, 1, 1)], "c2")
    m.op("Add", ["c2", "stem"], "sum")
    m.op("Conv", ["sum", m.weight("w3", 10, 5, 3, 3)], "c3", group=2, dilations=[2, 1], pads=[2, 1, 2, 1])
    m.op("HardSwish", ["c3"], "a3")
    m.op("MaxPool", ["a3"], "pooled", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0])
    m.op("GlobalAveragePool", ["pooled"], "mean")
    m.op("Flatten", ["mean"], "features")
    m.save(*({"image": m.rng.standard_normal((b, 3, 19, 23), dtype=np.float32)} for b in [1, 2]))


def attention():
    """Self-attention with a key mask and a normalised residual; the head split goes through Shape."""
    d, heads = 12, 3
    m = Model(
        "attention",
        [("x", FLOAT, ["batch", "seq", d]), ("mask", BOOL, ["batch", "seq"])],
        [("y", FLOAT, ["batch", "seq", d])],
    )
    m.op("Shape", ["x"], "shape")
    m.op("Slice", ["shape", m.constant("i0", [0]), m.constant("i2", [2])], "batch_seq")
    m.op("Concat", ["batch_seq", m.constant("split", [heads, d // heads])], "split_shape", axis=0)
    for which in "qkv":
        m.op("MatMul", ["x", m.weight(f"w_{which}", d, d)], f"{which}_product")
        m.op("Add", [f"{which}_product", m.weight(f"b_{which}", d)], f"{which}_flat")
        m.op("Reshape", [f"{which}_flat", "split_shape"], f"{which}_split")
        m.op("Transpose", [f"{which}_split"], which, perm=[0, 2, 3, 1] if which == "k" else [0, 2, 1, 3])
    m.op("MatMul", ["q", "k"], "products")
    m.op("Mul", ["products", m.constant("factor", np.float32((d // heads) ** -0.5))], "scores")
    m.op("Unsqueeze", ["mask", m.constant("mask_axes", [1, 2])], "mask4")
    m.op("Where", ["mask4", "scores", m.constant("least", np.float32(np.finfo(np.float32).min))], "masked")
    m.op("Softmax", ["masked"], "weights", axis=-1)
    m.op("MatMul", ["weights", "v"], "heads")
    m.op("Transpose", ["heads"], "rows", perm=[0, 2, 1, 3])
    m.op("Reshape", ["rows", m.constant("joined", [0, 0, d])], "context")
    m.op("MatMul", ["context", m.weight("w_o", d, d)], "projected")
    m.op("Add", ["projected", "x"], "residual")
    m.op("LayerNormalization", ["residual", m.weight("g", d), m.weight("b", d)], "y", epsilon=1e-5)

    def feed(b, s):
        mask = np.arange(s)[None, :] < np.array([[s], [max(1, s - 2)]])[:b]
        return {"x": m.rng.standard_normal((b, s, d), dtype=np.float32), "mask": mask}

    m.save(feed(1, 1), feed(2, 7), feed(1, 70))


def integers():
    """Exact 64-bit arithmetic: values beyond 32 bits, negative division, running sums, positions."""
    m = Model(
        "integers",
        [("a", INT64, ["n", 5]), ("b", INT64, [5])],
        [(o, INT64, ["n", 5]) for o in ["product", "quotient", "remainder", "sums"]]
        + [("place", INT64, ["n"]), ("low", UINT8, ["n", 5])],
    )
    m.op("Mul", ["a", "b"], "product")
    m.op("Div", ["product", m.constant("seven", np.int64(-7))], "quotient")
    m.op("Mod", ["product", m.constant("thousand", np.int64(1_000_003))], "remainder")
    m.op("CumSum", ["product", m.constant("axis", np.int64(0))], "sums", reverse=1)
    m.op("ArgMax", ["product"], "place", axis=1, keepdims=0)
    m.op("Abs", ["remainder"], "magnitude")
    m.op("Mod", ["magnitude", m.constant("byte", np.int64(251))], "rest")
    m.op("Cast", ["rest"], "low", to=UINT8)

    def feed(n):
        return {"a": m.rng.integers(-(2**40), 2**40, (n, 5)), "b": m.rng.integers(-(2**20), 2**20, 5)}

    m.save(feed(1), feed(4))


def booleans():
    m = Model(
        "booleans",
        [("x", FLOAT, [3, "n"]), ("y", FLOAT, ["n"])],
        [(o, t, [3, "n"]) for o, t in [("both", BOOL), ("none", BOOL), ("picked", FLOAT), ("code", UINT8)]],
    )
    m.op("Greater", ["x", "y"], "greater")
    m.op("LessOrEqual", ["x", m.constant("one", np.float32(1))], "small")
    m.op("And", ["greater", "small"], "both")
    m.op("Or", ["greater", "small"], "either")
    m.op("Not", ["either"], "none")
    m.op("Where", ["both", "x", "y"], "picked")
    m.op("Cast", ["both"], "both8", to=UINT8)
    m.op("Cast", ["none"], "none8", to=UINT8)
    m.op("Add", ["none8", "none8"], "twice")
    m.op("Add", ["both8", "twice"], "code")

    def feed(n):
        return {"x": m.rng.standard_normal((3, n), dtype=np.float32), "y": m.rng.standard_normal(n, dtype=np.float32)}

    m.save(feed(1), feed(11))


def half():
    m = Model("half", [("x", HALF, ["rows", 9])], [("y", HALF, ["rows", 5]), ("sums", HALF, ["rows", 1])])
    m.op("MatMul", ["x", m.weight("w", 9, 5, dtype=np.float16)], "product")
    m.op("Sigmoid", ["product"], "gate")
    m.op("Mul", ["product", "gate"], "y")
    m.op("ReduceSum", ["y", m.constant("axes", [1])], "sums", keepdims=1)
    m.save(*({"x": m.rng.standard_normal((r, 9)).astype(np.float16)} for r in [1, 7]))


def chosen():
    """Sizes that depend on data, and computations with them."""
    m = Model(
        "chosen",
        [("x", FLOAT, ["rows", 13]), ("kept", BOOL, ["rows"])],
        [("places", INT64, [2, "n"]), ("total", FLOAT, []), ("dense", FLOAT, ["rows", 13]), ("both", FLOAT, [2, 1]),
         ("projected", FLOAT, ["k", 5]), ("values", INT64, ["u"]), ("counts", INT64, ["u"]), ("first", INT64, ["v"]),
         ("inverse", INT64, ["all"]), ("size", INT64, [2])],
        opset=18,
    )
    m.op("Greater", ["x", m.constant("half", np.float32(0.5))], "large")
    m.op("NonZero", ["large"], "places")
    m.op("Transpose", ["places"], "pairs", perm=[1, 0])
    m.op("GatherND", ["x", "pairs"], "found")
    m.op("Add", ["found", m.constant("one", np.float32(1))], "more")
    m.op("ReduceSum", ["more"], "total", keepdims=0)
    m.op("Mul", ["x", m.constant("zero", np.float32(0))], "nothing")
    m.op("ScatterND", ["nothing", "pairs", "more"], "dense")
    m.op("Concat", ["found", "more"], "joined", axis=0)
    m.op("Reshape", ["joined", m.constant("two", np.array([2, -1]))], "rows_of_both", allowzero=1)
    m.op("Shape", ["pairs"], "size")
    m.op("Gather", ["size", m.constant("at", np.array([0]))], "count")
    m.op("Expand", ["one", "count"], "ones")
    m.op("Unsqueeze", ["ones", m.constant("last", np.array([1]))], "column")
    m.op("MatMul", ["rows_of_both", "column"], "both")
    m.op("Compress", ["x", "kept"], "some", axis=0)
    m.op("MatMul", ["some", m.weight("w", 13, 5)], "product")
    m.op("Softmax", ["product"], "projected", axis=1)
    m.op("Round", ["x"], "round")
    m.op("Cast", ["round"], "whole", to=INT64)
    m.op("Unique", ["whole"], ["values", "", "", "counts"], sorted=1)
    m.op("Unique", ["whole"], ["", "first", "inverse", ""], sorted=0)
    for n in [n for n in m.nodes if n.op_type == "Unique" and not n.output[0]]:
        n.output[0] = "unsorted"

    def feed(rows, shift, kept):
        x = (m.rng.standard_normal((rows, 13)) + shift).astype(np.float32)
        return {"x": x, "kept": np.resize(np.array(kept, bool), rows)}

    m.save(feed(7, 0, [1, 0, 0]), feed(1, -9, [0]), feed(41, 9, [1]), feed(23, 0, [0]), feed(3, 0.3, [0, 1]))


def body(name, carried, goes_on, nodes):
    """The body of a Loop. `carried` are (name in, name out, type, shape), `goes_on` is the condition's name."""
    info = helper.make_tensor_value_info
    before = [info("i", INT64, []), info("go", BOOL, [])] + [info(n, t, s) for n, _, t, s in carried]
    after = [info(goes_on, BOOL, [])] + [info(n, t, s) for _, n, t, s in carried]
    return helper.make_graph([helper.make_node(o, i, [r], **a) for o, i, r, a in nodes], name, before, after)


def endless():
    """While loops in the form that exporters write: a trip count of INT64_MAX or none, and a condition that the body computes."""
    m = Model(
        "while",
        [("a", INT64, []), ("b", INT64, []), ("x", FLOAT, ["rows", 5]), ("limit", FLOAT, []), ("c", INT64, [])],
        [("gcd", INT64, []), ("y", FLOAT, ["rows", 5]), ("halvings", INT64, []), ("z", FLOAT, ["rows", 5])],
    )
    most = m.constant("most", np.int64(2**63 - 1))
    zero = m.constant("zero", np.int64(0))
    m.constant("one", np.int64(1))
    # while b != 0: a, b = b, a % b
    m.op("Equal", ["b", zero], "none")
    m.op("Not", ["none"], "any")
    euclid = body("euclid", [("p", "q_now", INT64, []), ("q", "rest", INT64, [])], "more", [
        ("Identity", ["q"], "q_now", {}),
        ("Mod", ["p", "q"], "rest", {}),
        ("Equal", ["rest", "zero"], "done", {}),
        ("Not", ["done"], "on", {}),
        ("Cast", ["on"], "more", {"to": BOOL}),
    ])
    m.op("Loop", [most, "any", "a", "b"], ["gcd", "left"], body=euclid)
    # while x.abs().sum() > limit: x = x / 2 + x.mean() / 64; n += 1
    m.constant("half", np.float32(0.5))
    m.constant("bit", np.float32(1 / 64))
    m.op("Abs", ["x"], "sizes")
    m.op("ReduceSum", ["sizes"], "size", keepdims=0)
    m.op("Greater", ["size", "limit"], "large")
    relax = body("relax", [("v", "w", FLOAT, ["rows", 5]), ("n", "n_next", INT64, [])], "again", [
        ("Mul", ["v", "half"], "less", {}),
        ("ReduceMean", ["v"], "mean", {"keepdims": 0}),
        ("Mul", ["mean", "bit"], "share", {}),
        ("Add", ["less", "share"], "w", {}),
        ("Add", ["n", "one"], "n_next", {}),
        ("Abs", ["w"], "ws", {}),
        ("ReduceSum", ["ws"], "sum", {"keepdims": 0}),
        ("Greater", ["sum", "limit"], "above", {}),
        ("Cast", ["above"], "again", {"to": BOOL}),
    ])
    m.op("Loop", [most, "large", "x", zero], ["y", "halvings"], body=relax)
    # No trip count: do x += 1 while i * i < c.
    m.constant("unit", np.float32(1))
    count = body("count", [("s", "t", FLOAT, ["rows", 5])], "below", [
        ("Add", ["s", "unit"], "t", {}),
        ("Mul", ["i", "i"], "square", {}),
        ("Less", ["square", "c"], "below", {}),
    ])
    m.op("Loop", ["", "", "x"], "z", body=count)

    def feed(a, b, rows, limit, c):
        x = m.rng.standard_normal((rows, 5), dtype=np.float32)
        return {"a": np.array(a), "b": np.array(b), "x": x, "limit": np.array(limit, np.float32), "c": np.array(c)}

    m.save(
        feed(12_345_678_901_234_567, 987_654_321_098, 3, 1e-30, 40_000),
        feed(7540113804746346429 // 2, 4660046610375530309 // 2, 17, 0.01, 2_000_000),
        feed(9, 0, 1, 1e9, -1),
        feed(0, 12, 4, 2.5, 5),
    )


def boxes():
    """Non-maximum suppression with a limit that is an input, followed by a gather of the selected boxes."""
    m = Model(
        "boxes",
        [("boxes", FLOAT, [2, 37, 4]), ("scores", FLOAT, [2, 3, 37]), ("most", INT64, [1])],
        [("chosen", INT64, ["n", 3]), ("corners", FLOAT, ["n", 4])],
        opset=18,
    )
    thresholds = [m.constant("share", np.array([0.3], np.float32)), m.constant("least", np.array([0.2], np.float32))]
    m.op("NonMaxSuppression", ["boxes", "scores", "most", *thresholds], "chosen")
    m.op("Gather", ["chosen", m.constant("of", np.array([0, 2]))], "pairs", axis=1)
    m.op("GatherND", ["boxes", "pairs"], "corners")

    def feed(most):
        corner = m.rng.uniform(0, 3, (2, 37, 2))
        other = corner + m.rng.uniform(-1.5, 1.5, (2, 37, 2))
        scores = m.rng.uniform(0, 1, (2, 3, 37)).astype(np.float32)
        boxes = np.concatenate([corner, other], 2).astype(np.float32)
        return {"boxes": boxes, "scores": scores, "most": np.array([most])}

    m.save(feed(1000), feed(3), feed(0))


def cut():
    """Slices and prefixes whose extents are inputs, and slices of tensors that may be empty."""
    m = Model(
        "cut",
        [("x", FLOAT, ["rows", 11]), ("begin", INT64, [1]), ("end", INT64, [1]), ("k", INT64, [1])],
        [("part", FLOAT, ["a", 11]), ("back", FLOAT, ["b", 11]), ("corner", FLOAT, ["c", "d"]), ("largest", FLOAT, ["rows", "e"]),
         ("at", INT64, ["rows", "e"]), ("rest", INT64, [2, "f"]), ("last", INT64, [2, "g"]), ("sums", FLOAT, ["a"])],
        opset=18,
    )
    first, both = m.constant("first", np.array([0])), m.constant("axes", np.array([0, 1]))
    m.op("Slice", ["x", "begin", "end", first], "part")
    m.op("Slice", ["x", "end", "begin", first, m.constant("back_by", np.array([-2]))], "back")
    m.op("Concat", ["begin", m.constant("three", np.array([3]))], "from", axis=0)
    m.op("Concat", ["end", "k"], "to", axis=0)
    m.op("Slice", ["x", "from", "to", both, m.constant("by", np.array([1, 2]))], "corner")
    m.op("TopK", ["x", "k"], ["largest", "at"], axis=1)
    m.op("Greater", ["x", m.constant("half", np.float32(0.5))], "large")
    m.op("NonZero", ["large"], "places")
    end, second = m.constant("far", np.array([2**62])), m.constant("second", np.array([1]))
    m.op("Slice", ["places", m.constant("one", np.array([1])), end, second], "rest")
    m.op("Slice", ["places", m.constant("minus_one", np.array([-1])), end, second], "last")
    m.op("ReduceSum", ["part", second], "sums", keepdims=0)

    def feed(rows, begin, end, k, shift=0.0):
        x = (m.rng.standard_normal((rows, 11)) + shift).astype(np.float32)
        return {"x": x, "begin": np.array([begin]), "end": np.array([end]), "k": np.array([k])}

    m.save(feed(7, 2, 6, 3), feed(13, -4, 99, 11), feed(5, 4, 1, 1, -9), feed(1, -99, -1, 7), feed(29, 0, -1, 8, 9))


def random():
    """Random generators. The numbers for a seed are defined by wgfc and must not change."""
    f32, u32 = np.float32, np.uint32
    m = Model(
        "random",
        [("x", FLOAT, ["n", 9])],
        [("even", FLOAT, ["n", 9]), ("short", HALF, [7, 5]), ("normal", FLOAT, [13, 11]), ("dropped", FLOAT, ["n", 9]),
         ("kept", BOOL, ["n", 9]), ("class", INT64, ["n", 3]), ("coin", INT32, ["n", 9])],
    )
    m.op("RandomUniformLike", ["x"], "even", low=-2.0, high=3.0, seed=1.0)
    m.op("RandomUniform", [], "short", shape=[7, 5], dtype=HALF, seed=2.0)
    m.op("RandomNormal", [], "normal", shape=[13, 11], mean=1.0, scale=2.0, seed=3.0)
    m.op("Dropout", ["x", m.constant("ratio", f32(0.3)), m.constant("training", np.bool_(True))], ["dropped", "kept"], seed=4)
    m.op("Multinomial", ["x"], "class", sample_size=3, dtype=INT64, seed=5.0)
    m.op("Sigmoid", ["x"], "chance")
    m.op("Bernoulli", ["chance"], "coin", dtype=INT32, seed=6.0)

    def bits(shape, seed):
        """The pcg3d hash of position and seed."""
        place = np.arange(np.prod(shape), dtype=u32).reshape(shape)
        low = f32(seed).view(u32) if isinstance(seed, float) else u32(seed)
        v = [place, np.full(shape, low, u32), np.zeros(shape, u32)]
        v = [x * u32(1664525) + u32(1013904223) for x in v]
        for last in [False, True]:
            for i in range(3):
                v[i] = v[i] + v[(i + 1) % 3] * v[(i + 2) % 3]
            v = v if last else [x ^ (x >> u32(16)) for x in v]
        return v

    def unit(v, precision=24):
        """Uniform numbers in [0, 1) with this many bits."""
        return (v >> u32(32 - precision)).astype(f32) * f32(0.5) ** precision

    def inner(v):
        """Uniform numbers in (0, 1) with finer steps near 0."""
        return np.minimum((v.astype(f32) + f32(0.5)) * f32(2.0**-32), f32(1 - 2.0**-24)).astype(np.float64)

    def reference(feed):
        x = feed["x"]
        a, b, _ = bits((13, 11), 3.0)
        normal = 1 + 2 * np.sqrt(-2 * np.log(inner(a))) * np.cos(2 * np.pi * unit(b))
        kept = unit(bits(x.shape, 4)[0]) >= f32(0.3)
        noise = -np.log(-np.log1p(-inner(bits((len(x), 3, 9), 5.0)[0])))
        coin = unit(bits(x.shape, 6.0)[0]) < 1 / (1 + np.exp(-x.astype(np.float64)))
        return [
            unit(bits(x.shape, 1.0)[0]) * f32(5) - f32(2),
            unit(bits((7, 5), 2.0)[0], 11).astype(np.float16),
            normal.astype(f32),
            np.where(kept, x / f32(0.7), f32(0)),
            kept,
            (x[:, None, :] + noise).argmax(axis=2),
            coin.astype(np.int32),
        ]

    m.save(*({"x": m.rng.standard_normal((n, 9), dtype=f32)} for n in [1, 41]), reference=reference)


def recurrent():
    """Stacked recurrent layers: bidirectional, with sequence lengths, and with more hidden values than fit in an invocation's
    registers."""
    f32 = np.float32
    inputs = [("x", FLOAT, ["seq", "batch", 9]), ("lengths", INT32, ["batch"])]
    m = Model("recurrent", inputs, [("y", FLOAT, ["seq", 1, "batch", 5]), ("last", FLOAT, [1, "batch", 66])])

    def layer(kind, x, gates, size, hidden, outputs, ways=1, lengths="", **attributes):
        w = m.weight(f"{kind}_w", ways, gates * hidden, size)
        r = m.weight(f"{kind}_r", ways, gates * hidden, hidden)
        b = m.weight(f"{kind}_b", ways, 2 * gates * hidden)
        m.op(kind, [x, w, r, b, lengths], outputs, hidden_size=hidden, **attributes)

    layer("LSTM", "x", 4, 9, 13, ["both"], ways=2, lengths="lengths", direction="bidirectional")
    m.op("Transpose", ["both"], "beside", perm=[0, 2, 1, 3])
    m.op("Reshape", ["beside", m.constant("flat", np.array([0, 0, 26]))], "features")
    layer("GRU", "features", 3, 26, 66, ["wide", "last"], linear_before_reset=1)
    m.op("Squeeze", ["wide", m.constant("way", np.array([1]))], "narrow")
    layer("RNN", "narrow", 1, 66, 5, ["y"], direction="reverse")
    feeds = [(5, [5, 2, 3]), (1, [1]), (23, [7, 23])]
    m.save(*({"x": m.rng.standard_normal((t, len(n), 9), dtype=f32), "lengths": np.array(n, np.int32)} for t, n in feeds))


def batched():
    """A Scan of opset 8, whose operands have a batch axis, with one forward and one backward direction."""
    f32 = np.float32
    inputs = [("sum", FLOAT, ["batch", 5]), ("x", FLOAT, ["batch", "seq", 5]), ("w", FLOAT, ["batch", "seq"])]
    outputs = [("last", FLOAT, ["batch", 5]), ("all", FLOAT, ["batch", "seq", 5])]
    m = Model("scan-batched", inputs, outputs, opset=8)
    m.constant("half", f32(0.5))
    values = lambda *vs: [helper.make_tensor_value_info(n, FLOAT, s) for n, s in vs]
    nodes = [
        helper.make_node("Mul", ["s", "half"], ["less"]),
        helper.make_node("Mul", ["a", "b"], ["scaled"]),
        helper.make_node("Add", ["less", "scaled"], ["t"]),
        helper.make_node("Tanh", ["t"], ["shown"]),
    ]
    step = helper.make_graph(
        nodes, "step", values(("s", [5]), ("a", [5]), ("b", [])), values(("t", [5]), ("shown", [5]))
    )
    m.op("Scan", ["", "sum", "x", "w"], ["last", "all"], body=step, num_scan_inputs=2, directions=[0, 1])

    def reference(feed):
        state, shown = feed["sum"].copy(), []
        for t in range(feed["x"].shape[1]):
            state = state / 2 + feed["x"][:, t] * feed["w"][:, -1 - t, None]
            shown.append(np.tanh(state))
        return [state, np.stack(shown, axis=1)]

    shapes = [(1, 3), (4, 2), (3, 17)]
    draw = lambda *shape: m.rng.standard_normal(shape, dtype=f32)
    m.save(*({"sum": draw(b, 5), "x": draw(b, t, 5), "w": draw(b, t)} for b, t in shapes), reference=reference)


def main():
    sys.exit(__doc__) if len(sys.argv) > 1 else None
    bandwidth(mask=False)
    bandwidth(mask=True)
    decoders = [decoder, decoder_of_several, decoder_ragged, caches, phi3_shaped]
    for make in [mlp, conv, attention, *decoders, integers, booleans, half, chosen, endless, boxes, cut, random, recurrent, batched]:
        make()


main()
