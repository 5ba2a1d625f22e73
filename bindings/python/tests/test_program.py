import ast
import inspect
import pathlib
import warnings

import numpy as np
import onnx_files
import pytest
import wgfc
from wgfc import _wgfc


def test_what_a_program_says_of_itself(small):
    program = wgfc.compile(str(small("mlp")))
    assert [(p.name, p.dtype, p.shape) for p in program.inputs] == [("x", "float32", ("batch", 13))]
    assert [(p.name, p.dtype, p.shape) for p in program.outputs] == [("probabilities", "float32", ("batch", 5))]
    assert program.symbols == ["batch"]
    assert program.states == [] and program.warnings == []
    assert program.dispatches > 0 and program.weight_bytes > 0
    assert all("fn main(" in text for text in program.kernels.values())
    assert repr(program).startswith("<wgfc.Program of model.onnx: x: float32[batch, 13] → probabilities: float32[")
    assert repr(program.inputs[0]) == "<wgfc.Port x: float32[batch, 13]>"
    assert program.inputs[0] == wgfc.compile(small("mlp")).inputs[0]


def test_sizes_are_fixed_or_expected(small):
    program = wgfc.compile(small("mlp"), dims={"batch": 3})
    assert program.symbols == [] and program.inputs[0].shape == (3, 13)
    assert wgfc.compile(small("mlp"), expect={"batch": 512}).symbols == ["batch"]
    with pytest.raises(wgfc.ModelError, match="no symbolic dimension `seq`"):
        wgfc.compile(small("mlp"), expect={"seq": 512})


def test_bytes_compile_as_files_do(small, tmp_path):
    bytes_ = small("mlp").read_bytes()
    programs = [wgfc.compile(m) for m in [small("mlp"), bytes_, bytearray(bytes_), memoryview(bytes_)]]
    for i, program in enumerate(programs):
        program.save(tmp_path / str(i))
        for name in ["plan.json", "weights.safetensors"]:
            assert (tmp_path / str(i) / name).read_bytes() == (tmp_path / "0" / name).read_bytes()


def test_saving_and_loading(small, data, tmp_path):
    program = wgfc.compile(small("mlp"))
    told = []
    program.save(tmp_path / "out", progress=lambda *what: told.append(what))
    assert told[-1] == ("weights", program.weight_bytes, program.weight_bytes)
    for loaded in [wgfc.load(tmp_path / "out"), wgfc.Program.load(str(tmp_path / "out"))]:
        assert (loaded.inputs, loaded.outputs, loaded.kernels) == (program.inputs, program.outputs, program.kernels)
        for trust in [False, True]:
            session = wgfc.Session(loaded, trust=trust)
            for inputs, outputs in data("mlp", program.inputs, program.outputs):
                for name, got in session.run(inputs).items():
                    np.testing.assert_allclose(got, outputs[name], rtol=1e-4, atol=1e-6)
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(wgfc.ModelError, match="holds more than a compiled program"):
        program.save(tmp_path / "out")
    program.save(tmp_path / "out", force=True)
    assert not (tmp_path / "out" / "mine.txt").exists()


def test_inspecting(small):
    program = wgfc.compile(small("mlp"))
    text = program.inspect(dims={"batch": 32}, dispatches=True)
    assert text.startswith("model.onnx at batch = 32\n") and "time bounds and choices by the device profile" in text
    report = program.inspect(json=True)
    assert report["dispatches"] == program.dispatches and report["dims_not_given"] == ["batch"]
    assert report["weight_bytes"] == program.weight_bytes and len(report["dispatch_list"]) == program.dispatches
    faster = program.inspect(json=True, profile="discrete")
    assert faster["flops"] == report["flops"] and faster["seconds_bound"] != report["seconds_bound"]
    with pytest.raises(wgfc.ModelError, match="no dimension `seq`"):
        program.inspect(dims={"seq": 3})
    with pytest.raises(wgfc.ModelError):
        program.inspect(profile="nowhere")


