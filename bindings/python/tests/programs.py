"""Random PyTorch programs, drawn by seed, and what the backend computes of them compared with eager PyTorch.

    python programs.py SEED [COUNT]           runs programs and tells of those that differ; with --shorten takes statements out of these
    python programs.py SEED --show            prints a program
    python programs.py --seeds A..B --out FILE [--jobs N] [--deadline SECONDS]
                                              writes a line of JSON for each seed as soon as it is judged, and leaves out seeds that FILE has
    python programs.py --summary FILE ...     counts verdicts, and prints programs that are not right

A program is a function of a module and of tensors, a list of statements: views and writes through them, changed inputs and buffers,
types of 8 to 64 bits, arithmetic with sizes, reductions, norms, losses, attention, branches. Each statement was tried in eager PyTorch at all
sizes that the program is run at. It is run without gradients, with gradients of inputs and parameters, as steps of training, or exported.

Integers and bools must be equal. A float may be as far from what float64 gives as eager PyTorch is, times a factor. Where that does not
hold, the program is run in float64 with noise of the size of roundings after each statement and each operator inside of it: what noise changes, as
behind a comparison of nearly equal numbers or where nearly equal numbers cancel, is judged by how much it does.

A draw that is of no use, as PyTorch itself cannot compile it or its values leave the range in which they can be judged, is followed by another
of the same seed: ``12/3`` is the fourth draw of seed 12.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import math
import os
import random
import select
import subprocess
import sys
import threading
import time
import traceback
import warnings
from typing import Optional

import optimizers
import torch
import torch.nn.functional as F
from statements import TEMPLATES, Draw, Statement, layers, number
from torch.utils._python_dispatch import TorchDispatchMode

FACTOR = 16
DRAWS = 8
"""Draws of a seed, until one is of use."""
MOST = 6000
"""Elements of a tensor."""
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
KINDS = ("inference", "gradients", "training", "export")


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
    draw: int = 0
    """How many draws of the seed were of no use."""
    captures: bool = False
    """Whether Dynamo takes numbers and sizes that tensors have into its graphs."""
    stepped: bool = False
    """Whether the steps of the optimizer are compiled, too."""
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
        more = f", {self.optimizer}" if self.optimizer else ""
        more += ", captures" * self.captures + ", compiled steps" * self.stepped
        return f"# seed {self.seed}/{self.draw}: {self.kind}, dynamic={self.dynamic}, n={self.sizes}{more}\n{inputs}{self.source()}"


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


def chosen(decides, yes, no, operands):
    """An eager ``torch.cond``, because PyTorch would compile its own."""
    return (yes if decides else no)(*operands)


def repeated(goes_on, step, carried):
    """An eager ``torch.while_loop``, because PyTorch would compile its own."""
    while goes_on(*carried):
        carried = step(*carried)
    return carried


def scope(wide=False, noise=None, graphs=False):
    """The names that a program uses; ``wide`` makes all floats f64, and ``graphs`` makes control flow torch's operators on graphs."""
    names = {n: torch.float64 if wide else d for d, n in NAMES.items()}
    flow = {"cond": torch.cond, "while_loop": torch.while_loop} if graphs else {"cond": chosen, "while_loop": repeated}
    same = lambda v: v
    return {"torch": torch, "F": F, "math": math, "noise": noise or same, "tie": noise or same, **flow, **names}


def function(program, wide=False, noise=None, graphs=False):
    names = scope(wide, noise, graphs)
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
    "x0.mT": lambda x: x.mT if x.ndim > 1 else x,
    "x0.view(-1)": lambda x: x.view(-1) if x.is_contiguous() else x[:1],
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


def loss_of(outs):
    """A scalar whose gradient differs between elements."""
    total = 0
    for o in outs:
        if isinstance(o, torch.Tensor) and o.requires_grad:
            w = torch.cos(torch.arange(o.numel(), dtype=torch.float32)).to(o.dtype).reshape(o.shape)
            total = total + (o * w).sum() / max(o.numel(), 1)
    return total


