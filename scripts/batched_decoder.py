#!/usr/bin/env python3
"""Converts a decoder of one sequence (fixtures/qwen2.5-0.5b*.onnx) to one of any number of sequences with an attention mask.

usage: batched_decoder.py MODEL.onnx OUT.onnx

The first dimension of inputs and outputs becomes `batch`, reshapes keep it, and `attention_mask` [batch, past + seq] hides
positions where it is 0. Weights in external data are not read.
"""

import sys

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper


def main(source, target):
    model = onnx.load(source, load_external_data=False)
    graph = model.graph
    for port in [*graph.input, *graph.output]:
        dims = port.type.tensor_type.shape.dim
        if len(dims) > 1 and dims[0].dim_value == 1:
            dims[0].dim_param = "batch"
    consts = {i.name: i for i in graph.initializer}
    kept = set()
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[1] not in consts or node.input[1] in kept:
            continue
        shape = numpy_helper.to_array(consts[node.input[1]]).copy()
        if len(shape) > 2 and shape[0] == 1:
            shape[0] = 0
            kept.add(node.input[1])
            consts[node.input[1]].CopyFrom(numpy_helper.from_array(shape, node.input[1]))
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[1] in kept:
            attributes = [a for a in node.attribute if a.name != "allowzero"]
            del node.attribute[:]
            node.attribute.extend(attributes)
    # The causal mask combined with the attention mask.
    causal = next(n for n in graph.node if n.op_type in ("LessOrEqual", "GreaterOrEqual", "Less", "Greater"))
    seen = causal.output[0]
    causal.output[0] = seen + "_causal"
    graph.initializer.append(numpy_helper.from_array(numpy.array([1, 2]), "mask_axes"))
    at = list(graph.node).index(causal) + 1
    for node in reversed(
        [
            helper.make_node("Cast", ["attention_mask"], ["mask_bool"], to=TensorProto.BOOL),
            helper.make_node("Unsqueeze", ["mask_bool", "mask_axes"], ["mask_rows"]),
            helper.make_node("And", [causal.output[0], "mask_rows"], [seen]),
        ]
    ):
        graph.node.insert(at, node)
    graph.input.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "past + seq"]))
    onnx.save(model, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
