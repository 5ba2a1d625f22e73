"""Random PyTorch programs, drawn by seed, and what the backend computes of them compared with eager PyTorch.

    python programs.py SEED [COUNT]           runs programs and tells of those that differ; with --shorten takes statements out of these
    python programs.py SEED --show            prints a program

A program is a function of a module and of tensors, a list of statements: views and writes through them, changed inputs and buffers,
types of 8 to 64 bits, arithmetic with sizes, reductions, norms, losses, attention, branches. Each statement was tried in eager PyTorch at all
sizes that the program is run at. It is run without gradients, with gradients of inputs and parameters, as steps of training, or exported.

Integers and bools must be equal. A float may be as far from what float64 gives as eager PyTorch is, times a factor. Where that does not
hold, the program is run in float64 with noise of the size of roundings after each statement: what noise changes, as behind
a comparison of nearly equal numbers, is judged by how much it does.
"""

import argparse
import dataclasses
import itertools
import random
import sys
import time
import traceback
import warnings
from typing import Optional

import optimizers
import torch
import torch.nn.functional as F

FACTOR = 16
MOST = 6000
"""Elements of a tensor."""
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
KINDS = ("inference", "gradients", "training", "export")


@dataclasses.dataclass
class Statement:
    text: str
    view: bool = False
    """Whether it makes a view or writes, so that noise cannot be put upon it."""


@dataclasses.dataclass
class Program:
    seed: int
    kind: str
    dynamic: Optional[bool]
    inputs: list
    """(name, dtype, shapes at each run)."""
    sizes: list
    """The integer argument ``n`` at each run."""
    statements: list = dataclasses.field(default_factory=list)
    results: list = dataclasses.field(default_factory=list)
    optimizer: Optional[tuple] = None
    forms: dict = dataclasses.field(default_factory=dict)
    """How inputs lie in memory, where they are not dense."""

    def source(self, noisy=False):
        lines = [f"def f(m, n, {', '.join(i[0] for i in self.inputs)}):"]
        for s in self.statements:
            lines += [f"    {line}" for line in s.text.splitlines()]
            target = s.text.split(" = ", 1)[0]
            if noisy and not s.view and target.isidentifier():
                lines.append(f"    {target} = noise({target})")
        lines.append(f"    return ({''.join(r + ', ' for r in self.results)})")
        return "\n".join(lines) + "\n"

    def describe(self):
        inputs = "".join(f"#   {n}: {d} {s} {self.forms.get(n, '')}\n" for n, d, s in self.inputs)
        optimizer = f", {self.optimizer}" if self.optimizer else ""
        return f"# seed {self.seed}: {self.kind}, dynamic={self.dynamic}, n={self.sizes}{optimizer}\n{inputs}{self.source()}"


class Module(torch.nn.Module):
    """Parameters and buffers that programs use."""

    def __init__(self, seed, wide):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        draw = lambda *s: torch.randn(*s, generator=g)
        real = torch.float64 if wide else torch.float32
        for name, shape in {"w": (5, 7), "b": (5,), "scale": (7,), "square": (7, 7), "kernel": (4, 3, 3), "table": (6, 7)}.items():
            setattr(self, name, torch.nn.Parameter(draw(*shape).to(real) * 0.5))
        self.register_buffer("mean", draw(7).to(real))
        self.register_buffer("var", draw(7).abs().to(real) + 0.5)
        self.register_buffer("count", torch.arange(5))
        self.register_buffer("halves", draw(5, 7).half().to(torch.float64 if wide else torch.float16))
        self.register_buffer("flags", torch.arange(21).reshape(3, 7) % 2 == 0)
        self.register_buffer("octets", torch.arange(15, dtype=torch.uint8).reshape(3, 5))


def scope(wide=False, noise=None):
    """The names that a program uses; ``wide`` makes all floats those of 64 bits."""
    names = {n: torch.float64 if wide else d for d, n in NAMES.items()}
    return {"torch": torch, "F": F, "noise": noise or (lambda v: v), "tie": noise or (lambda v: v), **names}


def function(program, wide=False, noise=None):
    names = scope(wide, noise)
    exec(compile(program.source(noise is not None), f"<program {program.seed}>", "exec"), names)
    return names["f"]


class Wrapped(torch.nn.Module):
    """A program as a module that can be exported."""

    def __init__(self, module, f, n, names):
        super().__init__()
        self.m = module
        scope = {"f": f, "n": n}
        exec(f"def forward(self, {', '.join(names)}): return f(self.m, n, {', '.join(names)})", scope)
        self.forward = scope["forward"].__get__(self)


FORMS = {
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim > 1 else x,
    "behind others": lambda x: torch.cat([x, x])[x.shape[0] :],
    "between others": lambda x: torch.stack([x, x], -1)[..., 1],
    "expanded": lambda x: x[:1].expand_as(x),
}
ALIASES = {
    "x0": lambda x: x,
    "x0[1:]": lambda x: x[1:],
    "x0[:-1]": lambda x: x[:-1],
    "x0.mT": lambda x: x.mT,
    "x0.view(-1)": lambda x: x.view(-1),
    "x0[..., ::2]": lambda x: x[..., ::2],
}
"""Inputs that share the memory of the first."""


def drawn(program, run, wide=False):
    """The inputs of a run."""
    g = torch.Generator().manual_seed(program.seed * 31 + run)
    made = []
    for name, dtype, shapes in program.inputs:
        form = program.forms.get(name)
        if form in ALIASES:
            made.append(ALIASES[form](made[0]))
            continue
        if dtype.is_floating_point:
            x = (torch.randn(shapes[run], generator=g) * 1.5).to(dtype)
            x = x.double() if wide else x
        elif dtype == torch.bool:
            x = torch.rand(shapes[run], generator=g) > 0.4
        else:
            x = torch.randint(0 if dtype == torch.uint8 else -6, 7, shapes[run], generator=g).to(dtype)
        made.append(FORMS[form](x) if form else x)
    return made


