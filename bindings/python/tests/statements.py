"""Statements that random programs of PyTorch are made of: `programs.py` draws them.

Each template makes a statement from values of the program, their axes and sizes, which a `Draw` picks.
"""

import dataclasses

import torch


@dataclasses.dataclass
class Statement:
    text: str
    view: bool = False
    """Whether it makes a view or writes, so that noise cannot be put upon it."""



REAL = (torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Draw:
    """Picks operands among the values that a program has."""

    def __init__(self, g, known, kind, captures):
        self.g = g
        self.known = known
        self.kind = kind
        self.captures = captures
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
        # The latest values are drawn more often.
        fit += fit[-3:]
        return self.g.choice(fit) if fit else None

    def axis(self, v):
        n = self.known[v].ndim
        return self.g.choice([self.g.randrange(n), self.g.randrange(n) - n])

    def same(self, v):
        """A value of the same type that broadcasts to the shape of ``v``, for elementwise operations with it."""
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
                f"{v}.view({v}.shape[0], -1)", f"{v}.ravel()", f"{v}.swapdims({a}, {b})", f"{v}.squeeze()", f"torch.atleast_3d({v})", f"{v}.T" if d.known[v].ndim == 2 else f"{v}.adjoint()",
                f"torch.broadcast_to({v}[:1], {v}.shape)", f"{v}.expand(2, *{v}.shape)", f"{v}[None].movedim(0, {a})", f"{v}[..., None, :]", f"{v}[-3:]", f"{v}[..., -2:]", f"{v}[1::2]", f"{v}.unsafe_chunk(2, {a})[0]",
                f"torch.split({v}, [1, {n} - 1], {a})[{g.choice([0, 1])}]", f"{v}.narrow({a}, {n} - 2, 2)", f"{v}.view(torch.uint8)" if d.known[v].dtype in WHOLE else f"{v}.view({v}.dtype)", f"torch.hsplit({v}, [{g.choice(['1', '2', n + ' // 2'])}])[-1]",
                f"{v}.as_strided({v}.shape, {v}.stride())", f"{v}.as_strided(({n} // 2, 2), (2, 1), {g.choice(['0', '1'])})", f"{v}.flatten(0, 1)" if d.known[v].ndim > 1 else f"{v}[:]", f"{v}.unfold({a}, {n} - 1, 1)", f"torch.diagonal({v}, -1, {a}, {b})",
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
                f"{v}.to({g.choice(['torch.int8', 'torch.int16', 'torch.bool', 'F32'])})" if d.known[v].dtype not in REAL else f"{v}.to(F32)", f"torch.rot90({v})" if d.known[v].ndim > 1 else f"{v}.flip(0)",
                f"F.pad({v}.flatten()[None, None], (1, 2), mode='{g.choice(['reflect', 'replicate', 'circular'])}')", f"F.pad({v}[None].flatten(0, -3) if {v}.ndim > 2 else {v}[None], (1, 1, 0, 1), mode='replicate')", f"torch.hstack([{v}, {w}])", f"torch.cat([{v}, {v}.new_zeros(*{v}.shape)], {a})", f"torch.column_stack([{v}, {w}])",
                f"{v}.index_select({a}, torch.tensor([0, 0]))", f"torch.take_along_dim({v}, {v}.argsort(dim={a}, stable=True), {a})" if d.known[v].dtype not in REAL else f"{v}.contiguous()", f"{v}[[0, -1]]", f"{v}[..., [0, -1]]", f"{v}[torch.arange({v}.shape[0])[:, None] % 2, torch.tensor([0, -1])]" if d.known[v].ndim > 1 else f"{v}[torch.tensor([[0, -1]])]",
                f"torch.index_copy({v}, {a}, torch.tensor([0]), {v}.narrow({a}, {n} - 1, 1))", f"{v}.index_add({a}, torch.tensor([0, 0]), {v}.narrow({a}, 0, 1).repeat_interleave(2, {a}))" if d.known[v].dtype != torch.bool else f"{v}.logical_not()", f"{v}.diagonal_scatter({v}.diagonal(0, 0, -1).flip(-1), 0, 0, -1)" if d.known[v].ndim > 1 else f"{v}.clone()",
                f"torch.scatter({v}, {a}, torch.zeros_like({v}, dtype=torch.int64).narrow({a}, 0, 1) + 1, {w})" if d.known[v].dtype != torch.bool else f"{v} & True", f"torch.scatter_add({v}, {a}, torch.arange({n}).flip(0).view([-1 if k == {a} % {v}.ndim else 1 for k in range({v}.ndim)]).expand_as({v}), {w})" if d.known[v].dtype in REAL and w != v else f"{v}.roll((1, 1), (0, -1))",
                f"torch.masked_fill({v}, {v} == 0, 1)", f"torch.block_diag({v}[..., :2].reshape(-1, 2)[:3], {v}.reshape(-1, 1)[:2])", f"torch.cartesian_prod({v}.flatten()[:3], {v}.flatten()[-2:])", f"{v}.tile({g.choice(['2', 'n'])})", f"torch.triu({v}, 1)" if d.known[v].ndim > 1 else f"torch.diag_embed({v})", f"torch.where({v} != 0, {v}, 1)", f"{v}.nonzero_static(size=3).float()",
                f"tie({v}).round() != 0" if d.known[v].dtype in REAL else f"{v} != 0", f"{v}.new_full(({n}, 3), 2)", f"torch.zeros_like({v}) + {w}", f"torch.meshgrid({v}.flatten()[:3], {v}.flatten()[:2], indexing='ij')[{g.choice([0, 1])}]",
            ]
        )
    )  # fmt: skip


