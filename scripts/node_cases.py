#!/usr/bin/env python3
"""Write the test cases of the package onnx to a folder, in ONNX's own layout.

    python3 scripts/node_cases.py [FOLDER]         (needs: pip install onnx==1.23.2)

FOLDER (target/conformance by default) gets, for each case,

    NAME/model.onnx
    NAME/test_data_set_0/input_I.pb, output_I.pb   TensorProto, SequenceProto or OptionalProto,
                                                   as the model's input or output is declared

`node.tsv` lists the cases of single operators: name, rtol, atol, operators (comma-separated, with their domain unless that is
ai.onnx). `exported.tsv` lists the cases that the package has as files, most of them exported by PyTorch; older models are
converted to opset 7. A folder made by the same version is left unchanged.
"""
import shutil
import sys
import warnings
from pathlib import Path

import onnx
import onnx.version_converter
from onnx import numpy_helper

from onnx_data import once, write_case, write_index

VERSION = f"onnx {onnx.__version__}, layout 3\n"
OLDEST = 7  # the first opset with today's broadcasting; older models are converted to it


def message(value, declared):
    """An input or output: a message or an array."""
    if isinstance(value, (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto)):
        return value
    if declared.HasField("optional_type"):
        return numpy_helper.from_optional(value)
    return numpy_helper.from_list(value) if declared.HasField("sequence_type") else value


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
                lines.append(write_case(folder, name, model, rtol=1e-3, atol=1e-7))
    write_index(folder / "exported.tsv", lines)


def node_cases(folder):
    from onnx.backend.test.case.node import collect_testcases

    warnings.simplefilter("ignore")
    lines = []
    for case in collect_testcases(None):
        [data_set] = case.data_sets
        ports = [case.model.graph.input, case.model.graph.output]
        messages = [[message(v, p.type) for v, p in zip(values, declared, strict=True)] for values, declared in zip(data_set, ports)]
        lines.append(write_case(folder, case.name, case.model, messages, rtol=case.rtol, atol=case.atol))
    write_index(folder / "node.tsv", lines)


def main(folder):
    node_cases(folder)
    exported_cases(folder)


to = Path(sys.argv[1] if len(sys.argv) > 1 else "target/conformance")
once(to / "version", VERSION, lambda: main(to))