def flat(values):
    return [v for v in values if isinstance(v, torch.Tensor)]


def loss_of(outs):
    """A number whose gradient is another one for each element."""
    total = 0
    for o in outs:
        if isinstance(o, torch.Tensor) and o.requires_grad:
            w = torch.cos(torch.arange(o.numel(), dtype=torch.float32)).to(o.dtype).reshape(o.shape)
            total = total + (o * w).sum() / max(o.numel(), 1)
    return total


def optimizer_of(program, parameters):
    name, options = program.optimizer
    return optimizers.optimizer(name, parameters, options)


def outcome(program, call, module, wide=False):
    """All that a program returns and changes, by name."""
    found = {}

    def note(name, value):
        if isinstance(value, torch.Tensor):
            found[name] = value.detach().clone()
        elif value is not None:
            found[name] = torch.tensor(value)

    if program.kind == "training":
        optimizer = optimizer_of(program, module.parameters())
        for step in range(4):
            args = drawn(program, step % len(program.sizes), wide)

            def closure():
                optimizer.zero_grad()
                loss = loss_of(call(module, program.sizes[step % len(program.sizes)], *args))
                loss.backward()
                return loss

            note(f"loss of step {step}", optimizer.step(closure))
        for name, p in module.named_parameters():
            note(f"parameter {name}", p)
        return found
    for run, n in enumerate(program.sizes):
        args = drawn(program, run, wide)
        if program.kind == "gradients":
            args = [a.requires_grad_() if a.is_floating_point() else a for a in args]
            module.zero_grad()
        with torch.set_grad_enabled(program.kind == "gradients"):
            outs = call(module, n, *args)
        for name, out in zip(program.results, outs):
            note(f"run {run}: {name}", out)
        if program.kind == "gradients":
            loss_of(outs).backward()
            for name, p in [*zip((i[0] for i in program.inputs), args), *module.named_parameters()]:
                note(f"run {run}: gradient of {name}", p.grad)
        for (name, _, _), a in zip(program.inputs, args):
            if not a.requires_grad:
                note(f"run {run}: {name} after", a)
        for name, b in module.named_buffers():
            note(f"run {run}: buffer {name}", b)
    return found


class Stranger(Exception):
    """A program that is of no use."""


