"""The functional graph of a recorded trace, as the importer reads it.

Each buffer has a value: a dense tensor in the order of memory. An operator that reads a tensor gets a view of its buffer's value;
one that writes is replaced by its functional overload, and the buffer gets a new value. Sizes may depend on symbols, which are then
inputs of the graph.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import math
from typing import Any, Callable, Iterator, Optional, Sequence

import sympy
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import has_side_effect
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges

from wgfc._decompositions import decompositions
from wgfc.torch import _fused, _views
from wgfc.torch._record import SEEDED, New, Step, arguments, as_given, is_number
from wgfc.torch._sizes import Affine, Sized
from wgfc.torch._views import Layout

_ATEN = torch.ops.aten


_OWN = torch.library.Library("wgfc", "FRAGMENT")
_OWN.define("seed(Tensor seed) -> ()")
_OWN.impl("seed", lambda seed: None, "CompositeExplicitAutograd")
_SEED = torch.ops.wgfc.seed.default
"""The random operators behind it take their numbers from this seed."""
has_side_effect(_SEED)
_MAKES = ("dtype", "layout", "device", "pin_memory", "generator")
"""Arguments that do not count where operators are compared: those of operators that make their results, and the generator."""


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
        wanted = [a.name for a in schema.arguments if not a.is_out and a.name not in _MAKES]
        for other in sorted(packet.overloads(), key=len):
            candidate = getattr(packet, other)
            if [a.name for a in candidate._schema.arguments if a.name not in _MAKES] == wanted:
                return candidate
        raise AttributeError(f"{operator} has no functional overload")
    if not name.endswith("_"):
        return getattr(_ATEN, f"{name}_functional").default
    plain = name.removesuffix("_")
    packet = getattr(_ATEN, plain)
    if overload in packet.overloads():
        return getattr(packet, overload)
    wanted = [a.name for a in schema.arguments]
    for packet in (packet, getattr(_ATEN, f"{plain}_functional", packet)):
        for other in packet.overloads():
            candidate = getattr(packet, other)
            if [a.name for a in candidate._schema.arguments] == wanted:
                return candidate
    raise AttributeError(f"{operator} has no functional overload")


_ENV = ShapeEnv()
_MODE = FakeTensorMode(shape_env=_ENV, allow_non_fake_inputs=True)


class _Symbols:
    """The symbols of a graph's sizes, in each of which a size is ``factor * symbol + offset``."""

    def __init__(self, values: Sequence[int]) -> None:
        # Graphs without symbols share a mode, as their fragments do.
        self.env = ShapeEnv() if values else _ENV
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True) if values else _MODE
        make = self.env.create_symbol
        sources = [ConstantSource(f"size_{i}") for i in range(len(values))]
        self.expressions = [
            make(n, source, DimDynamic.DYNAMIC, do_not_specialize_zero_one=n < 2) for n, source in zip(values, sources)
        ]
        self.numbers = [
            self.env.create_symintnode(e, hint=n, source=source) for e, n, source in zip(self.expressions, values, sources)
        ]
        self.made: dict[Affine, Any] = {}

    def number(self, size: Any) -> Any:
        """What stands for a size: an integer, or a symbolic one."""
        if not isinstance(size, Affine):
            return size
        if size not in self.made:
            self.made[size] = size.factor * self.numbers[size.symbol] + size.offset
        return self.made[size]

    def condition(self) -> Optional[Callable[..., bool]]:
        """Whether the graph is right for values of the symbols, which are the arguments; ``None`` if it is right only for the
        values for which it was traced, as one symbol at least was found to be a constant."""
        if not self.expressions:
            return lambda: True
        if any(self.env.replace(e).is_number for e in self.expressions):
            return None
        names = [str(e) for e in self.expressions]
        lower = [f"{name} >= {self.env.bound_sympy(e).lower}" for name, e in zip(names, self.expressions)]
        conditions = dict.fromkeys([*lower, *(PythonPrinter().doprint(g.expr) for g in self.env.guards)])
        text = " and ".join(f"({c})" for c in conditions) or "True"
        return eval(f"lambda {', '.join(names)}: {text}", {"math": math})  # text of sympy's printer


