import onnx_files
import pytest
import wgfc

torch = pytest.importorskip("torch")

DTYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int16", "int32", "int64", "uint8", "bool"]


def same(dtype, shape):
    ports = [("x", dtype, shape)], [("y", dtype, shape)]
    return wgfc.Session(wgfc.compile(onnx_files.model([onnx_files.node("Identity", ["x"], ["y"])], *ports)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_in_and_out(dtype):
    session = same(dtype, ["a", 3])
    x = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(getattr(torch, dtype))
    for given in [x, x[:1], x[::2], wgfc.Tensor(x), session.run({"x": x}, to="device")["y"]]:
        y = session.run({"x": given}, to="torch")["y"]
        want = given.torch() if isinstance(given, wgfc.Tensor) else given
        assert (y.dtype, y.shape) == (want.dtype, want.shape)
        assert torch.equal(y.to(torch.float32), want.to(torch.float32))
    if "float8" not in dtype:
        assert torch.equal(torch.from_dlpack(wgfc.Tensor(x)), x)


def test_tensors_of_other_kinds():
    session = same("float32", ["a", 3])
    x = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    y = session.run({"x": x}, to="torch")["y"]
    assert torch.equal(y, x.detach()) and not y.requires_grad
    y += 1
    assert torch.equal(session.run({"x": x.T.contiguous().T}, to="torch")["y"], x.detach())
    assert session.run({"x": torch.zeros(0, 3)}, to="torch")["y"].shape == (0, 3)
    with pytest.raises(wgfc.ModelError, match="not f64"):
        session.run({"x": x.double()})


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.ReLU(), torch.nn.Linear(13, 5))

    def forward(self, x):
        return torch.softmax(self.layers(x), -1)


class Affine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.bias = torch.nn.Parameter(torch.randn(7)), torch.nn.Parameter(torch.randn(7))

    def forward(self, x):
        return torch.exp(-(x * self.scale + self.bias))


@pytest.mark.parametrize("kind", [Affine, Mlp])
@pytest.mark.parametrize("decompose", [True, False])
def test_exported_programs_are_compiled(tmp_path, kind, decompose):
    """The compiler gets the bytes of an archive, whose inputs have the names of the module's arguments."""
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(3, 7)
    shapes = {"x": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(module, (x,), dynamic_shapes=shapes)
    exported = exported.run_decompositions() if decompose else exported
    torch.export.save(exported, tmp_path / "mlp.pt2")
    try:
        programs = [wgfc.compile(exported)]
    except wgfc.UnsupportedError as e:
        pytest.skip(str(e).splitlines()[0])
    programs += [
        wgfc.export(module, (x,), dynamic_shapes=shapes, decompose=decompose),
        wgfc.compile(tmp_path / "mlp.pt2"),
    ]
    for program in programs:
        assert [(p.name, p.dtype, p.shape[1]) for p in program.inputs] == [("x", "float32", 7)]
        assert len(program.symbols) == 1
        session = wgfc.Session(program)
        for n in [1, 3, 8]:
            x = torch.randn(n, 7)
            (y,) = session.run({"x": x}, to="torch").values()
            torch.testing.assert_close(y, module(x).detach(), rtol=1e-4, atol=1e-5)


class Unknown(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(x)


def test_what_is_not_supported_is_told_with_its_source():
    with pytest.raises(wgfc.UnsupportedError, match="eig") as e:
        wgfc.export(Unknown(), (torch.eye(3),))
    assert any("eigvals(x)" in (d.location.source or "") for d in e.value.diagnostics)


class Counter(torch.nn.Module):
    def __init__(self, first):
        super().__init__()
        self.register_buffer("count", torch.full((3,), first))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count


INITIAL = pytest.param(5.0, marks=pytest.mark.xfail(reason="contents of buffers are not imported yet", strict=False))


@pytest.mark.parametrize("first", [0.0, INITIAL])
@pytest.mark.parametrize("decompose", [True, False])
def test_buffers_that_a_module_changes_are_states(decompose, first):
    program = wgfc.export(Counter(first), (torch.zeros(3),), decompose=decompose)
    (state,) = program.states
    assert state.axis is None and state.shape == (3,)
    session = wgfc.Session(program)
    x = {"x": torch.zeros(3)}
    for n in [1, 2]:
        (y,) = session.run(x, to="torch").values()
        assert torch.equal(y, torch.full((3,), first + n))
    assert session.read_states(to="torch")[state.name].tolist() == [first + 2] * 3
    session.write_states({state.name: torch.tensor([1.0, 2, 3])})
    (y,) = session.run({"x": [0, 0, 1]}).values()
    assert y.tolist() == [2, 3, 5]
    session.reset()
    (y,) = session.run(x).values()
    assert y.tolist() == [first + 1] * 3
