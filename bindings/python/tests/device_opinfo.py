"""Operators of torch's OpInfo on the device ``webgpu``: results and gradients of the first samples of each, in f32, compared with
the CPU's by torch's own tolerances.

    python device_opinfo.py                 compares with device_opinfo.txt, which has the operators that pass
    python device_opinfo.py --write         adds those that pass to it
    python device_opinfo.py softmax add     tries these alone, and prints why they fail
    python device_opinfo.py --odd           calls operators of one and two tensors with sizes 0 and 1, without axes, and with views

An operator of the list that fails is an error. Random operators are compared by shapes and types only, as the device draws other
numbers.
"""

import argparse
import pathlib
import sys
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo
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


ODD = (
    lambda: torch.randn(()),
    lambda: torch.randn(0),
    lambda: torch.randn(1),
    lambda: torch.randn(2, 0, 3),
    lambda: torch.randn(1, 1, 1),
    lambda: torch.randn(6, 4)[::2, 1:],
    lambda: torch.randn(3, 1).expand(3, 4),
    lambda: torch.randn(3, 5).t(),
    lambda: torch.randn(7)[3:],
)
"""Tensors of odd sizes and strides."""


def odd():
    """Compares operators on tensors of odd sizes with the CPU: results, or that both raise an exception. Returns the number of calls
    that differ for another reason than types that the device lacks."""
    calls = differ = 0
    for op in op_db:
        one, two = isinstance(op, (UnaryUfuncInfo, ReductionOpInfo)), isinstance(op, BinaryUfuncInfo)
        if torch.float32 not in op.dtypes or has_no_values(op) or not (one or two):
            continue
        for make in ODD:
            x = make()
            given = [x, make().abs() + 0.5] if two else [x]
            calls += 1
            results = []
            for arguments in (given, [placed(y) for y in given]):
                try:
                    results.append(op(*arguments))
                except Exception as e:
                    results.append(e)
            want, got = results
            if isinstance(got, TypeError) and "doesn't support" in str(got):
                continue
            try:
                assert isinstance(want, Exception) == isinstance(got, Exception), got
                for a, b in zip(tensors(want), tensors(got), strict=True):
                    assert (a.shape, a.dtype) == (b.shape, b.dtype)
                    torch.testing.assert_close(b.cpu(), a, equal_nan=True, rtol=1e-4, atol=1e-4)
            except Exception as e:
                differ += 1
                print(f"{op.full_name} of {tuple(x.shape)} with strides {x.stride()}: {e}")
    print(f"{calls} calls with odd sizes, {differ} differ")
    return differ


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--odd", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.odd:
        sys.exit(odd() > 0)
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
