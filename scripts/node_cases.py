#!/usr/bin/env python3
"""Write the test cases of the package onnx to a folder, in ONNX's own layout.

    python3 scripts/node_cases.py [FOLDER]         (needs: pip install onnx==1.23.2)

FOLDER (target/conformance by default) gets, for each case,

    NAME/model.onnx
    NAME/test_data_set_0/input_I.pb, output_I.pb   TensorProto, SequenceProto or OptionalProto,
                                                   as the model's input or output is declared

`node.tsv` lists the cases of single operators: name, rtol, atol, operators (comma-separated, with
their domain unless that is ai.onnx). `exported.tsv` lists those that come as files, most of them
exported by PyTorch, converted to opset 7 where they are older. A folder made by the same version is left alone.
"""
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
from onnx import numpy_helper

VERSION = f"onnx {onnx.__version__}, layout 3\n"
OLDEST = 7  # the first opset with today's broadcasting; older models are converted to it


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
    stamp = folder / "version"
    if stamp.exists() and stamp.read_text() == VERSION:
        return
    node_cases(folder)
    exported_cases(folder)
    stamp.write_text(VERSION)


def line(name, rtol, atol, model):
    return f"{name}\t{rtol}\t{atol}\t{','.join(sorted(operators(model.graph)))}\n"


def exported_cases(folder):
    data = Path(onnx.__file__).parent / "backend/test/data"
    lines = []
    for kind in ["pytorch-converted", "pytorch-operator", "simple"]:
        for source in sorted((data / kind).iterdir()):
            if (source / "model.onnx").exists():
                name = f"{kind}/{source.name}"
                shutil.copytree(source, folder / name, dirs_exist_ok=True)
                model = onnx.load(source / "model.onnx")
                if any(o.domain == "" and o.version < OLDEST for o in model.opset_import):
                    model = onnx.version_converter.convert_version(model, OLDEST)
                onnx.save(model, folder / name / "model.onnx")
                lines.append(line(name, 1e-3, 1e-7, model))
    write(folder / "exported.tsv", lines)


def node_cases(folder):
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
        lines.append(line(case.name, case.rtol, case.atol, case.model))
    write(folder / "node.tsv", lines)


def write(index, lines):
    index.write_text("".join(lines))
    print(f"{len(lines)} cases in {index}")


main(Path(sys.argv[1] if len(sys.argv) > 1 else "target/conformance"))