def optimizer_of(program, parameters):
    name, options = program.optimizer
    return optimizers.optimizer(name, parameters, options)


def outcome(program, call, module, wide=False, steps=None):
    """All values that a program returns or changes, by name; ``steps`` is the backend for the optimizer's steps, or None."""
    found = {}

    def note(name, value):
        if isinstance(value, torch.Tensor):
            found[name] = value.detach().clone()
        elif value is not None:
            found[name] = torch.tensor(value)

    if program.kind == "training":
        optimizer = optimizer_of(program, module.parameters())
        advance = torch.compile(optimizer.step, backend=steps) if steps else optimizer.step
        for step in range(4):
            args = drawn(program, step % len(program.sizes), wide)

            def closure():
                optimizer.zero_grad()
                loss = loss_of(call(module, program.sizes[step % len(program.sizes)], *args))
                loss.backward()
                return loss

            if program.stepped:
                note(f"loss of step {step}", closure())
                advance()
            else:
                note(f"loss of step {step}", advance(closure))
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
        if program.kind == "inference":
            for name, p in module.named_parameters():
                note(f"run {run}: parameter {name}", p)
    return found


class Stranger(Exception):
    """Raised for a drawn program that cannot be judged."""


class Rounded(TorchDispatchMode):
    """Adds noise to the results of operators, since a statement may consist of many operators with larger values than its result."""

    def __init__(self, noise):
        super().__init__()
        self.noise = noise

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        made = operator(*args, **(kwargs or {}))
        # Other operators write, make views, or move elements, and so do not round.
        if torch.Tag.pointwise in operator.tags or operator.overloadpacket in REDUCTIONS:
            fresh = [r.alias_info is None for r in operator._schema.returns]
            if isinstance(made, tuple):
                return tuple(self.noise(v) if f else v for v, f in zip(made, fresh))
            return self.noise(made) if fresh[0] else made
        return made


_ATEN = torch.ops.aten
REDUCTIONS = {_ATEN.sum, _ATEN.mean, _ATEN.mm, _ATEN.bmm, _ATEN.addmm, _ATEN.var, _ATEN.std, _ATEN.prod, _ATEN.cumsum, _ATEN.linalg_vector_norm}


def eager(program, wide=False, noise=None):
    with warnings.catch_warnings(), Rounded(noise) if noise else contextlib.nullcontext():
        warnings.simplefilter("ignore")
        return outcome(program, function(program, wide, noise), Module(program.seed, wide), wide)


def noise(seed, eps):
    g = torch.Generator().manual_seed(seed)

    def add(v):
        if not isinstance(v, torch.Tensor) or v.is_complex() or not v.is_floating_point():
            return v
        r = torch.randn(v.shape, generator=g, dtype=torch.float64)
        s = torch.randn(v.shape, generator=g, dtype=torch.float64)
        return (v * (1 + eps * r) + s * eps * 1e-3 * v.detach().abs().max()).to(v.dtype) if v.numel() else v

    return add


def precision(program):
    """The largest relative rounding error among the types that a program uses."""
    text = program.source() + "".join(NAMES.get(d, "") for _, d, _ in program.inputs)
    # Muon computes in bf16.
    if "BF16" in text or program.optimizer and program.optimizer[0] == "Muon":
        return 2.0**-8
    return 2.0**-11 if "F16" in text.replace("BF16", "") or "m.halves" in text else 2.0**-23


