"""Random models as folders of test data: the model, its inputs, and what another implementation makes of them."""
import argparse
import contextlib
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper


def by_onnx_runtime(model, inputs):
    """ONNX Runtime's outputs, without its optimisations, on one core."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    return session.run([o.name for o in model.graph.output], {k: v for k, v in inputs.items() if k in names})


def write(folder, model, *data_sets):
    """Writes a folder that is complete or absent. A data set is a pair of inputs and outputs."""
    part = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    onnx.save(model, part / "model.onnx")
    for number, data_set in enumerate(data_sets):
        data = part / f"test_data_set_{number}"
        data.mkdir()
        for kind, values in zip(("input", "output"), data_set):
            for i, a in enumerate(values):
                (data / f"{kind}_{i}.pb").write_bytes(numpy_helper.from_array(np.asarray(a)).SerializeToString())
    part.rename(folder)


@contextlib.contextmanager
def left_out(out):
    """A function that notes in `out` why a seed gives no model."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "left_out.tsv", "a") as file:
        yield lambda seed, why: print(seed, " ".join(str(why).split())[:400], sep="\t", file=file, flush=True)


def seeds(doc):
    """The command line's seeds whose folders are not there yet: each with its folder, and a function that notes why it gives no model."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    a = parser.parse_args()
    with left_out(a.out) as note:
        for seed in range(a.first, a.end):
            folder = a.out / str(seed)
            if not folder.exists():
                yield seed, folder, note