@dataclasses.dataclass
class _Content:
    """The value of a buffer: ``value`` with ``layout``, which covers the buffer."""

    value: Tensor
    layout: Layout

    def seen(self, view: Layout, number: Callable[[Any], Any]) -> Tensor:
        if view == self.layout:
            return self.value
        return _views.read(self._memory(view.dtype), view, number)

    def replaced(self, view: Layout, part: Tensor, number: Callable[[Any], Any]) -> "_Content":
        memory = self._memory(view.dtype).reshape(-1)
        return _Content(_views.write(memory, part, view, number), _views.flat(view.dtype, view.elements))

    def _memory(self, dtype: torch.dtype) -> Tensor:
        memory = self.in_order()
        return memory if memory.dtype is dtype else memory.reshape(-1).view(dtype)

    def in_order(self) -> Tensor:
        order = self.layout.order
        return self.value if order == tuple(range(len(order))) else self.value.permute(order)


@dataclasses.dataclass
class Graph:
    """A functional graph with its inputs and outputs."""

    module: GraphModule
    inputs: list[tuple[int, torch.dtype, tuple[Any, ...]]]
    """The buffer of each tensor that the graph reads, and the type and shape as which it reads it."""
    outputs: list[tuple[int, Node]]
    """The buffer that each result is a new value of."""
    lifted: list[int]
    """The positions of the trace's numbers that are inputs."""
    origin: dict[str, int]
    """The step from which each node was made, by the node's name."""
    symbols: list[str]
    """The names of the symbols."""
    condition: Optional[Callable[..., bool]]
    """The condition of ``_Symbols``."""