class Trial:
    """The values of a program after its statements in eager PyTorch, at all sizes, in its own types and in float64."""

    def __init__(self, program):
        self.program = program
        self.places = []
        for wide in (False, True):
            for run, n in enumerate(program.sizes):
                module, args = Module(program.seed, wide), drawn(program, run, wide)
                if program.kind == "gradients":
                    args = [a.requires_grad_() if a.is_floating_point() else a for a in args]
                leaves = [p for p in [*args, *module.parameters()] if p.requires_grad]
                names = {**scope(wide), "m": module, "n": n, **dict(zip((i[0] for i in program.inputs), args))}
                self.places.append((names, wide, run, leaves))
        for s in program.statements:
            self.run(s)

    def values(self, names):
        return {k: v for k, v in names.items() if k[0] in "xv" and k[1:].isdigit()}

    def known(self):
        """The values at the first sizes."""
        names = self.places[0][0]
        module = names["m"]
        return {**self.values(names), **{f"m.{n}": t for n, t in [*module.named_parameters(), *module.named_buffers()]}}

    def run(self, statement):
        code = compile(statement.text, "<statement>", "exec")
        trained = self.program.kind in ("gradients", "training")
        for names, wide, run, leaves in self.places:
            before = self.values(names)
            with torch.set_grad_enabled(trained), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(code, names)
                after = self.values(names)
                new = {k: v for k, v in after.items() if k not in before}
                for value in (new if new else after).values():
                    judge_alone(value, wide, run)
                loss = loss_of((new if new else after).values()) if trained else 0
                if isinstance(loss, torch.Tensor):
                    # This fails if a statement has overwritten a tensor that the backward pass needs.
                    grads = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
                    if not all(g is None or (g.isfinite().all() and (g.abs() < 1e5).all()) for g in grads):
                        raise Stranger

    def add(self, statement):
        """Adds a statement if it can be computed."""
        try:
            self.run(statement)
        except Exception:
            self.__init__(self.program)
        else:
            self.program.statements.append(statement)


def judge_alone(value, wide, run):
    """Raises Stranger if a value cannot be judged."""
    if not isinstance(value, torch.Tensor) or value.is_complex() or value.numel() > MOST or (value.numel() == 0 and run == 0):
        raise Stranger
    if value.numel() == 0 or value.dtype == torch.bool:
        return
    if value.is_floating_point():
        if not (value.abs() < (1e5 if wide else 1e4)).all():
            raise Stranger
    elif (value.long() if value.dtype == torch.uint8 else value).abs().max() > 1 << 30:
        raise Stranger


def draw(seed, attempt=0, kinds=KINDS):
    """A program drawn from a seed; raises Stranger if it cannot be judged."""
    g = random.Random(f"{seed}/{attempt}")
    kind = g.choices(kinds, [{"inference": 5, "gradients": 5, "training": 2, "export": 2}[k] for k in kinds])[0]
    dynamic = g.choice([None, True, True, False])
    runs = 1 if dynamic is False else 3
    pool = [2, 3, 4, 5, 6, 8, 9]
    rows, cols = (g.sample(pool, runs) for _ in range(2))
    if runs > 1 and g.random() < 0.15:
        g.choice([rows, cols])[-1] = 1
    inputs = []
    few = [torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64, torch.int64, torch.uint8, torch.bool, torch.bool]
    for i in range(g.randint(1, 3)):
        dtype = torch.float32 if g.random() < 0.45 else g.choice(few)
        shape = g.choice([("r", 7), ("r", "c"), ("r", 7), (2, "r", 7), ("r", "c", 3), ("c",), ("r", 5), (5, 7), ("r", 2, 7), (1, "r", "c")])
        shapes = [tuple({"r": rows[k], "c": cols[k]}.get(n, n) for n in shape) for k in range(runs)]
        real = g.choice([torch.float32] * 4 + [torch.float16, torch.bfloat16])
        inputs.append((f"x{i}", real if i == 0 and kind in ("gradients", "training") else dtype, shapes))
    sizes = [3] * runs if kind == "export" else g.sample([2, 3, 4, 5], runs)
    program = Program(seed, kind, dynamic, inputs, sizes, draw=attempt)
    program.captures = kind != "export" and g.random() < 0.15
    for i, (name, _, _) in enumerate(inputs):
        if g.random() < 0.3:
            program.forms[name] = g.choice(list(FORMS))
        if i and kind == "inference" and g.random() < 0.3:
            program.forms[name] = g.choice(list(ALIASES))
    if kind == "training":
        name = g.choice(sorted(optimizers.OPTIMIZERS))
        options = g.choice(optimizers.OPTIMIZERS[name])
        program.optimizer = (name, {**options, **g.choice(list(optimizers.ways(name).values()))})
        program.stepped = name != "LBFGS" and g.random() < 0.25
    if kind in ("gradients", "training"):
        # Autograd does not allow writes to leaves, so the program writes to copies.
        for i, (name, dtype, _) in enumerate(inputs):
            if dtype.is_floating_point:
                program.statements.append(Statement(f"v{i} = {name} * {number(g)}"))
    trial = Trial(program)
    if kind == "training":
        for _ in range(40):
            if any(v.requires_grad for v in trial.values(trial.places[0][0]).values()):
                break
            trial.add(layers(Draw(g, trial.known(), kind, program.captures)) or Statement("v9 = m.w * 2"))
    wanted = len(program.statements) + g.randint(4, 22)
    for _ in range(60):
        if len(program.statements) >= wanted:
            break
        made = g.choice(TEMPLATES)(Draw(g, trial.known(), kind, program.captures))
        if made is not None:
            trial.add(made)
    known = trial.known()
    made = [k for k in known if k[0] == "v"]
    if not made:
        raise Stranger("nothing was computed")
    differentiable = [k for k in made if known[k].requires_grad and known[k].is_floating_point()]
    if kind in ("gradients", "training") and not differentiable:
        raise Stranger("nothing depends on a parameter")
    count = len(made) if g.random() < 0.5 else min(len(made), g.randint(1, 4))
    program.results = sorted({*g.sample(made, count), *differentiable[-1:], *made[-1:]}, key=made.index)
    return program


