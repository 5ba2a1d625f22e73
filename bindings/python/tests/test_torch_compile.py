import ctypes
import math
import warnings

import pytest
import wgfc

torch = pytest.importorskip("torch")
backend = pytest.importorskip("wgfc.torch_backend")
optimizers = pytest.importorskip("optimizers")

NN = torch.nn
F = torch.nn.functional


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Steps:
    """Counts the work of the backend within a block."""

    def __enter__(self):
        self.before = backend.statistics()
        return self

    def __exit__(self, *_):
        after = backend.statistics()
        for name, n in vars(after).items():
            setattr(self, name, n - getattr(self.before, name))


def compiled(module, **options):
    return torch.compile(module, backend="wgfc", options=options)


def mlp():
    return NN.Sequential(NN.Linear(7, 13), NN.GELU(), NN.Linear(13, 5))


def gradients(module, run, *inputs):
    inputs = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    module.zero_grad()
    y = run(*inputs)
    (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
    found = [x.grad for x in [*inputs, *module.parameters()] if x.grad is not None]
    return [y.detach(), *(g.clone() for g in found)]


def agree(module, *inputs, tolerance=1e-4):
    """Compares values and gradients with eager PyTorch."""
    want = gradients(module, module, *inputs)
    got = gradients(module, compiled(module, fullgraph=True), *inputs)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_torch_finds_the_backend_by_its_name():
    assert "wgfc" in torch._dynamo.list_backends()


class Attention(NN.Module):
    def __init__(self):
        super().__init__()
        self.names = NN.Embedding(11, 12)
        self.qkv, self.norm = NN.Linear(12, 36), NN.LayerNorm(12)

    def forward(self, ids):
        x = self.names(ids)
        q, k, v = self.qkv(x).reshape(*ids.shape, 3, 3, 4).permute(2, 0, 3, 1, 4)
        y = NN.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.norm(x + y.transpose(1, 2).reshape(x.shape))


class Convolutions(NN.Sequential):
    def __init__(self):
        super().__init__(
            NN.Conv2d(3, 5, 3, padding=1), NN.BatchNorm2d(5), NN.ReLU(), NN.MaxPool2d(2),
            NN.Conv2d(5, 6, 3, stride=2), NN.AdaptiveAvgPool2d(1), NN.Flatten(), NN.Linear(6, 4),
        )  # fmt: skip


@pytest.mark.parametrize("case", ["mlp", "attention", "convolutions"])
def test_values_and_gradients_are_those_of_eager(case):
    module, x = {
        "mlp": lambda: (mlp(), torch.randn(3, 7)),
        "attention": lambda: (Attention(), torch.randint(0, 11, (2, 5))),
        "convolutions": lambda: (Convolutions().eval(), torch.randn(2, 3, 13, 11)),
    }[case]()
    agree(module, x)
    with torch.no_grad():
        torch.testing.assert_close(compiled(module, fullgraph=True)(x), module(x), rtol=1e-4, atol=1e-4)


def test_statistics_of_norms_are_kept():
    module = Convolutions()
    other = Convolutions()
    other.load_state_dict(module.state_dict())
    run = compiled(other, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 3, 9, 9)
        torch.testing.assert_close(run(x), module(x), rtol=1e-3, atol=1e-4)
    for (name, a), b in zip(other.state_dict().items(), module.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_few_bits_are_trained(dtype):
    """In torch's graph the statistics are f32, while the operator itself returns them in the narrow type."""
    x = torch.randn(4, 5, 6)
    weights = torch.cos(torch.arange(x.numel(), dtype=dtype)).reshape(x.shape)
    found = []
    for kind, run in ((torch.float64, None), (dtype, None), (dtype, "wgfc")):
        torch.manual_seed(0)
        module = NN.BatchNorm1d(5).to(kind)
        given = x.to(dtype).to(kind).requires_grad_()
        options = {"options": {"fullgraph": True}} if run == "wgfc" else {}
        y = (torch.compile(module, backend=run, **options) if run else module)(given)
        (y * weights).sum().backward()
        found.append([y.detach(), given.grad, *(p.grad for p in module.parameters()), *module.buffers()])
    for want, eager, got in zip(*found):
        assert got.dtype == eager.dtype
        assert (got - want).abs().max() <= 2 * (eager - want).abs().max() + 1e-6


def test_training_follows_eager():
    losses = []
    for run in [lambda m: m, compiled]:
        torch.manual_seed(1)
        module = mlp()
        step, optimizer = run(module), torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        x, y = torch.randn(32, 7), torch.randint(0, 5, (32,))
        losses.append([])
        for _ in range(100):
            optimizer.zero_grad()
            loss = NN.functional.cross_entropy(step(x), y)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1][-1] < 0.3 * losses[1][0]
    assert max(abs(a - b) for a, b in zip(*losses)) < 1e-3


def test_parameters_stay_on_the_device_until_they_change():
    module, x = mlp(), torch.randn(3, 7)
    run = compiled(module)
    with torch.no_grad():
        with Steps() as first:
            run(x)
        with Steps() as again:
            run(x)
        module[0].weight.mul_(2)
        with Steps() as changed:
            y = run(x)
        torch.testing.assert_close(y, module(x), rtol=1e-4, atol=1e-5)
        module[2].bias = NN.Parameter(torch.ones(5))
        torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)
    assert (first.uploads, again.uploads, changed.uploads) == (5, 1, 2)
    assert (first.downloads, again.downloads, changed.downloads) == (1, 1, 1)


