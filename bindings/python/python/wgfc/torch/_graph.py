"""The functional graph of a recorded trace, as the importer reads it.

Each buffer has a value: a dense tensor in the order of memory. An operator that reads a tensor gets a view of its buffer's value;
one that writes is replaced by its functional overload, and the buffer gets a new value.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Sequence

import sympy
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.value_ranges import ValueRanges

from wgfc._decompositions import decompositions
from wgfc.torch import _fused, _views
from wgfc.torch._record import New, Step, arguments
from wgfc.torch._views import Geometry

_ATEN = torch.ops.aten


@functools.cache
def functional(operator: Any) -> Any:
    """The overload that returns what ``operator`` writes: of ``add_`` and of ``add.out`` it is ``add``; operators that have results
    besides, such as batch norms, have one that returns what they write behind these."""
    if operator is _ATEN.native_batch_norm.default:
        return _ATEN._native_batch_norm_legit_functional.default
    schema = operator._schema
    name, overload = schema.name.removeprefix("aten::"), operator._overloadname
    if any(a.is_out for a in schema.arguments):
        packet = getattr(_ATEN, name)
        wanted = [a.name for a in schema.arguments if not a.is_out]
        for other in packet.overloads():
            candidate = getattr(packet, other)
            if [a.name for a in candidate._schema.arguments] == wanted:
                return candidate
        raise AttributeError(f"{operator} has no functional overload")
    if not name.endswith("_"):
        return getattr(_ATEN, f"{name}_functional").default
    return getattr(getattr(_ATEN, name.removesuffix("_")), overload)


@dataclasses.dataclass
class _Content:
    """The value of a buffer: ``value`` with ``geometry``, which covers the buffer."""

    value: Tensor
    geometry: Geometry

    def seen(self, view: Geometry) -> Tensor:
        if view == self.geometry:
            return self.value
        return _views.read(self._memory(view.dtype), view)

    def replaced(self, view: Geometry, part: Tensor) -> "_Content":
        memory = self._memory(view.dtype).reshape(-1)
        whole = _views.write(memory, part, view)
        return _Content(whole, Geometry(view.dtype, (memory.shape[0],), (1,), 0))

    def _memory(self, dtype: torch.dtype) -> Tensor:
        memory = self.in_order()
        return memory if memory.dtype is dtype else memory.reshape(-1).view(dtype)

    def in_order(self) -> Tensor:
        order = _views.in_memory_order(self.geometry)
        return self.value if order == tuple(range(len(order))) else self.value.permute(order)


@dataclasses.dataclass
class Graph:
    """A functional graph with its inputs and outputs."""

    module: GraphModule
    inputs: list[tuple[int, torch.dtype, tuple[int, ...]]]
    """The buffer of each tensor that the graph reads, and the type and shape as which it reads it."""
    outputs: list[tuple[int, Node]]
    """The buffer that each result is a new value of."""
    lifted: list[int]
    """The positions of the trace's numbers that are inputs."""
    origin: dict[str, int]
    """The step from which each node was made, by the node's name."""