def test_constants_instead_of_inputs():
    ports = [("x", "float32", ["n"]), ("shape", "int64", [2])]
    model = onnx_files.model([onnx_files.node("Reshape", ["x", "shape"], ["y"])], ports, [("y", "float32", ["a", "b"])])
    shape = np.array([2, -1])
    program = wgfc.compile(model, values={"shape": shape})
    shape[:] = 0
    assert [p.name for p in program.inputs] == ["x"]
    assert wgfc.Session(program).run({"x": np.zeros(6, np.float32)})["y"].shape == (2, 3)
    assert wgfc.compile(model, values={"shape": [3, 2]}).outputs[0].shape == (3, 2)


def test_how_much_is_fused(small):
    one_each = wgfc.compile(small("mlp"), fusion="none")
    assert one_each.dispatches > wgfc.compile(small("mlp")).dispatches
    assert wgfc.compile(small("mlp"), without=["epilogues"]).dispatches > 0
    for wrong in [dict(fusion="most"), dict(without=["nothing"])]:
        with pytest.raises(ValueError, match="unknown value"):
            wgfc.compile(small("mlp"), **wrong)
    with pytest.raises(TypeError, match="states"):
        wgfc.compile(small("mlp"), states=3)
    for wrong in [dict(precision="f8"), dict(weights="q2"), dict(activations="q4"), dict(keep_f32=["Gemm"])]:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            wgfc.compile(small("mlp"), **wrong)


def test_f16_in_memory_and_weights_of_few_bits():
    ports = [("x", "float32", [64, 500])], [("y", "float32", [64, 70])]
    w = onnx_files.constant("w", np.linspace(0.5, 1.5, 35000, dtype=np.float32).reshape(500, 70))
    nodes = [onnx_files.node("MatMul", ["x", "w"], ["p"], "product"), onnx_files.node("Sin", ["p"], ["y"], "after")]
    model = onnx_files.model(nodes, *ports, initializers=[w])
    own = wgfc.compile(model, fusion="none")
    adapter = next((a for a in wgfc.adapters() if a.is_software and a.limits["f16"]), None)
    if adapter is None:
        pytest.skip("no software adapter has f16")
    compile = lambda **options: wgfc.compile(model, fusion="none", adapter=adapter, **options)
    small_x, large_x = (np.full((64, 500), v, np.float32) for v in [1e-3, 200])
    want = wgfc.Session(own, adapter).run({"x": small_x})["y"]
    for options, size in [(dict(precision="f16"), 2), (dict(weights="q8"), 1.1), (dict(weights="q4"), 0.6)]:
        program = compile(**options)
        assert program.weight_bytes < size * 35000 + 100
        np.testing.assert_allclose(wgfc.Session(program, adapter).run({"x": small_x})["y"], want, atol=2e-2)
    halved = compile(precision="f16").inspect(json=True)["f16_in_memory"]
    assert (halved["weights"], halved["between"]) == (1, 1)
    session = wgfc.Session(compile(precision="f16"), adapter)
    with pytest.warns(RuntimeWarning, match="y is not finite everywhere.*f16"):
        session.run({"x": large_x})
    with pytest.warns(RuntimeWarning, match="y is not finite everywhere.*f16"):
        session.run({"x": large_x}, to={"y": "numpy"})
    with pytest.warns(RuntimeWarning, match="y is not finite everywhere.*f16"):
        next(session.stream([{"x": large_x}]))
    kept = compile(precision="f16", keep_f32=["product"])
    assert "--keep-f32 product" in kept.inspect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.run({"x": small_x})
        wgfc.Session(kept, adapter).run({"x": large_x})
    with pytest.raises(wgfc.ModelError, match='no node "prodct"'):
        compile(precision="f16", keep_f32=["prodct"])


def test_compiling_for_an_adapter_or_a_profile(small):
    every = [a for a in wgfc.adapters() if a.is_software]
    software = every[0]
    for adapter in [software, software.index, software.name]:
        program = wgfc.compile(small("mlp"), adapter=adapter)
        assert wgfc.Session(program, adapter).adapter.name == software.name
    program = wgfc.compile(small("mlp"), adapter="software")
    assert wgfc.Session(program, "software").adapter.name in [a.name for a in every]
    assert "discrete" in wgfc.compile(small("mlp"), profile="discrete").inspect(profile="discrete")
    with pytest.raises(ValueError, match="not both"):
        wgfc.compile(small("mlp"), adapter="software", profile="discrete")
    with pytest.raises(TypeError, match="adapter"):
        wgfc.Session(program, adapter=1.5)
    with pytest.raises(ValueError, match="must not be negative"):
        wgfc.Session(program, adapter=-1)
    assert software.limits["binding_bytes"] > 0 and repr(software).startswith("<wgfc.Adapter ")


