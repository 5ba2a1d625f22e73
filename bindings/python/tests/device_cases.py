"""Cases of the device ``webgpu``, in a process of their own as the device changes torch. Prints each case that fails, and exits
with 1 if one does."""

import copy
import gc
import io
import pickle
import sys
import traceback
import warnings

import torch
import torch.nn.functional as F
from torch import nn

import wgfc.torch

DEVICE = "webgpu"
CASES = []


def case(f):
    CASES.append(f)
    return f


def same(got, want, tolerance=1e-5):
    assert got.device.type == DEVICE, got.device
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, want.shape, got.dtype, want.dtype)
    torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance)


def both(f, tolerance=1e-5):
    """Compares what ``f`` returns for the device with what it returns for the CPU."""
    results = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(1)
        made = f(device)
        results.append(made if isinstance(made, (list, tuple)) else [made])
    for want, got in zip(*results, strict=True):
        same(got, want, tolerance)


def ramp(device, *shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(device)


@case
def tensors_are_made_and_copied():
    both(lambda d: [torch.ones(2, 3, device=d), torch.arange(5, device=d), torch.full((2,), 7, device=d), torch.eye(3, device=d)])
    both(lambda d: [torch.zeros((), device=d), torch.ones(0, 3, device=d), torch.tensor([1, 2], device=d)])
    both(lambda d: ramp(d, 3, 5).half().float())
    assert torch.ones(2, device=DEVICE).sum().item() == 2


@case
def writes_through_views_are_seen_by_all_views():
    def f(d):
        x = ramp(d, 4, 6)
        y = x.t()
        y[1].add_(10)
        x[:, 2:4] = 5
        x[::2, ::3].mul_(2)
        x.diagonal().zero_()
        x.as_strided((3,), (7,), 1).add_(1)
        return x, y, x.view(2, 2, 6).select(1, 0), x.unfold(1, 3, 2)

    both(f)


@case
def results_are_written_where_out_says():
    def f(d):
        x, y = ramp(d, 3, 4), torch.empty(3, 4, device=d)
        torch.mul(x, 2, out=y)
        z, at = torch.empty(0, device=d), torch.empty(1, dtype=torch.int64, device=d)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.add(x, y, out=z)
            torch.arange(7, out=at)
        return y, z, at, torch.logical_and(x > 2, y > 9), x.abs(), x % 3

    both(f)


@case
def operators_with_odd_sizes():
    for shape in ((), (1,), (0,), (1, 1, 1), (0, 3), (3, 1, 5), (7, 13)):
        both(lambda d: [ramp(d, *shape) * 2 + 1, ramp(d, *shape).sum(), ramp(d, *shape).exp().neg()])
        both(lambda d: torch.cat([ramp(d, *shape).reshape(-1)] * 2))


@case
def changing_numbers_need_no_new_program():
    x = ramp(DEVICE, 5)
    for i in range(2):
        (x * (1.5 + i) + i).cpu()
    before = wgfc.torch.statistics().compiled
    for i in range(2, 9):
        same(x * (1.5 + i) + i, ramp("cpu", 5) * (1.5 + i) + i)
    assert wgfc.torch.statistics().compiled <= before + 1


@case
def changing_sizes_need_no_new_program():
    def attend(w, x, k, v):
        """Attention over a cache that grows, with the gradient of the weights."""
        q, k_new, v_new = (x @ w.t()).view(2, -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        k, v = torch.cat([k, k_new], 2), torch.cat([v, v_new], 2)
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=w.device).tril(k.shape[2] - q.shape[2])
        scores = (q @ k.transpose(-1, -2)).masked_fill(~seen, float("-inf")).softmax(-1)
        y = (scores @ v).transpose(1, 2).reshape(2, -1, 32)
        y[:, -1:, ::2] += torch.arange(k.shape[2], device=w.device)[-1]
        return y.detach(), torch.autograd.grad(y.square().mean(), w)[0], k.detach(), v.detach()

    torch.manual_seed(0)
    w = (torch.randn(96, 32) / 8).requires_grad_()
    on_device = w.detach().to(DEVICE).requires_grad_()
    k = v = torch.zeros(2, 4, 3, 8)
    kd, vd = k.to(DEVICE), v.to(DEVICE)
    for length in (5, 1, 1, 1, 1, 1, 1, 1):
        x = torch.randn(2, length, 32)
        before = wgfc.torch.statistics().compiled
        y, grad, k, v = attend(w, x, k, v)
        made, grad_made, kd, vd = attend(on_device, x.to(DEVICE), kd, vd)
        torch.webgpu.synchronize()
        compiled = wgfc.torch.statistics().compiled - before
        same(made, y), same(grad_made, grad, 1e-4), same(kd, k)
    assert compiled == 0
    for shape in ((2, 6), (3, 5), (4, 7), (5, 9)):
        same(ramp(DEVICE, *shape)[:, 1:].t().softmax(-1), ramp("cpu", *shape)[:, 1:].t().softmax(-1))


@case
def zeros_of_both_signs_are_two_numbers():
    for zero in (0.0, -0.0, 0.0):
        same(1 / (ramp(DEVICE, 3) * zero), 1 / (ramp("cpu", 3) * zero))


@case
def sizes_that_depend_on_values():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both(lambda d: [ramp(d, 3, 4).nonzero(), ramp(d, 3, 4).masked_select(ramp(d, 3, 4) > 5), ramp(d, 4)[ramp(d, 4) > 1]])


@case
def pickles_copies_and_checkpoints():
    x = ramp(DEVICE, 3, 4)
    parts = {"x": x, "row": x[1]}
    same(copy.deepcopy(x), x.cpu())
    same(pickle.loads(pickle.dumps(x)), x.cpu())
    file = io.BytesIO()
    torch.save(parts, file)
    for place in (None, "cpu", DEVICE):
        file.seek(0)
        read = torch.load(file, map_location=place)
        assert read["x"].device.type == (place or DEVICE)
        read["row"].zero_()
        assert read["x"][1].sum().item() == 0


@case
def text_of_tensors():
    text = repr(ramp(DEVICE, 2, 2) / 3)
    assert text == "tensor([[0.0000, 0.3333],\n        [0.6667, 1.0000]], device='webgpu:0')", text


@case
def gradients_of_modules():
    def f(d):
        layers = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
        model = nn.Sequential(*layers).to(d)
        x = ramp(d, 3, 2, 6, 6).div(100).requires_grad_()
        model(x).square().mean().backward()
        return [x.grad, *(p.grad for p in model.parameters()), *(b for b in model.buffers())]

    both(f, 2e-5)


@case
def attention_and_its_gradients():
    def f(d):
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).to(d)
        x = ramp(d, 2, 5, 16).div(50).sin()
        layer(x).square().sum().backward()
        return [layer(x), *(p.grad for p in layer.parameters())]

    both(f, 2e-4)


