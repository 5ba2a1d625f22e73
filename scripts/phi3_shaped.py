#!/usr/bin/env python3
"""Write fixtures/phi3-shaped.onnx: a decoder of Phi-3-mini's shape, graph only.

    python3 scripts/phi3_shaped.py [--layers 32] [--out fixtures/phi3-shaped.onnx]

32 layers of width 3072: RMS norms, one product for queries, keys and values of 32 heads of 96, rotary
positions, causal attention over a growing cache, one product for the gate and the input of SwiGLU's
8192 columns, 32,064 tokens. Weights are external data that is not there; --random-weights makes them
up. Needs: pip install onnx numpy
"""
import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, HEAD, HIDDEN, VOCABULARY = 3072, 32, 96, 8192, 32064


class Model:
    def __init__(self):
        self.nodes, self.initializers, self.offset = [], [], 0

    def op(self, kind, inputs, output, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [output], name=f"{output}/{kind}", **attributes))
        return output

    def constant(self, name, value):
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, name, *shape):
        t = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        size = 4 * int(np.prod(shape))
        for key, value in [("location", "phi3-shaped.data"), ("offset", self.offset), ("length", size)]:
            t.external_data.add(key=key, value=str(value))
        self.offset += size
        self.initializers.append(t)
        return name


def build(layers):
    m = Model()
    for axis in [1, 2, 3]:
        m.constant(f"axis{axis}", np.array([axis]))
    for name, value in [("zero", 0), ("one", 1), ("two", 2)]:
        m.constant(name, np.int64(value))
    m.constant("from", np.array([0]))
    m.constant("half", np.array([HEAD // 2]))
    m.constant("all", np.array([HEAD]))
    m.constant("split", np.array([0, 0, HEADS, HEAD]))
    m.constant("joined", np.array([0, 0, WIDTH]))
    m.constant("thirds", np.array([WIDTH] * 3))
    m.constant("halves", np.array([HIDDEN] * 2))
    m.constant("scale", np.float32(HEAD**-0.5))
    m.constant("least", np.float32(np.finfo(np.float32).min))
    m.constant("epsilon", np.float32(1e-5))
    m.constant("square", np.float32(2))
    m.constant("last", np.array([-1]))

    m.op("Shape", ["past_key_values.0.key"], "past_shape")
    m.op("Gather", ["past_shape", "two"], "past_length")
    m.op("Shape", ["input_ids"], "ids_shape")
    m.op("Gather", ["ids_shape", "one"], "length")
    m.op("Add", ["past_length", "length"], "total")
    m.op("Range", ["zero", "total", "one"], "columns")
    m.op("Range", ["past_length", "total", "one"], "places")
    m.op("Unsqueeze", ["places", "axis1"], "rows")
    m.op("LessOrEqual", ["columns", "rows"], "visible")

    m.op("Cast", ["position_ids"], "positions", to=TensorProto.FLOAT)
    m.op("Unsqueeze", ["positions", "axis2"], "positions3")
    m.constant("frequencies", (10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))).astype(np.float32))
    m.op("Mul", ["positions3", "frequencies"], "half_angles")
    m.op("Concat", ["half_angles", "half_angles"], "angles3", axis=-1)
    m.op("Unsqueeze", ["angles3", "axis1"], "angles")
    m.op("Cos", ["angles"], "cos")
    m.op("Sin", ["angles"], "sin")

    def norm(x, at):
        m.op("Pow", [x, "square"], f"{at}/square")
        m.op("ReduceMean", [f"{at}/square", "last"], f"{at}/mean")
        m.op("Add", [f"{at}/mean", "epsilon"], f"{at}/variance")
        m.op("Sqrt", [f"{at}/variance"], f"{at}/deviation")
        m.op("Reciprocal", [f"{at}/deviation"], f"{at}/scale")
        m.op("Mul", [x, f"{at}/scale"], f"{at}/normal")
        return m.op("Mul", [m.weight(f"{at}.weight", WIDTH), f"{at}/normal"], at)

    def heads(x, out):
        m.op("Reshape", [x, "split"], f"{out}/rows")
        return m.op("Transpose", [f"{out}/rows"], out, perm=[0, 2, 1, 3])

    def rotary(x):
        m.op("Slice", [x, "from", "half", "axis3"], f"{x}/left")
        m.op("Slice", [x, "half", "all", "axis3"], f"{x}/right")
        m.op("Neg", [f"{x}/right"], f"{x}/negative")
        m.op("Concat", [f"{x}/negative", f"{x}/left"], f"{x}/turned", axis=-1)
        m.op("Mul", [x, "cos"], f"{x}/cos")
        m.op("Mul", [f"{x}/turned", "sin"], f"{x}/sin")
        return m.op("Add", [f"{x}/cos", f"{x}/sin"], f"{x}/rotated")

    x = m.op("Gather", [m.weight("embedding", VOCABULARY, WIDTH), "input_ids"], "x")
    for i in range(layers):
        at = f"layer{i}"
        h = norm(x, f"{at}/norm")
        m.op("MatMul", [h, m.weight(f"{at}/qkv.weight", WIDTH, 3 * WIDTH)], f"{at}/qkv")
        parts = [f"{at}/{p}" for p in "qkv"]
        m.nodes.append(helper.make_node("Split", [f"{at}/qkv", "thirds"], parts, name=f"{at}/split", axis=-1))
        q, k, v = [heads(p, f"{p}/heads") for p in parts]
        q, k = rotary(q), rotary(k)
        m.op("Concat", [f"past_key_values.{i}.key", k], f"present.{i}.key", axis=2)
        m.op("Concat", [f"past_key_values.{i}.value", v], f"present.{i}.value", axis=2)
        m.op("Transpose", [f"present.{i}.key"], f"{at}/keys", perm=[0, 1, 3, 2])
        m.op("MatMul", [q, f"{at}/keys"], f"{at}/products")
        m.op("Mul", [f"{at}/products", "scale"], f"{at}/scaled")
        m.op("Where", ["visible", f"{at}/scaled", "least"], f"{at}/scores")
        m.op("Softmax", [f"{at}/scores"], f"{at}/weights", axis=-1)
        m.op("MatMul", [f"{at}/weights", f"present.{i}.value"], f"{at}/context")
        m.op("Transpose", [f"{at}/context"], f"{at}/context_rows", perm=[0, 2, 1, 3])
        m.op("Reshape", [f"{at}/context_rows", "joined"], f"{at}/joined")
        m.op("MatMul", [f"{at}/joined", m.weight(f"{at}/o.weight", WIDTH, WIDTH)], f"{at}/attention")
        x = m.op("Add", [x, f"{at}/attention"], f"{at}/middle")
        h = norm(x, f"{at}/norm2")
        m.op("MatMul", [h, m.weight(f"{at}/gate_up.weight", WIDTH, 2 * HIDDEN)], f"{at}/gate_up")
        parts = [f"{at}/gate", f"{at}/up"]
        m.nodes.append(helper.make_node("Split", [f"{at}/gate_up", "halves"], parts, name=f"{at}/split2", axis=-1))
        m.op("Sigmoid", [f"{at}/gate"], f"{at}/sigmoid")
        m.op("Mul", [f"{at}/gate", f"{at}/sigmoid"], f"{at}/silu")
        m.op("Mul", [f"{at}/up", f"{at}/silu"], f"{at}/product")
        m.op("MatMul", [f"{at}/product", m.weight(f"{at}/down.weight", HIDDEN, WIDTH)], f"{at}/mlp")
        x = m.op("Add", [x, f"{at}/mlp"], f"{at}/out")
    h = norm(x, "norm")
    m.op("MatMul", [h, m.weight("head.weight", WIDTH, VOCABULARY)], "logits")

    caches = [f"{i}.{which}" for i in range(layers) for which in ["key", "value"]]
    value = helper.make_tensor_value_info
    inputs = [value(n, TensorProto.INT64, [1, "seq"]) for n in ["input_ids", "position_ids"]]
    inputs += [value(f"past_key_values.{c}", TensorProto.FLOAT, [1, HEADS, "past", HEAD]) for c in caches]
    outputs = [value("logits", TensorProto.FLOAT, [1, "seq", VOCABULARY])]
    outputs += [value(f"present.{c}", TensorProto.FLOAT, [1, HEADS, "past + seq", HEAD]) for c in caches]
    graph = helper.make_graph(m.nodes, "phi3-shaped", inputs, outputs, m.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "fixtures/phi3-shaped.onnx")
    options = parser.parse_args()
    options.out.write_bytes(build(options.layers).SerializeToString())


main()
