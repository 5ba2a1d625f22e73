import os
import pickle
import warnings

import numpy as np
import onnx_files
import pytest
import wgfc


def broken(nodes):
    return onnx_files.model(nodes, [("x", "float32", [2, 3]), ("w", "float32", [4, 5])], [("y", "float32", [2, 5])])


def test_errors_carry_what_there_is_to_tell(tmp_path):
    model = broken([onnx_files.node("MatMul", ["x", "w"], ["y"], name="first/MatMul")])
    path = tmp_path / "bad.onnx"
    path.write_bytes(model)
    for given, file in [(model, None), (path, str(path))]:
        with pytest.raises(wgfc.ModelError) as caught:
            wgfc.compile(given)
        e = caught.value
        assert isinstance(e, wgfc.Error) and isinstance(e, ValueError)
        (d,) = e.diagnostics
        assert d.kind == "model" and "3" in d.message and "4" in d.message
        assert d.location.file == file and d.location.node == "first/MatMul"
        assert (d.location.operator, d.location.opset) == ("MatMul", 23)
        assert str(e) == str(d) and 'node "first/MatMul" (MatMul, opset 23)' in str(e)
        again = pickle.loads(pickle.dumps(e))
        assert type(again) is wgfc.ModelError and again.diagnostics == e.diagnostics


def test_everything_that_is_not_supported_is_told():
    nodes = [onnx_files.node(op, ["x"], [out], name=op) for op, out in [("Whirl", "a"), ("Twist", "y")]]
    with pytest.raises(wgfc.UnsupportedError) as caught:
        wgfc.compile(broken(nodes))
    assert sorted(d.location.operator for d in caught.value.diagnostics) == ["Twist", "Whirl"]
    assert all(d.kind == "unsupported" and d.help for d in caught.value.diagnostics)
    assert isinstance(caught.value, NotImplementedError)


def test_no_such_adapter(small):
    program = wgfc.compile(small("mlp"))
    with pytest.raises(wgfc.DeviceError, match="no GPU adapter") as caught:
        wgfc.Session(program, "no such name")
    assert caught.value.diagnostics[0].kind == "device" and isinstance(caught.value, RuntimeError)
    with pytest.raises(wgfc.DeviceError):
        wgfc.Tensor([1.0], 999)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forked_processes_are_told(small):
    program = wgfc.compile(small("mlp"))
    session = wgfc.Session(program)
    t = wgfc.Tensor([1.0])
    x = {"x": np.zeros((1, 13), np.float32)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        told = 0
        for call in [wgfc.adapters, lambda: wgfc.Session(program), lambda: session.run(x), t.numpy, session.wait]:
            try:
                call()
            except wgfc.DeviceError as e:
                told += "forked off" in str(e) and "spawn" in str(e)
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    session.run(x)


def test_files_that_are_not_there_or_no_models(tmp_path):
    for call in [wgfc.compile, wgfc.load]:
        with pytest.raises(wgfc.ModelError, match="no such file") as caught:
            call(tmp_path / "gone")
        assert str(tmp_path) in caught.value.diagnostics[0].location.file
    for bad in [b"", b"text", b"PK\3\4", b"\0" * 100]:
        with pytest.raises(wgfc.ModelError):
            wgfc.compile(bad)
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(wgfc.ModelError, match="is empty"):
        wgfc.compile(tmp_path / "empty.onnx")
    with pytest.raises(TypeError):
        wgfc.compile(3)


def test_weights_in_other_files(tmp_path):
    ports = [("x", "float32", [2, 3])], [("y", "float32", [2, 3])]
    weights = [onnx_files.external("w", "float32", [3], "w.bin")]
    model = onnx_files.model([onnx_files.node("Mul", ["x", "w"], ["y"])], *ports, weights)
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    x = np.ones((2, 3), np.float32)
    for given in [path, model]:
        with pytest.raises(wgfc.ModelError, match="is missing|without its folder"):
            wgfc.compile(given)
        program = wgfc.compile(given, graph_only=True)
        assert program.inspect(json=True)["weights_absent"]
        with pytest.raises(wgfc.ModelError, match="is absent"):
            wgfc.Session(program)
    (tmp_path / "w.bin").write_bytes(np.float32([1, 2, 3]).tobytes())
    assert wgfc.Session(wgfc.compile(path)).run({"x": x})["y"].tolist() == [[1, 2, 3]] * 2
