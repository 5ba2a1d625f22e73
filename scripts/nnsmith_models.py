#!/usr/bin/env python3
"""Makes random valid models with NNSmith, their inputs, and the outputs of ONNX Runtime and of torch.

    nnsmith_models.py OUT FROM TO [--nodes N] [--elements N]

OUT/SEED holds `model.onnx`; `test_data_set_0`, inputs and ONNX Runtime's outputs of the unoptimised model; `test_data_set_1`, the
same inputs and torch's outputs of the exported module. Existing folders of seeds are left unchanged. OUT/left_out.tsv lists the
seeds without a valid model. The seed determines the model except for NNSmith's time limits, so keep the folders to repeat a test.

On the first use NNSmith spends about a minute to find the operators and types that can be exported, which it keeps in
OUT/../operators.
"""
import contextlib
import functools
import io
import logging
import random
import signal
import sys
import warnings

import torch

import generated
import onnx_data

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
# The tracing exporter: the other one takes a second for a model and rejects NNSmith's own checks of values.
torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)

from nnsmith import narrow_spec  # noqa: E402
from nnsmith.abstract.extension import activate_ext  # noqa: E402
from nnsmith.graph_gen import model_gen  # noqa: E402
from nnsmith.materialize import Model  # noqa: E402

SECONDS = 30
"""The time limit for a model."""


class TooLong(BaseException):
    pass


def too_long(*_):
    raise TooLong


@contextlib.contextmanager
def limited(seconds):
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def make(kind, opset, seed, nodes, elements, folder):
    count = random.Random(seed).randint(2, nodes)
    drawn = model_gen(opset=opset, method="symbolic-cinit", seed=seed, max_elem_per_tensor=elements, max_nodes=count, timeout_ms=5000)
    net = kind.from_gir(drawn.make_concrete())
    net.with_torch = False
    net.refine_weights()
    oracle = net.make_oracle()
    model = net.onnx_model
    inputs = [oracle.input[i.name] for i in onnx_data.graph_inputs(model)]
    outputs = [oracle.output[o.name] for o in model.graph.output]
    try:
        expected = generated.by_onnx_runtime(model, oracle.input)
    except Exception as e:
        # ONNX Runtime has no kernels for some types.
        if "NOT_IMPLEMENTED" not in str(e) and "NotImplemented" not in type(e).__name__:
            raise
        expected = outputs
    generated.keep(folder, model, (inputs, expected), (inputs, outputs))


def main():
    parser = generated.parser(__doc__)
    parser.add_argument("--nodes", type=int, default=12, help="the most operators of a model")
    parser.add_argument("--elements", type=int, default=4096, help="the most elements of a tensor")
    a = parser.parse_args()
    kept = a.out.resolve().parent / "operators"
    narrow_spec.NNSMITH_CACHE_DIR = str(kept)
    torch.set_num_threads(1)

    kind = Model.init("onnx", backend_target="cpu")
    kind.add_seed_setter()
    with contextlib.redirect_stdout(io.StringIO()):
        # Operators with results that may not be finite are included.
        opset = narrow_spec.auto_opset(kind, None, vulops=True)
    activate_ext(opset=opset, factory=None)
    safe = [op for op in opset if not op.limit_domain]
    made = 0
    with generated.left_out(a.out) as left_out:
        for seed, folder in generated.missing(a):
            try:
                with limited(SECONDS), contextlib.redirect_stdout(io.StringIO()):
                    make(kind, opset if seed % 2 else safe, seed, a.nodes, a.elements, folder)
                made += 1
            except (Exception, TooLong) as e:
                lines = str(e).strip().splitlines() or [""]
                left_out(seed, f"{type(e).__name__}: {lines[0]}")
            if made and made % 100 == 0:
                print(f"{made} models, seed {seed}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