def writes(d):
    g = d.g
    v = d.value(least=1)
    if g.random() < 0.25:
        v = g.choice(["m.mean", "m.halves", "m.flags", "m.octets", "m.count"] + ["m.scale", "m.table"] * (d.kind == "inference"))
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
        f"{v}[1:-1] = {c}", f"{v}[-1] = {v}[0].clone()", f"{v}.select({a}, -1).fill_({c})", f"{v}.split(2, {a})[-1].fill_({c})", f"{v}[::2].copy_({v}[::2].flip(0))", f"{v}.view(-1).flip(0)[0] = {c}", f"{v}.index_put_((torch.tensor([0, 0]),), {v}[-1:].clone())", f"{v}[torch.tensor([0, -1])] = {c}",
        f"{v}.unsqueeze(0).squeeze(0)[:1].zero_()", f"{v}.masked_scatter_({v} != 0, {v}.flip({a}).contiguous())", f"{v}.expand_as({v})[-1:] = {c}", f"{v}.tril_()" if t.ndim > 1 else f"{v}[-2:] = {c}", f"torch._foreach_copy_([{v}], [{w if w != c else v}])", f"torch._foreach_zero_([{v}[:1], {v}[-1:]])", f"{v}.detach()[:2] = {c}", f"{v}.scatter_({a}, {v}.argsort(dim={a}, stable=True), {v}.clone())" if not real else f"{v}.flatten()[:1].zero_()",
        f"{v}[{n} // 2:] = {v}[:{v}.shape[0] - {n} // 2].clone()", f"{v}.t_()" if t.ndim == 2 else f"{v}.unsqueeze_(0)", f"{v}.squeeze_({a})", f"{v}.swapaxes_(0, -1)", f"torch.where({v} != 0, {v}, {c}, out={v})" if d.kind == "inference" and real else f"{v}[:] = {c}",
    ]  # fmt: skip
    if not truth:
        some += [
            f"{v}.add_({c})", f"{v}.mul_({c})", f"{v}[{at}] += {c}", f"{v}[{at}].mul_({c})", f"{v}.sub_({w})", f"{v}.clamp_(-1, 2)",
            f"{v}.index_add_({a}, torch.tensor([0]), {v}.narrow({a}, 0, 1).clone())", f"{v}.transpose(0, -1).add_({c})",
            f"{v}.unfold(0, 2, 2).add_({c})", f"{v}[-1:].sub_(1)", f"{v}[:, -1:] += {v}[:, :1]" if t.ndim > 1 else f"{v}[-1:] += {v}[:1]", f"{v}.T.mul_({c})" if t.ndim == 2 else f"{v}.mul_({v}.shape[0])", f"torch._foreach_mul_([{v}[:1], {v}[1:]], {c})", f"torch._foreach_sub_([{v}], [{w}])", f"{v}.view(-1)[1:].add_({v}.view(-1)[:-1].clone())", f"{v}.scatter_add_({a}, torch.zeros_like({v}, dtype=torch.int64), {v}.clone())",
            f"{v}.scatter_reduce_({a}, torch.zeros_like({v}, dtype=torch.int64), {v}.flip({a}), '{g.choice(['sum', 'amax', 'amin', 'prod'])}')", f"{v}.index_put_((torch.tensor([0, 0]),), {v}[-1:].clone(), accumulate=True)", f"{v}.diagonal(0, 0, -1).add_({c})", f"{v}.clamp_min_({c})", f"{v}.neg_()", f"{v}[1:].copy_({v}[:-1].clone()).mul_({c})", f"{v}.abs_()",
            f"{v}.add_({v}.shape[0])", f"torch._foreach_add_([{v}], {c})", f"{v}[1:].add_({v}[:-1].clone())", f"{v}.cumsum_({a})",
        ]  # fmt: skip
    else:
        some += [f"{v}.logical_not_()", f"{v}[{at}].logical_not_()", f"{v}.logical_or_({w})"]
    if real:
        some += [f"{v}.relu_()", f"{v}[{at}].tanh_()", f"{v}.sigmoid_()", f"{v}.lerp_({v}.detach().flip({a}), 0.3)", f"F.relu({v}, inplace=True)", f"{v}.addcmul_({v}.detach(), {v}.detach(), value=0.1)", f"{v}.div_(3)", f"{v}[{at}].exp_()", f"{v}.sin_()", f"{v}.pow_(2)", f"{v}.clamp_(max=0.5).add_(1)", f"{v}.narrow({a}, 0, 1).sqrt_()", f"torch._foreach_tanh_([{v}])", f"torch._foreach_lerp_([{v}], [{w}], 0.3)", f"{v}.copy_(torch.arange({v}.shape[-1]))", f"{v}.round_()", f"F.silu({v}, inplace=True)", f"F.hardtanh({v}, inplace=True)", f"{v}.addcdiv_({v}.detach(), {v}.detach().abs() + 1)", f"{v}.cumprod_({a})", f"{v}.index_fill_({a}, torch.tensor([0, -1]) % {n}, {c})"]  # fmt: skip
    return Statement(g.choice(some), True)


