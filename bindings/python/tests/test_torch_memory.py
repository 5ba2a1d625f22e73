"""What is written to memory that several tensors share, in programs of PyTorch."""

import pytest
import wgfc  # noqa: F401  (registers the backend)

torch = pytest.importorskip("torch")
pytest.importorskip("wgfc.torch_backend")

pytestmark = pytest.mark.filterwarnings("ignore::wgfc.torch_backend.FallbackWarning", "ignore::UserWarning")


def same(f, *shape, grad=False):
    """Values, strides and what is written to the argument are those of eager PyTorch."""
    for dynamic in (None, True):
        torch._dynamo.reset()
        run = torch.compile(f, backend="wgfc", dynamic=dynamic)
        for rows in (shape[0], shape[0] + 2):
            x = torch.randn(rows, *shape[1:])
            want, got = (x.clone().requires_grad_(grad) for _ in range(2))
            with torch.set_grad_enabled(grad):
                a, b = f(want), run(got)
            for k, (a, b) in enumerate(zip((*a, want), (*b, got))):
                assert (a.dtype, a.stride()) == (b.dtype, b.stride()), k
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


# Pieces that share memory although schemas do not say so.


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
    same(lambda x: pieces(x * 1), 5, 7, grad=True)
    same(lambda x: (*torch.unsafe_chunk(input=x, chunks=3, dim=1)[1:], x.relu_()), 5, 7)


# Copies of memory that elements share, of which some elements are replaced: PyTorch replaces those that share it, too.

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
