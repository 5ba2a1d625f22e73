import numpy as np
import onnx_files
import pytest
import wgfc

PLAIN = ["float32", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
RAW = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}
PACKED = {"int4": np.int8, "uint4": np.uint8}


def same(dtype, n):
    """A session that returns its input unchanged."""
    ports = [("x", dtype, [n])], [("y", dtype, [n])]
    model = onnx_files.model([onnx_files.node("Identity", ["x"], ["y"])], *ports)
    program = wgfc.compile(model)
    assert program.inputs[0].dtype == program.outputs[0].dtype == dtype
    return wgfc.Session(program)


@pytest.mark.parametrize("dtype", PLAIN)
def test_types_that_numpy_has(dtype):
    session = same(dtype, 5)
    x = np.array([0, 1, 1, 0, 1], dtype)
    if dtype == "int64":
        x[0] = -(2**40) - 1
    y = session.run({"x": x})["y"]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)
    t = wgfc.Tensor(x)
    assert t.dtype == dtype
    np.testing.assert_array_equal(np.asarray(t), x)
    np.testing.assert_array_equal(np.from_dlpack(t), x)


@pytest.mark.parametrize("dtype", RAW)
def test_floats_that_numpy_does_not_have_are_their_bits(dtype, monkeypatch):
    # This simulates that ml_dtypes is not installed.
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    bits = np.array([0, 0x3F, 0x80, 0x41, 0x7A], RAW[dtype])
    y = same(dtype, 5).run({"x": bits})["y"]
    assert y.dtype == RAW[dtype]
    np.testing.assert_array_equal(y, bits)
    with pytest.raises(wgfc.ModelError, match="input `x` is"):
        same(dtype, 5).run({"x": bits.astype(np.int32)})


@pytest.mark.parametrize("dtype", RAW)
def test_floats_of_ml_dtypes(dtype):
    own = getattr(pytest.importorskip("ml_dtypes"), dtype)
    x = np.array([0, 1.5, -2, 0.25, -0.5], own)
    y = same(dtype, 5).run({"x": x})["y"]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.astype(np.float32), x.astype(np.float32))
    assert wgfc.Tensor(x).dtype == dtype
    assert same(dtype, 2).run({"x": [0.5, -1]})["y"].astype(np.float32).tolist() == [0.5, -1]


@pytest.mark.parametrize("dtype", PACKED)
def test_types_of_less_than_a_byte(dtype, monkeypatch):
    least = -8 if dtype == "int4" else 0
    x = np.array([least, least + 15, 3, 1, 7], PACKED[dtype])
    session = same(dtype, 5)
    with monkeypatch.context() as m:
        m.setitem(__import__("sys").modules, "ml_dtypes", None)
        y = session.run({"x": x})["y"]
    assert y.dtype == PACKED[dtype]
    np.testing.assert_array_equal(y, x)
    assert session.run({"x": x}, to="device")["y"].nbytes == 16
    for bad in [least - 1, least + 16]:
        with pytest.raises((wgfc.ModelError, OverflowError), match=f"is no {dtype}|out of bounds"):
            session.run({"x": np.array([bad, 0, 0, 0, 0], PACKED[dtype])})
    np.testing.assert_array_equal(session.run({"x": x.tolist()})["y"].astype(np.int8), x)


@pytest.mark.parametrize("dtype", PACKED)
def test_types_of_less_than_a_byte_of_ml_dtypes(dtype):
    own = getattr(pytest.importorskip("ml_dtypes"), dtype)
    x = np.array([-8 if dtype == "int4" else 15, 7, 3, 0, 1]).astype(own)
    y = same(dtype, 5).run({"x": x})["y"]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.astype(np.int32), x.astype(np.int32))
    assert wgfc.Tensor(x).dtype == dtype