UNARY = (
    "abs neg exp2 erfc sinh cosh log2 log10 special.i0e special.i1e special.ndtr square sgn lgamma digamma acosh asinh tan sin cos tanh sigmoid relu erf atan floor ceil round trunc sign square frac expm1 asinh reciprocal sqrt rsqrt log log1p exp"
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
                f"{v}.nan_to_num()", f"torch.logaddexp({v}, {w})", f"torch.xlogy({v}.abs(), {w}.abs() + 0.1)", f"torch.where({v} > {w}, {v}, {w} * 2)", f"torch.special.expit({v})", f"torch.sinc({v})", f"torch.asin({v} / 5)", f"torch.acos({v}.tanh() / 2)", f"torch.atanh({v}.tanh() * 0.9)", f"torch.erfinv({v}.tanh() * 0.9)", f"torch.special.entr({v}.abs() + 0.1)", f"torch.special.xlog1py({v}, {w}.abs())", f"torch.special.log_ndtr({v})", f"torch.clamp({v}, {w} - 1, {w} + 1)", f"{v}.clip({v}.min(), 1)", f"torch.fmax({v}, {w})", f"torch.fmin({v}, {w})", f"torch.float_power({v}.abs() + 0.1, 1.5).to({v}.dtype)",
                f"{v} ** {s}", f"{v} ** 3", f"2 ** {v}.clamp(-3, 3)", f"({v}.abs() + 0.1) ** {w}.clamp(-2, 2)", f"({v}.abs() + 0.5) ** -0.5", f"{v} / {v}.shape[-1] ** 0.5" if d.known[v].ndim else f"{v} / n ** 0.5", f"{v} * ({s} / (n + 1))", f"{v} * (1 - 1 / (1 + {s}))", f"{v} * -{s}", f"{v} + {s} % 3", f"{v} * (({s} + 1) // 2)", f"{v}.mul(math.sqrt({s}))", f"{v} + int({s} * 0.5)", f"{v} * float({s})",
                f"torch.addcdiv({v}, {v}, {w}.abs() + 1, value=0.5)", f"torch.sub({v}, {w}, alpha=2)", f"torch.rsub({v}, {w})", f"torch.div({v}, {w}.abs() + 0.3, rounding_mode='{g.choice(['floor', 'trunc'])}')", f"torch.ldexp({v}, torch.tensor(2))", f"torch.logaddexp2({v}, {w})", f"torch.nextafter({v}, {w}) * 1" if d.known[v].dtype == torch.float32 and d.kind == "export" else f"{v} + 0.1", f"{v}.logit(0.1)", f"{v}.tanh().mul(2).add({w})", f"torch.polar({v}.abs(), {w}).real" if d.known[v].dtype == torch.float32 else f"{v}.neg()", f"torch.view_as_real(torch.complex({v}, {w}) * torch.complex({w}, {v}))" if d.known[v].dtype == torch.float32 else f"-{v}",
                f"F.rrelu({v}, training=False)", f"F.gelu({v}.half().to({v}.dtype))" if d.kind == "inference" else f"F.silu({v} + {w})", f"F.softsign({v})", f"F.hardshrink({v})", f"F.glu(torch.cat([{v}, {w}], -1))" if d.known[v].ndim else f"F.relu({v})", f"F.normalize({v}.flatten(), dim=0)", f"torch.deg2rad({v})", f"({v} > 0) * {v}", f"({v} > {w}).to({v}.dtype) + {v}", f"{v}.masked_fill({v} < {number(g)}, {number(g)})", f"torch.isclose({v}, {v} + 0)", f"torch.signbit({v})", f"({v} * 3).to(torch.int32)", f"({v} * 2).round().to(torch.int8)", f"torch.bucketize({v}, torch.tensor([-1.0, 0.0, 1.0], dtype={v}.dtype))", f"torch.isfinite({v} / {v})",
                f"torch.heaviside({v}, {w})", f"torch.threshold({v}, 0.1, 0)",
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
            + g.choice([f"~{v}", f"{v} & {w}", f"{v} | {w}", f"{v} ^ {w}", f"{v}.any()", f"{v}.all(-1)", f"{v}.sum(-1)", f"{v}.int()", f"{v}.to(F32)", f"{v}.logical_xor({w})", f"{v}.cumsum(-1)", f"{v}.any(0)", f"{v}.float().mean()", f"torch.where({v}, 2, 3)", f"torch.where({v}, 0.5, -1.5)", f"{v}.to(torch.int8)", f"{v} * 2", f"{v} + {v}", f"{v}.sum()", f"{v}.long().argmax(-1)", f"{v}.all()", f"{v}.prod(-1)", f"{v}.sort(-1)[0]", f"{v} > {w}", f"{v}.count_nonzero()", f"{v}.to(F16) * 0.5", f"{v}.nonzero()" if d.captures else f"{v}.max()"])
        )  # fmt: skip
    return Statement(
        f"{d.name()} = "
        + g.choice(
            [
                f"{v} + {w}", f"{v} - {w}", f"{v} * {w}", f"{v} // 3", f"{v} % 3", f"{v} & {w}", f"{v} | 5", f"{v} ^ {w}", f"{v} << 1", f"{v} >> 1", f"{v} > {w}", f"{v} == {w}", f"{v} * {d.size(v)}", f"{v} + n",
                f"{v}.to(F32) / 3", f"{v}.to(F32)", f"{v}.sum(-1)", f"{v}.amax(-1)", f"{v}.amin(0)", f"{v}.max()", f"{v}.sum()", f"{v}.cumsum(-1)", f"{v}.sort(-1)[0]", f"{v}.clamp(0, 3)", f"{v}.abs()", f"-{v}", f"~{v}",
                f"{v}.prod(-1)", f"torch.maximum({v}, {w})", f"torch.bitwise_and({v}, 3)", f"F.embedding({v}.long() % 6, m.table)", f"F.one_hot({v}.long() % 4, 4)", f"{v} / 2", f"{v}.remainder(4)", f"torch.div({v}, 2, rounding_mode='trunc')",
                f"m.table[{v}.long() % 6]", f"m.count[{v}.long() % 5]", f"torch.bincount({v}.long().flatten() % 5, minlength=5)", f"{v}.to(torch.uint8)", f"{v}.cummax(-1)[0]", f"{v}.any(-1)", f"{v}.count_nonzero(-1)", f"{v}.unique_consecutive().sum()", f"{v}.unique().sum()", f"{v} // (abs({w}) + 1)", f"{v} % (abs({w}) + 1)", f"{v} // -3", f"{v} % -3", f"torch.div({v}, -2, rounding_mode='floor')", f"{v} ** 2", f"{v}.float().mean(-1)", f"{v}.to(torch.int8)", f"{v}.to(torch.int16)", f"{v}.bool()", f"{v}.to(F16)", f"{v}.to(BF16)", f"{v} * 0.5", f"{v} + 1.5", f"{v}.float() * m.scale[0]", f"torch.gcd({v}, {w})", f"{v}.sgn()", f"{v}.flip(-1)", f"{v}.argmin(-1)" if False else f"{v}.amin()",
                f"{v}.cumprod(-1)", f"{v}.topk(1, -1)[0]", f"{v}.sort(-1, descending=True, stable=True)[1]", f"{v}.argsort(dim=-1, stable=True)", f"{v}.kthvalue(1, -1)[0]", f"{v}.median(-1)[0]", f"torch.searchsorted(m.count.sort()[0], {v}.long())", f"torch.isin({v}, torch.tensor([1, 3], dtype={v}.dtype))", f"torch.bitwise_left_shift({v}, 1)", f"{v} >> {d.size(v)}", f"torch.where({v} > 1, {v}, {w} - 1)", f"{v}.float() @ {v}.float().mT" if t.ndim > 1 else f"{v}.float().dot({v}.float())", f"torch.histc({v}.float(), 4, 0, 4)", f"{v}.index_select(-1, torch.tensor([0]))", f"torch.zeros(5, dtype={v}.dtype).index_add(0, {v}.long().flatten() % 5, {v}.flatten())", f"torch.zeros(4, 7).index_add(0, {v}.long().flatten()[:5] % 4, m.w * 1.0)", f"m.w[{v}.long().flatten() % 5, {v}.long().flatten() % 7]", f"{v}.reshape(-1)[:4].outer({v}.reshape(-1)[:3])", f"{v} & 0x0f", f"~{v} + 1", f"torch.nn.functional.pad({v}, (1, 1), value=2)", f"({v} > 0).sum(-1)", f"{v}.double().sum().to(F32)" if d.kind == "inference" else f"{v}.sum(0)", f"torch.tril_indices(3, 3) + {v}.max()", f"{v}.nonzero()" if d.captures else f"{v}.min(-1)[0]", f"m.table[{v}.long().flatten()[:3] % 6].sum(0) * {v}.max().item()" if d.captures else f"-{v} - 1",
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
                f"torch.var_mean({v}, {a})[{g.choice([0, 1])}]", f"torch.trapezoid({v}, dim={a})", f"{v}.diff(dim={a})", f"torch.quantile({v}.float(), 0.5, {a})" if d.known[v].dtype == torch.float32 else f"{v}.sum({a})", f"tie({v}).round().count_nonzero({a})", f"torch.renorm({v}, 2, 0, 1.5)" if d.known[v].ndim > 1 else f"{v}.sum()", f"tie({v}).argsort({a})", f"({v} > 0).any({a})", f"tie({v}).kthvalue(1, {a})[0]", f"tie({v}).topk(2, {a})[0]", f"tie({v}).mode({a})[0]", f"{v}.nansum({a})", f"{v}.nanmean({a})", f"({v}.abs() + 0.1).norm(3, {a})", f"{v}.softmax({a})", f"{v}.log_softmax({a}).sum()", f"{v}.sum((0, -1))" if d.known[v].ndim > 1 else f"{v}.sum(0)", f"{v}.mean((0, -1){k})" if d.known[v].ndim > 1 else f"{v}.mean(0)", f"{v}.var((0, 1))" if d.known[v].ndim > 1 else f"{v}.var()", f"{v}.amax((0, -1))" if d.known[v].ndim > 1 else f"{v}.amax()", f"torch.std_mean({v}, {a}, correction=0)[{g.choice([0, 1])}]", f"{v}.float().sum({a}).to({v}.dtype)", f"{v}.sum({a}, dtype=F32)", f"{v}.cumsum({a}).flip({a})", f"{v}.logsumexp((0, -1))" if d.known[v].ndim > 1 else f"{v}.logsumexp(0)",
                f"torch.cumulative_trapezoid({v}, dim={a})", f"{v}.diff(n=2, dim={a})", f"torch.cov({v})" if d.known[v].ndim == 2 else f"{v}.var()", f"{v}.dist({v}.flip({a}))", f"torch.linalg.vector_norm({v} + 0.01, 2, {a}{k})", f"torch.linalg.matrix_norm({v} + 0.01)" if d.known[v].ndim > 1 and d.known[v].dtype == torch.float32 else f"{v}.sum()", f"torch.special.logsumexp({v}, {a})", f"{v}.mean({a}{k}) * {d.size(v)}", f"{v}.sum({a}{k}) / {v}.shape[{a}]", f"({v} - {v}.mean()) / ({v}.std() + 0.1)", f"{v} * (({v}.numel() - 1) / {v}.numel())", f"tie({v}).max({a})[1]", f"tie({v}).cummax({a})[1]", f"torch.nanquantile({v}, 0.3, {a})" if d.known[v].dtype == torch.float32 else f"{v}.mean()", f"{v}.unflatten({a}, (-1, 1)).sum({a})", f"{v}.prod()", f"({v} > 0).float().mean({a})", f"torch.gradient({v}, dim={a})[0]", f"F.softmin({v}, {a})", f"torch.logcumsumexp({v}, {a})", f"{v}.scatter_reduce({a}, torch.zeros_like({v}, dtype=torch.int64), {v} * 2, '{g.choice(['mean', 'sum', 'amax', 'prod'])}')", f"{v}.index_reduce({a}, torch.tensor([0]), {v}.narrow({a}, 0, 1) * 2, '{g.choice(['amax', 'mean'])}')",
                f"{v}[{v} > 0]" if d.captures else f"{v}[{v} > 0].sum()", f"{v}.masked_select({v} < 0.5)" if d.captures else f"{v}.masked_select({v} < 0.5).sum()", f"{v} * {v}.amax().item()" if d.captures else f"{v}.amax() * {v}",
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
                    f"F.max_pool2d({v}.flatten(0, -2)[None, None], 2)[0, 0]", f"F.unfold({v}.flatten(0, -2)[None, None], 2)[0]", f"torch.tril({v})", f"{v}.softmax(0).amax(-1)", f"F.interpolate({v}.flatten(0, -2)[None, None], scale_factor={g.choice(['2', '1.5', '0.5', '(2, 1)'])}, mode='{g.choice(['bilinear', 'bicubic', 'area', 'nearest', 'nearest-exact'])}')[0, 0]", f"F.interpolate({v}.flatten(0, -2)[None, None], size=({g.choice(['4', 'n'])}, {g.choice(['3', 'n + 1'])}), mode='{g.choice(['bilinear', 'bicubic'])}', align_corners={g.choice([True, False])}, antialias={g.choice([True, False])})[0, 0]",
                    f"F.avg_pool2d({v}.flatten(0, -2)[None, None], 2, stride=1, padding=1, count_include_pad={g.choice([True, False])})[0, 0]", f"F.adaptive_avg_pool2d({v}.flatten(0, -2)[None, None], ({g.choice(['2', 'n'])}, 2))[0, 0]", f"F.adaptive_max_pool2d({v}.flatten(0, -2)[None, None], 2)[0, 0]", f"F.max_pool2d({v}.flatten(0, -2)[None, None], 3, stride=2, padding=1, ceil_mode={g.choice([True, False])})[0, 0]", f"F.lp_pool1d({v}.abs().flatten(0, -2)[None] + 0.1, 2, 2)[0]", f"F.pixel_unshuffle({v}.flatten(0, -2)[None, :4, :2].repeat(1, 2, 2)[:, :4], 2)", f"F.grid_sample({v}.flatten(0, -2)[None, None], torch.stack([{v}.flatten(0, -2).tanh(), {v}.flatten(0, -2).sin()], -1)[None], align_corners={g.choice([True, False])}, padding_mode='{g.choice(['zeros', 'border', 'reflection'])}')[0, 0]",
                    f"F.fold(F.unfold({v}.flatten(0, -2)[None, None, :, :], 2), ({v}.flatten(0, -2).shape[0], {v}.shape[-1]), 2)[0, 0]", f"F.local_response_norm({v}.flatten(0, -2)[None, :, :], 3)[0]", f"torch.einsum('...ij,...kj->...ik', {v}, {w}.flatten(0, -2))", f"torch.tensordot({v}, {w}, ([-1], [-1]))", f"F.pairwise_distance({v}, {v}.flip(0) + 0.3)", f"torch.chain_matmul({v}.flatten(0, -2), {v}.flatten(0, -2).mT)" if d.kind == "export" else f"{v}.flatten(0, -2) @ {v}.flatten(0, -2).mT", f"F.instance_norm({v}.flatten(0, -2)[None])[0]", f"F.multi_margin_loss({v}.flatten(0, -2), torch.arange({v}.flatten(0, -2).shape[0]) % 2)", f"F.margin_ranking_loss({v}, {v}.flip(0), torch.ones_like({v}), margin=0.1)", f"torch.fft.rfft({v}).abs()", f"torch.fft.ifft(torch.fft.fft({v})).real", f"torch.fft.fftshift({v})", f"torch.fft.irfft(torch.fft.rfft({v}) * 2, n={v}.shape[-1])", f"F.scaled_dot_product_attention({v}.flatten(0, -2)[None], {w}.flatten(0, -2)[None], {w}.flatten(0, -2)[None])[0]", f"torch.nn.functional.max_unpool1d(*F.max_pool1d({v}.flatten(0, -2)[None], 2, return_indices=True), 2)[0]", f"torch.kron({v}[..., :2], {v}[..., :2])",
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
                f"F.linear({v}.to(F16), m.halves)", f"F.linear({rows}.to(BF16), m.w.to(BF16), m.b.to(BF16))", f"F.layer_norm({v}.to(F16), (7,), m.scale.to(F16))", f"F.softmax({v}.to(BF16), -1)", f"F.batch_norm({rows}[:, :, None].expand(-1, -1, 3), m.mean, m.var, m.scale, m.mean.clone(), True, 0.3)", f"F.instance_norm({rows}[None].mT, m.mean, m.var, m.scale)[0]", f"F.group_norm({rows}[None].mT, {g.choice([1, 7])}, m.scale, m.mean)[0]",
                f"F.conv2d({v}.reshape(1, 1, -1, 7), m.kernel[:, None], padding=1)[0, 0]", f"F.conv2d({v}.reshape(1, 1, -1, 7).expand(1, 4, -1, 7), m.kernel[:, None], groups=4, padding=(1, 2), dilation=(1, 2))[0, 1]", f"F.conv2d({v}.reshape(1, 1, -1, 7), m.kernel[:, None], stride=2, padding='valid' if False else 2)[0]", f"F.conv_transpose2d({v}.reshape(1, 1, -1, 7), m.kernel[None], stride=2, padding=1, output_padding=1)[0, 0]", f"F.conv3d({v}.reshape(1, 1, 1, -1, 7), m.kernel[:2, None, None], padding=(0, 1, 1))[0, 1, 0]", f"F.conv1d({rows}.mT[None], m.square[..., None] * 0.5)[0].mT",
                f"F.scaled_dot_product_attention({rows}[None, None], {rows}[None, None] / 2, {rows}[None, None], attn_mask=torch.ones({rows}.shape[0], {rows}.shape[0], dtype=torch.bool).tril())[0, 0]", f"F.scaled_dot_product_attention({rows}[None], {rows}[None], {rows}[None], attn_mask=m.mean[0].expand({rows}.shape[0], {rows}.shape[0]), scale=0.3)[0]", f"F.scaled_dot_product_attention({rows}[None, None].expand(1, 4, -1, 7), {rows}[None, None].expand(1, 2, -1, 7), {rows}[None, None].expand(1, 2, -1, 7) * 0.5, enable_gqa=True)[0, 3]", f"F.multi_head_attention_forward({rows}[:, None], {rows}[:, None], {rows}[:, None], 7, 7, m.square.repeat(3, 1), m.mean.repeat(3), None, None, False, 0.0, m.square, m.mean, need_weights=False)[0][:, 0]", f"(lambda q, k: (q @ k.mT / 7 ** 0.5).masked_fill(torch.ones(q.shape[0], q.shape[0], dtype=torch.bool).triu(1), float('-inf')).softmax(-1) @ {rows})(F.linear({rows}, m.square), {rows})",
                f"torch.lstm_cell({rows}, ({rows}, {rows}.tanh()), m.square.repeat(4, 1), m.square.repeat(4, 1))[{g.choice([0, 1])}]", f"torch.rnn_tanh_cell({rows}, {rows}.sin(), m.square, m.square)", f"torch.lstm({rows}[:, None], ({rows}[:1, None].tanh(), {rows}[:1, None].sin()), (m.square.repeat(4, 1), m.square.repeat(4, 1)), False, 1, 0.0, False, False, False)[0][:, 0]", f"torch.gru({rows}[None], {rows}[None, :1], (m.square.repeat(3, 1), m.square.repeat(3, 1)), False, 1, 0.0, False, False, True)[0][0]",
                f"F.embedding(torch.arange({rows}.shape[0]) % 6, m.table, padding_idx=2) * {rows}", f"F.embedding_bag(torch.arange({rows}.shape[0]) % 6, m.table, torch.tensor([0, 2]), mode='{g.choice(['mean', 'sum', 'max'])}')", f"{rows} @ torch.linalg.inv(m.square @ m.square.mT + 3 * torch.eye(7, dtype=F32))", f"torch.linalg.solve(m.square @ m.square.mT + 3 * torch.eye(7, dtype=F32), {rows}.mT)", f"torch.linalg.cholesky({rows}.mT @ {rows} + 3 * torch.eye(7, dtype=F32))", f"torch.logdet({rows}.mT @ {rows} + 3 * torch.eye(7, dtype=F32))", f"torch.linalg.matrix_power(m.square, 3) @ {rows}.mT", f"torch.linalg.multi_dot([{rows}, m.square, m.square])", f"torch.linalg.det(m.square @ m.square.mT + torch.eye(7, dtype=F32))* {v}", f"torch.matrix_exp(m.square * 0.1) @ {rows}.mT", f"torch.linalg.solve_triangular(m.square.tril(-1) + 2 * torch.eye(7, dtype=F32), {rows}.mT, upper=False)",
                f"F.cross_entropy({rows}, F.softmax({rows}.detach().flip(0), -1))", f"F.cross_entropy({rows}.mT[None], (torch.arange({rows}.shape[0]) % 7)[None], ignore_index=1)", f"F.binary_cross_entropy({v}.sigmoid(), {v}.detach().sin().abs(), weight=m.var)", f"F.mse_loss({v}, m.mean.expand_as({v}), reduction='{g.choice(['none', 'sum'])}')", f"F.triplet_margin_loss({rows}, {rows}.flip(0), {rows} * 2 + 1, swap=True)", f"F.multilabel_margin_loss({rows}, torch.arange(7).expand_as({rows}) % 3)", f"F.ctc_loss({rows}[:, None].log_softmax(-1), torch.tensor([[1, 2]]), torch.tensor([{rows}.shape[0]]), torch.tensor([2]), zero_infinity=True)", f"F.kl_div({rows}.log_softmax(-1), {rows}.detach().flip(0).log_softmax(-1), log_target=True, reduction='sum')",
                f"torch.nn.functional.linear({v}, m.w) @ m.w", f"torch.addbmm(m.square, {rows}[None].mT, {rows}[None], beta=0.5)", f"torch.addmv(m.mean, m.square, {rows}[0])", f"torch.addr(m.square, m.mean, {rows}[0])", f"torch.vdot({rows}[0], m.scale)", f"torch.mv(m.square, {rows}[-1])", f"torch.einsum('bi,ij,bj->b', {rows}, m.square, {rows})", f"torch.func.vmap(lambda r: r.softmax(0) * m.scale)({rows})" if d.kind != "export" else f"{rows} * 2", f"torch.nn.functional.channel_shuffle({rows}.reshape(1, -1, 7, 1).transpose(1, 2)[:, :6], 3)", f"F.normalize({rows}, dim=0) @ m.w.mT", f"({v} - m.mean) / (m.var + 1e-5).sqrt() * m.scale", f"m.w.norm() * {v}", f"{v} * m.w.amax()", f"F.linear({v}, F.normalize(m.w, dim=1) * m.b[:, None])", f"torch._weight_norm(m.w, m.b[:, None], 0) @ {rows}.mT", f"F.embedding_bag(torch.arange({rows}.shape[0]) % 6, m.table, torch.tensor([0]))", f"torch.gru_cell({rows}[:, :7], {rows}[:, :7], m.square.repeat(3, 1), m.square.repeat(3, 1))",
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
                f"{x} = {v} * 2 if {s} > {k} else {v} + 1", f"{x} = {v}.sin() if n % 2 else {v}.cos()", f"if {s} % 2 == 0:\n    {x} = {v} + {w}\nelse:\n    {x} = {v} - {w}", f"{x} = cond({v}.sum() > 0, lambda a: a.sin() + 1, lambda a: a * 3, ({v},))",
                f"{x} = cond(torch.tensor({s} > {k}), lambda a, b: a + b, lambda a, b: a - b * 2, ({v}, {w}))", f"{x} = sum({v} * i for i in range(3))", f"{x} = cond({v}.mean() > 0, lambda a: a * {s}, lambda a: a - {s}, ({v},))", f"{x} = cond({v}.sum() > 0.1, lambda a, b: a * b, lambda a, b: (a - b).relu(), ({v}, {w}))", f"{x} = cond({v}.sum() > 0, lambda a: cond(a.amax() > 1, lambda b: b / 2, lambda b: b.cos(), (a,)), lambda a: a.exp().clamp(max=3), ({v},))",
                f"{x} = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, (a * 0.5).sin()), (torch.tensor(0), {v}.clone()))[1]", f"{x} = while_loop(lambda a: a.abs().sum() > 1, lambda a: (a * 0.5,), ({v}.clone(),))[0]", f"{x} = {v}\nfor _ in range(min(n, 4)):\n    {x} = {x} * 0.5 + {w}", f"{x} = {v}\nfor i in range({v}.shape[0] if {v}.ndim else 1):\n    {x} = {x} + i", f"{x} = {v} * 2\nif {s} > 4 and n < 4:\n    {x} = {x}.abs()\nelif {s} == 3:\n    {x}[:1] = 0", f"{x} = torch.stack([{v} * i for i in range(1, 3)]).sum(0)", f"{x} = torch.where(torch.tensor({s} % 2 == 0), {v}, -{v})", f"{x} = {v} if {v}.ndim > 1 and {v}.shape[0] < {v}.shape[-1] else {v}.flip(-1)" if d.known[v].ndim else f"{x} = {v} + 1",
                f"{x} = ({v} * 2 if {v}.sum().item() > 0 else {v} * 3)", f"{x} = {v} * ({s} > {k})", f"{x} = {v} * max({s}, n)", f"{x} = {v} / min({s}, 4)",
            ]
        )
    )  # fmt: skip


TEMPLATES = (
    [views] * 6 + [moves] * 4 + [writes] * 6 + [arithmetic] * 5 + [whole] * 3 + [reductions] * 5 + [layers] * 4 + [makers] + [branches]
)