def compiled(program, backend="wgfc"):
    """The results of the program compiled by a backend, or exported and compiled."""
    if program.kind != "export":
        torch._dynamo.reset()
        f = torch.compile(function(program, graphs=True), backend=backend, dynamic=program.dynamic)
        captures = dict.fromkeys(("capture_dynamic_output_shape_ops", "capture_scalar_outputs"), True)
        with torch._dynamo.config.patch(captures) if program.captures else contextlib.nullcontext():
            return outcome(program, f, Module(program.seed, False), steps=backend if program.stepped else None)
    import wgfc

    module = Module(program.seed, False)
    names = [i[0] for i in program.inputs]
    args = drawn(program, 0)
    wrapped = Wrapped(module, function(program, graphs=True), program.sizes[0], names)
    shapes = None
    if program.dynamic is not False:
        shapes = {n: {a: torch.export.Dim.AUTO for a in range(len(s[0])) if len({t[a] for t in s}) > 1} for n, _, s in program.inputs}
    try:
        with torch.no_grad():
            exported = torch.export.export(wrapped, tuple(args), dynamic_shapes=shapes)
        exported = exported.run_decompositions() if program.seed % 2 else exported
    except Exception as e:
        raise Stranger(f"torch cannot export it: {first_line(e)}") from e
    session = wgfc.Session(wgfc.compile(exported))
    places = [s for s in exported.graph_signature.output_specs]
    found = {}
    for run in range(len(program.sizes)):
        args = drawn(program, run)
        given = dict(zip(names, args))
        try:
            theirs = drawn(program, run)
            exported.module()(*theirs)
        except Exception:  # torch specialised the program to another size
            break
        # torch's exported program loses writes to memory that operators share without declaring it.
        own = drawn(program, run)
        function(program)(Module(program.seed, False), program.sizes[0], *own)
        if not all(a.allclose(b, rtol=0.1, atol=0.1, equal_nan=True) for a, b in zip(theirs, own)):
            raise Stranger("torch's exported program writes other elements")
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
    """The names of values that are wrong, with descriptions."""
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
    others, without_denormals = [eager(program, True, noise(k, eps)) for k in range(12)], None
    for name in close:
        g, w, r = got[name], want[name], wide[name]
        if not w.is_floating_point():
            if all(torch.equal(o[name], r) for o in others) and torch.equal(w, r.to(w.dtype)):
                n = int((g != w).sum())
                wrong.append((name, f"differs in {n} of {w.numel()}: {w[g != w][:3].tolist()} became {g[g != w][:3].tolist()}"))
            continue
        spread = max(error(o[name], r) for o in others)
        allowed = FACTOR * max(spread, error(w, r)) + 64 * eps * size(r)
        if error(g, r) > allowed and without_denormals is None:
            torch.set_flush_denormal(True)
            without_denormals = eager(program)
            torch.set_flush_denormal(False)
        # WGSL lets devices flush subnormal numbers to 0.
        if error(g, r) > allowed and error(*same_nans(g, without_denormals[name])) > allowed:
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