class Refused(Exception):
    """A step that cannot be traced."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(step, why)
        self.step, self.why = step, why


def build(
    steps: Sequence[Step], sizes: Sequence[int], outputs: Sequence[int], unset: set[int], numbers: list[Any], lifted: list[int]
) -> Graph:
    """The graph of ``steps``. ``sizes`` has the bytes of each buffer; ``outputs`` the buffers whose values are wanted; ``unset``
    those that nothing has been written to before. Numbers at the positions ``lifted`` are inputs, others are constants."""
    inputs = _inputs(steps, sizes, unset)
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    with mode:
        given = [torch.empty(shape, dtype=dtype) for _, dtype, shape in inputs]
    symbols = [_symbol(env, i, numbers[i]) for i in lifted]
    origin: dict[str, int] = {}
    kept: list[int] = []

    def run(values: list[Any], tensors: list[Tensor]) -> list[Tensor]:
        content = {
            n: _Content(x, Geometry(dtype, shape, _views.dense(shape), 0)) for (n, dtype, shape), x in zip(inputs, tensors)
        }
        own = list(numbers)
        for i, v in zip(lifted, values):
            own[i] = v
        position, graph = 0, get_proxy_mode().tracer.graph
        for index, step in enumerate(steps):
            before = len(graph.nodes)
            try:
                position = _apply(step, content, sizes, own, position)
            except Exception as e:
                # Kernels and tracers raise exceptions of many types for what they do not support.
                raise Refused(index, str(e)) from e
            node = graph._root.prev
            for _ in range(len(graph.nodes) - before):
                origin[node.name] = index
                node = node.prev
        kept.extend(n for n in outputs if n in content)
        return [content[n].in_order() for n in kept]

    with mode:
        module = make_fx(run, decomposition_table=decompositions(), tracing_mode="real")(symbols, given)
    module.graph.eliminate_dead_code()
    module.recompile()
    results = torch.utils._pytree.tree_leaves(module.graph.output_node().args[0])
    return Graph(module, inputs, list(zip(kept, results)), lifted, origin)


def _symbol(env: ShapeEnv, i: int, number: Any) -> Any:
    if isinstance(number, float):
        symbol = sympy.Symbol(f"zf{i}", real=True)
        env.var_to_range[symbol] = ValueRanges.unknown()
        return env.create_symfloatnode(symbol, hint=number)
    symbol = sympy.Symbol(f"n{i}", integer=True)
    env.var_to_range[symbol] = ValueRanges.unknown_int()
    return env.create_symintnode(symbol, hint=int(number))


def _inputs(steps: Sequence[Step], sizes: Sequence[int], unset: set[int]) -> list[tuple[int, torch.dtype, tuple[int, ...]]]:
    """The buffers that the steps read before they make or replace them, each with a type and shape to read it as: those of the
    first view that covers it, or else of one axis."""
    made: set[int] = set()
    covering: dict[int, Geometry] = {}
    first: dict[int, torch.dtype] = {}
    for step in steps:
        slots = iter(step.reads)

        def see(view: Geometry) -> None:
            n = next(slots)
            first.setdefault(n, view.dtype)
            if view.dtype is first[n] and _views.covers(view, sizes[n] // view.dtype.itemsize):
                covering.setdefault(n, view)

        arguments(step.spec.key, see, lambda: 0)
        made.update(step.makes)
    found = []
    for n, dtype in first.items():
        if n in made or n in unset:
            continue
        view = covering.get(n)
        shape = (sizes[n] // dtype.itemsize,) if view is None else tuple(view.sizes[a] for a in _views.in_memory_order(view))
        found.append((n, dtype, shape))
    return found


def _apply(step: Step, content: dict[int, _Content], sizes: Sequence[int], numbers: list[Any], position: int) -> int:
    """Computes a step on the buffers' values. Returns the position behind its numbers."""
    spec, slots, read = step.spec, iter(step.reads), []

    def tensor(view: Geometry) -> Tensor:
        n = next(slots)
        read.append((n, view))
        if n not in content:
            # New memory has zeros.
            elements = sizes[n] // view.dtype.itemsize
            shape = view.sizes if _views.covers(view, elements) and view.strides == _views.dense(view.sizes) else (elements,)
            content[n] = _Content(torch.zeros(shape, dtype=view.dtype), Geometry(view.dtype, shape, _views.dense(shape), 0))
        return content[n].seen(view)

    def number() -> Any:
        nonlocal position
        position += 1
        return numbers[position - 1]

    args, kwargs = arguments(spec.key, tensor, number)
    operator = spec.operator
    fresh: list[Any]
    if not spec.writes:
        made = operator(*args, **kwargs)
        fresh = [made] if isinstance(made, Tensor) else list(made or ())
    elif operator is _ATEN.copy_.default:
        view = read[0][1]
        source = args[1] if args[1].dtype is view.dtype else args[1].to(view.dtype)
        fresh, written = [], [source if tuple(source.shape) == view.sizes else source.expand(view.sizes)]
    else:
        for a in operator._schema.arguments:
            if a.is_out:
                kwargs.pop(a.name)
        made = (_fused.STEPS.get(operator) or functional(operator))(*args, **kwargs)
        flat = [x for m in ([made] if isinstance(made, Tensor) else made) for x in (m if isinstance(m, (list, tuple)) else [m])]
        fresh, written = flat[: -len(spec.writes)], flat[-len(spec.writes) :]
    if spec.writes:
        for i, new in zip(spec.writes, written):
            n, view = read[i]
            new = new if new.dtype is view.dtype else new.to(view.dtype)
            if _views.covers(view, sizes[n] // view.dtype.itemsize):
                content[n] = _Content(new, view)
            else:
                content[n] = content[n].replaced(view, new)
    makes = iter(step.makes)
    news = [r for r in spec.results if type(r) is New]
    if spec.writes:
        outcome = list(zip(news, fresh))
    else:
        outcome = [(r, m) for r, m in zip(spec.results, fresh) if type(r) is New]
    for r, m in outcome:
        n = next(makes)
        elements = sizes[n] // r.geometry.dtype.itemsize
        m = m if m.dtype is r.geometry.dtype else m.to(r.geometry.dtype)
        if not elements or not m.numel():
            # Kernels leave results empty that nobody reads, such as the statistics of a batch norm in inference.
            m = torch.zeros(r.geometry.sizes, dtype=r.geometry.dtype)
        if _views.covers(r.geometry, elements) or not elements:
            content[n] = _Content(m, r.geometry)
        else:
            flat_geometry = Geometry(r.geometry.dtype, (elements,), (1,), 0)
            content[n] = _Content(torch.zeros(elements, dtype=r.geometry.dtype), flat_geometry).replaced(r.geometry, m)
    return position
