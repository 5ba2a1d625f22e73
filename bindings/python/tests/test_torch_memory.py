"""Writes to memory shared by several tensors, in PyTorch programs."""

import pytest
import wgfc

torch = pytest.importorskip("torch")
pytest.importorskip("wgfc.torch_backend")

pytestmark = pytest.mark.filterwarnings("ignore::wgfc.torch_backend.FallbackWarning", "ignore::UserWarning")


def same(f, *shape, grad=False):
    """Compares values, strides and writes to the argument with eager PyTorch."""
    for dynamic in (None, True):
        torch._dynamo.reset()
        run = torch.compile(f, backend="wgfc", dynamic=dynamic)
        for rows in (shape[0], shape[0] + 2):
            x = torch.randn(rows, *shape[1:])
            want, got = (x.clone().requires_grad_(grad) for _ in range(2))
            with torch.set_grad_enabled(grad):
                a, b = f(want), run(got)
            for k, (a, b) in enumerate(zip((*a, want), (*b, got))):
                assert (a.dtype, a.stride(), a.requires_grad) == (b.dtype, b.stride(), b.requires_grad), k
                torch.testing.assert_close(b, a)


# Results of one graph that share memory, and that the next graph writes to.


def written_behind(make, write):
    def f(x):
        made = make(x)
        torch._dynamo.graph_break()
        write(*made)
        return made

    return f


def detached(x):
    v = x.argmax(1, keepdim=True)
    w = v.detach()
    w.view(-1)[1:3].fill_(1)
    return v, w


BEHIND = {
    "a value and itself, detached": (detached, lambda v, w: v[..., -1:].fill_(0)),
    "pieces of a value that is no result": (lambda x: (lambda y: (*y.split([3, 5], 1), y[0]))(x * 2), lambda a, b, c: (a.fill_(3), c[4:].fill_(5))),
    "rows of a transposed value": (lambda x: ((x + 1).T, (x + 1).T[1:]), lambda y, z: z.mul_(2)),
    "a value and its rows": (lambda x: (lambda y: (y, y[1:], y[:, ::2].T))(x.exp().mT), lambda y, z, t: (z.mul_(2), t[1].fill_(5))),
    "a value and its diagonal": (lambda x: (lambda y: (y.diagonal(), y))(x @ x.mT), lambda d, y: d.zero_()),
    "views that overlap": (lambda x: (lambda y: (y.unfold(1, 3, 1), y[0]))(x.sin()), lambda u, y: y.zero_()),
}


@pytest.mark.parametrize("case", BEHIND)
def test_results_share_the_memory_that_they_are_views_of(case):
    same(written_behind(*BEHIND[case]), 5, 8)


@pytest.mark.parametrize("case", ["a value and its diagonal"])
def test_results_with_gradients_share_memory(case):
    same(written_behind(*BEHIND[case]), 5, 8, grad=True)


def test_a_detached_result_shares_the_memory_of_one_with_gradients():
    def write(y, z):
        with torch.no_grad():
            z.mul_(2)

    same(written_behind(lambda x: (lambda y: (y, y.detach()))(x * 2), write), 5, 8, grad=True)


def test_detached_views_of_what_another_result_is_a_view_of_have_no_gradient():
    for made in (lambda y: (y[..., -2:], y.detach()[None]), lambda y: (y[1:], y.detach()), lambda y: (y.detach()[0],)):
        same(lambda x: made(x.sin()), 5, 8, grad=True)


# Pieces that share memory although the schemas of their operators do not declare it.


def pieces(x):
    v = x[-3:]
    p, q = v.unsafe_chunk(2, 1)[0], torch.unsafe_split(v, 4, dim=-1)[1]
    r = torch.unsafe_split_with_sizes(v, [3, 4], dim=1)
    v[..., :2] = 3
    p[0] = 5
    r[1].mul_(2)
    return v, p, q, *r


def test_unsafe_pieces_share_memory():
    same(pieces, 5, 7)
    same(lambda x: pieces(x * 1), 5, 7)
    same(lambda x: (*torch.unsafe_chunk(input=x, chunks=3, dim=1)[1:], x.relu_()), 5, 7)


def test_gradients_of_unsafe_pieces():
    same(lambda x: (x * 2).unsafe_chunk(2, 0)[0].sin(), 5, 7, grad=True)
    with pytest.raises(Exception, match="unsafe_chunk share, and computes gradients of it"):
        same(lambda x: pieces(x * 1), 5, 7, grad=True)


