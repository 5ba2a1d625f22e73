import threading
import sys
import time

import numpy as np
import onnx_files
import pytest
import wgfc

@pytest.fixture
def doubled():
    """y = x + x for f32[a, b, 3]."""
    shape = ["a", "b", 3]
    model = onnx_files.model(
        [onnx_files.node("Add", ["x", "x"], ["y"])], [("x", "float32", shape)], [("y", "float32", shape)]
    )
    return wgfc.Session(wgfc.compile(model))


def close(outputs, expected):
    assert list(outputs) == list(expected)
    for name, want in expected.items():
        got = outputs[name]
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        tolerance = 2e-3 if want.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["mlp", "attention", "conv", "half", "integers", "booleans", "chosen", "while"])
def test_models_run_as_their_data_says(small, data, name):
    program = wgfc.compile(small(name))
    session = wgfc.Session(program)
    some = 0
    for inputs, outputs in data(name, program.inputs, program.outputs):
        close(session.run(inputs), outputs)
        close({n: t.numpy() for n, t in session.run(inputs, to="device").items()}, outputs)
        some += 1
    assert some


def test_arrays_of_any_layout(doubled):
    whole = np.arange(5 * 4 * 3, dtype=np.float32).reshape(5, 4, 3)
    frozen = whole.copy()
    frozen.flags.writeable = False
    for x in [
        whole,
        frozen,
        np.asfortranarray(whole),
        whole[::2],
        whole[:, ::-1],
        whole[1:4, 1:3],
        np.broadcast_to(np.float32([1, 2, 3]), (2, 2, 3)),
        np.zeros((0, 2, 3), np.float32),
        whole[:1, :1],
        whole.tolist(),
        [[[1, 2.5, 3]]],
        [[(1, 2, 3)], [(4, 5, 6)]],
    ]:
        x_array = np.asarray(x, np.float32)
        y = doubled.run({"x": x})["y"]
        np.testing.assert_array_equal(y, 2 * x_array)
        assert y.flags.writeable and y.dtype == np.float32
    y[...] = 7
    np.testing.assert_array_equal(doubled.run({"x": whole})["y"], 2 * whole)


def test_objects_that_know_dlpack(doubled):
    class Wrapped:
        def __init__(self, array, device=(1, 0)):
            self.array, self.device = array, device

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.device

    class Old(Wrapped):
        def __dlpack__(self, stream=None):
            return self.array.__dlpack__()

    x = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    for wrapped in [Wrapped(x), Old(x), Wrapped(x[:, ::2]), Wrapped(x.transpose(0, 1, 2)[::-1])]:
        np.testing.assert_array_equal(doubled.run({"x": wrapped})["y"], 2 * wrapped.array)
    with pytest.raises(wgfc.ModelError, match="in the memory of a device") as e:
        doubled.run({"x": Wrapped(x, (2, 0))})
    assert "x.cpu()" in e.value.diagnostics[0].help


def test_arrays_that_stay_on_the_device(doubled):
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    t = wgfc.Tensor(x)
    assert (t.shape, t.dtype, t.ndim, t.size, t.nbytes, len(t)) == ((2, 2, 3), "float32", 3, 12, 48, 2)
    for _ in range(3):
        t = doubled.run({"x": t}, to="device")["y"]
    np.testing.assert_array_equal(t.numpy(), 8 * x)
    np.testing.assert_array_equal(np.asarray(t), 8 * x)
    np.testing.assert_array_equal(np.from_dlpack(t), 8 * x)
    np.testing.assert_array_equal(np.asarray(t, dtype=np.float64), 8.0 * x)
    np.testing.assert_array_equal(doubled.run({"x": t.reshape([1, 4, 3])})["y"], 16 * x.reshape(1, 4, 3))
    assert doubled.run({"x": t})["y"].shape == (2, 2, 3)
    assert wgfc.Tensor(t).shape == t.shape
    assert t.adapter.name == doubled.adapter.name
    with pytest.raises(ValueError, match="12 elements cannot have the shape"):
        t.reshape([5])
    assert "float32[2, 2, 3] on" in repr(t)
    assert doubled.memory()["weights"] == 0 and doubled.memory()["activations"] > 0
    doubled.wait()
    doubled.trim()


