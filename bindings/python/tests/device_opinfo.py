"""Operators of torch's OpInfo on the device ``webgpu``: results and gradients of the first samples of each, in f32, compared with
the CPU's by torch's own tolerances. With ``--forms`` also results in other types, of tensors that are not contiguous, written to
``out=``, and in place.

    python device_opinfo.py                 compares with device_opinfo.txt, which has the operators that pass
    python device_opinfo.py --forms         compares the forms; those that pass are in the list as "name:form"
    python device_opinfo.py --write         adds those that pass to it
    python device_opinfo.py softmax add     tries these alone, and prints why they fail
    python device_opinfo.py --odd           calls operators of one and two tensors with sizes 0 and 1, without axes, and with views

An operator of the list that fails is an error. Random operators are compared by shapes and types only, as the device draws other
numbers.
"""

import argparse
import collections
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


class NoSample(Exception):
    """No sample of an operator has the form."""


TYPES = (torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


def forms(op):
    """The forms of an operator besides its call in f32."""
    found = [str(t).removeprefix("torch.") for t in TYPES if t in op.dtypes]
    if torch.float32 in op.dtypes:
        found += ["noncontiguous"] + ["out"] * op.supports_out + ["inplace"] * (op.inplace_variant is not None)
    return found


def compare_form(op, form):
    """Raises an exception if the first sample of the operator that has this form differs."""
    dtype = getattr(torch, form, torch.float32)
    for sample in op.sample_inputs("cpu", dtype):
        if form == "noncontiguous":
            sample = sample.noncontiguous()
        given = sample.input, sample.args, sample.kwargs
        if form == "inplace" and (not isinstance(sample.input, torch.Tensor) or sample.broadcasts_input):
            continue
        on_device = tree_map(placed, given)
        if "device" in sample.kwargs:
            on_device[2]["device"] = "webgpu"
        if form == "inplace":
            # Not every sample has an input of the type of its result.
            if op(given[0], *given[1], **given[2]).dtype != given[0].dtype:
                continue
            results = [op.inplace_variant(a.clone(), *b, **c) for a, b, c in (given, on_device)]
        elif form == "out":
            want = op(given[0], *given[1], **given[2])
            out = tree_map(lambda x: torch.empty_like(x, device="webgpu") if isinstance(x, torch.Tensor) else x, want)
            op(on_device[0], *on_device[1], **on_device[2], out=out)
            results = [want, out]
        else:
            results = [op(a, *b, **c) for a, b, c in (given, on_device)]
        for want, got in zip(*map(tensors, results), strict=True):
            assert (want.shape, want.dtype) == (got.shape, got.dtype), (want.shape, want.dtype, got.shape, got.dtype)
            if not has_no_values(op):
                torch.testing.assert_close(got.detach().cpu(), want.detach(), equal_nan=True)
        return
    raise NoSample


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
    parser.add_argument("--forms", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.odd:
        sys.exit(odd() > 0)
    known = set(LIST.read_text().split()) if LIST.exists() else set()
    passing, lost, tried = set(), [], collections.Counter()
    for op in op_db:
        if arguments.names and op.full_name not in arguments.names:
            continue
        for form in forms(op) if arguments.forms else [""] * (torch.float32 in op.dtypes):
            name = f"{op.full_name}:{form}" if form else op.full_name
            try:
                torch.manual_seed(1)
                compare_form(op, form) if form else compare(op)
                passing.add(name)
            except NoSample:
                continue
            except Exception as e:
                if arguments.names or name in known:
                    lost.append(name)
                    print(f"{name}: {type(e).__name__}: {e}")
            tried[form] += 1
    made = wgfc.torch.statistics()
    for form, count in tried.items():
        good = sum(1 for n in passing if n.endswith(f":{form}") or not form)
        print(f"{form or 'float32'}: {good} of {count} operators pass")
    print(f"{len(passing - known)} are new, {len(made.on_host)} overloads ran on the CPU")
    if arguments.write:
        LIST.write_text("\n".join(sorted(known | passing)) + "\n")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