def test_one_of_several_results_is_compared_in_the_backward_pass():
    w = torch.randn(5, 7)
    f = lambda w: torch.std_mean(w * 2, 1, correction=0)[1].max()
    found = []
    for g in (f, torch.compile(f, backend="wgfc")):
        p = torch.nn.Parameter(w.clone())
        g(p).backward()
        found.append(p.grad)
    torch.testing.assert_close(*found)


def test_views_of_new_values_lie_as_the_argument_does():
    def behind(x):
        v = x.chunk(2, 0)[0]
        v.fill_(0)
        return v, x.narrow(0, 1, 2) + 1

    def between(x):
        v = x.narrow(-1, 1, x.shape[-1] - 1)
        x.view(-1)[1:].add_(x.view(-1)[:-1].clone())
        return v, v.sum()

    def copied(x):
        y = torch.slice_scatter(x, x.narrow(-2, 0, 1) * 2, -2, 0, 1)
        return y, torch.tensor_split(y, 2, 1)[1], y.sum(-2)

    draws = {
        behind: lambda n: torch.cat([torch.randn(n, 3)] * 2)[n:],
        between: lambda n: torch.stack([torch.randn(n)] * 2, -1)[..., 1],
        copied: lambda n: torch.randn(1, 5).expand(n, 5),
    }
    for f, draw in draws.items():
        torch._dynamo.reset()
        g = torch.compile(f, backend="wgfc")
        for n in (5, 9, 6):
            torch.manual_seed(n)
            x = draw(n)
            torch.manual_seed(n)
            y = draw(n)
            for a, b in zip(f(x), g(y)):
                torch.testing.assert_close(a, b)
            torch.testing.assert_close(x, y)


# Replacement of some elements in copies of tensors whose elements overlap: PyTorch also replaces the overlapping elements.

REPLACED = {
    "slice_scatter": lambda v: torch.slice_scatter(v, v.narrow(0, 0, 1) * 2, 0, 0, 1),
    "select_scatter": lambda v: torch.select_scatter(v, v.select(0, 0) * 2, 0, 0),
    "diagonal_scatter": lambda v: torch.diagonal_scatter(v, v.diagonal(0, 1, 2) * 2, 0, 1, 2),
}


@pytest.mark.parametrize("case", REPLACED)
def test_replaced_elements_that_share_memory(case):
    f = REPLACED[case]
    same(lambda x: f(x.sin().unfold(0, 3, 1)) + 1, 5, 8)
    same(lambda x: f(x.unfold(0, x.shape[0] - 2, 1)), 5, 8)
    same(lambda x: f(x[:, :1, None].expand(-1, 8, 8)), 5, 8)


# Writes through views whose elements overlap, for all or some sizes.


def into(view, write):
    def f(x):
        y = x * 1
        write(view(y))
        return y

    return f


def numbered(v):
    v.copy_(torch.arange(v.numel(), dtype=v.dtype).reshape(v.shape))


