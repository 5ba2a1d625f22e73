"""Arithmetic on dynamic sizes, and numbers computed in a run that decide shapes, compared with torch."""

import math
import os
import random

import numpy as np
import onnx_files
import pytest
import wgfc

torch = pytest.importorskip("torch")
AUTO = torch.export.Dim.AUTO
DIVIDING = {"//": lambda a, b: a // b, "%": lambda a, b: a % b}
ROUNDING = {"trunc": math.trunc, "floor": math.floor, "ceil": math.ceil, "round": round}


def drawn(draw, depth):
    """A function of a size, and its text."""
    if depth == 0:
        k = draw.choice([1, 2, 3, 5, 8, -3])
        return draw.choice([(lambda n: n, "n"), (lambda n: n, "n"), (lambda n: n + k, f"(n + {k})"), (lambda n: k - n, f"({k} - n)")])
    (f, a), (g, b) = drawn(draw, depth - 1), drawn(draw, depth - 1)
    k = draw.choice([2, 3, 4, 5, 7]) * draw.choice([1, 1, -1])
    kind = draw.choice(["//", "%", *ROUNDING, "min", "max", "+", "-", "*", "half", "abs", "&", "**"])
    if kind in DIVIDING:
        of = DIVIDING[kind]
        return lambda n: of(f(n), k), f"({a} {kind} {k})"
    if kind in ROUNDING:
        of = ROUNDING[kind]
        return lambda n: of(f(n) / k), f"{kind}({a} / {k})"
    if kind in ("min", "max"):
        of = torch.sym_min if kind == "min" else torch.sym_max
        return lambda n: of(f(n), g(n)), f"{kind}({a}, {b})"
    return {
        "+": (lambda n: f(n) + g(n), f"({a} + {b})"),
        "-": (lambda n: f(n) - g(n), f"({a} - {b})"),
        "*": (lambda n: f(n) * k, f"({a} * {k})"),
        "half": (lambda n: math.floor(f(n) * 1.5), f"floor({a} * 1.5)"),
        "abs": (lambda n: abs(f(n)), f"abs({a})"),
        "&": (lambda n: f(n) & 6, f"({a} & 6)"),
        "**": (lambda n: f(n) ** 2, f"({a} ** 2)"),
    }[kind]


def test_drawn_expressions_of_sizes_are_what_torch_computes():
    seed = int(os.environ.get("WGFC_SEED", "31"))
    compared = 0
    for i in range(int(os.environ.get("WGFC_EXPRESSIONS", "24"))):
        f, text = drawn(random.Random(seed * 1000 + i), 1 + i % 3)

        class Sizes(torch.nn.Module):
            def forward(self, x):
                return x * f(x.shape[1])

        try:
            program = torch.export.export(Sizes(), (torch.ones(2, 13),), dynamic_shapes={"x": {1: AUTO}})
        except Exception:  # torch's own arithmetic of symbols
            continue
        session = wgfc.Session(wgfc.compile(program))
        for n in (13, 2, 7, 12, 30):
            x = torch.ones(2, n)
            try:
                want = program.module()(x)
            except Exception as e:
                with pytest.raises(wgfc.Error):
                    session.run({"x": x})
                assert "Guard" in str(e) or "Runtime" in str(e), (text, n, e)
                continue
            (got,) = session.run({"x": x}, to="torch").values()
            assert torch.equal(got, Sizes()(x)) and torch.equal(got, want), (seed, i, text, n, got[0, 0], want[0, 0])
            compared += 1
    assert compared > 20


def test_conditions_of_an_export_are_checked():
    class Least(torch.nn.Module):
        def forward(self, x):
            parts = [torch.flip(x[:, 8 * i : min(8 * i + 8, x.shape[1])], [1]).sum(1) for i in range(2)]
            return parts[0] + parts[1]

    program = torch.export.export(Least(), (torch.randn(2, 13),), dynamic_shapes={"x": {0: AUTO, 1: AUTO}})
    session = wgfc.Session(wgfc.compile(program))
    for n in (13, 16, 20):
        x = torch.randn(2, n)
        (got,) = session.run({"x": x}, to="torch").values()
        torch.testing.assert_close(got, Least()(x))
    for n in (9, 8, 5):
        with pytest.raises(wgfc.ModelError):
            session.run({"x": torch.randn(2, n)})


def test_a_size_that_is_1_for_all_is_seen():
    class Bias(torch.nn.Module):
        def forward(self, x):
            b = torch.arange(4.0 * 64).reshape(4, 1, 64)
            return x + b[:, max(0, 1 - x.shape[1]) :, max(0, 64 - x.shape[1]) :].sum(-1)

    program = torch.export.export(Bias(), (torch.randn(4, 13),), dynamic_shapes={"x": {1: AUTO}})
    session = wgfc.Session(wgfc.compile(program))
    for n in (13, 5):
        x = torch.randn(4, n)
        torch.testing.assert_close(next(iter(session.run({"x": x}, to="torch").values())), Bias()(x))


def test_what_a_program_asserts_of_data_is_checked():
    class All(torch.nn.Module):
        def forward(self, n, x):
            torch._check_tensor_all((n > 1).all(), lambda: "small")
            return x * 2

    class Item(torch.nn.Module):
        def forward(self, n, x):
            k = n.item()
            torch._check(k >= 2)
            torch._check(k <= 6)
            return x[:k] * 2

    class Repeats(torch.nn.Module):
        def forward(self, n, x):
            return torch.repeat_interleave(x[:3], n, output_size=4) + 1

    x = torch.randn(8)
    cases = [(All(), [3], [0]), (Item(), [2, 6], [1, 7, -3]), (Repeats(), [[1, 2, 1], [4, 0, 0]], [[1, 1, 1], [3, 3, 3]])]
    for module, good, bad in cases:
        session = wgfc.Session(wgfc.compile(torch.export.export(module, (torch.tensor(good[0]), x))))
        for n in good:
            (got,) = session.run({"n": torch.tensor(n), "x": x}, to="torch").values()
            assert torch.equal(got, module(torch.tensor(n), x))
        for n in bad:
            with pytest.raises(wgfc.ModelError):
                session.run({"n": torch.tensor(n), "x": x})


def test_a_total_beyond_the_cache_is_refused():
    onnx = pytest.importorskip("onnx")
    port = lambda name, shape, kind=onnx.TensorProto.FLOAT: onnx.helper.make_tensor_value_info(name, kind, shape)
    node = onnx.helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "pk", "pv", "last", "total"],
        ["y", "nk", "nv"],
        domain="com.microsoft",
        num_heads=1,
        kv_num_heads=1,
    )
    shapes = {"q": [1, 1, 8], "k": [1, 1, 8], "v": [1, 1, 8], "pk": [1, 1, 2, 8], "pv": [1, 1, 2, 8]}
    integers = [port(n, [1], onnx.TensorProto.INT32) for n in ("last", "total")]
    graph = onnx.helper.make_graph(
        [node], "g", [port(n, s) for n, s in shapes.items()] + integers, [port(n, None) for n in ("y", "nk", "nv")]
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = wgfc.Session(wgfc.compile(model.SerializeToString()))
    given = {n: torch.randn(shape) for n, shape in shapes.items()}
    number = lambda n: torch.tensor([n], dtype=torch.int32)
    assert session.run({**given, "last": number(1), "total": number(2)}, to="torch")["nk"].shape[2] == 2
    with pytest.raises(wgfc.ModelError, match="total_sequence_length"):
        session.run({**given, "last": number(2), "total": number(3)})
    for last, total in [(2, 2), (-1, 2), (0, 0)]:
        with pytest.raises(wgfc.ModelError, match="seqlens_k"):
            session.run({**given, "last": number(last), "total": number(total)})


def test_numbers_below_0_count_nothing():
    nodes = [onnx_files.node("TopK", ["x", "k"], ["y", "at"])]
    ports = [("x", "float32", [3, 5]), ("k", "int64", [1])]
    results = [("y", "float32", [3, "n"]), ("at", "int64", [3, "n"])]
    session = wgfc.Session(wgfc.compile(onnx_files.model(nodes, ports, results)))
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    for k in (0, 2, 5):
        got = session.run({"x": x, "k": np.array([k])})["y"]
        assert np.array_equal(got, x[:, ::-1][:, :k])
    for k in (-1, 6, -(2**40), 2**40):
        with pytest.raises(wgfc.ModelError, match="TopK"):
            session.run({"x": x, "k": np.array([k])})


@pytest.mark.parametrize("dtype", ["float16", "int8", "bool"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_rows_written_in_part_keep_their_neighbours(dtype, axis):
    class Rows(torch.nn.Module):
        def forward(self, x):
            x = x.clone()
            x[:1] = 0
            return x

    x = (torch.arange(35).reshape(5, 7) + 1).to(getattr(torch, dtype))
    shapes = None if axis is None else {"x": {axis: AUTO}}
    session = wgfc.Session(wgfc.compile(torch.export.export(Rows(), (x,), dynamic_shapes=shapes)))
    (got,) = session.run({"x": x}, to="torch").values()
    assert torch.equal(got, Rows()(x))