def same_nans(a, b):
    """Both tensors without the elements that are NaN in both."""
    known = ~(a.isnan() & b.isnan())
    return (a[known], b[known]) if known.any() else (a.new_zeros(1), a.new_zeros(1))


def size(value):
    return value.double().abs().max().item()


def check(program):
    """The faults of a program, as a list of names and reasons, and the operators that stay in torch."""
    from wgfc import torch_backend

    want, wide = eager(program), eager(program, True)
    if any(v.is_floating_point() and not v.isfinite().all() for v in [*want.values(), *wide.values()]):
        raise Stranger("its results are not finite")
    before = torch_backend.statistics()
    told = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            got = compiled(program)
        except Stranger:
            raise
        except Exception as e:
            if program.kind != "export":
                with_torch(program)
            return [("error", f"{type(e).__name__}: {first_line(e)}")], 0, []
    told = [str(w.message).split(" stays in torch")[0] for w in said if "stays in torch" in str(w.message)]
    operators = torch_backend.statistics().operators - before.operators
    wrong = judge(program, got, want, wide)
    if wrong and program.kind != "export":
        # A difference that torch's own graphs also have is not a fault of the backend.
        torchs = {name for name, _ in judge(program, with_torch(program), want, wide)}
        wrong = [w for w in wrong if w[0] not in torchs]
    return wrong, operators, told


def with_torch(program):
    """The results of the captured graphs run by PyTorch."""
    try:
        return compiled(program, "aot_eager")
    except Exception as e:
        raise Stranger(f"torch cannot compile it: {first_line(e)}") from e