def test_what_the_backward_pass_reads_stays_on_the_device():
    module, x = mlp(), torch.randn(3, 7)
    run = compiled(module)
    run(x).sum().backward()
    with Steps() as s:
        y = run(x)
    # Only the input and the result are copied, no activations.
    assert (s.uploads, s.downloads) == (1, 1)
    with Steps() as s:
        y.sum().backward()
    assert (s.uploads, s.downloads) == (1, 4)
    held = backend_holds()
    y = run(x)
    assert backend_holds() > held
    del y
    assert backend_holds() == held


def backend_holds():
    from wgfc import _resident

    return sum(len(r.held) for r in _resident._RESIDENT.values())


def test_saved_tensors_that_hooks_see_are_real():
    module, x = mlp(), torch.randn(3, 7)
    want = gradients(module, module, x)
    with torch.autograd.graph.save_on_cpu():
        got = gradients(module, compiled(module), x)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_arrays_that_others_write_are_copied_each_time():
    import numpy as np

    x = np.zeros((2, 7), np.float32)
    module = mlp()
    run = compiled(module)
    for n in range(3):
        x[:] = n
        with torch.no_grad():
            given = torch.from_numpy(x)
            torch.testing.assert_close(run(given), module(given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_sizes_change_without_compiling_again(training):
    module = Attention()
    run = torch.compile(module, backend="wgfc", dynamic=True, options={"fullgraph": True})
    for i, shape in enumerate([(2, 5), (3, 4), (4, 9)]):
        ids = torch.randint(0, 11, shape)
        with Steps() as s, torch.set_grad_enabled(training):
            y = run(ids)
            if training:
                y.square().sum().backward()
                got = [p.grad.clone() for p in module.parameters()]
                module.zero_grad()
                module(ids).square().sum().backward()
                for a, p in zip(got, module.parameters()):
                    torch.testing.assert_close(a, p.grad, rtol=1e-3, atol=1e-3)
                module.zero_grad()
        torch.testing.assert_close(y, module(ids), rtol=1e-4, atol=1e-4)
        assert i == 0 or s.graphs == 0


def test_sizes_that_are_arguments():
    def f(x, n):
        return x.repeat(n, 2) * n

    run = torch.compile(f, backend="wgfc", dynamic=True)
    for n in [2, 3, 5]:
        x = torch.randn(n + 1, 3)
        torch.testing.assert_close(run(x, n), f(x, n))


def test_equal_graphs_are_compiled_once():
    a, b, x = mlp(), mlp(), torch.randn(6, 7)
    with torch.no_grad():
        compiled(a)(x)
        torch._dynamo.reset()
        with Steps() as s:
            y = compiled(b)(x)
        torch.testing.assert_close(y, b(x), rtol=1e-4, atol=1e-5)
    assert (s.graphs, s.programs, s.compiled) == (1, 1, 0)


class Partly(NN.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = NN.Linear(4, 4), NN.Linear(4, 4)

    def forward(self, x):
        y = torch.relu(self.a(x))
        return self.b(y) + torch.linalg.eigvals(y + 3 * torch.eye(4)).real.sum()


def test_what_is_not_supported_stays_in_torch():
    module, x = Partly(), torch.randn(4, 4)
    with torch.no_grad(), Steps() as s, pytest.warns(backend.FallbackWarning) as told:
        y = compiled(module)(x)
    torch.testing.assert_close(y, module(x), rtol=1e-4, atol=1e-4)
    names = [str(w.message).split()[0] for w in told]
    assert any("eig" in n for n in names) and len(set(names)) == len(names)
    assert s.programs == 2 and s.operators >= 1
    # Each unsupported operator is reported once per process.
    torch._dynamo.reset()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        compiled(module)(x)
        with pytest.raises(Exception, match="eig") as e:
            compiled(Partly(), fullgraph=True)(x)
    # Dynamo wraps the exceptions of a backend.
    assert isinstance(e.value.inner_exception, wgfc.UnsupportedError)


def test_operators_on_lists_are_those_on_tensors():
    def f(a, b, n):
        c = torch._foreach_add(a, b, alpha=2)
        c = torch._foreach_mul(c, [0.5, 3.0])
        c = torch._foreach_addcmul(c, a, b, 0.25)
        c = torch._foreach_addcdiv(c, b, torch._foreach_add(torch._foreach_abs(a), 1.0), [1.0, 2.0])
        c = torch._foreach_addcmul(c, a, b, torch.tensor([2.0, 3.0]))
        c = torch._foreach_lerp(c, a, 0.3)
        c = torch._foreach_lerp(c, a, torch._foreach_sigmoid(b))
        c = torch._foreach_maximum(torch._foreach_minimum(c, 3.0), [-2.0, -1.0])
        c = torch._foreach_clamp_max(c, b)
        c = torch._foreach_div(torch._foreach_sub(c, n), n)
        torch._foreach_add_(c, 1)
        torch._foreach_copy_(a, c)
        torch._foreach_neg_(b)
        return *c, *torch._foreach_norm(c), *torch._foreach_norm(c, 1), *torch._foreach_pow(2.0, c)

    given = [[torch.randn(3, 5), torch.randn(4)] for _ in range(2)]
    copies = [[x.clone() for x in part] for part in given]
    n = torch.tensor(3.0)
    for got, want in zip(compiled(f, fullgraph=True)(*given, n), f(*copies, n)):
        torch.testing.assert_close(got, want)
    for got, want in zip([*given[0], *given[1]], [*copies[0], *copies[1]]):
        torch.testing.assert_close(got, want)


def test_random_numbers_are_those_of_torch():
    module, x = NN.Sequential(NN.Linear(7, 64), NN.Dropout(0.5), NN.Linear(64, 3)), torch.randn(5, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", backend.FallbackWarning)
        run = compiled(module)
        found = []
        for f in [module, run]:
            torch.manual_seed(3)
            found.append(gradients(module, f, x))
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_arguments_that_are_written():
    def f(x, y):
        x.add_(y)
        return x.T, y[1:], x * 2

    run = compiled(f)
    a, b, y = torch.zeros(3, 4), torch.zeros(3, 4), torch.randn(3, 4)
    for _ in range(2):
        for got, want in zip(run(a, y), f(b, y)):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want)
        torch.testing.assert_close(a, b)


def test_constants_in_a_graph():
    empty = torch.tensor([])

    def f(x):
        return torch.cat([x, torch.tensor([1.0, 2.0]), empty]) * torch.tensor(3), torch.tensor([4])

    x = torch.randn(3)
    for got, want in zip(compiled(f, fullgraph=True)(x), f(x)):
        torch.testing.assert_close(got, want)


def test_sizes_that_only_the_run_knows():
    def f(x):
        return torch.relu(x[x > 0] * 2).cumsum(0).reshape(1, -1) + x.sum()

    with warnings.catch_warnings(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        warnings.simplefilter("ignore", backend.FallbackWarning)
        run = compiled(f)
        for _ in range(3):
            x = torch.randn(9)
            torch.testing.assert_close(run(x), f(x), rtol=1e-4, atol=1e-5)


def test_control_flow():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x * 3, (x,)).exp()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", backend.FallbackWarning)
        run = compiled(f)
        for x in [torch.ones(4), -torch.ones(4)]:
            torch.testing.assert_close(run(x), f(x), rtol=1e-4, atol=1e-5)


def test_options_are_checked():
    with pytest.raises(Exception, match="no GPU adapter") as e:
        compiled(mlp(), adapter="none of this name")(torch.randn(3, 7))
    assert isinstance(e.value.inner_exception, wgfc.DeviceError)
    with pytest.raises(Exception, match="unknown option 'colour'"):
        compiled(mlp(), colour=1)(torch.randn(3, 7))


def eager_and_compiled(f, *given, **options):
    """The results of a function and the gradients of its arguments, by torch and by wgfc."""
    torch._dynamo.reset()
    both = []
    for g in (f, torch.compile(f, backend="wgfc", **options)):
        x = [v.clone().requires_grad_() if v.is_floating_point() else v for v in given]
        y = g(*x)
        weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
        (y * weights).sum().backward()
        both.append([y.detach()] + [v.grad for v in x if v.grad is not None])
    return zip(*both)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [False, True])
def test_gradients_of_grid_samples(mode, padding, corners):
    torch.manual_seed(0)
    f = lambda x, g: torch.nn.functional.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=corners)
    for want, got in eager_and_compiled(f, torch.randn(2, 3, 5, 7), torch.randn(2, 4, 6, 2) * 1.3, options={"fullgraph": True}):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_gradients_of_weight_norm_and_masked_scatter():
    torch.manual_seed(0)
    mask = torch.rand(3, 5) > 0.5
    cases = [
        (lambda v, g, x: torch.nn.functional.conv1d(x, torch._weight_norm(v, g, 0)), [(4, 3, 5), (4, 1, 1), (2, 3, 9)]),
        (lambda v, g, x: torch.nn.functional.conv1d(x, torch._weight_norm(v, g, 2)), [(4, 3, 5), (1, 1, 5), (2, 3, 9)]),
        (lambda x, s: x.masked_scatter(mask, s), [(3, 5), (4, 5)]),
        (lambda x: x.new_empty_strided((2, 3), (1, 2)).zero_() + x.sum(), [(3,)]),
    ]
    for f, shapes in cases:
        for want, got in eager_and_compiled(f, *map(torch.randn, shapes), options={"fullgraph": True}):
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.narrow(0, 1, x.shape[0] - 1),
        lambda x: x[x.shape[0] // 2 :],
        lambda x: x[:, : x.shape[1] // 2],
        lambda x: x[:, None].expand(-1, x.shape[0], -1),
        lambda x: (lambda y: y[y.shape[0] // 2 :])(x * 2),
        # Views of computed values. Torch makes them itself if a start may be negative, that is, count from the end.
        lambda x: (x * 2)[:1].expand(x.shape[0], -1).narrow(0, x.shape[0] - 2, 2),
        lambda x: (x * 2).mT[1:].narrow(0, x.shape[0] - 3, 2),
        lambda x: x.mT.narrow(0, x.shape[0] - 3, 2),
    ],
)
@pytest.mark.filterwarnings("ignore::wgfc.torch_backend.FallbackWarning")
def test_results_that_are_views_keep_their_place(f, grad):
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="wgfc", dynamic=True)
    for rows in (6, 4, 8):
        x = torch.randn(rows, 8, requires_grad=grad)
        got, want = compiled(x), f(x)
        assert torch.equal(got, want)
        assert (got.stride(), got.storage_offset()) == (want.stride(), want.storage_offset())


def test_results_that_are_views_of_views():
    """The strides and offset of an input that is a view are symbols that occur in no extent."""
    run = torch.compile(lambda v: (v[v.shape[0] // 3 : v.shape[0] - 1], v.exp()), backend="wgfc", dynamic=True)
    for rows, columns in ((5, 7), (6, 9)):
        x = torch.randn(rows, columns)
        for v in (x[:, 1:], x[1:, 2:], x.T[1:]):
            got, want = run(v)[0], v[v.shape[0] // 3 : v.shape[0] - 1]
            assert torch.equal(got, want)
            assert (got.stride(), got.storage_offset()) == (want.stride(), want.storage_offset())


@pytest.mark.filterwarnings("ignore::wgfc.torch_backend.FallbackWarning")
def test_results_that_are_views_where_data_says():
    """The offsets of the views are known only in the run; AOTAutograd makes views of an input from strides and offsets."""

    def f(x, at):
        y = x * 2
        return x.narrow(-1, at, 2), y, y.narrow(0, at, 2)[:, 1:]

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for dynamic in (False, True):
            torch._dynamo.reset()
            run = torch.compile(f, backend="wgfc", dynamic=dynamic, fullgraph=True)
            for at in (2, 0, 3):
                x, at = torch.randn(5, 3, 5), torch.tensor(at)
                for got, want in zip(run(x, at), f(x, at)):
                    assert torch.equal(got, want)
                    assert (got.stride(), got.storage_offset()) == (want.stride(), want.storage_offset())


@pytest.mark.filterwarnings("ignore::wgfc.torch_backend.FallbackWarning")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.as_strided((2,), (1,), 1) + 1,
        lambda x: x[1:].as_strided((2,), (1,)) + 1,
        lambda x: x[1:].as_strided((2,), (1,), 3) + 1,
        lambda x: (x * 2)[3:].as_strided((2,), (1,), 0),
        lambda x: (x * 2)[::2].as_strided((3,), (1,), 1) + 1,
        lambda x: (x * 2)[x.shape[0] // 2 :].as_strided((2,), (1,)) + 1,
        lambda x: torch.as_strided_scatter((x * 2)[1:], torch.ones(2), (2,), (1,), 2),
        lambda x: torch.as_strided_scatter(x, torch.ones(2), (2,), (1,), 5) + 0,
    ],
)
def test_strides_and_offsets_are_those_of_the_memory(f):
    memory = torch.arange(40.0)
    for dynamic in (False, True):
        torch._dynamo.reset()
        run = torch.compile(f, backend="wgfc", dynamic=dynamic)
        # Torch does not guard on the storage offset of an input.
        for x in (memory[:8], memory[2:10], memory[3:19:2]):
            assert torch.equal(run(x), f(x))
        a, b = (memory[:8].clone().requires_grad_() for _ in range(2))
        run(a).sum().backward()
        f(b).sum().backward()
        assert torch.equal(a.grad, b.grad)


def test_graphs_of_one_structure_do_not_share_sizes():
    import itertools

    x = torch.ones(3)
    for a, b in itertools.permutations(["h", "w", "rows"], 2):
        scope = {}
        exec(f"def f(x, {a}, {b}): return x * {a} - {b}", scope)
        torch._dynamo.reset()
        assert torch.compile(scope["f"], backend="wgfc", dynamic=True)(x, 10, 3).tolist() == [7.0] * 3


@pytest.mark.filterwarnings("ignore::wgfc.torch_backend.FallbackWarning")
def test_tokens_of_effects_are_no_results():
    torch.manual_seed(0)
    x = torch.randn(3, 3) + 4 * torch.eye(3)
    for f in (torch.linalg.inv, lambda x: torch.linalg.solve(x, x[:, 0])):
        torch._dynamo.reset()
        y = torch.compile(f, backend="wgfc")(x.clone().requires_grad_())
        torch.testing.assert_close(y.detach(), f(x), atol=1e-4, rtol=1e-4)


UNCOUNTED = {
    "fused": lambda w: torch._fused_sgd_(
        [w], [torch.ones_like(w)], [], weight_decay=0.0, momentum=0.0, lr=0.5, dampening=0.0, nesterov=False, maximize=False, is_first_step=True
    ),
    "data": lambda w: w.data.clamp_(-0.1, 0.1),
    "foreach": lambda w: torch._foreach_add_([w.data], 1.0),
    "numpy": lambda w: w.detach().numpy().fill(2.0),
    "swapped elements": lambda w: w.detach().numpy().sort(),
    "dlpack": lambda w: torch.from_dlpack(w.detach()).mul_(3.0),
    "storage": lambda w: w.untyped_storage().copy_(torch.arange(w.numel(), dtype=w.dtype).untyped_storage()),
    "set": lambda w: w.data.set_(torch.ones(w.shape)),
    "other memory": lambda w: setattr(w, "data", torch.ones(w.shape)),
    "address": lambda w: ctypes.memset(w.data_ptr() + 4 * w.numel() - 4, 0, 4),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("write", UNCOUNTED)
def test_writes_that_torch_does_not_count(write, training):
    module, x = mlp(), torch.randn(3, 7)
    run = compiled(module)
    for _ in range(3):
        for p in (module[0].weight, module[2].bias):
            with torch.no_grad():
                UNCOUNTED[write](p)
        if training:
            for a, b in zip(gradients(module, run, x), gradients(module, module, x)):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        else:
            with torch.no_grad():
                torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-4)


def test_writes_between_the_passes():
    """A tensor saved by the forward pass may be written before the backward pass, which torch does not detect either."""
    a, b = torch.randn(2, 3, 4)
    grads = []
    for f in (lambda x, y: (x * y).exp(), torch.compile(lambda x, y: (x * y).exp(), backend="wgfc")):
        x, y, z = a.clone().requires_grad_(), b.clone(), None
        z = f(x, y)
        y.numpy()[:] *= 2
        z.detach().numpy()[:] += 1
        z.sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_counts_of_writes_can_be_trusted():
    module, x = mlp(), torch.randn(3, 7)
    run = compiled(module, trust_versions=True)
    with torch.no_grad():
        before = run(x)
        module[0].weight.data.mul_(2)
        assert torch.equal(run(x), before)
        module[0].weight.mul_(2)
        torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-4)
        # A program that does not trust the counts makes its own copies.
        other = compiled(module)
        module[0].weight.data.mul_(2)
        torch.testing.assert_close(other(x), module(x), rtol=1e-4, atol=1e-4)


def test_fingerprints():
    import numpy as np
    from wgfc._wgfc import fingerprint

    rng = np.random.default_rng(0)
    found = {}
    for n in (0, 1, 7, 8, 63, 64, 65, 1 << 20, (1 << 20) + 1, 9_000_001):
        x = rng.integers(0, 256, n, dtype=np.uint8)
        found[x.tobytes()] = fingerprint(x)
        assert fingerprint(x.copy()) == fingerprint(x)
        for at in {0, n // 2, n - 1} if n else ():
            x[at] ^= 1
            found[x.tobytes()] = fingerprint(x)
        if n > 1 << 20:
            # Swapped elements, also at larger distances.
            for a, b in ((0, 8), (0, 64), (5, 1 << 20)):
                x[[a, b]] = x[[b, a]]
                found[x.tobytes()] = fingerprint(x)
    assert len(set(found.values())) == len(found)
    assert fingerprint(np.zeros(8, np.uint8)) != fingerprint(np.zeros(16, np.uint8))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x / 1.414).amax(0).sum(),
        lambda x: ((x / 3) - (x / 3).amax(0, keepdim=True)).exp().sum(),
        lambda x: (lambda y: (y - y.amax(0, keepdim=True)).exp().sum())(x / 3),
        lambda x: (torch.nn.functional.gelu(x) / 3).amax(-1).sum(),
        lambda x: (lambda m: (m[1] - m[0]).sum())(torch.aminmax(x.sigmoid() / 3, dim=0)),
        lambda x: torch.linalg.vector_norm(x / 3, float("inf"), 0).sum(),
        lambda x: (lambda y: torch.where(y >= y.amax(0), y, y * 2).sum())((x - x.mean(0)) / x.std(0)),
        lambda x: (lambda y: (y * (y / 0.3).round()).sum())(x.round() * 0.15 / 7 * 7),
    ],
)
def test_comparisons_of_the_forward_pass_are_not_made_again(f):
    for seed in range(3):
        torch.manual_seed(seed)
        for want, got in eager_and_compiled(f, torch.randn(9, 6), options={"fullgraph": True}):
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_optimizers_train_as_in_eager(name):
    ours, eager = optimizers.Trained("deep", True), optimizers.Trained("deep", False)
    for options in optimizers.OPTIMIZERS[name]:
        for way, more in optimizers.ways(name).items():
            got, want = (t.losses(name, {**options, **more}, 5) for t in (ours, eager))
            assert got == pytest.approx(want, rel=1e-4), f"{way} {options}"
            assert got[-1] != got[0]


NUMBERS = {
    "a number that is no size": (lambda x, s: x * s + s // 2 + s % 3, [5, 3, 0, 1, 10**8, 2**33, -7]),
    "of integers": (lambda x, s: x.to(torch.int64) * s + s // 2, [5, 3, 0, 1, 2**33, -7]),
    "a value and a size": (lambda x, s: x[:s] * s - s, [2, 5, 3]),
    "filled with it": (lambda x, s: torch.full((3,), s) + torch.arange(s, s + 3), [5, -3, 2**40]),
    "compared with it": (lambda x, s: torch.where(x > s, x, -s), [2, 3, -1]),
    "a power": (lambda x, s: x * 2 ** (x.shape[0] // 4) + x.shape[0] ** 5, [2, 3]),
    "roots": (lambda x, s: x * math.sqrt(x.shape[0]) + math.log(x.shape[0]) ** 0.5, [2, 3]),
    "a size that may be below 0": (lambda x, s: torch.zeros(s + 10) + s, [5, -3, -7]),
    "a slice from the end": (lambda x, s: x[s:] * s, [-4, -3, -2]),
}


@pytest.mark.parametrize("case", NUMBERS)
@pytest.mark.filterwarnings("ignore::wgfc.torch_backend.FallbackWarning")
def test_numbers_that_are_no_sizes(case):
    f, numbers = NUMBERS[case]
    run = torch.compile(f, backend="wgfc", dynamic=True)
    for n in (7, 9, 16):
        x = torch.randn(n, 3)
        for s in numbers:
            want, got = f(x, s), run(x, s)
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore:f64 values:wgfc.CompileWarning")
def test_floats_that_sizes_decide_are_carried():
    class Scaled(NN.Module):
        def forward(self, x):
            return (x * (x.shape[0] / (x.shape[0] - 1))).sin() * math.sqrt(x.shape[1]) + x.std(0)

    run = torch.compile(Scaled(), backend="wgfc", dynamic=True)
    with Steps() as steps:
        for n, m in ((4, 3), (7, 5), (9, 2)):
            x = torch.randn(n, m)
            for a, b in zip(gradients(Scaled(), run, x), gradients(Scaled(), Scaled(), x)):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert steps.operators == 0
    assert steps.compiled == 2


@pytest.mark.filterwarnings("ignore::wgfc.torch_backend.FallbackWarning")
def test_sizes_and_numbers_that_a_program_is_not_for():
    """The first call's arguments decide the program; torch computes calls for which the program is not valid."""
    padded = torch.compile(lambda x, a, b: F.pad(x, (a, b)) * 2, backend="wgfc", dynamic=True)
    for a, b in ((-1, 2), (1, -2), (-2, -1), (0, 3)):
        x = torch.randn(5, 7)
        assert torch.equal(padded(x, a, b), F.pad(x, (a, b)) * 2)
    values = torch.compile(lambda x: torch.linalg.svdvals(x) * 2, backend="wgfc", dynamic=True)
    for shape in ((4, 3), (3, 5), (6, 6), (2, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(values(x), torch.linalg.svdvals(x) * 2, rtol=1e-4, atol=1e-4)


def test_numbers_take_no_memory():
    run = torch.compile(lambda x, s: x[:s].sum() * 2, backend="wgfc", dynamic=True)
    x = torch.randn(5)
    for s in (3, 4, 2**30):
        torch.testing.assert_close(run(x, s), x[:s].sum() * 2)


def padded(mode, *padding):
    return lambda x: F.pad(x, padding, mode=mode).sin()


def distances(p):
    return lambda x: torch.cdist(x, x[:2] * 0.5 + 1, p=p)


def bags(mode, padding=3):
    at, begins = torch.tensor([0, 1, 2, 3, 1, 0]), torch.tensor([0, 2, 2])
    return lambda w: F.embedding_bag(at, w, begins, mode=mode, padding_idx=padding)


OPERATORS = {
    "replication_pad1d": (padded("replicate", 2, 1), (2, 3, 5)),
    "replication_pad1d that cuts": (padded("replicate", -1, 3), (2, 3, 5)),
    "replication_pad2d": (padded("replicate", 2, 1, 1, 3), (2, 3, 5, 4)),
    "replication_pad3d": (padded("replicate", 2, 1, 1, 3, 0, 1), (3, 1, 4, 3)),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 3).sin(), (2, 3, 7)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, 2)).sin(), (2, 3, 7, 5)),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, (3, 2, 2)).sin(), (3, 7, 5, 4)),
    **{f"cdist, p = {p}": (distances(p), (4, 3)) for p in (1.0, 1.5, 2.0, 3.0, math.inf)},
    "pdist": (torch.pdist, (5, 3)),
    **{f"embedding_bag, {m}": (bags(m), (5, 3)) for m in ("sum", "mean", "max")},
    **{f"embedding_bag of all rows, {m}": (bags(m, None), (5, 3)) for m in ("sum", "mean", "max")},
    "polar": (lambda x: torch.view_as_real(torch.polar(x.abs(), x * 2)), (3, 4)),
    "conv_transpose3d with much output padding": (
        lambda x: F.conv_transpose3d(x, torch.cos(torch.arange(480.0)).reshape(2, 2, 4, 5, 6), None, (3, 2, 1), (1, 2, 3), (2, 3, 1), 1, (4, 4, 4)),
        (2, 4, 4, 4),
    ),
    "gather of nothing": (lambda x: x.sum() + x.gather(0, torch.zeros(2, 0, dtype=torch.int64)).sum(), (5,)),
    "rfft and abs": (lambda x: torch.fft.rfft(x).abs(), (3, 8)),
    "stft and abs": (lambda x: torch.stft(x, 8, 4, window=torch.ones(8), return_complex=True).abs(), (2, 40)),
    "grid_sample of one grid": (lambda x: F.grid_sample(x, torch.linspace(-1, 1, 24).reshape(1, 3, 4, 2)), (1, 2, 5, 5)),
}


@pytest.mark.filterwarnings("ignore:Default grid_sample")
@pytest.mark.parametrize("case", OPERATORS)
def test_gradients_stay_on_the_device(case):
    class Of(NN.Module):
        def forward(self, x):
            return OPERATORS[case][0](x)

    agree(Of(), torch.randn(OPERATORS[case][1]))


def test_branches_that_data_chooses_stay_on_the_device():
    class Branches(NN.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin() * self.scale, lambda x: x.cos() * x, (x,)) + 1

    for scale in (2, 3):
        run = torch.compile(Branches(scale), backend="wgfc", options={"fullgraph": True})
        for x in (torch.rand(3, 7), -torch.rand(3, 7)):
            for a, b in zip(gradients(Branches(scale), run, x), gradients(Branches(scale), Branches(scale), x)):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("f", [torch.addmm, lambda c, a, b, **k: torch.baddbmm(c[None], a[None], b[None], **k)], ids=["addmm", "baddbmm"])
def test_factors_of_products_are_not_rounded(f, dtype):
    """Torch does not round the factors 0.3 and -4.775 to the narrow type, and rounds the sum once."""
    c, a, b = (torch.randn(9, 9).to(dtype) for _ in range(3))
    got = compiled(lambda c, a, b: f(c, a, b, beta=0.3, alpha=-4.775), fullgraph=True)(c, a, b)
    want, wide = f(c, a, b, beta=0.3, alpha=-4.775), f(c.double(), a.double(), b.double(), beta=0.3, alpha=-4.775)
    assert got.dtype == dtype
    assert (got - wide).abs().max() <= 1.01 * (want - wide).abs().max()


@torch.library.custom_op("wgfc_tests::cube", mutates_args=())
def cube(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() ** 3) * scale


@cube.register_fake
def _(x, scale):
    return torch.empty_like(x)


def saved_of_cube(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


def gradient_of_cube(ctx, g):
    (x,) = ctx.saved_tensors
    return g * 3 * x * x * ctx.scale, None


cube.register_autograd(gradient_of_cube, setup_context=saved_of_cube)


@torch.library.custom_op("wgfc_tests::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor, by: torch.Tensor) -> None:
    x.mul_(by)


@torch.library.custom_op("wgfc_tests::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@positive.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


def writes_a_view(x):
    y = x.sin()
    scale_(y[:, ::2], x[:, ::2].cos())
    return y + 1


CUSTOM = {
    "of its own gradient": (lambda x: cube(x.sin() * 2, 0.5).cos() + x, "wgfc_tests.cube.default stays in torch"),
    "writes an intermediate": (writes_a_view, "wgfc_tests.scale_.default stays in torch: it writes its arguments"),
    "of a size that it decides": (lambda x: positive(x * 2).exp().sum() + x, "wgfc_tests.positive.default stays in torch"),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CUSTOM)
def test_custom_operators_stay_in_torch(case, dynamic):
    from wgfc import _plan

    f, message = CUSTOM[case]
    _plan._WARNED.clear()
    run = torch.compile(f, backend="wgfc", dynamic=dynamic, fullgraph=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), pytest.warns(backend.FallbackWarning) as told:
        for rows in (3, 5):
            x = torch.randn(rows, 7)
            torch.testing.assert_close(run(x), f(x), rtol=1e-4, atol=1e-5)
    assert any(str(w.message).startswith(message) for w in told)
    if f is CUSTOM["of its own gradient"][0]:
        x = torch.randn(3, 7)
        a, b = (x.clone().requires_grad_() for _ in range(2))
        run(a).sum().backward()
        f(b).sum().backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::wgfc.torch_backend.FallbackWarning")
def test_custom_operators_that_write_inputs():
    def f(x, by):
        scale_(x[1:], by)
        return x * 3

    run, by = compiled(f), torch.tensor(2.0)
    a, b = torch.ones(4, 3), torch.ones(4, 3)
    for _ in range(2):
        assert torch.equal(run(a, by), f(b, by))
        assert torch.equal(a, b)
