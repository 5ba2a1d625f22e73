#!/usr/bin/env python3
"""Write the ONNX node test cases to a folder, in ONNX's own layout.

    python3 scripts/node_cases.py [FOLDER]         (needs: pip install onnx==1.23.2)

FOLDER (target/conformance by default) gets, for each case,

    NAME/model.onnx
    NAME/test_data_set_0/input_I.pb, output_I.pb   TensorProto, SequenceProto or OptionalProto,
                                                   as the model's input or output is declared

and `cases.tsv`: name, rtol, atol, operators (comma-separated, with their domain unless that is ai.onnx).
A folder whose `cases.tsv` is there already and was made by the same version is left alone.
"""
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

VERSION = f"# onnx {onnx.__version__}, layout 1\n"


def encode(value, declared):
    """The protobuf bytes of one input or output."""
    if isinstance(value, (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto)):
        return value.SerializeToString()
    if declared.HasField("optional_type"):
        return numpy_helper.from_optional(value).SerializeToString()
    if declared.HasField("sequence_type"):
        return numpy_helper.from_list(value).SerializeToString()
    return numpy_helper.from_array(np.asarray(value)).SerializeToString()


def operators(graph):
    """The operators of a graph and of its subgraphs."""
    found = set()
    for node in graph.node:
        found.add(f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type)
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs]:
                found |= operators(body)
    return found


def main(folder):
    index = folder / "cases.tsv"
    if index.exists() and index.open().readline() == VERSION:
        return
    from onnx.backend.test.case.node import collect_testcases

    warnings.simplefilter("ignore")
    lines = []
    for case in sorted(collect_testcases(None), key=lambda c: c.name):
        data = folder / case.name / "test_data_set_0"
        data.mkdir(parents=True, exist_ok=True)
        (folder / case.name / "model.onnx").write_bytes(case.model.SerializeToString())
        graph = case.model.graph
        [(inputs, outputs)] = case.data_sets
        for kind, values, declared in [("input", inputs, graph.input), ("output", outputs, graph.output)]:
            assert len(values) == len(declared), case.name
            for i, (value, info) in enumerate(zip(values, declared)):
                (data / f"{kind}_{i}.pb").write_bytes(encode(value, info.type))
        lines.append(f"{case.name}\t{case.rtol}\t{case.atol}\t{','.join(sorted(operators(graph)))}\n")
    index.write_text(VERSION + "".join(lines))
    print(f"{len(lines)} cases in {folder}")


main(Path(sys.argv[1] if len(sys.argv) > 1 else "target/conformance"))