class Refused(Exception):
    """A step that cannot be traced."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(step, why)
        self.step, self.why = step, why


@dataclasses.dataclass
class _Value:
    """The value of a buffer in a graph."""

    node: Node
    fake: Tensor
    layout: Layout


@dataclasses.dataclass
class _Fragment:
    """The nodes that compute a step. Steps of equal keys have equal fragments."""

    module: GraphModule
    results: list[tuple[int, Layout]]
    """The slot and the layout of each result."""


_FRAGMENTS: "collections.OrderedDict[Any, _Fragment]" = collections.OrderedDict()
"""Fragments with constant sizes and numbers."""
_KEPT = 4096


class _Builder:
    """A graph that is put together from the fragments of steps, so that equal steps are traced once."""

    def __init__(self, symbols: "_Symbols", numbers: list[Any], lifted: list[int]) -> None:
        self.symbols = symbols
        self.mode = symbols.mode
        self.root = torch.nn.Module()
        self.graph = torch.fx.Graph(tracer_cls=None)
        self.sizes = [self._placeholder(f"size_{i}", n) for i, n in enumerate(symbols.numbers)]
        self.numbers = list(numbers)
        self.lifted: dict[int, Node] = {}
        for i in lifted:
            self.numbers[i] = _symbol(symbols.env, i, numbers[i])
            self.lifted[i] = self._placeholder(f"number_{i}", self.numbers[i])
        self.own: dict[Any, _Fragment] = {}
        self.values: dict[int, _Value] = {}

    def _placeholder(self, name: str, value: Any) -> Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def input(self, buffer: int, dtype: torch.dtype, shape: tuple[Any, ...]) -> None:
        """Adds an input that has the elements of a buffer."""
        with self.mode:
            fake = torch.empty([self.symbols.number(n) for n in shape], dtype=dtype)
        self.values[buffer] = _Value(self._placeholder(f"buffer_{buffer}", fake), fake, _dense(dtype, shape))

    def add(self, step: Step, of: Sized, position: int) -> tuple[list[Node], int]:
        """Adds the nodes of a step, whose numbers begin at a position. Returns them and the position behind its numbers."""
        slots = {n: i for i, n in enumerate(dict.fromkeys((*step.reads, *step.makes)))}
        local = Step(step.spec, tuple(slots[n] for n in step.reads), tuple(slots[n] for n in step.makes))
        known = {i: self.values[n] for n, i in slots.items() if n in self.values}
        count = sum(map(is_number, step.spec.key))
        at = range(position, position + count)
        numbers = tuple(
            ("lifted", i) if i in self.lifted else (type(n), n, math.copysign(1, n)) for i in at for n in [self.numbers[i]]
        )
        given = tuple((i, v.layout, v.fake.dtype, _texts(v.fake.shape), _texts(v.fake.stride())) for i, v in known.items())
        key = (local, tuple(of.reads), tuple(of.makes), tuple(of.sizes), numbers, given)
        shared = not self.sizes and not any(i in self.lifted for i in at)
        cache: Any = _FRAGMENTS if shared else self.own
        fragment = cache.get(key)
        if fragment is None:
            fragment = cache[key] = self._traced(local, of, known, at)
            while len(_FRAGMENTS) > _KEPT:
                _FRAGMENTS.popitem(last=False)
        buffers = {i: n for n, i in slots.items()}
        arguments = [*self.sizes, *(self.lifted[i] for i in at if i in self.lifted), *(v.node for v in known.values())]
        nodes, made = self._copied(fragment.module, arguments)
        for (slot, layout), node in zip(fragment.results, made):
            self.values[buffers[slot]] = _Value(node, node.meta["val"], layout)
        return nodes, at.stop

    def _traced(self, step: Step, of: Sized, known: dict[int, _Value], at: range) -> _Fragment:
        results: list[tuple[int, Layout]] = []
        symbols, slots = self.symbols, list(known)
        places = [i - at.start for i in at if i in self.lifted]

        def run(sizes: list[Any], lifted: list[Any], tensors: list[Tensor]) -> list[Tensor]:
            symbols.numbers = sizes
            symbols.made.clear()
            content = {i: _Content(x, known[i].layout) for i, x in zip(slots, tensors)}
            before = dict(content)
            numbers = [self.numbers[i] for i in at]
            for i, v in zip(places, lifted):
                numbers[i] = v
            _apply(step, of, content, symbols.number, numbers, 0)
            changed = {i: c for i, c in content.items() if before.get(i) is not c}
            results.extend((i, c.layout) for i, c in changed.items())
            return [c.value for c in changed.values()]

        originals = list(symbols.numbers)
        lifted = [self.numbers[i] for i in at if i in self.lifted]
        # Nobody runs the module, so Python code for it is not written.
        with self.mode, _use_lazy_graph_module(True):
            fakes = [torch.empty_strided(v.fake.shape, v.fake.stride(), dtype=v.fake.dtype) for v in known.values()]
            made = make_fx(run, decomposition_table=decompositions(), tracing_mode="real")(originals, lifted, fakes)
        symbols.numbers = originals
        symbols.made.clear()
        made.graph.eliminate_dead_code()
        return _Fragment(made, results)

    def _copied(self, module: GraphModule, arguments: list[Node]) -> tuple[list[Node], list[Node]]:
        """Copies the nodes of a fragment. Returns them, and those of its results."""
        given = iter(arguments)
        of: dict[Node, Node] = {}
        nodes = []
        for node in module.graph.nodes:
            if node.op == "placeholder":
                of[node] = next(given)
            elif node.op == "get_attr":
                name = f"attribute_{len(self.root._buffers) + len(self.root._modules)}"
                value = getattr(module, node.target)
                if isinstance(value, torch.nn.Module):
                    self.root.add_module(name, value)
                else:
                    self.root.register_buffer(name, value)
                of[node] = self.graph.get_attr(name)
                of[node].meta = dict(node.meta)
            elif node.op != "output":
                of[node] = self.graph.node_copy(node, of.__getitem__)
                nodes.append(of[node])
        made = torch.utils._pytree.tree_leaves(module.graph.output_node().args[0])
        return nodes, [of[n] for n in made]

    def in_order(self, buffer: int) -> Node:
        """The elements of a buffer in the order of memory."""
        value = self.values[buffer]
        order = value.layout.order
        if order == tuple(range(len(order))):
            return value.node
        node = self.graph.call_function(_ATEN.permute.default, (value.node, list(order)))
        with self.mode:
            fake = torch.empty_strided(value.fake.shape, value.fake.stride(), dtype=value.fake.dtype)
            node.meta["val"] = fake.permute(order)
        return node


def _texts(sizes: Any) -> tuple[Any, ...]:
    """Sizes as texts where they are symbolic."""
    return tuple(n if isinstance(n, int) else str(n.node.expr) for n in sizes)


_LOGGERS = [logging.getLogger(n) for n in ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")]


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """A context in which torch logs no operator that it cannot trace: such a step is reported, or its sizes are constants."""
    before = [logger.disabled for logger in _LOGGERS]
    for logger in _LOGGERS:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(_LOGGERS, before):
            logger.disabled = disabled


def build(
    steps: Sequence[Step],
    sized: Sequence[Sized],
    values: Sequence[int],
    outputs: Sequence[int],
    unset: set[int],
    numbers: list[Any],
    lifted: list[int],
) -> Graph:
    """The graph of ``steps``. ``sized`` has the layouts and sizes of each, in terms of symbols that have ``values`` where the graph
    is traced; ``outputs`` the buffers whose values are wanted; ``unset`` those that nothing has been written to before. Numbers at
    the positions ``lifted`` are inputs, others are constants."""
    symbols = _Symbols(values)
    builder = _Builder(symbols, numbers, lifted)
    inputs = _inputs(steps, sized, unset)
    for n, dtype, shape in inputs:
        builder.input(n, dtype, shape)
    origin: dict[str, int] = {}
    position = 0
    for index, (step, of) in enumerate(zip(steps, sized)):
        try:
            with _without_logs():
                nodes, position = builder.add(step, of, position)
        except Exception as e:
            # Kernels and tracers raise exceptions of many types for what they do not support.
            raise Refused(index, str(e)) from e
        origin.update((node.name, index) for node in nodes)
    kept = [n for n in outputs if n in builder.values]
    results = [builder.in_order(n) for n in kept]
    builder.graph.output(results)
    builder.graph.eliminate_dead_code()
    with _use_lazy_graph_module(True):
        module = _make_graph_module(builder.root, builder.graph)
    names = [str(e) for e in symbols.expressions]
    return Graph(module, inputs, list(zip(kept, results)), lifted, origin, names, symbols.condition())


def _dense(dtype: torch.dtype, sizes: tuple[Any, ...]) -> Layout:
    """The layout of a dense tensor that covers its buffer."""
    if all(isinstance(n, int) for n in sizes):
        return _views.layout(_views.Geometry(dtype, sizes, _views.dense(sizes), 0), math.prod(sizes))
    axes = tuple(a for a, n in enumerate(sizes) if n != 1)
    extents = tuple(sizes[a] for a in axes)
    digits = _views.Digits(extents, (0,) * len(axes), extents, axes, 0)
    return Layout(dtype, tuple(range(len(sizes))), True, sizes, None, digits, None)


def _symbol(env: ShapeEnv, i: int, number: Any) -> Any:
    if isinstance(number, float):
        symbol = sympy.Symbol(f"zf{i}", real=True)
        env.var_to_range[symbol] = ValueRanges.unknown()
        return env.create_symfloatnode(symbol, hint=number)
    symbol = sympy.Symbol(f"n{i}", integer=True)
    env.var_to_range[symbol] = ValueRanges.unknown_int()
    return env.create_symintnode(symbol, hint=int(number))


def _inputs(
    steps: Sequence[Step], sized: Sequence[Sized], unset: set[int]
) -> list[tuple[int, torch.dtype, tuple[Any, ...]]]:
    """The buffers that the steps read before they make or replace them, each with a type and shape to read it as: those of the
    first view that covers it, or else of one axis."""
    made: set[int] = set()
    covering: dict[int, Layout] = {}
    first: dict[int, Layout] = {}
    for step, of in zip(steps, sized):
        for n, view in zip(step.reads, of.reads):
            first.setdefault(n, view)
            if view.dtype is first[n].dtype and view.whole:
                covering.setdefault(n, view)
        made.update(step.makes)
    found = []
    for n, view in first.items():
        if n not in made and n not in unset:
            found.append((n, view.dtype, covering[n].in_memory if n in covering else (view.elements,)))
    return found


def _apply(
    step: Step, of: Sized, content: dict[int, _Content], number: Callable[[Any], Any], numbers: list[Any], position: int
) -> int:
    """Computes a step on the buffers' values. Returns the position behind its numbers."""
    spec, slots, views, sizes = step.spec, iter(step.reads), iter(of.reads), iter(of.sizes)
    read: list[tuple[int, Layout]] = []

    def tensor(_: Any) -> Tensor:
        n, view = next(slots), next(views)
        read.append((n, view))
        if n not in content:
            # New memory has zeros.
            content[n] = _zeros(view, number)
        return content[n].seen(view, number)

    def own(word: Any) -> Any:
        nonlocal position
        position += 1
        return as_given(word, numbers[position - 1])

    args, kwargs = arguments(spec.key, tensor, own, lambda _: number(next(sizes)))
    operator = spec.operator
    if SEEDED in kwargs:
        _SEED(kwargs.pop(SEEDED))
    fresh: list[Any]
    if not spec.writes:
        made = operator(*args, **kwargs)
        fresh = [made] if isinstance(made, Tensor) else list(made or ())
    elif operator is _ATEN.copy_.default:
        view = read[0][1]
        source = args[1] if args[1].dtype is view.dtype else args[1].to(view.dtype)
        wanted = [number(n) for n in view.sizes]
        fresh, written = [], [source if _views.has_sizes(source, wanted) else source.expand(wanted)]
    else:
        for a in operator._schema.arguments:
            if a.is_out:
                kwargs.pop(a.name)
        compute = _fused.STEPS.get(operator)
        if compute is None:
            compute = functional(operator)
            # Some overloads need an argument that the operator itself has a default for, such as the `p` of `bernoulli_`.
            needed = {a.name for a in compute._schema.arguments if not a.has_default_value()}
            for a in operator._schema.arguments[len(args) :]:
                if a.name in needed and a.has_default_value():
                    kwargs.setdefault(a.name, a.default_value)
        made = compute(*args, **kwargs)
        flat = [x for m in ([made] if isinstance(made, Tensor) else made) for x in (m if isinstance(m, (list, tuple)) else [m])]
        fresh, written = flat[: -len(spec.writes)], flat[-len(spec.writes) :]
    if spec.writes:
        for i, new in zip(spec.writes, written):
            n, view = read[i]
            new = new if new.dtype is view.dtype else new.to(view.dtype)
            content[n] = _Content(new, view) if view.whole else content[n].replaced(view, new, number)
    makes = zip(step.makes, of.makes)
    news = [r for r in spec.results if type(r) is New]
    if spec.writes:
        outcome = list(zip(news, fresh))
    else:
        outcome = [(r, m) for r, m in zip(spec.results, fresh) if type(r) is New]
    for _, m in outcome:
        n, view = next(makes)
        m = m if m.dtype is view.dtype else m.to(view.dtype)
        if 0 in view.sizes or (isinstance(m.numel(), int) and not m.numel()):
            # Kernels leave results empty that nobody reads, such as the statistics of a batch norm in inference.
            m = torch.zeros([number(n) for n in view.sizes], dtype=view.dtype)
        content[n] = _Content(m, view) if view.whole else _zeros(view, number).replaced(view, m, number)
    return position


def _zeros(view: Layout, number: Callable[[Any], Any]) -> _Content:
    """A buffer of zeros, with the layout of a view if that covers it."""
    if not view.whole:
        return _Content(torch.zeros([number(view.elements)], dtype=view.dtype), _views.flat(view.dtype, view.elements))
    value = torch.zeros([number(n) for n in view.in_memory], dtype=view.dtype)
    return _Content(value.permute([view.order.index(a) for a in range(len(view.order))]), view)