def test_progress_is_told(small):
    told = []
    program = wgfc.compile(small("mlp"), progress=lambda *what: told.append(what))
    assert [t[0] for t in told] == ["import", "rewrite", "fuse", "schedule", "assemble"]
    assert [t[1:] for t in told] == [(i, 5) for i in range(1, 6)]
    told = []
    session = wgfc.Session(program, progress=lambda *what: told.append(what))
    kernels = len(program.kernels)
    assert told[-1] == ("kernels", kernels, kernels) and told == sorted(told)

    def stop(*what):
        raise KeyError(what[0])

    for call in [
        lambda: wgfc.compile(small("mlp"), progress=stop),
        lambda: wgfc.Session(program, progress=stop),
    ]:
        with pytest.raises(KeyError):
            call()


def test_compiling_f64_warns_that_it_is_computed_in_f32():
    ports = [("x", "float64", [2])], [("y", "float64", [2])]
    model = onnx_files.model([onnx_files.node("Exp", ["x"], ["y"])], *ports)
    with pytest.warns(wgfc.CompileWarning, match="f64"):
        program = wgfc.compile(model)
    assert any("f64" in w for w in program.warnings)
    y = wgfc.Session(program).run({"x": np.zeros(2)})["y"]
    assert y.dtype == np.float64 and (y == 1).all()


def test_stubs_say_what_there_is():
    stub = ast.parse((pathlib.Path(_wgfc.__file__).parent / "_wgfc.pyi").read_text())
    names = lambda body: {n.name: n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    described = names(stub.body)
    there = {n for n in dir(_wgfc) if not n.startswith("__")}
    assert set(described) == there
    for name, node in described.items():
        value = getattr(_wgfc, name)
        if isinstance(node, ast.FunctionDef):
            check(node, value)
            continue
        members = names(node.body)
        dunder = {"__dlpack__", "__dlpack_device__", "__array__", "__array_interface__", "__len__", "__new__"}
        dunder |= {"__iter__", "__next__"}
        own = {n for n in vars(value) if not n.startswith("_") or n in dunder}
        assert set(members) | {"__new__"} == own | {"__new__"}, name
        for n, member in members.items():
            if n != "__new__" and not any(ast.unparse(d) == "property" for d in member.decorator_list):
                check(member, getattr(value, n))
            if not n.startswith("__"):
                assert getattr(value, n).__doc__, f"{name}.{n} has no docstring"


def check(node, function):
    """Asserts that a function has the same parameters as its stub."""
    a = node.args
    stars = [x for x in (a.vararg, a.kwarg) if x]
    described = [x.arg for x in a.args + a.kwonlyargs + stars]
    there = list(inspect.signature(function).parameters)
    assert [d for d in described if d != "self"] == [t for t in there if t != "self"], node.name


def test_everything_public_is_documented():
    for name in wgfc.__all__:
        if name != "__version__":
            assert getattr(wgfc, name).__doc__, name
    assert (pathlib.Path(wgfc.__file__).parent / "py.typed").exists()


def test_the_readme_is_right(monkeypatch):
    root = pathlib.Path(__file__).resolve().parents[3]
    monkeypatch.chdir(root)
    text = (root / "bindings/python/README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    names = {}
    exec(code, names)
    assert names["outputs"]["probabilities"].shape == (2, 5)
    assert repr(names["program"]).endswith(code.split("print(program)")[1].split("# ")[1].split("\n")[0] + ">")


def test_the_front_page_is_right(monkeypatch):
    root = pathlib.Path(__file__).resolve().parents[3]
    monkeypatch.chdir(root)
    names = {}
    exec((root / "README.md").read_text().split("```python\n")[1].split("```")[0], names)
    assert names["outputs"]["probabilities"].shape == (1, 5)
