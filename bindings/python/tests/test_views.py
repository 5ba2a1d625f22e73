"""Views as digits of the indices of memory, compared with torch's own strides."""

import importlib.util
import pathlib
import random
import sys

import pytest

torch = pytest.importorskip("torch")


def views():
    # The package registers the device when it is imported, so the module is loaded by itself.
    import wgfc

    path = pathlib.Path(wgfc.__file__).parent / "torch" / "_views.py"
    spec = importlib.util.spec_from_file_location("views_alone", path)
    module = sys.modules["views_alone"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawn(rng):
    """A dense tensor and a random view of it."""
    shape = [rng.randint(1, 5) for _ in range(rng.randint(0, 4))]
    whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    y = whole
    for _ in range(rng.randint(0, 4)):
        kind = rng.randrange(8)
        if kind == 0:
            y = y.unsqueeze(rng.randint(0, y.ndim))
        elif kind == 1 and rng.random() < 0.3:
            y = y.expand(2, *y.shape)
        elif y.ndim and kind == 2:
            axis = rng.randrange(y.ndim)
            start = rng.randrange(y.shape[axis])
            y = y.narrow(axis, start, rng.randint(1, y.shape[axis] - start))
        elif y.ndim and kind == 3:
            y = y.select(rng.randrange(y.ndim), rng.choice((0, -1)))
        elif y.ndim and kind == 4:
            y = y[::2]
        elif y.ndim > 1 and kind == 5:
            y = y.transpose(0, -1)
        elif y.ndim > 1 and kind == 6:
            y = y.diagonal(0, 0, 1)
        elif y.ndim and kind == 7:
            y = y.unflatten(-1, (-1, 1))
    return whole.reshape(-1), y


def test_views_are_read_and_written_as_strides_say():
    v, rng, as_digits, count = views(), random.Random(1), 0, 2000
    for _ in range(count):
        memory, y = drawn(rng)
        view = v.Geometry(y.dtype, tuple(y.shape), y.stride(), y.storage_offset())
        layout = v.layout(view, memory.numel())
        as_digits += layout.digits is not None
        assert torch.equal(v.read(memory, layout), y), view
        if any(n > 1 and s == 0 for n, s in zip(view.sizes, view.strides)):
            continue
        part, wanted = torch.randn(y.shape), memory.clone()
        wanted.as_strided(view.sizes, view.strides, view.offset).copy_(part)
        assert torch.equal(v.write(memory, part, layout), wanted), view
    assert as_digits > 0.95 * count


def test_overlapping_views_are_no_digits():
    v = views()
    assert v.digits(v.Geometry(torch.float32, (4, 3), (1, 1), 0), 6) is None
    assert v.digits(v.Geometry(torch.float32, (2, 3), (2, 1), 0), 6) is None
    assert v.digits(v.Geometry(torch.float32, (3, 3), (4, 1), 0), 11) is not None