def first_line(e):
    """The first informative line of an error: a line that only names the origin is joined with the next."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    return " ".join(lines[: 2 if lines and lines[0].endswith("raised:") else 1] or [type(e).__name__])[:300]


@dataclasses.dataclass
class Verdict:
    seed: int
    verdict: str
    """"right", "wrong", "error", "of no use", "too long" or "crash"."""
    seconds: float = 0.0
    kind: str = ""
    operators: int = 0
    """Nodes of graphs that stay in torch."""
    stay: list = dataclasses.field(default_factory=list)
    """The operators that were told to."""
    useless: list = dataclasses.field(default_factory=list)
    """Why earlier draws were of no use."""
    what: list = dataclasses.field(default_factory=list)
    program: str = ""


def verdict(seed, first=0, shortens=False):
    """The outcome of the first draw of a seed that can be judged."""
    start, found = time.time(), Verdict(seed, "of no use")
    for attempt in range(first, first + DRAWS):
        try:
            program = draw(seed, attempt)
            wrong, found.operators, found.stay = check(program)
        except Stranger as e:
            found.useless.append(str(e))
            continue
        except Exception:
            # For instance an operator that eager PyTorch lacks for float64.
            found.useless.append(traceback.format_exc(limit=-2))
            continue
        found.kind = program.kind
        found.verdict = "right" if not wrong else "error" if wrong[0][0] == "error" else "wrong"
        if wrong and shortens:
            start_of = lambda w: (w[0][0] == "error", w[0][1][:40] if w[0][0] == "error" else "")
            program = shorten(program, lambda w: bool(w) and start_of(w) == start_of(wrong))
            wrong = check(program)[0] or wrong
        if wrong:
            found.what, found.program = wrong[:8], program.describe()
        break
    found.seconds = round(time.time() - start, 1)
    return found


def shorten(program, same=lambda wrong: bool(wrong)):
    """Removes statements and results as long as the program stays wrong."""

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


def told(found):
    """A verdict that is not "right" as lines."""
    what = "".join(f"#   {n} {how}\n" for n, how in found.what)
    return f"{found.verdict.upper()} ({found.seconds:.0f} s)\n{found.program or f'# seed {found.seed}'}\n{what}"


def summary(verdicts):
    counts = collections.Counter(v.verdict for v in verdicts)
    kinds = collections.Counter(v.kind for v in verdicts)
    stay = collections.Counter(n for v in verdicts for n in v.stay)
    useless = sum(len(v.useless) for v in verdicts)
    return (
        f"# {len(verdicts)} seeds: " + ", ".join(f"{n} {k}" for k, n in counts.most_common()) + f"; {useless} draws of no use"
        f"\n# " + ", ".join(f"{n} {k}" for k, n in kinds.most_common() if k)
        + f"\n# {sum(v.operators for v in verdicts)} operators in torch: " + ", ".join(f"{k} ({n} seeds)" for k, n in stay.most_common())
    )  # fmt: skip


def serve():
    """Reads one seed per line and writes one verdict per line."""
    to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(verdict(int(line)))), file=to, flush=True)


class Child:
    """A process that judges seeds one after another and can be terminated."""

    def __init__(self, stderr):
        self.seeds = 0
        pipe = subprocess.PIPE
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        self.process = subprocess.Popen([sys.executable, __file__, "--serve"], stdin=pipe, stdout=pipe, stderr=stderr, env=environment)

    def verdict(self, seed, deadline):
        start, line = time.time(), b""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{seed}\n".encode())
            self.process.stdin.flush()
        # The time to start the process and import torch does not count for the seed.
        deadline += 0 if self.seeds else 120
        self.seeds += 1
        while not line.endswith(b"\n"):
            left = start + deadline - time.time()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                self.end()
                return Verdict(seed, "too long", deadline)
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                self.end()
                return Verdict(seed, "crash", round(time.time() - start, 1), what=[("error", f"exit status {self.process.returncode}")])
            line += more
        return Verdict(**json.loads(line))

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def judged(path):
    with open(path) as file:
        return [Verdict(**json.loads(line)) for line in file if line.strip()]


def run_all(seeds, path, jobs, deadline):
    """Judges seeds in other processes. Each line is written with a single call, so that several runs may share a file."""
    done = {v.seed for v in judged(path)} if os.path.exists(path) else set()
    left = iter([s for s in seeds if s not in done])
    lock = threading.Lock()

    def work():
        child = None
        with open(path + ".stderr", "ab") as stderr:
            while True:
                with lock:
                    seed = next(left, None)
                if seed is None:
                    break
                if child is None or child.process.returncode is not None or child.seeds >= 40:
                    if child is not None and child.process.returncode is None:
                        child.end()
                    child = Child(stderr)
                found = child.verdict(seed, deadline)
                with lock, open(path, "a") as file:
                    file.write(json.dumps(dataclasses.asdict(found)) + "\n")
            if child is not None and child.process.returncode is None:
                child.end()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return judged(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", nargs="?", default="0")
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--shorten", action="store_true")
    parser.add_argument("--seeds", metavar="A..B", help="the first seed and the one behind the last")
    parser.add_argument("--out", metavar="FILE", default="programs.jsonl")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=180.0, help="seconds for a seed")
    parser.add_argument("--summary", nargs="+", metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    first, _, attempt = options.seed.partition("/")
    if options.summary:
        verdicts = [v for path in options.summary for v in judged(path)]
        print("\n".join(told(v) for v in verdicts if v.verdict != "right"))
    elif options.seeds:
        a, b = map(int, options.seeds.split(".."))
        verdicts = run_all(range(a, b), options.out, options.jobs, options.deadline)
    elif options.show:
        return print(draw(int(first), int(attempt or 0)).describe())
    else:
        verdicts = []
        for seed in range(int(first), int(first) + options.count):
            found = verdict(seed, int(attempt or 0), options.shorten)
            verdicts.append(found)
            for name in found.stay:
                print(f"# seed {seed}: {name} stays in torch", flush=True)
            if found.verdict != "right":
                print(told(found), flush=True)
    print(summary(verdicts))
    return 1 if any(v.verdict in ("wrong", "crash") for v in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
