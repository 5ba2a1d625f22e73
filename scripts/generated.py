"""Common parts of scripts that write random models by seed as folders of test data: the command line and ONNX Runtime's
outputs."""
import argparse
import contextlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

import onnx_data

F32, F64, I64, I32, BOOL = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
U16, I16, U8, I8, U4, I4 = (getattr(TensorProto, f"{sign}INT{n}") for n in (16, 8, 4) for sign in ("U", ""))
NUMPY = {F32: np.float32, F64: np.float64, I64: np.int64, I32: np.int32, BOOL: np.bool_, U8: np.uint8, I8: np.int8, U16: np.uint16, I16: np.int16}


def by_onnx_runtime(model, inputs):
    """The outputs of ONNX Runtime without optimisations on one core."""
    session = onnx_data.session(model, optimised=False, threads=1)
    names = {i.name for i in session.get_inputs()}
    return session.run(None, {k: v for k, v in inputs.items() if k in names})


def keep(folder, model, *data_sets):
    with onnx_data.complete(folder) as partial:
        onnx_data.write(partial, model, *data_sets)


@contextlib.contextmanager
def left_out(out):
    """A function that records in `out` the reason for which a seed gives no model."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "left_out.tsv", "a") as file:
        yield lambda seed, why: print(seed, " ".join(str(why).split())[:400], sep="\t", file=file, flush=True)


def parser(doc):
    """A parser of command lines with a folder and a range of seeds."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("out", type=Path)
    made.add_argument("first", type=int)
    made.add_argument("end", type=int)
    return made


def missing(arguments):
    """The seeds whose folders do not exist yet, with these folders."""
    folders = ((seed, arguments.out / str(seed)) for seed in range(arguments.first, arguments.end))
    return ((seed, folder) for seed, folder in folders if not folder.exists())


def main(doc, make):
    """Writes the models of the command line's seeds. `make` returns a model, the equivalent model for ONNX Runtime, and the
    inputs."""
    arguments = parser(doc).parse_args()
    with left_out(arguments.out) as note:
        for seed, folder in missing(arguments):
            try:
                model, known, inputs = make(seed)
                onnx.checker.check_model(model, full_check=False)
                outputs = by_onnx_runtime(known, inputs)
            except Exception as e:
                note(seed, f"{type(e).__name__}: {e}")
                continue
            keep(folder, model, (inputs.values(), outputs))
