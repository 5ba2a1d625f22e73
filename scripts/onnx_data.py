"""Writing of models with inputs and expected outputs in the layout of ONNX's own test data, and runs of ONNX Runtime."""
import contextlib
import shutil

import numpy as np
import onnx
from onnx import numpy_helper


def session(model, optimised=True, threads=0):
    """An ONNX Runtime session on the CPU for a model or a model file. By default it uses all cores."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def graph_inputs(model):
    """The inputs of a graph without those that are initializers."""
    constants = {i.name for i in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in constants]


def operator(node):
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def operators(graph):
    """The operators of a graph and of its subgraphs."""
    found = {operator(node) for node in graph.node}
    for attribute in (a for node in graph.node for a in node.attribute):
        for body in [attribute.g, *attribute.graphs]:
            found |= operators(body)
    return found


def mask(batch, length):
    """A mask [batch, length] of ones with zeros at the ends of all rows but the first."""
    m = np.ones((batch, length), np.int64)
    for row in range(1, batch):
        m[row, length - length // 3 - row :] = 0
    return m


def write_values(folder, kind, values):
    """Writes `input_I.pb` or `output_I.pb` for arrays or messages."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, value in enumerate(values):
        if not isinstance(value, (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto)):
            value = numpy_helper.from_array(np.asarray(value))
        (folder / f"{kind}_{i}.pb").write_bytes(value.SerializeToString())


def write(folder, model, *data_sets):
    """Writes a model and its data sets, pairs of inputs and outputs in the model's order."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    for n, data_set in enumerate(data_sets):
        for kind, values in zip(["input", "output"], data_set, strict=True):
            write_values(folder / f"test_data_set_{n}", kind, values)


def write_case(folder, name, model, *data_sets, rtol, atol, used=None):
    """Writes a case of the conformance tests. Its line in the index names the operators `used`, by default all of the model's."""
    write(folder / name, model, *data_sets)
    return f"{name}\t{rtol}\t{atol}\t{','.join(sorted(used or operators(model.graph)))}\n"


def write_index(path, lines):
    path.write_text("".join(sorted(lines)))
    print(f"{len(lines)} cases in {path}")


def once(stamp, version, make):
    """Calls `make` unless the file `stamp` records that it has been called with this version."""
    if not stamp.exists() or stamp.read_text() != version:
        make()
        stamp.write_text(version)


@contextlib.contextmanager
def complete(folder):
    """A new folder that is renamed to `folder` only once it is complete, so that an interrupted run is not mistaken for a
    finished one."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(folder)