@case
def training_loops():
    data, labels = torch.randn(6, 8, 16), torch.randint(0, 4, (6, 8))
    optimizers = (
        ("SGD", dict(momentum=0.9)),
        ("Adam", dict(foreach=True)),
        ("Adam", dict(fused=True, amsgrad=True)),
        ("AdamW", dict(fused=True)),
        ("SGD", dict(momentum=0.9, nesterov=True, fused=True)),
    )
    for name, options in optimizers:

        def losses(d):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 4)).to(d)
            optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-2, weight_decay=0.01, **options)
            for x, t in zip(data, labels):
                loss = F.cross_entropy(model(x.to(d)), t.to(d))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield loss.item()

        for got, want in zip(losses(DEVICE), losses("cpu"), strict=True):
            assert abs(got - want) <= 1e-5 * abs(want), (name, options, got, want)


@case
def a_step_runs_as_one_program():
    model = nn.Linear(4, 4).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(ramp(DEVICE, 2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
    last = torch.webgpu.trace()[-1]
    assert last.why == "item" and last.parts == 1 and not last.compiled, last
    assert any(line and line[0] == __file__ for line in last.lines), last.lines


@case
def functions_of_torch_func():
    f = lambda r: (r.sin() * r).sum()
    both(lambda d: [torch.func.grad(f)(ramp(d, 4)), torch.func.vmap(torch.func.grad(f))(ramp(d, 3, 4))])
    both(lambda d: torch.func.jvp(f, (ramp(d, 4),), (ramp(d, 4),))[1])


@case
def memory_is_freed_with_the_last_reference():
    gc.collect()
    torch.webgpu.synchronize()
    before = torch.webgpu.memory_allocated()
    kept = torch.empty(1000, device=DEVICE)
    assert torch.webgpu.memory_allocated() == before + 4000
    for i in range(2000):
        y = kept[3:] * i
        y = y[5:]
    del y, kept
    torch.webgpu.synchronize()
    gc.collect()
    assert torch.webgpu.memory_allocated() == before


@case
def wrong_uses_are_exceptions_of_torch():
    for kind, words, f in (
        (RuntimeError, "two devices", lambda: ramp(DEVICE, 3) + torch.ones(3)),
        (RuntimeError, "must match", lambda: ramp(DEVICE, 3) + ramp(DEVICE, 4)),
        (TypeError, "float64", lambda: ramp(DEVICE, 3).double()),
        (RuntimeError, "negative dimension", lambda: torch.empty(-1, device=DEVICE)),
        (RuntimeError, "ordinal", lambda: torch.ones(2, device="webgpu:1")),
        (RuntimeError, "", lambda: ramp(DEVICE, 2, 3) @ ramp(DEVICE, 2, 3)),
        (IndexError, "", lambda: ramp(DEVICE, 2, 3).sum(5)),
    ):
        try:
            f()
        except kind as e:
            assert words in str(e), (words, str(e))
        else:
            raise AssertionError(f"no {kind.__name__} with {words!r}")
    assert ramp(DEVICE, 3).sum().item() == 3


if __name__ == "__main__":
    failed = 0
    for f in CASES:
        try:
            f()
        except Exception:
            failed += 1
            print(f"{f.__name__} failed:", traceback.format_exc(), sep="\n")
    print(f"{len(CASES) - failed} of {len(CASES)} cases pass")
    sys.exit(failed > 0)