def eager(program, wide=False, noise=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outcome(program, function(program, wide, noise), Module(program.seed, wide), wide)


def noise(seed, eps):
    g = torch.Generator().manual_seed(seed)

    def add(v):
        if not isinstance(v, torch.Tensor) or v.is_complex() or not v.is_floating_point():
            return v
        r = torch.randn(v.shape, generator=g, dtype=torch.float64)
        s = torch.randn(v.shape, generator=g, dtype=torch.float64)
        return v * (1 + eps * r) + s * eps * 1e-3 * v.detach().abs().max() if v.numel() else v

    return add


def precision(program):
    """The coarsest rounding of a program."""
    text = program.source() + "".join(NAMES.get(d, "") for _, d, _ in program.inputs)
    if "BF16" in text:
        return 2.0**-8
    return 2.0**-11 if "F16" in text.replace("BF16", "") or "m.halves" in text else 2.0**-23


def statement_tries(g, program, templates, tries):
    """Draws statements, of which those stay that eager PyTorch computes at all sizes."""
    # Values at the first sizes, for what is drawn next.
    for _ in range(tries):
        known = values_of(program)
        statement = None
        for _ in range(20):
            made = g.choice(templates)(Draw(g, known))
            if made is not None:
                statement = made
                break
        if statement is None:
            continue
        program.statements.append(statement)
        try:
            values_of(program)
        except Exception:
            program.statements.pop()


def values_of(program):
    """The local variables of a program after its statements, at the first sizes; an exception if it is of no use at any."""
    kept = program.results
    found = None
    names = dict.fromkeys(["m", *(i[0] for i in program.inputs)])
    for s in program.statements:
        target = s.text.split(" = ", 1)[0]
        if target.isidentifier():
            names[target] = None
    program.results = [n for n in names if n != "m"]
    try:
        for wide in (False, True):
            f = function(program, wide)
            for run, n in enumerate(program.sizes):
                module = Module(program.seed, wide)
                args = drawn(program, run, wide)
                if program.kind in ("gradients", "training"):
                    args = [a.requires_grad_() if a.is_floating_point() and program.kind == "gradients" else a for a in args]
                with torch.set_grad_enabled(program.kind in ("gradients", "training")), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    outs = f(module, n, *args)
                    loss = loss_of(outs) if program.kind in ("gradients", "training") else 0
                    if isinstance(loss, torch.Tensor):
                        # Tensors that the backward pass needs may have been written.
                        loss.backward(retain_graph=True)
                for o in outs:
                    if not isinstance(o, torch.Tensor):
                        raise Stranger
                    if o.numel() > MOST or o.numel() == 0 and run == 0:
                        raise Stranger
                    if o.is_floating_point() and not (o.abs() < (1e4 if not wide else 1e5)).all():
                        raise Stranger
                    if not o.is_floating_point() and o.dtype != torch.bool and (o.abs() if o.dtype != torch.uint8 else o).max() > 1 << 30 if o.numel() else False:
                        raise Stranger
                if found is None:
                    found = dict(zip(program.results, outs))
                    found.update({f"m.{n}": t for n, t in itertools.chain(module.named_parameters(), module.named_buffers())})
        return found
    finally:
        program.results = kept


REAL = (torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.uint8)


class Draw:
    """Picks operands among the values that a program has."""

    def __init__(self, g, known):
        self.g = g
        self.known = known
        self.local = [k for k in known if not k.startswith("m.")]

    def name(self):
        numbers = [int(k[1:]) for k in self.local if k[0] == "v" and k[1:].isdigit()]
        return f"v{max(numbers, default=-1) + 1}"

    def value(self, dtypes=None, ndim=None, least=0, test=None, modules=False):
        fit = []
        for k in self.known if modules else self.local:
            t = self.known[k]
            if dtypes is not None and t.dtype not in dtypes:
                continue
            if (ndim is not None and t.ndim != ndim) or t.ndim < least or (test and not test(t)):
                continue
            fit += [k] * (3 if k[0] == "v" else 1)
        # The values that were made last are drawn more often.
        fit += fit[-3:]
        return self.g.choice(fit) if fit else None

    def axis(self, v):
        n = self.known[v].ndim
        return self.g.choice([self.g.randrange(n), self.g.randrange(n) - n])

    def same(self, v):
        """Another value that can be computed with."""
        t = self.known[v]

        def fits(u):
            try:
                return torch.broadcast_shapes(u.shape, t.shape) == t.shape and u.dtype == t.dtype
            except RuntimeError:
                return False

        return self.value(test=fits, modules=True)

    def size(self, v):
        t = self.known[v]
        return f"{v}.shape[{self.g.randrange(t.ndim)}]" if t.ndim else "n"

    def index(self, v, whole=False):
        """A subscript of slices and positions."""
        parts = []
        t = self.known[v]
        for a in range(t.ndim):
            extent = f"{v}.shape[{a}]"
            parts.append(
                self.g.choice(
                    [":", ":", "1:", ":-1", "::2", ":3", ":1", "1:2", f":{extent} // 2", f"{extent} // 2:", f"{extent} // 3:{extent} - 1"]
                    + ([] if whole else ["0", "-1", "None", f"{extent} // 2"])
                )
            )
        if self.g.random() < 0.2 and len(parts) > 1:
            parts = parts[: self.g.randrange(1, len(parts))]
        return ", ".join(parts)


def number(g):
    return g.choice(["2", "-1", "0.5", "3", "1.5", "-0.3", "0.7"])


def views(d):
    g, v = d.g, d.value(least=1, modules=d.g.random() < 0.1)
    if v is None:
        return None
    a, b = d.axis(v), d.axis(v)
    n = f"{v}.shape[{a}]"
    return Statement(
        f"{d.name()} = "
        + g.choice(
            [
                f"{v}[{d.index(v)}]", f"{v}[{d.index(v)}]", f"{v}[{d.index(v)}]",
                f"{v}.chunk(2, {a})[{g.choice([0, 1])}]",
                f"{v}.split({g.choice(['2', '3', n + ' // 2'])}, {a})[{g.choice([0, -1])}]",
                f"{v}.narrow({a}, {g.choice(['1', n + ' // 3'])}, {g.choice(['1', n + ' // 2'])})",
                f"{v}.narrow({a}, 1, {n} - 1)",
                f"{v}.transpose({a}, {b})", f"{v}.movedim({a}, {b})", f"{v}.unsqueeze({a})", f"{v}.squeeze({a})",
                f"{v}.select({a}, {g.choice(['0', '-1', n + ' // 2'])})",
                f"{v}.unsqueeze(0).expand({g.choice(['3', 'n'])}, *{v}.shape)",
                f"{v}.as_strided(({v}.shape[0],), ({v}.stride()[0],))",
                f"{v}.as_strided(({v}.shape[0] - 1,), ({v}.stride()[0],), {v}.storage_offset() + {v}.stride()[0])",
                f"{v}.diagonal(0, {a}, {b})", f"{v}.diagonal(1, {a}, {b})",
                f"{v}.unfold({a}, 2, {g.choice([1, 2])})",
                f"{v}.view(-1)", f"{v}.flatten()", f"{v}.unflatten({a}, (-1, {g.choice([2, 3])}))", f"{v}.view_as({v})",
                f"{v}.detach()", f"{v}.mT", f"{v}.permute({', '.join(map(str, g.sample(range(d.known[v].ndim), d.known[v].ndim)))})",
                f"torch.tensor_split({v}, 2, {a})[{g.choice([0, 1])}]", f"torch.unbind({v}, {a})[{g.choice([0, -1])}]",
            ]
        ),
        True,
    )  # fmt: skip


def moves(d):
    g, v = d.g, d.value(least=1)
    if v is None:
        return None
    a, w = d.axis(v), d.same(v) or v
    n = f"{v}.shape[{a}]"
    return Statement(
        f"{d.name()} = "
        + g.choice(
            [
                f"{v}.flip({a})", f"{v}.flip({', '.join(map(str, range(d.known[v].ndim)))})", f"{v}.roll({g.choice(['1', '-1', n + ' // 2'])}, {a})",
                f"{v}.clone()", f"torch.cat([{v}, {v}[{d.index(v, True)}]], {a})", f"torch.cat([{v}, {w}], {a})", f"torch.stack([{v}, {w}], {a})",
                f"{v}.repeat({', '.join(['1'] * (d.known[v].ndim - 1) + [g.choice(['2', 'n'])])})", f"{v}.repeat_interleave(2, {a})",
                f"F.pad({v}, ({g.choice(['1', '0', 'n'])}, {g.choice(['2', '1', '-1'])}))",
                f"torch.slice_scatter({v}, {v}.narrow({a}, 0, {n} // 2), {a}, {n} - {n} // 2)",
                f"torch.slice_scatter({v}, {v}.narrow({a}, 0, 1) * 2, {a}, 0, 1)",
                f"torch.select_scatter({v}, {v}.select({a}, -1), {a}, 0)",
                f"{v}.index_select({a}, torch.arange({n} - 1, -1, -1))", f"{v}.gather({a}, (torch.zeros_like({v}, dtype=torch.int64)))",
                f"{v}.tril()" if d.known[v].ndim > 1 else f"{v}.diag()", f"{v}.take(torch.arange({n}))",
                f"{v}[torch.arange({v}.shape[0]) % 2]", f"torch.where({v} > 0, {v}, {w})", f"{v}.reshape({n}, -1)",
                f"{v}.to({g.choice(['F32', 'F16', 'BF16'])})" if d.known[v].dtype in REAL else f"{v}.to({g.choice(['F32', 'torch.int32', 'torch.int64', 'torch.uint8'])})",
                f"{v} != 0", f"{v}.new_full(({n}, 3), 2)", f"torch.zeros_like({v}) + {w}", f"torch.meshgrid({v}.flatten()[:3], {v}.flatten()[:2], indexing='ij')[{g.choice([0, 1])}]",
            ]
        )
    )  # fmt: skip


def writes(d):
    g = d.g
    v = d.value(least=1)
    if g.random() < 0.25:
        v = g.choice(["m.mean", "m.halves", "m.flags", "m.octets", "m.count"])
    if v is None:
        return None
    t = d.known[v]
    a = d.axis(v)
    n = f"{v}.shape[{a}]"
    real, truth = t.dtype in REAL, t.dtype == torch.bool
    c = g.choice(["True", "False"]) if truth else number(g) if real else g.choice(["0", "1", "3"])
    at = d.index(v)
    w = d.same(v) or c
    some = [
        f"{v}[{at}] = {c}", f"{v}[{at}] = {c}", f"{v}[{at}] = {v}[{at}].clone()", f"{v}[{at}] = {v}.flip({a})[{at}]", f"{v}.fill_({c})",
        f"{v}.copy_({w})" if w != c else f"{v}.zero_()", f"{v}[:1] = {c}", f"{v}[..., :3] = {c}", f"{v}[..., -1:] = {c}", f"{v}[1:2] = {v}[:1].clone()",
        f"{v}.index_fill_({a}, torch.tensor([0]), {c})", f"{v}.masked_fill_({v} != 0, {c})", f"{v}.index_copy_({a}, torch.tensor([1]), {v}.narrow({a}, 0, 1).clone())",
        f"{v}.narrow({a}, 0, {n} // 2).fill_({c})", f"{v}.transpose(0, -1)[0] = {c}", f"{v}.unbind({a})[0].fill_({c})",
        f"{v}.view(-1)[::3] = {c}", f"{v}.view(-1)[1:4].fill_({c})", f"{v}.diagonal(0, 0, -1).fill_({c})", f"{v}[torch.arange({v}.shape[0]) % 2] = {c}",
        f"{v}.scatter_({a}, torch.zeros_like({v}, dtype=torch.int64), {c})", f"{v}[{v} != 0] = {c}",
        f"{v}.swapaxes(0, -1).copy_({v}.swapaxes(0, -1).flip(0))",
    ]  # fmt: skip
    if not truth:
        some += [
            f"{v}.add_({c})", f"{v}.mul_({c})", f"{v}[{at}] += {c}", f"{v}[{at}].mul_({c})", f"{v}.sub_({w})", f"{v}.clamp_(-1, 2)",
            f"{v}.index_add_({a}, torch.tensor([0]), {v}.narrow({a}, 0, 1).clone())", f"{v}.transpose(0, -1).add_({c})",
            f"{v}.add_({v}.shape[0])", f"torch._foreach_add_([{v}], {c})", f"{v}[1:].add_({v}[:-1].clone())", f"{v}.cumsum_({a})",
        ]  # fmt: skip
    else:
        some += [f"{v}.logical_not_()", f"{v}[{at}].logical_not_()", f"{v}.logical_or_({w})"]
    if real:
        some += [f"{v}.relu_()", f"{v}[{at}].tanh_()", f"{v}.sigmoid_()", f"{v}.lerp_({v}.detach().flip({a}), 0.3)", f"F.relu({v}, inplace=True)", f"{v}.addcmul_({v}.detach(), {v}.detach(), value=0.1)"]  # fmt: skip
    return Statement(g.choice(some), True)


UNARY = (
    "abs neg exp2 sin cos tanh sigmoid relu erf atan floor ceil round trunc sign square frac expm1 asinh reciprocal sqrt rsqrt log log1p exp"
).split()


def arithmetic(d):
    g, v = d.g, d.value(REAL)
    if v is None:
        return None
    w = d.same(v) or v
    s = d.size(v)
    return Statement(
        f"{d.name()} = "
        + g.choice(
            [
                f"torch.{g.choice(UNARY)}({v})", f"torch.{g.choice(UNARY)}({v}.abs() + 0.1)", f"{v} + {w}", f"{v} - {w}", f"{v} * {w}", f"{v} / ({w}.abs() + 0.5)",
                f"{v} * {number(g)}", f"{v} / {g.choice(['3', '0.7', '1.414'])}", f"{v} + {number(g)}", f"{number(g)} - {v}", f"torch.maximum({v}, {w})", f"torch.minimum({v}, {w})",
                f"{v} * {s}", f"{v} / {s}", f"{v} - {s} // 2", f"{v} * n", f"{v} + (n - 2) * {s}", f"{v} / ({s} + n)", f"{v} * {s} ** -0.5", f"{v} + torch.arange({v}.shape[-1])" if d.known[v].ndim else f"{v} + n",
                f"torch.lerp({v}, {w}, 0.25)", f"torch.addcmul({v}, {v}, {w}, value=0.3)", f"torch.atan2({v}, {w})", f"torch.hypot({v}, {w})", f"{v}.clamp(-0.5, 1)", f"{v}.clamp(min=0)", f"{v} ** 2", f"{v}.abs() ** 1.5",
                f"torch.fmod({v}, 1.3)", f"torch.remainder({v}, 0.7)", f"torch.copysign({v}, {w})", f"F.gelu({v})", f"F.silu({v})", f"F.gelu({v}, approximate='tanh')", f"F.elu({v})", f"F.softplus({v})", f"F.leaky_relu({v}, 0.1)",
                f"F.hardswish({v})", f"F.mish({v})", f"F.hardtanh({v})", f"F.selu({v})", f"F.logsigmoid({v})", f"F.tanhshrink({v})", f"F.softshrink({v})", f"F.relu6({v})", f"F.celu({v})", f"F.hardsigmoid({v})",
                f"{v}.nan_to_num()", f"torch.logaddexp({v}, {w})", f"torch.xlogy({v}.abs(), {w}.abs() + 0.1)", f"torch.where({v} > {w}, {v}, {w} * 2)", f"torch.special.expit({v})", f"torch.sinc({v})", f"torch.heaviside({v}, {w})", f"torch.threshold({v}, 0.1, 0)",
            ]
        )
    )  # fmt: skip


def whole(d):
    g, v = d.g, d.value((*WHOLE, torch.bool))
    if v is None:
        return None
    t = d.known[v]
    w = d.same(v) or v
    if t.dtype == torch.bool:
        return Statement(
            f"{d.name()} = "
            + g.choice([f"~{v}", f"{v} & {w}", f"{v} | {w}", f"{v} ^ {w}", f"{v}.any()", f"{v}.all(-1)", f"{v}.sum(-1)", f"{v}.int()", f"{v}.to(F32)", f"{v}.logical_xor({w})", f"{v}.cumsum(-1)", f"{v}.any(0)"])
        )  # fmt: skip
    return Statement(
        f"{d.name()} = "
        + g.choice(
            [
                f"{v} + {w}", f"{v} - {w}", f"{v} * {w}", f"{v} // 3", f"{v} % 3", f"{v} & {w}", f"{v} | 5", f"{v} ^ {w}", f"{v} << 1", f"{v} >> 1", f"{v} > {w}", f"{v} == {w}", f"{v} * {d.size(v)}", f"{v} + n",
                f"{v}.to(F32) / 3", f"{v}.to(F32)", f"{v}.sum(-1)", f"{v}.amax(-1)", f"{v}.amin(0)", f"{v}.max()", f"{v}.sum()", f"{v}.cumsum(-1)", f"{v}.sort(-1)[0]", f"{v}.clamp(0, 3)", f"{v}.abs()", f"-{v}", f"~{v}",
                f"{v}.prod(-1)", f"torch.maximum({v}, {w})", f"torch.bitwise_and({v}, 3)", f"F.embedding({v}.long() % 6, m.table)", f"F.one_hot({v}.long() % 4, 4)", f"{v} / 2", f"{v}.remainder(4)", f"torch.div({v}, 2, rounding_mode='trunc')",
                f"m.table[{v}.long() % 6]", f"m.count[{v}.long() % 5]", f"torch.bincount({v}.long().flatten() % 5, minlength=5)", f"{v}.to(torch.uint8)", f"{v}.cummax(-1)[0]", f"{v}.any(-1)", f"{v}.count_nonzero(-1)", f"{v}.unique_consecutive().sum()",
            ]
        )
    )  # fmt: skip


def reductions(d):
    g, v = d.g, d.value(REAL, least=1)
    if v is None:
        return None
    a = d.axis(v)
    k = g.choice(["", ", keepdim=True"])
    return Statement(
        f"{d.name()} = "
        + g.choice(
            [
                f"{v}.sum({a}{k})", f"{v}.mean({a}{k})", f"{v}.amax({a}{k})", f"{v}.amin({a}{k})", f"{v}.min()", f"{v}.max()", f"{v}.sum()", f"{v}.mean()", f"{v}.std({a}{k})", f"{v}.var({a}{k})", f"{v}.std()", f"{v}.var({a}, correction=0)",
                f"tie({v}).max({a}{k})[0]", f"tie({v}).min({a}{k})[0]", f"tie({v}).argmax({a}{k})", f"tie({v}).argmin({a}{k})", f"tie({v}).argmax()", f"{v}.norm(float('inf'), {a}{k})", f"({v} + 0.01).norm(2, {a}{k})", f"{v}.norm(1, {a}{k})", f"torch.linalg.vector_norm({v} / 3, float('inf'), {a})",
                f"{v}.prod({a}{k})", f"{v}.logsumexp({a}{k})", f"{v}.cumsum({a})", f"{v}.cumprod({a})", f"{v}.cummax({a})[0]", f"{v}.cummin({a})[0]", f"{v}.logcumsumexp({a})", f"torch.aminmax({v}, dim={a})[{g.choice([0, 1])}]", f"tie({v}).median({a})[0]", f"tie({v}).sort({a})[0]", f"tie({v}).topk(1, {a})[0]",
                f"{v} - {v}.amax({a}, keepdim=True)", f"({v} - {v}.amax({a}, keepdim=True)).exp()", f"{v} / ({v}.abs().amax({a}, keepdim=True) + 0.1)", f"({v} - {v}.mean({a}, keepdim=True)) / ({v}.std({a}, keepdim=True) + 0.1)", f"{v} / ({v}.norm(2, {a}, keepdim=True) + 0.1)",
                f"torch.var_mean({v}, {a})[{g.choice([0, 1])}]", f"torch.trapezoid({v}, dim={a})", f"{v}.diff(dim={a})", f"torch.quantile({v}.float(), 0.5, {a})" if d.known[v].dtype == torch.float32 else f"{v}.sum({a})", f"{v}.count_nonzero({a})", f"torch.renorm({v}, 2, 0, 1.5)" if d.known[v].ndim > 1 else f"{v}.sum()", f"tie({v}).argsort({a})", f"({v} > 0).any({a})",
            ]
        )
    )  # fmt: skip


def layers(d):
    g = d.g
    last7 = lambda t: t.ndim >= 1 and t.shape[-1] == 7
    v = d.value((torch.float32,), test=last7)
    if v is None or g.random() < 0.15:
        v = d.value((torch.float32,), least=2)
        if v is None:
            return None
        w = d.value((torch.float32,), test=lambda t: t.ndim >= 2 and t.shape[-1] == d.known[v].shape[-1]) or v
        return Statement(
            f"{d.name()} = "
            + g.choice(
                [
                    f"{v} @ {w}.mT", f"{v}.mT @ {v}", f"F.softmax({v} / 3, -1)", f"F.log_softmax({v}, {d.axis(v)})", f"F.layer_norm({v}, ({v}.shape[-1],))", f"F.rms_norm({v}, ({v}.shape[-1],))", f"F.normalize({v}, dim=-1)",
                    f"F.avg_pool1d({v}.flatten(0, -2)[None], 2)[0]", f"F.max_pool1d({v}.flatten(0, -2)[None], 2)[0]", f"F.adaptive_avg_pool1d({v}.flatten(0, -2)[None], 3)[0]", f"F.interpolate({v}.flatten(0, -2)[None], scale_factor=2)[0]",
                    f"F.interpolate({v}.flatten(0, -2)[None], size={g.choice([3, 5])}, mode='linear', align_corners={g.choice([True, False])})[0]", f"torch.einsum('...i,...i->...', {v}, {v})", f"torch.cdist({v}, {w})", f"F.glu({v}, {d.axis(v)})", f"torch.outer({v}.flatten()[:4], {v}.flatten()[-3:])", f"F.cosine_similarity({v}, {v}.flip(0), -1)",
                    f"F.max_pool2d({v}.flatten(0, -2)[None, None], 2)[0, 0]", f"F.unfold({v}.flatten(0, -2)[None, None], 2)[0]", f"torch.tril({v})", f"{v}.softmax(0).amax(-1)", f"torch.kron({v}[..., :2], {v}[..., :2])",
                ]
            )
        )  # fmt: skip
    rows = f"{v}.reshape(-1, 7)"
    return Statement(
        f"{d.name()} = "
        + g.choice(
            [
                f"F.linear({v}, m.w, m.b)", f"F.linear({v}, m.square)", f"F.layer_norm({v}, (7,), m.scale, m.mean)", f"F.rms_norm({v}, (7,), m.scale)", f"F.batch_norm({rows}, m.mean, m.var, m.scale, None, True, 0.1)", f"F.batch_norm({rows}, m.mean, m.var, m.scale, None, False)",
                f"F.group_norm({rows}, 7, m.scale)", f"F.instance_norm({rows}[None].mT)[0].mT", f"F.conv1d({rows}[None, :, None].expand(1, -1, 3, 7).reshape(-1, 3, 7), m.kernel, padding=1)", f"F.conv_transpose1d({rows}[None, :4], m.kernel)[0]",
                f"F.scaled_dot_product_attention({rows}, {rows}, F.linear({rows}, m.square))", f"F.scaled_dot_product_attention({rows}, {rows} / 3, {rows}, is_causal=True)", f"(({rows} @ {rows}.mT) / 7 ** 0.5).softmax(-1) @ {rows}",
                f"(lambda s: (s - s.amax(-1, keepdim=True)).exp() @ {rows})({rows} @ {rows}.mT / 7)", f"torch.addmm(m.mean, {rows}, m.square)", f"{v} @ m.square", f"{v} * m.scale + m.mean", f"F.bilinear({rows}, {rows}, m.square[None])", f"torch.baddbmm(m.square[None], {rows}[None].mT, {rows}[None])",
                f"F.dropout({v}, 0.5, training=False)", f"F.prelu({rows}, m.scale)", f"F.mse_loss({v}, {v}.detach().flip(0))", f"F.l1_loss({v}, {v}.detach().roll(1))", f"F.smooth_l1_loss({v}, m.mean.expand_as({v}), beta=0.5)", f"F.huber_loss({v}, torch.zeros_like({v}))",
                f"F.cross_entropy({rows}, torch.arange({rows}.shape[0]) % 7)", f"F.cross_entropy({rows}, torch.arange({rows}.shape[0]) % 7, label_smoothing=0.1, reduction='{g.choice(['none', 'sum', 'mean'])}')", f"F.nll_loss(F.log_softmax({rows}, -1), torch.arange({rows}.shape[0]) % 7, weight=m.var)",
                f"F.binary_cross_entropy_with_logits({v}, torch.sigmoid({v}.detach()), pos_weight=m.var)", f"F.kl_div(F.log_softmax({v}, -1), F.softmax(m.mean, -1).expand_as({v}), reduction='batchmean')", f"F.soft_margin_loss({v}, torch.sign({v}.detach()) + 0.1)", f"F.gaussian_nll_loss({v}, m.mean.expand_as({v}), m.var.expand_as({v}))",
                f"F.multilabel_soft_margin_loss({rows}, ({rows}.detach() > 0).to({rows}.dtype))", f"F.cosine_embedding_loss({rows}, {rows}.detach().flip(0), torch.ones({rows}.shape[0]))", f"F.triplet_margin_loss({rows}, {rows}.detach().flip(0), {rows}.detach() * 2)", f"F.poisson_nll_loss({v}.clamp(-2, 2), m.var.expand_as({v}))", f"torch.nn.functional.hinge_embedding_loss({v}, torch.ones_like({v}))",
                f"F.linear({v}.to(F16), m.halves)", f"F.embedding_bag(torch.arange({rows}.shape[0]) % 6, m.table, torch.tensor([0]))", f"torch.gru_cell({rows}[:, :7], {rows}[:, :7], m.square.repeat(3, 1), m.square.repeat(3, 1))",
            ]
        )
    )  # fmt: skip


def makers(d):
    g, v = d.g, d.value(least=1)
    if v is None:
        return None
    s = d.size(v)
    return Statement(
        f"{d.name()} = "
        + g.choice(
            [
                f"torch.arange({s})", f"torch.full(({s}, 3), {number(g)}, dtype=F32)", f"torch.zeros({s}, 2, dtype=F16)", f"torch.ones({s}, n, dtype=torch.bool)", f"torch.zeros({s}, dtype=torch.uint8)", f"torch.linspace(0, 1, 5, dtype=F32) * {s}", f"torch.tensor([1.0, 2.0, 3.0], dtype=F32) * n", f"torch.eye({s}, dtype=F32)", f"torch.tril(torch.ones({s}, {s}, dtype=torch.bool))", f"torch.arange({s}, dtype=torch.int32)[:, None] >= torch.arange({s}, dtype=torch.int32)", f"m.count * {s}", f"m.halves.clone()", f"m.flags | True", f"torch.arange(n * {s}, dtype=torch.int32).reshape(n, {s})",
            ]
        )
    )  # fmt: skip


def branches(d):
    g, v = d.g, d.value(REAL)
    if v is None:
        return None
    w = d.same(v) or v
    s = d.size(v)
    x = d.name()
    k = g.randrange(2, 6)
    return Statement(
        g.choice(
            [
                f"{x} = {v} * 2 if {s} > {k} else {v} + 1", f"{x} = {v}.sin() if n % 2 else {v}.cos()", f"if {s} % 2 == 0:\n    {x} = {v} + {w}\nelse:\n    {x} = {v} - {w}", f"{x} = torch.cond({v}.sum() > 0, lambda a: a.sin() + 1, lambda a: a * 3, ({v},))",
                f"{x} = torch.cond(torch.tensor({s} > {k}), lambda a, b: a + b, lambda a, b: a - b * 2, ({v}, {w}))", f"{x} = sum({v} * i for i in range(3))", f"{x} = {v} * ({s} > {k})", f"{x} = {v} * max({s}, n)", f"{x} = {v} / min({s}, 4)",
            ]
        )
    )  # fmt: skip


TEMPLATES = (
    [views] * 6 + [moves] * 4 + [writes] * 6 + [arithmetic] * 5 + [whole] * 3 + [reductions] * 5 + [layers] * 4 + [makers] + [branches]
)


def draw(seed, kinds=KINDS):
    """The program of a seed; a Stranger where what was drawn is of no use."""
    g = random.Random(seed)
    kind = g.choices(kinds, [{"inference": 5, "gradients": 5, "training": 2, "export": 2}[k] for k in kinds])[0]
    dynamic = g.choice([None, True, True, False])
    runs = 1 if dynamic is False else 3
    pool = [3, 4, 5, 6, 8, 9]
    rows, cols = (g.sample(pool, runs) for _ in range(2))
    inputs = []
    for i in range(g.randint(1, 3)):
        dtype = g.choice([torch.float32] * 4 + [torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool])
        shape = g.choice([("r", 7), ("r", "c"), ("r", 7), (2, "r", 7), ("r", "c", 3), ("c",), ("r", 5), (5, 7)])
        shapes = [tuple({"r": rows[k], "c": cols[k]}.get(n, n) for n in shape) for k in range(runs)]
        inputs.append((f"x{i}", torch.float32 if i == 0 and kind in ("gradients", "training") else dtype, shapes))
    sizes = [3] * runs if kind == "export" else g.sample([2, 3, 4, 5], runs)
    program = Program(seed, kind, dynamic, inputs, sizes)
    for i, (name, _, _) in enumerate(inputs):
        if g.random() < 0.3:
            program.forms[name] = g.choice(list(FORMS))
        if i and kind == "inference" and g.random() < 0.3:
            program.forms[name] = g.choice(list(ALIASES))
    if kind == "training":
        name = g.choice(sorted(optimizers.OPTIMIZERS))
        options = g.choice(optimizers.OPTIMIZERS[name])
        program.optimizer = (name, {**options, **g.choice(list(optimizers.ways(name).values()))})
    if kind in ("gradients", "training"):
        # Leaves are not written.
        for i, (name, dtype, _) in enumerate(inputs):
            if dtype.is_floating_point:
                program.statements.append(Statement(f"v{i} = {name} * {number(g)}"))
    statement_tries(g, program, TEMPLATES, g.randint(6, 30))
    known = values_of(program)
    made = [k for k in known if k[0] == "v"]
    if not made:
        raise Stranger
    differentiable = [k for k in made if known[k].requires_grad and known[k].is_floating_point()]
    if kind in ("gradients", "training") and not differentiable:
        raise Stranger
    count = len(made) if g.random() < 0.5 else min(len(made), g.randint(1, 4))
    program.results = sorted({*g.sample(made, count), *differentiable[-1:], *made[-1:]}, key=made.index)
    return program


def compiled(program, backend="wgfc"):
    """What the backend, or a compiled export, computes."""
    if program.kind != "export":
        torch._dynamo.reset()
        f = function(program)
        return outcome(program, torch.compile(f, backend=backend, dynamic=program.dynamic), Module(program.seed, False))
    import wgfc

    module = Module(program.seed, False)
    names = [i[0] for i in program.inputs]
    args = drawn(program, 0)
    wrapped = Wrapped(module, function(program), program.sizes[0], names)
    shapes = None
    if program.dynamic is not False:
        shapes = {n: {a: torch.export.Dim.AUTO for a in range(len(s[0])) if len({t[a] for t in s}) > 1} for n, _, s in program.inputs}
    try:
        with torch.no_grad():
            exported = torch.export.export(wrapped, tuple(args), dynamic_shapes=shapes)
        exported = exported.run_decompositions() if program.seed % 2 else exported
    except Exception as e:
        raise Stranger from e
    session = wgfc.Session(wgfc.compile(exported))
    places = [s for s in exported.graph_signature.output_specs]
    found = {}
    for run in range(len(program.sizes)):
        args = drawn(program, run)
        given = dict(zip(names, args))
        try:
            exported.module()(*drawn(program, run))
        except Exception:  # torch takes the size to be another
            break
        known = {p.name for p in session.inputs}
        made = session.run({n: v for n, v in given.items() if n in known}, to="torch")
        users = [s.arg.name for s in places if s.kind.name == "USER_OUTPUT"]
        for name, spec in zip(program.results, users):
            if spec in made:
                found[f"run {run}: {name}"] = made[spec]
        for s in places:
            if s.kind.name == "USER_INPUT_MUTATION" and s.target in made:
                found[f"run {run}: {s.target} after"] = made[s.target]
    return found


def judge(program, got, want, wide):
    """Names of what is wrong, and how."""
    wrong = []
    eps = precision(program)
    close = []
    for name, w in want.items():
        if name not in got:
            if program.kind != "export":
                wrong.append((name, "is missing"))
            continue
        g = got[name]
        if g.shape != w.shape or g.dtype != w.dtype:
            wrong.append((name, f"is {g.dtype} {tuple(g.shape)} instead of {w.dtype} {tuple(w.shape)}"))
        elif not w.is_floating_point():
            if not torch.equal(g, w):
                close.append(name)
        elif w.numel():
            r = wide[name]
            if error(g, r) > FACTOR * error(w, r) + 64 * eps * size(r):
                close.append(name)
    if not close:
        return wrong
    others = [eager(program, True, noise(k, eps)) for k in range(12)]
    for name in close:
        g, w, r = got[name], want[name], wide[name]
        if not w.is_floating_point():
            if all(torch.equal(o[name], r) for o in others) and torch.equal(w, r.to(w.dtype)):
                n = int((g != w).sum())
                wrong.append((name, f"differs in {n} of {w.numel()}: {w[g != w][:3].tolist()} became {g[g != w][:3].tolist()}"))
            continue
        spread = max(error(o[name], r) for o in others)
        if error(g, r) > FACTOR * max(spread, error(w, r)) + 64 * eps * size(r):
            worst = int((g.double() - r).abs().nan_to_num(1e30).argmax())
            wrong.append(
                (
                    name,
                    f"is off by {error(g, r):.2e}, eager by {error(w, r):.2e}, noise {spread:.2e}, of {size(r):.2e}:"
                    f" {w.flatten()[worst].item()} became {g.flatten()[worst].item()}",
                )
            )
    return wrong


def error(value, reference):
    d = (value.double() - reference.double()).abs()
    return float("inf") if d.isnan().any() else d.max().item()


def size(value):
    return value.double().abs().max().item()


def check(program):
    """What is wrong with a program, as a list of names and how; operators that stay in torch."""
    from wgfc import torch_backend

    want, wide = eager(program), eager(program, True)
    if any(v.is_floating_point() and not v.isfinite().all() for v in [*want.values(), *wide.values()]):
        raise Stranger
    before = torch_backend.statistics()
    told = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            got = compiled(program)
        except Stranger:
            raise
        except Exception as e:
            first = next((line for line in str(e).splitlines() if line.strip()), "")
            if program.kind != "export":
                with_torch(program)
            return [("error", f"{type(e).__name__}: {first[:300]}")], 0, []
    told = [str(w.message).split(" stays in torch")[0] for w in said if "stays in torch" in str(w.message)]
    operators = torch_backend.statistics().operators - before.operators
    wrong = judge(program, got, want, wide)
    if wrong and program.kind != "export":
        # A difference that torch's own graphs of the program have too is no fault of the backend.
        torchs = {name for name, _ in judge(program, with_torch(program), want, wide)}
        wrong = [w for w in wrong if w[0] not in torchs]
    return wrong, operators, told


def with_torch(program):
    """What the same graphs give in PyTorch."""
    try:
        return compiled(program, "aot_eager")
    except Exception as e:
        raise Stranger from e


def shorten(program, same=lambda wrong: bool(wrong)):
    """Takes statements and results out as long as the program stays wrong."""

    def still(candidate):
        try:
            return candidate.results and same(check(candidate)[0])
        except Exception:
            return False

    best = program
    changed = True
    while changed:
        changed = False
        for r in list(best.results):
            candidate = dataclasses.replace(best, results=[k for k in best.results if k != r])
            if candidate.results and still(candidate):
                best, changed = candidate, True
        for i in reversed(range(len(best.statements))):
            if i >= len(best.statements):
                continue
            candidate = dataclasses.replace(best, statements=best.statements[:i] + best.statements[i + 1 :])
            if still(candidate):
                best, changed = candidate, True
    if len(best.sizes) > 1 and best.kind != "training":
        for run in range(len(best.sizes)):
            candidate = dataclasses.replace(
                best, sizes=best.sizes[run : run + 1], inputs=[(n, d, s[run : run + 1]) for n, d, s in best.inputs]
            )
            if still(candidate):
                return candidate
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--shorten", action="store_true")
    options = parser.parse_args()
    counts = dict.fromkeys(("right", "wrong", "errors", "of no use", "operators in torch"), 0)
    for seed in range(options.seed, options.seed + options.count):
        try:
            program = draw(seed)
            if options.show:
                print(program.describe())
                continue
            start = time.time()
            wrong, operators, told = check(program)
        except Stranger:
            counts["of no use"] += 1
            continue
        except Exception:
            counts["of no use"] += 1
            print(f"# seed {seed}: {traceback.format_exc(limit=-3)}", flush=True)
            continue
        counts["operators in torch"] += operators
        for name in told:
            print(f"# seed {seed}: {name} stays in torch", flush=True)
        if not wrong:
            counts["right"] += 1
            continue
        bad = wrong[0][0] == "error"
        counts["errors" if bad else "wrong"] += 1
        if options.shorten:
            first = wrong[0]
            same = (lambda w: w and w[0][0] == "error" and w[0][1][:40] == first[1][:40]) if bad else (lambda w: w and w[0][0] != "error")
            program = shorten(program, same)
            wrong = check(program)[0] or wrong
        print(f"{'ERROR' if bad else 'WRONG'} ({time.time() - start:.0f} s)\n{program.describe()}" + "".join(f"#   {n} {how}\n" for n, how in wrong[:6]), flush=True)
    print(f"# seeds {options.seed} to {options.seed + options.count - 1}: " + ", ".join(f"{v} {k}" for k, v in counts.items()))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