NEVER = {
    "expanded": lambda y: y[:, :1].expand(-1, y.shape[0]),
    "windows": lambda y: y.unfold(1, 3, 1),
    "windows of rows": lambda y: y.unfold(0, 2, 1),
    "strided": lambda y: y.as_strided((y.shape[0] - 1, 3), (1, 1)),
    "strided rows": lambda y: y.as_strided((y.shape[0], 3), (2, 1)),
    "of all": lambda y: torch.meshgrid(y[0], y[:, 0], indexing="ij")[0],
}
ALWAYS = {
    "windows side by side": lambda y: y.unfold(0, 2, 2),
    "windows with gaps": lambda y: y.unfold(1, 2, 3),
    "windows of slices": lambda y: y[1:, ::2].unfold(1, 2, 2),
    "strided as it is": lambda y: y.as_strided((y.shape[0], 3), (y.shape[1], 1)),
    "slices": lambda y: y[1:, : y.shape[1] // 2],
    "a diagonal": lambda y: y.mT.diagonal(),
    "flat": lambda y: y.view(-1)[: y.shape[0]],
}
SOMETIMES = {
    "as far apart as there are rows": lambda y: y.as_strided((2, 3), (y.shape[0], 1)),
    "as far apart as some columns": lambda y: y.as_strided((2, 2), (y.shape[1] - 3, 1)),
}


@pytest.mark.parametrize("write", [numbered, lambda v: v.mul_(2)], ids=["copy", "product"])
@pytest.mark.parametrize("case", [*NEVER, *ALWAYS, *SOMETIMES])
def test_exported_writes_to_elements_that_may_overlap(case, write):
    f = into({**NEVER, **ALWAYS, **SOMETIMES}[case], write)
    module = torch.nn.Module()
    module.forward = f
    auto = torch.export.Dim.AUTO
    try:
        program = torch.export.export(module, (torch.randn(6, 7),), dynamic_shapes=({0: auto, 1: auto},))
        program.module()(torch.randn(6, 7))
    except Exception as e:
        pytest.skip(f"torch refuses it: {e}")
    if case in NEVER:
        with pytest.raises(wgfc.UnsupportedError, match="at one place in memory"):
            wgfc.compile(program)
        return
    session = wgfc.Session(wgfc.compile(program))
    for shape in ((6, 7), (9, 8), (4, 5), (3, 4), (2, 3)):
        x = torch.arange(float(shape[0] * shape[1])).reshape(shape)
        try:
            want = program.module()(x)
        except Exception:  # a guard of the program's own
            continue
        if case in SOMETIMES and (shape[0] < 3 if "rows" in case else shape[1] < 5):
            with pytest.raises(wgfc.ModelError, match="to be at least"):
                session.run({"x": x})
        else:
            assert torch.equal(next(iter(session.run({"x": x}, to="torch").values())), want), shape


OF_ARGUMENTS = {
    "slice_scatter": lambda v: torch.slice_scatter(v, v[:1] * 2, 0, 0, 1),
    "select_scatter": lambda v: torch.select_scatter(v, v[0] * 2, 0, 0),
    "diagonal_scatter": lambda v: torch.diagonal_scatter(v, v.diagonal() * 2),
    "as_strided_scatter": lambda v: torch.as_strided_scatter(v, v[0, :2] * 2, (2,), (1,), 1),
    "of a view": lambda v: torch.slice_scatter(v[1:], v[:1] * 2, 0, 0, 1),
}


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("case", OF_ARGUMENTS)
def test_replaced_elements_of_arguments_that_overlap_at_some_strides(case, dynamic):
    torch._dynamo.reset()
    run = torch.compile(OF_ARGUMENTS[case], backend="wgfc", dynamic=dynamic)
    for rows, stride in ((5, 4), (6, 5), (5, 2), (7, 1), (4, 3)):
        x = torch.arange(100.0).as_strided((rows, 3), (stride, 1))
        want, got = OF_ARGUMENTS[case](x), run(x)
        assert torch.equal(got, want) and got.stride() == want.stride(), (rows, stride)


# Arguments that share memory, results that are views of arguments or of one another.


def storages(tensors):
    """For each tensor, the index of the first tensor that shares its memory."""
    at = [t.untyped_storage().data_ptr() for t in tensors]
    return [at.index(a) for a in at]


def described(tensors):
    return [(t.dtype, t.shape, t.stride(), t.storage_offset(), t.requires_grad) for t in tensors]


def compared(run, f, given, rows, grad):
    """Compares results, writes, shared memory and gradients with eager PyTorch, then all tensors after a write to each result."""
    outcomes = []
    for call in (f, run):
        leaf = (torch.arange(rows * 8.0).reshape(rows, 8) / 7).sin().requires_grad_(grad)
        with torch.set_grad_enabled(grad):
            arguments = given(leaf * 1)
            made = call(*arguments)
        made = [made] if isinstance(made, torch.Tensor) else list(made)
        everything = [*arguments, *made]
        found = [described(everything), storages(everything), [any(m is a for a in arguments) for m in made], [t.detach().clone() for t in everything]]
        if grad and any(t.requires_grad for t in made):
            sum((t * (1 + torch.arange(t.numel(), dtype=t.dtype)).reshape(t.shape)).sum() for t in made if t.requires_grad).backward()
            found[3].append(torch.zeros(()) if leaf.grad is None else leaf.grad)
        for i, t in enumerate(made):
            with torch.no_grad():
                t.view(-1)[:1].add_(i + 1) if t.is_contiguous() and t.numel() else None
            found[3].extend(t.detach().clone() for t in everything)
        outcomes.append(found)
    want, got = outcomes
    assert got[:3] == want[:3]
    for k, (a, b) in enumerate(zip(want[3], got[3], strict=True)):
        torch.testing.assert_close(b, a, equal_nan=True, msg=lambda m, k=k: f"value {k}: {m}")


def agrees(f, given=lambda x: (x,), grad=False):
    def over(backend, dynamic):
        torch._dynamo.reset()
        run = torch.compile(f, backend=backend, dynamic=dynamic)
        for rows in (5, 7) if dynamic is None else (6,):
            compared(run, f, given, rows, grad)

    for dynamic in (None, True):
        try:
            over("wgfc", dynamic)
        except Exception:
            try:
                over("aot_eager", dynamic)
            except Exception as e:
                pytest.skip(f"torch's own graphs of it differ: {e}")
            raise


ALIASES = {
    "itself": lambda x: (x, x),
    "rows and the next ones": lambda x: (x[:-1], x[1:]),
    "rows and others": lambda x: (x[:2], x[2:]),
    "columns": lambda x: (x[:, ::2], x[:, 1::2]),
    "transposed": lambda x: (x, x.mT),
    "flat": lambda x: (x, x.view(-1)),
    "a row": lambda x: (x[1], x),
    "a diagonal": lambda x: (x.diagonal(), x),
    "detached": lambda x: (x, x.detach()),
    "strided": lambda x: (x.as_strided((x.shape[0] - 1, 3), (8, 2), 1), x),
    "an element": lambda x: (x[1, 2], x),
    "with another axis": lambda x: (x, x[:, None]),
    "as other bits": lambda x: (x, x.view(torch.int32)),
}


def first_doubled(a, b):
    a.mul_(2)
    return a.sum() + b.sum(), b * 3


def second_written(a, b):
    b.zero_()
    return a + 1


def both_written(a, b):
    a.add_(1)
    b.mul_(2)
    return a + b.sum()


def written_and_returned(a, b):
    a.mul_(2)
    return b, a


def views_returned(a, b):
    a.add_(1)
    return a[..., None], b.reshape(b.shape).unsqueeze(0), a * 2


def part_written(a, b):
    v = b.flatten()[:1]
    b.unsqueeze(0)[..., -1:].fill_(3)
    return v, a * 2


def copied(a, b):
    c = a + b.sum()
    b.copy_(b * 2)
    a.copy_(c)
    return c, c[..., None]


def only_views(a, b):
    return b.unsqueeze(-1), a.detach(), a.unsqueeze(0)


BODIES = (first_doubled, second_written, both_written, written_and_returned, views_returned, part_written, copied, only_views)


@pytest.mark.parametrize("body, grad", [*((b, False) for b in BODIES), (first_doubled, True), (written_and_returned, True)], ids=lambda v: getattr(v, "__name__", str(v)))
@pytest.mark.parametrize("case", ALIASES)
def test_arguments_that_share_memory(case, body, grad):
    try:
        compared(body, body, ALIASES[case], 5, grad)
    except RuntimeError as e:
        pytest.skip(f"eager PyTorch refuses it: {e}")
    agrees(body, ALIASES[case], grad)


def put(x, at, value):
    x[at] = value


def then(x, *writes):
    """Applies writes to a tensor and returns it."""
    for w in writes:
        w(x)
    return x


def of_two(f):
    """A function that passes a new value and its argument to ``f``."""
    return lambda x: f(x * 2, x)


SHARED = {
    "an argument and a view of it": lambda x: (x, x[1:], x.mT),
    "a view of a view": lambda x: x[1:].mT[2:],
    "the same view twice": lambda x: (x[1:], x[1:]),
    "one view twice": lambda x: (lambda v: (v, v))(x[1:]),
    "a changed argument": lambda x: x.add_(1),
    "a view of a changed argument": lambda x: x.add_(1)[1:],
    "a changed view": lambda x: x[1:].add_(1),
    "a changed view and the argument": lambda x: (x[1:].add_(1), x),
    "a view from before a change": lambda x: (lambda v: (x.mul_(2), v))(x[:, 1:]),
    "a copy from before a change": lambda x: (lambda v: (x.mul_(2), v))(x[:, 1:].clone()),
    "an argument that becomes a copy": lambda x: (x.copy_(x.flip(0)), x[0]),
    "a new value and its views": of_two(lambda y, x: (y, y[1:], y.view(-1))),
    "views of a new value": of_two(lambda y, x: (y[1:], y.mT)),
    "views of new values and of the argument": of_two(lambda y, x: (y[1:], x[1:], x)),
    "a new value, changed after its view": of_two(lambda y, x: (lambda v: (y.zero_(), v))(y[1:])),
    "a view, changed after the value": of_two(lambda y, x: (y, y[1:].zero_())),
    "a value detached": of_two(lambda y, x: (y, y.detach())),
    "an argument detached": lambda x: x.detach(),
    "an argument detached and changed": lambda x: x.detach().add_(1),
    "no other memory": lambda x: (x.contiguous(), x.to(torch.float32), x.reshape(x.shape), x.view_as(x), x.expand_as(x)),
    "other memory": lambda x: (x.mT.contiguous(), x.double(), x.mT.reshape(-1), x[:, ::2].flatten()),
    "turned in place": lambda x: then(x * 1, lambda y: y.t_(), lambda y: put(y, 0, 5)),
    "an argument with another axis in place": lambda x: then(x[1:], lambda y: y.unsqueeze_(0), lambda y: y.mul_(2)),
    "resized": lambda x: then(x * 1, lambda y: y.resize_(3, 8), lambda y: y.add_(1)),
    "of another's memory": lambda x: then(x.new_empty(0), lambda y: y.set_(x * 2), lambda y: y.add_(1)),
    "pieces": lambda x: (lambda p: (p[0].add_(1), *p, x))(x.split(2)),
    "unbound": lambda x: (lambda p: (p[0].add_(1), *p[1:3]))(x.unbind(1)),
    "stacked pieces": lambda x: (lambda p: (torch.stack(p), p[1].mul_(2), x))(x.chunk(2, 1)),
    "written to itself": lambda x: (x.copy_(x), x),
    "rows written to others": lambda x: (put(x, slice(1, 3), x[:2].clone()), x)[1],
    "rows changed by rows": lambda x: (x[1:].add_(x[:-1].clone()), x),
    "transposed and added": lambda x: (lambda s: s.add_(s.mT.clone()))(x[:5, :5]),
    "a diagonal": lambda x: (x[:5, :5].diagonal().fill_(1), x),
    "a part chosen by a mask": lambda x: (put(x, x > 0, 0.0), x, x[0])[1:],
    "a part chosen by indices": lambda x: (x.index_fill_(1, torch.tensor([0, 2]), 3.0), x[:, 2]),
    "complex numbers": lambda x: (lambda c: (c.real.zero_(), c.imag, torch.view_as_real(c)))(torch.view_as_complex(x.view(-1, 4, 2) * 1)),
    "an argument as complex numbers": lambda x: torch.view_as_complex(x.view(-1, 4, 2)),
    "integers of floats": lambda x: (lambda v: (v.bitwise_and_(-2), x))(x.detach().view(torch.int32)),
    "out": lambda x: (lambda y: (torch.add(x, 1, out=y), y[1:]))(torch.empty_like(x)),
    "a sum written into a view": lambda x: (lambda y: (torch.sum(x, 0, out=y[1]), y))(torch.zeros(3, 8)),
    "windows": lambda x: (x.unfold(1, 3, 2), x),
    "windows of a new value": of_two(lambda y, x: (y.unfold(0, 2, 1), y)),
    "expanded": lambda x: (x[:1].expand(4, -1, 8).mT, x[0].expand_as(x)),
    "expanded new value": of_two(lambda y, x: (y[:1].expand_as(y), y[0])),
    "nothing": lambda x: (x[:0], x[1:][:0]),
    "one element": lambda x: (x[2, 3], x.view(-1)[19]),
    "many changes": lambda x: (x.add_(1), x[1:].mul_(2), x.mT[0].zero_(), x[:, -1:].copy_(x[:, :1]), x),
    "a list": lambda x: [x[1:], x.mT, x],
}


@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("case", SHARED)
def test_results_that_share_memory(case, grad):
    f = SHARED[case]
    try:
        compared(f, f, lambda x: (x,), 6, grad)
    except RuntimeError as e:
        pytest.skip(f"eager PyTorch refuses it: {e}")
    agrees(f, grad=grad)
