#!/usr/bin/env python3
"""Make the small models in fixtures/ that no exporter made.

    python3 scripts/make_fixtures.py         (needs: pip install onnx numpy onnxruntime)

`fixtures/bandwidth.onnx` and `fixtures/bandwidth-mask.onnx` are the bandwidth exercise: 64 MiB through
layer normalisation, bias, GELU and dropout. `fixtures/small/NAME` are tiny models of odd sizes with
inputs and ONNX Runtime's outputs; the data sets of one model differ in its symbolic dimensions.
"""
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
FLOAT, HALF, INT64, BOOL, UINT8 = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.UINT8,
)


class Model:
    """A graph under construction; node outputs are named after what they are."""

    def __init__(self, name, inputs, outputs, opset=20):
        self.name, self.opset, self.nodes, self.constants = name, opset, [], []
        self.inputs = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
        self.outputs = [helper.make_tensor_value_info(n, t, s) for n, t, s in outputs]
        self.rng = np.random.default_rng(sum(name.encode()))

    def op(self, operator, inputs, output, **attributes):
        outputs = [output] if isinstance(output, str) else output
        name = f"{self.name}/{outputs[0]}"
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=name, **attributes))
        return output

    def constant(self, name, value):
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, name, *shape, scale=0.3, dtype=np.float32):
        return self.constant(name, (scale * self.rng.standard_normal(shape)).astype(dtype))

    def build(self):
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model

    def save(self, *feeds):
        folder = FIXTURES / "small" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        data = self.build().SerializeToString()
        (folder / "model.onnx").write_bytes(data)
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        for n, feed in enumerate(feeds):
            at = folder / f"test_data_set_{n}"
            at.mkdir(exist_ok=True)
            outputs = session.run(None, feed)
            for i, info in enumerate(self.inputs):
                (at / f"input_{i}.pb").write_bytes(numpy_helper.from_array(feed[info.name]).SerializeToString())
            for i, value in enumerate(outputs):
                (at / f"output_{i}.pb").write_bytes(numpy_helper.from_array(value).SerializeToString())


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


def main():
    sys.exit(__doc__) if len(sys.argv) > 1 else None
    bandwidth(mask=False)
    bandwidth(mask=True)
    for make in [mlp, conv, attention, integers, booleans, half]:
        make()


main()
