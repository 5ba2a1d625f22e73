"""Operators of torch's OpInfo on the device ``webgpu``: results and gradients of the first samples of each, in f32, compared with
the CPU's by torch's own tolerances.

    python device_opinfo.py                 compares with device_opinfo.txt, which has the operators that pass
    python device_opinfo.py --write         adds those that pass to it
    python device_opinfo.py softmax add     tries these alone, and prints why they fail

An operator of the list that fails is an error. Random operators are compared by shapes and types only, as the device draws other
numbers.
"""

import argparse
import pathlib
import sys
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

import wgfc.torch

LIST = pathlib.Path(__file__).with_suffix(".txt")
SAMPLES = 2
DRAW = ("bernoulli", "multinomial", "normal", "exponential", "log_normal", "cauchy", "geometric", "uniform", "poisson", "rrelu")
UNSET = ("empty", "empty_like", "new_empty", "empty_strided", "empty_permuted", "new_empty_strided")


def placed(x):
    return x.detach().to("webgpu").requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


def tensors(x):
    return [t for t in tree_leaves(x) if isinstance(t, torch.Tensor)]


def has_no_values(op):
    name = op.name.rsplit(".", 1)[-1]
    drawn = name in DRAW or any(word in op.name for word in ("rand", "dropout", "fractional_max_pool"))
    return drawn or name in UNSET or op.name == "nn.functional.multi_head_attention_forward"


def compare(op):
    """Raises an exception if a sample of the operator differs."""
    for i, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)):
        if i == SAMPLES:
            return
        given = sample.input, sample.args, sample.kwargs
        on_device = tree_map(placed, given)
        if "device" in sample.kwargs:
            on_device[2]["device"] = "webgpu"
        results = [op(a, *b, **c) for a, b, c in (given, on_device)]
        for want, got in zip(*map(tensors, results), strict=True):
            assert (want.shape, want.dtype) == (got.shape, got.dtype), (want.shape, want.dtype, got.shape, got.dtype)
            if not has_no_values(op):
                torch.testing.assert_close(got.detach().cpu(), want.detach(), equal_nan=True)
        if not op.supports_autograd or has_no_values(op):
            continue
        gradients = []
        for x, y in zip((given, on_device), results):
            sources, made = ([t for t in tensors(v) if t.requires_grad] for v in (x, y))
            if made and sources and not any(t.is_complex() for t in made):
                gradients.append(torch.autograd.grad(sum(t.sum() for t in made), sources, allow_unused=True))
        for want, got in zip(*gradients, strict=True) if gradients else ():
            assert (want is None) == (got is None)
            if want is not None:
                torch.testing.assert_close(got.cpu(), want, equal_nan=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    known = set(LIST.read_text().split()) if LIST.exists() else set()
    passing, lost, tried = set(), [], 0
    for op in op_db:
        name = op.full_name
        if torch.float32 not in op.dtypes or (arguments.names and name not in arguments.names):
            continue
        tried += 1
        try:
            torch.manual_seed(1)
            compare(op)
            passing.add(name)
        except Exception as e:
            if arguments.names or name in known:
                lost.append(name)
                print(f"{name}: {type(e).__name__}: {e}")
    made = wgfc.torch.statistics()
    print(f"{len(passing)} of {tried} operators pass; {len(passing - known)} are new, {len(made.on_host)} overloads ran on the CPU")
    if arguments.write:
        LIST.write_text("\n".join(sorted(known | passing)) + "\n")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