def test_arrays_of_another_adapter_are_refused(doubled):
    others = [a for a in wgfc.adapters() if a.name != doubled.adapter.name]
    if not others:
        pytest.skip("there is one adapter only")
    t = wgfc.Tensor(np.zeros((1, 1, 3), np.float32), others[0])
    assert t.adapter.name == others[0].name
    with pytest.raises(wgfc.ModelError, match="on another device"):
        doubled.run({"x": t})
    # The adapter may be given as an object, an index or a name.
    for adapter in [doubled.adapter, doubled.adapter.index, doubled.adapter.name.upper()]:
        assert doubled.run({"x": wgfc.Tensor(t, adapter)})["y"].shape == (1, 1, 3)


def test_what_does_not_fit_into_memory_is_refused(doubled):
    with pytest.raises(wgfc.ModelError, match="takes .* MB, of which"):
        doubled.run({"x": np.broadcast_to(np.float32(0), (2**20, 2**20, 3))})


def test_outputs_are_chosen_by_name(small):
    program = wgfc.compile(small("mlp"), taps=["x"])
    session = wgfc.Session(program)
    x = np.ones((2, 13), np.float32)
    everything = session.run({"x": x})
    assert list(everything) == ["probabilities", "x"]
    for to in ["numpy", "device"]:
        assert list(session.run({"x": x}, outputs=["x"], to=to)) == ["x"]
        assert list(session.run({"x": x}, outputs=["x", "probabilities"], to=to)) == ["x", "probabilities"]
        with pytest.raises(wgfc.ModelError, match='no output "y"'):
            session.run({"x": x}, outputs=["y"], to=to)
    some = session.run({"x": x}, to={"probabilities": "numpy"})
    assert isinstance(some["x"], wgfc.Tensor) and isinstance(some["probabilities"], np.ndarray)
    np.testing.assert_array_equal(some["probabilities"], everything["probabilities"])
    with pytest.raises(wgfc.ModelError, match='no output "y"'):
        session.run({"x": x}, to={"y": "numpy"})
    for to in ["gpu", {"x": "gpu"}]:
        with pytest.raises(ValueError, match='to: unknown value "gpu"'):
            session.run({"x": x}, to=to)
    with pytest.raises(TypeError, match="to: give"):
        session.run({"x": x}, to=3)


def test_inputs_that_do_not_fit_are_all_named(small):
    session = wgfc.Session(wgfc.compile(small("attention")))
    names = [p.name for p in session.inputs]
    with pytest.raises(wgfc.ModelError) as e:
        session.run({})
    assert len(e.value.diagnostics) == len(names)
    assert all(f"`{n}`" in d.message for n, d in zip(names, e.value.diagnostics))
    session = wgfc.Session(wgfc.compile(small("mlp")))
    wrong = [
        (np.zeros((2, 13)), "is f32\\[batch, 13\\], not f64"),
        (np.zeros((2, 12), np.float32), "not of shape \\[2, 12\\]"),
        (np.zeros(13, np.float32), "not of shape \\[13\\]"),
        (np.zeros((2, 13), ">f4"), "order of another kind of machine"),
        (wgfc.Tensor(np.zeros((2, 12), np.float32)), "not of shape \\[2, 12\\]"),
    ]
    for x, message in wrong:
        with pytest.raises(wgfc.ModelError, match=message) as e:
            session.run({"x": x})
        assert e.value.diagnostics[0].help
    with pytest.raises(wgfc.ModelError, match="no input `z`"):
        session.run({"z": np.zeros(3)})
    for x, error in [("text", TypeError), (None, TypeError), ([[1], [2, 3]], ValueError), (object(), TypeError)]:
        with pytest.raises(error):
            session.run({"x": x})
    with pytest.raises(TypeError, match="give a dict"):
        session.run([1])
    with pytest.raises(TypeError, match="complex64 cannot be given"):
        session.run({"x": np.zeros((2, 13), np.complex64)})


def test_numbers_become_what_the_input_is():
    ports = [("i", "int32", []), ("u", "uint8", [2]), ("f", "float16", []), ("b", "bool", [])]
    nodes = [onnx_files.node("Identity", [n], [n + "_"]) for n, _, _ in ports]
    program = wgfc.compile(onnx_files.model(nodes, ports, [(n + "_", d, s) for n, d, s in ports]))
    session = wgfc.Session(program)
    given = {"i": -7, "u": [0, 255], "f": 0.5, "b": True}
    for name, got in session.run(given).items():
        np.testing.assert_array_equal(got, given[name[0]])
    for name, bad in [("i", 2**31), ("i", 1.0), ("u", [0, 256]), ("u", [-1, 0]), ("b", 1), ("i", 2**63), ("u", [0, 1.5])]:
        with pytest.raises(wgfc.ModelError, match="is no"):
            session.run({**given, name: bad})
    assert session.run({**given, "i": True, "f": 3})["f_"] == 3
    # A typed array is not converted.
    with pytest.raises(wgfc.ModelError, match="not i64"):
        session.run({**given, "i": np.int64(3)})


