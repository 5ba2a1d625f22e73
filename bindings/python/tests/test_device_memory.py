"""Tensors in a device's memory: calls by position, and views of their bytes as other types."""

import numpy as np
import onnx_files
import pytest
import wgfc


def session(nodes, inputs, outputs):
    return wgfc.Session(wgfc.compile(onnx_files.model(nodes, inputs, outputs)))


@pytest.fixture
def differing():
    """d = a - b and p = a · b for a of f32[n, 3] and b of f32[3]."""
    return session(
        [onnx_files.node("Sub", ["a", "b"], ["d"]), onnx_files.node("Mul", ["a", "b"], ["p"])],
        [("a", "float32", ["n", 3]), ("b", "float32", [3])],
        [("d", "float32", ["n", 3]), ("p", "float32", ["n", 3])],
    )


def test_calls_take_inputs_and_return_outputs_in_the_programs_order(differing):
    a = np.arange(15, dtype=np.float32).reshape(5, 3)
    b = np.float32([2, 3, 5])
    for given in [(a, b), (wgfc.Tensor(a), b), (wgfc.Tensor(a), wgfc.Tensor(b)), (a.tolist(), b.tolist())]:
        d, p = differing.call(list(given))
        assert (d.shape, d.dtype) == ((5, 3), "float32")
        np.testing.assert_array_equal(d.numpy(), a - b)
        np.testing.assert_array_equal(p.numpy(), a * b)
    # Outputs are inputs of later calls, also of other sizes.
    d, p = differing.call((d, b))
    np.testing.assert_array_equal(d.numpy(), a - 2 * b)
    (d, _) = differing.call([np.zeros((0, 3), np.float32), b])
    assert d.shape == (0, 3)


def test_calls_check_inputs(differing):
    a, b = np.zeros((5, 3), np.float32), np.zeros(3, np.float32)
    for given, said in [
        ([a], "the program has 2 inputs, and 1 are given"),
        ([a, b, b], "the program has 2 inputs, and 3 are given"),
        ([a, None], "it is missing"),
        ([a, b.astype(np.int32)], "must be f32, not i32"),
        ([a, wgfc.Tensor(b.astype(np.int32))], "must be f32, not i32"),
        ([a, wgfc.Tensor(b).reshape([3, 1])], "must have shape"),
        ([wgfc.Tensor(a).reshape([3, 5]), b], "must have 3 elements, not 5"),
    ]:
        with pytest.raises(wgfc.ModelError, match=said):
            differing.call(given)
    with pytest.raises(TypeError):
        differing.call({"a": 1, "b": 2}.items)
    np.testing.assert_array_equal(differing.call([a, b])[0].numpy(), a)


def test_optional_inputs_of_a_call_are_none(small):
    program = wgfc.compile(small("mlp"))
    added = [p.name for p in program.outputs][:1]
    program = wgfc.compile(small("mlp"), added=added)
    with_option = wgfc.Session(program)
    given = [None if p.optional else np.ones([d if isinstance(d, int) else 2 for d in p.shape], p.dtype) for p in program.inputs]
    assert any(x is None for x in given)
    plain = with_option.run({p.name: x for p, x in zip(program.inputs, given) if x is not None})
    for got, want in zip(with_option.call(given), plain.values()):
        np.testing.assert_array_equal(got.numpy(), want)


KINDS = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint64": np.uint64,
    "uint32": np.uint32,
    "uint16": np.uint16,
    "uint8": np.uint8,
    "bool": np.bool_,
}


@pytest.mark.parametrize("name", KINDS)
def test_views_have_the_bytes_of_the_host(name):
    # 7 × 24 bytes.
    raw = np.random.default_rng(7).integers(0, 2 if name == "bool" else 256, (7, 24), np.uint8)
    x = raw.view(KINDS[name])
    on_device = wgfc.Tensor(x)
    for other, kind in KINDS.items():
        if other == "bool" and name != "bool":
            continue
        want = x.view(kind)
        got = on_device.view(other, want.shape)
        assert (got.dtype, got.shape) == (other, want.shape)
        assert got.numpy().tobytes() == want.tobytes()
        assert got.view(name, x.shape).numpy().tobytes() == x.tobytes()


@pytest.mark.parametrize("name", [n for n in KINDS if n not in ("float64", "bool")])
def test_kernels_write_the_bytes_of_the_host(name):
    """What a kernel stores of each type has the host's bytes in a view."""
    x = np.arange(1, 14).astype(KINDS[name])
    negated = session(
        [onnx_files.node("Add", ["x", "x"], ["y"])], [("x", name, ["n"])], [("y", name, ["n"])]
    )
    (y,) = negated.call([x])
    size = x.dtype.itemsize
    assert y.view("uint8", [13 * size]).numpy().tobytes() == (x + x).tobytes()


def test_views_are_inputs(differing):
    a, b = np.float32([[1, 2, 3], [-4, 5.5, 0]]), np.float32([1, 1, 2])
    bits = wgfc.Tensor(a.view(np.int32)).view("float32", [2, 3])
    np.testing.assert_array_equal(differing.call([bits, b])[1].numpy(), a * b)


def test_views_share_memory_and_outlive_the_tensor():
    x = wgfc.Tensor(np.arange(8, dtype=np.int32))
    y = x.view("int64", [2, 2]).view("uint8", [32])
    del x
    assert y.numpy().tobytes() == np.arange(8, dtype=np.int32).tobytes()


def test_views_of_other_sizes_and_types_are_errors():
    x = wgfc.Tensor(np.zeros((3, 3), np.float16))
    for shape in ([5], [2, 2], [3, 3, 3], [], [2**40, 2**40]):
        with pytest.raises(ValueError, match="give a shape of as many bytes"):
            x.view("float32", shape)
    with pytest.raises(ValueError, match="complex64; store it as float32 with a last axis of 2"):
        x.view("complex64", [3])
    with pytest.raises(ValueError, match="the device has no quaternion; it has float32"):
        x.view("quaternion", [3])
    with pytest.raises((ValueError, OverflowError)):
        x.view("float16", [-1])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 13)])
def test_new_tensors_are_zero(name, shape):
    x = wgfc.Tensor.empty(name, shape)
    assert (x.dtype, x.shape) == (name, shape)
    np.testing.assert_array_equal(x.numpy(), np.zeros(shape, KINDS[name]))


def test_new_tensors_are_inputs_and_have_errors(differing):
    b = np.float32([1, 2, 3])
    np.testing.assert_array_equal(differing.call([wgfc.Tensor.empty("float32", [4, 3]), b])[0].numpy(), [-b] * 4)
    with pytest.raises(ValueError, match="complex64; store it as"):
        wgfc.Tensor.empty("complex64", [2])
    for shape in ([2**40], [2**40, 2**40]):
        with pytest.raises(wgfc.DeviceError):
            wgfc.Tensor.empty("float32", shape)