def test_other_threads_run_meanwhile(small):
    program = wgfc.compile(small("attention"))
    session = wgfc.Session(program)
    x = {p.name: np.zeros([2 if isinstance(d, str) else d for d in p.shape], p.dtype) for p in program.inputs}
    ended, count = threading.Event(), 0

    def other():
        nonlocal count
        while not ended.is_set():
            count += 1
            time.sleep(0)

    # The interpreter never switches threads by itself, so another thread runs only while a call releases the lock.
    interval = sys.getswitchinterval()
    thread = threading.Thread(target=other)
    thread.start()
    try:
        sys.setswitchinterval(1000)
        for call in [lambda: wgfc.compile(small("attention")), lambda: session.run(x), lambda: wgfc.Session(program)]:
            for _ in range(1000):
                before = count
                call()
                if count > before:
                    break
            else:
                pytest.fail("no other thread got on")
    finally:
        ended.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_threads_share_a_session(doubled):
    wrong = []

    def runs(k):
        x = np.full((k, 2, 3), k, np.float32)
        for _ in range(10):
            if not (doubled.run({"x": x})["y"] == 2 * k).all():
                wrong.append(k)

    threads = [threading.Thread(target=runs, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_inputs_are_not_kept(doubled):
    class Watched(np.ndarray):
        pass

    import gc
    import weakref

    x = np.ones((2, 2, 3), np.float32).view(Watched)
    ref = weakref.ref(x)
    y = doubled.run({"x": x})["y"]
    del x
    doubled.run({"x": np.ones((2, 2, 3), np.float32)})
    gc.collect()
    assert ref() is None
    del doubled
    gc.collect()
    assert (y == 2).all()


def test_tensors_inside_are_added_to_and_replaced(small):
    program = wgfc.compile(small("mlp"), taps=["h"], added=["h"], replaced=["h"])
    assert [p.name for p in program.inputs if p.optional] == ["h.replace", "h.where", "h.add"]
    assert [p.shape for p in program.inputs if p.optional] == [program.outputs[1].shape] * 3
    session = wgfc.Session(program)
    x = {"x": np.linspace(-1, 1, 26, dtype=np.float32).reshape(2, 13)}
    before = session.run(x)
    h = before["h"]
    direction = np.linspace(1, 2, h.shape[1], dtype=np.float32)
    after = session.run(x, add={"h": direction})
    np.testing.assert_allclose(after["h"], h + direction, rtol=1e-5)
    assert not np.allclose(after["probabilities"], before["probabilities"])
    np.testing.assert_array_equal(session.run({**x, "h.add": direction})["h"], after["h"])
    first = session.run(x, replace={"h": direction}, where={"h": [[True], [False]]})
    np.testing.assert_allclose(first["h"], np.stack([direction, h[1]]), rtol=1e-5)
    same = wgfc.Tensor(h)
    np.testing.assert_allclose(session.run(x, replace={"h": same})["h"], h)
    for way, option in [("add", "added"), ("replace", "replaced"), ("where", "replaced")]:
        with pytest.raises(wgfc.ModelError, match="nothing can be added to `g`|`g` cannot be replaced") as e:
            session.run(x, **{way: {"g": direction}})
        assert f'{option}=["g"]' in e.value.diagnostics[0].help
    with pytest.raises(wgfc.ModelError):
        session.run(x, add={"h": direction[:3]})


def test_random_numbers_follow_from_seed_and_offset():
    node = onnx_files.node("RandomNormalLike", ["x"], ["y"])
    model = onnx_files.model([node], [("x", "float32", [50, "n"])], [("y", "float32", [50, "n"])])
    session = wgfc.Session(wgfc.compile(model))
    assert [(p.name, p.dtype) for p in session.inputs[1:]] == [("seed", "int64"), ("offset", "int64")]
    x = np.zeros((50, 70), np.float32)

    def drawn(**given):
        return session.run({"x": x, **given})["y"]

    first = drawn()
    assert abs(first.mean()) < 0.1 and abs(first.std() - 1) < 0.1
    assert (first == drawn(seed=0, offset=np.int64(0))).all()
    assert (drawn(seed=7, offset=3) == drawn(seed=[7], offset=3)).all()
    for given in [{"seed": 7}, {"offset": 7}, {"seed": 7, "offset": 1}]:
        assert abs(np.corrcoef(first.ravel(), drawn(**given).ravel())[0, 1]) < 0.1
