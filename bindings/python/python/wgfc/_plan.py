"""Execution of a torch graph as a sequence of programs on a device and of operators that stay in torch."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, NamedTuple, Optional

import sympy
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from wgfc import _fx, _partition
from wgfc._compile import compile
from wgfc._errors import DeviceError, Diagnostic, Error, Location, ModelError, UnsupportedError
from wgfc._resident import ON_DEVICE, Executor, Resident, resident
from wgfc._wgfc import Tensor


class FallbackWarning(UserWarning):
    """An operator that torch computes in a model compiled with ``torch.compile(backend="wgfc")``."""


@dataclasses.dataclass
class Statistics:
    """Counts of the backend's work in this process."""

    graphs: int = 0
    """Graphs that torch passed to the backend: for forward passes, for backward passes and for inference."""
    programs: int = 0
    """Parts of graphs that programs compute."""
    compiled: int = 0
    """Programs that were compiled. Parts with an equal graph share a program."""
    operators: int = 0
    """Nodes of graphs that stay in torch."""
    uploads: int = 0
    """Copies of tensors to the device."""
    downloads: int = 0
    """Copies of tensors from the device."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The ``options`` of ``torch.compile``."""

    fullgraph: bool
    trust: bool
    adapter: Any
    compile: dict[str, Any]


STATISTICS = Statistics()
_EXECUTORS: dict[Any, Executor] = {}
_WARNED: set[str] = set()
_SIZES_KEPT = 64


class Plan:
    """The steps that compute a graph, and the properties of its values that runs need."""

    def __init__(
        self,
        settings: Settings,
        module: GraphModule,
        backward: bool,
        returned: Optional[int],
        fixed: set[int],
        replaced: dict[int, int],
        written: int = 0,
    ) -> None:
        """``returned`` is the number of a forward graph's results that precede those only for the backward graph. ``fixed`` has
        the positions of arguments that are parameters or buffers. ``replaced`` maps results that are new values of arguments to
        the positions of these arguments. A run writes the first ``written`` results to their arguments, and returns the others."""
        self.settings = settings
        self.backward = backward
        self.resident: Resident = resident(settings.adapter)
        module = GraphModule(module, _copy(module.graph))
        self.arguments: list[Node] = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.fixed = {n for i, n in enumerate(self.arguments) if i in fixed}
        _partition.read_whole_memory(module.graph)
        _partition.leave_what_has_its_bits_read(module.graph)
        # Nodes whose memory several results share. The caller may write to it.
        self.shared = set() if backward else _partition.leave_views(module.graph, returned)
        self.copied = _partition.copied(module.graph.nodes)
        self.sizes = _partition.sizes_as_inputs(module)
        self.symbols = _fx.places(self.arguments, memory=True)
        self.module = module
        self.attributes = _fx.attributes(module)
        self.outputs: list[Any] = list(module.graph.output_node().args[0])
        self.orders: dict[Node, Optional[list[int]]] = {}
        self.computed: dict[tuple[Any, ...], dict[Node, int]] = {}
        self.layouts: dict[Node, Any] = {}
        self.placed: dict[Any, tuple[tuple[int, ...], int]] = {}
        self.sent: dict[Node, Any] = {}
        self.steps = self._build()
        self.made = {n for s in self.steps if isinstance(s, Computed) for n in s.outputs}
        STATISTICS.graphs += 1
        nodes = [o if isinstance(o, Node) else None for o in self.outputs]
        split = len(nodes) if returned is None else returned
        # Results that the backward graph reads, and the subset that is neither an argument nor returned to the caller.
        self.saved = set(nodes[split:]) - {None}
        self.held = self.saved - set(nodes[:split]) - set(self.arguments)
        self.last = self._last_uses()
        bases = (_partition.memory_of(n) for n in nodes if n is not None and n not in self.arguments)
        # The argument by each node of whose memory a result is a view; the node is the argument itself or its new value.
        self.viewed: dict[Node, Node] = {}
        if not backward:
            self.viewed = {b: b for b in bases if b in self.arguments and isinstance(b.meta["val"], torch.Tensor)}
            seen = {n for node in nodes if node is not None for n in _partition.bases_of(node)}
            for result, argument in replaced.items():
                new = nodes[result]
                if new in seen and _partition.memory_of(new) not in self.arguments:
                    self.viewed[new] = self.arguments[argument]
        self.written = [replaced[i] for i in range(written)]
        self.direct = Direct.of(self)

    def _build(self) -> list[Any]:
        """Compiles as much of the graph as possible: nodes that the compiler refuses are left to torch until all parts
        compile."""
        refused: dict[Node, Diagnostic] = {}
        for node in self.module.graph.nodes:
            if node.op == "call_function" and (why := _partition.stays(node)):
                refused[node] = Diagnostic(why, "unsupported", _location(node))
        while True:
            steps: list[Any] = []
            before = len(refused)
            for unit in _partition.parts(self.module, lambda n: n not in refused):
                if isinstance(unit, Node):
                    steps.append(Operator(unit))
                elif unit.outputs:
                    found = self._compile(unit)
                    if isinstance(found, Computed):
                        steps.append(found)
                    else:
                        refused.update(found)
            if len(refused) == before:
                break
        stay = [s.node for s in steps if isinstance(s, Operator) and s.node in refused]
        # Operators on numbers and views of arguments always stay in torch, and are not reported.
        stay = [n for n in stay if isinstance(n.target, torch._ops.OperatorBase) and not _partition.copies_nothing(n)]
        _tell([(n, refused[n]) for n in stay], self.settings.fullgraph)
        STATISTICS.operators += len(stay)
        STATISTICS.programs += sum(isinstance(s, Computed) for s in steps)
        return steps

    def _compile(self, part: _partition.Part) -> Any:
        """The part with its compiled program, or the diagnostics of the nodes that are not supported."""
        options = self.settings.compile
        key = (_fx.digest(part.module, part.results, sorted(options.items())), repr(self.settings.adapter))
        if key not in _EXECUTORS:
            negative = _fx.negative(part.module)
            if negative:
                return {
                    part.origin[n.name]: Diagnostic(f"it reads the size {s}, which is below 0", "unsupported") for n, s in negative.items()
                }
            try:
                program = compile(_fx.archive(part.module, part.results), **options)
                _EXECUTORS[key] = Executor(program, self.settings.adapter)
            except DeviceError:
                raise
            except Error as e:
                return _refused(part, e.diagnostics)
            except torch._export.serde.serialize.SerializeError as e:
                return _refused(part, [Diagnostic(str(e), "unsupported")])
            STATISTICS.compiled += 1
        return Computed(part, _EXECUTORS[key])

    def _last_uses(self) -> list[list[Node]]:
        """For each step, the nodes whose last use it is."""
        seen = {o for o in self.outputs if isinstance(o, Node)}
        last: list[list[Node]] = []
        for step in reversed(self.steps):
            read = dict.fromkeys(step.reads)
            last.append([n for n in read if n not in seen])
            seen.update(read)
        return last[::-1]

    def run(self, arguments: list[Any]) -> list[Any]:
        """Computes the graph. The list of arguments is cleared, so that they can be freed early."""
        if self.direct is not None:
            return self.direct.run(arguments)
        values = Values(self, dict(zip(self.arguments, arguments)))
        replaced = [arguments[i] for i in self.written]
        arguments.clear()
        known = tuple(_size(values.host[node], axis) for _, node, axis in self.symbols)
        if known not in self.computed:
            if len(self.computed) >= _SIZES_KEPT:
                self.computed.clear()
            self.computed[known] = self._evaluate(known)
        values.host.update(self.computed[known])
        values.integers.update(self.computed[known])
        values.symbols = {s: v for (s, _, _), v in zip(self.symbols, known)}
        for step, last in zip(self.steps, self.last):
            step.run(values)
            for node in last:
                values.drop(node)
        results = [values.output(o) if isinstance(o, Node) else o for o in self.outputs]
        with torch.no_grad():
            for argument, value in zip(replaced, results):
                argument.copy_(value)
        return results[len(replaced) :]

    def _evaluate(self, known: tuple[Any, ...]) -> dict[Node, int]:
        given = {s: sympy.sympify(v) for (s, _, _), v in zip(self.symbols, known)}
        return {n: int(sympy.sympify(e).xreplace(given)) for n, e in self.sizes.items()}

    def order(self, node: Node) -> Optional[list[int]]:
        """The order of axes in memory that torch expects of a result; ``None`` for the dense order."""
        if node not in self.orders:
            self.orders[node] = _fx.stride_order(node.meta["val"])
        return self.orders[node]

    def is_recomputed(self, node: Node) -> bool:
        """Whether a program computes a value or the base of which it is a view. Such a value has the right elements, but not the
        strides and the offset that the graph states."""
        while node not in self.made and _partition.is_view(node):
            node = node.args[0]
        return node in self.made

    def layout(self, node: Node, symbols: dict[Any, int]) -> Optional[tuple[tuple[int, ...], int]]:
        """The strides and the offset of a result, in elements; ``None`` if it is dense, or if a symbol in them has no value."""
        if node not in self.layouts:
            value, base = node.meta["val"], _partition.memory_of(node)
            parts = [_fx.expression(x) for x in (*value.stride(), value.storage_offset())]
            dense = value.is_contiguous() if not _fx.free_symbols(value) else False
            # A copy of expanded memory with some elements replaced is dense, although its traced strides are those of the
            # expanded tensor.
            dense_base = base.target in _partition.COPIES and _repeats(base.meta["val"])
            self.layouts[node] = None if dense_base or (dense and parts[-1] == 0) else parts
        parts = self.layouts[node]
        if parts is None:
            return None
        needed = set().union(*(getattr(p, "free_symbols", set()) for p in parts))
        if not needed <= symbols.keys():
            return None
        key = (node, tuple(symbols[s] for s in sorted(needed, key=lambda s: s.name)))
        if key not in self.placed:
            if len(self.placed) >= _SIZES_KEPT * max(len(self.outputs), 1):
                self.placed.clear()
            given = {s: sympy.Integer(symbols[s]) for s in needed}
            *strides, offset = (int(sympy.sympify(p).xreplace(given)) for p in parts)
            self.placed[key] = (tuple(strides), offset)
        return self.placed[key]


class Values:
    """The values of a run by node: tensors of torch, tensors on the device, or both."""

    def __init__(self, plan: Plan, host: dict[Node, Any]) -> None:
        self.plan = plan
        self.host = host
        self.device: dict[Node, Tensor] = {}
        self.symbols: dict[Any, int] = {}
        self.arguments = set(host)
        self.integers = {n: v for n, v in host.items() if isinstance(v, int)}
        # The offset in its memory of each viewed argument: torch does not guard on it, so each run reads it.
        self.argument_offsets = {n: host[argument].storage_offset() for n, argument in plan.viewed.items()}
        self.argument_layouts = {n: _without_elements(host[argument]) for n, argument in plan.viewed.items() if n is not argument}
        # Copied arguments with several elements at one address. In copies of them torch replaces all elements at an address, and
        # the graph may have been traced for other strides.
        self.overlapping = {n for n in plan.copied if _fx.overlaps(host[n])}

    def drop(self, node: Node) -> None:
        self.host.pop(node, None)
        self.device.pop(node, None)

    def on_device(self, node: Node) -> Tensor:
        """The value of a node on the device, which a program reads. It is uploaded if only the host has it."""
        if node in self.device:
            return self.device[node]
        plan, resident, given = self.plan, self.plan.resident, self.host[node]
        on_device = ON_DEVICE.get(given.device.type)
        if on_device is not None:
            self.device[node] = on_device.held(given)
            return self.device[node]
        trust = plan.settings.trust
        argument = node in self.arguments
        # Only parameters, and in backward passes saved values, are looked up among the copies on the device: other inputs are
        # usually new.
        known = argument and (plan.backward or node in plan.fixed)
        copy = resident.find(given, trust) if known else None
        if copy is None:
            copy = resident.upload(given)
            STATISTICS.uploads += 1
            if node in plan.fixed or (argument and node in plan.saved):
                resident.forget(plan.sent.pop(node, None))
                plan.sent[node] = resident.keep(given, copy, trust)
        self.device[node] = copy
        return copy

    def on_host(self, node: Node) -> Any:
        """The value of a node on the host, which an operator of torch reads or the graph returns. It is downloaded if only the
        device has it."""
        if node in self.host:
            value = self.host[node]
            on_device = isinstance(value, torch.Tensor) and value.device.type in ON_DEVICE
            held = self.plan.resident.held_by(value) if node in self.arguments and not on_device else None
            if held is None:
                return value
            self.device[node] = held
        elif node.op == "get_attr":
            return self.plan.attributes[node.target]
        kind = node.meta["val"]
        if kind.device.type in ON_DEVICE:
            made = ON_DEVICE[kind.device.type].tensor(self.device[node], kind.dtype)
            value = self.host[node] = _fx.in_order(made, self.plan.order(node))
            return value
        value = self.device[node].torch()
        STATISTICS.downloads += 1
        if kind.is_complex():
            value = torch.view_as_complex(value)
        value = _fx.in_order(value.to(kind.dtype), self.plan.order(node)).to(kind.device)
        self.host[node] = value
        return value

    def output(self, node: Node) -> Any:
        """A result of the graph. A value that only the backward graph reads stays on the device, with a stand-in for torch."""
        device = self.device.get(node)
        if device is not None and node.meta["val"].device.type in ON_DEVICE:
            return self.laid_out(node, self.on_host(node))
        if node not in self.plan.held or device is None:
            value = self.laid_out(node, self.on_host(node))
            if node in self.plan.saved and device is not None and node not in self.arguments:
                self.plan.resident.keep(value, device, self.plan.settings.trust)
            return value
        known = node in self.host and node not in self.plan.shared
        if known or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            return self.on_host(node)
        return self.plan.resident.stand_in(device, node.meta["val"])

    def laid_out(self, node: Node, value: Any) -> Any:
        """A result with the strides and the offset that the graph states, from which torch makes views of an input or of another
        result."""
        if self.plan.backward or not self.plan.is_recomputed(node):
            return value
        layout = self.plan.layout(node, self.symbols)
        base, renewed = _partition.memory_of(node), node
        while renewed not in self.argument_layouts and renewed is not base:
            renewed = renewed.args[0]
        if renewed in self.argument_layouts:
            seen = self._seen_in(node, renewed)
            behind = self.argument_offsets[renewed] if _fx.offsets_are_from_the_base() else 0
            made = self.host[node] = _fx.laid_out(value, seen.stride(), seen.storage_offset() - behind)
            return made
        if layout is None:
            return value
        strides, offset = layout
        traced = self.plan.layout(base, self.symbols) if base is not node else None
        behind = offset - (0 if traced is None else traced[1])
        if _fx.offsets_are_from_the_base():
            offset = behind
        elif base in self.argument_offsets:
            offset = behind + self.argument_offsets[base]
        made = self.host[node] = _fx.laid_out(value, strides, offset)
        return made

    def _seen_in(self, node: Node, renewed: Node) -> Any:
        """Replays on the argument, on the ``meta`` device, the view that ``node`` is of the argument's new value ``renewed``."""
        if node is renewed:
            return self.argument_layouts[renewed]
        of = self._seen_in(node.args[0], renewed)
        args, kwargs = map_arg((node.args[1:], node.kwargs), lambda n: self.integers[n] if n in self.integers else self.on_host(n))
        return node.target(of, *args, **kwargs)

    def in_memory(self, node: Node) -> Any:
        """The value of a node with its stated strides and offset, for operators that depend on these or make views."""
        value = self.on_host(node)
        layout = self.plan.layout(node, self.symbols) if node in self.plan.made else None
        if layout is not None:
            # The value is kept, so that views of it which are results share its memory.
            value = self.host[node] = _fx.laid_out(value, *layout)
        return value


class Operator:
    """An operator that torch computes."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.reads = node.all_input_nodes
        # Symbols for sizes that this operator determines during the run.
        self.symbols = _fx.places([node])

    def run(self, values: Values) -> None:
        target = self.node.target
        in_memory = target in _partition.STRIDED or target in _partition.SCATTERS or getattr(target, "is_view", False)
        read = values.in_memory if in_memory else values.on_host
        args, kwargs = torch.fx.map_arg((self.node.args, self.node.kwargs), read)
        made = values.host[self.node] = _as_said(self.node.target(*args, **kwargs), self.node.meta.get("val"))
        for symbol, _, axis in self.symbols:
            values.symbols[symbol] = _size(made, axis)


def _without_elements(value: torch.Tensor) -> torch.Tensor:
    """A tensor on the ``meta`` device, which stores no elements, with the shape, strides and offset of another."""
    reach = value.storage_offset() + sum((n - 1) * s for n, s in zip(value.shape, value.stride())) + 1
    whole = torch.empty(reach if value.numel() else value.storage_offset(), dtype=value.dtype, device="meta")
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())


def _repeats(value: Any) -> bool:
    """Whether a tensor has an expanded axis: one of stride 0 whose extent is not 1."""
    return isinstance(value, torch.Tensor) and any(s == 0 and n != 1 for s, n in zip(map(_fx.expression, value.stride()), value.shape))


def _as_said(made: Any, kind: Any) -> Any:
    """Converts results to the types that the graph states, which some operators on narrow types do not return."""
    if isinstance(made, (list, tuple)) and isinstance(kind, (list, tuple)):
        return type(made)(map(_as_said, made, kind))
    if isinstance(made, torch.Tensor) and isinstance(kind, torch.Tensor) and made.dtype != kind.dtype:
        return made.to(kind.dtype)
    return made


class Computed:
    """A part of the graph that a program computes."""

    def __init__(self, part: _partition.Part, executor: Executor) -> None:
        self.executor = executor
        self.part = part
        self.outputs = part.outputs
        tensors = [(i, n) for i, n in enumerate(part.inputs) if isinstance(n.meta["val"], torch.Tensor)]
        self.order = [p.name for p in executor.inputs]
        used = set(self.order)
        self.inputs = [(f"input_{i}", n) for i, n in tensors if f"input_{i}" in used]
        self.carriers = [(f"size_{i}", s) for i, s in enumerate(_fx.carriers(part.module)) if f"size_{i}" in used]
        of = dict(zip([n for n in part.module.graph.nodes if n.op == "placeholder"], part.inputs))
        numbers = _fx.numbers(part.module)
        lists = [("integers", torch.int64, numbers.integers), ("floats", torch.float32, numbers.floats)]
        self.numbers = [(name, dtype, [of[n] for n in nodes]) for name, dtype, nodes in lists if name in used]
        self.copied = _partition.copied(part.origin.values())
        self.reads = list(dict.fromkeys(part.inputs))
        self.told = False

    def run(self, values: Values) -> None:
        sizes = {name: values.symbols[symbol] for name, symbol in self.carriers}
        if not all(0 <= n < 1 << 31 for n in sizes.values()):
            known = ", ".join(str(values.symbols[s]) for _, s in self.carriers)
            return self._in_torch(values, f"the numbers {known} are not in 0..2^31")
        if not self.copied.isdisjoint(values.overlapping):
            return self._in_torch(values, "an argument of which several elements are at one place in memory")
        given: dict[str, Any] = {name: values.on_device(node) for name, node in self.inputs}
        for name, size in sizes.items():
            given[name] = torch.empty(size, 0, dtype=torch.uint8)
        for name, dtype, nodes in self.numbers:
            given[name] = torch.tensor([values.on_host(n) for n in nodes], dtype=dtype)
        try:
            made = self.executor.call([given.get(name) for name in self.order])
        except ModelError as e:
            # Torch's guards may admit sizes that the program excludes, for example if it was compiled for tall matrices.
            if values.plan.settings.fullgraph:
                raise
            return self._in_torch(values, f"its program does not support these sizes: {e.diagnostics[0].message}")
        values.device.update(zip(self.outputs, made))

    def _in_torch(self, values: Values, why: str) -> None:
        """Computes the part in torch, for a run that its program cannot do. ``why`` is told in a warning, once for each part."""
        if not self.told:
            self.told = True
            warnings.warn(f"torch computes a part of the graph for {why}", FallbackWarning, stacklevel=2)
        made = self.part.module(*[values.on_host(n) for n in self.part.inputs])
        values.host.update(zip(self.outputs, made))


class Direct:
    """The runs of a graph that one program computes, whose tensors are all on a device of torch and whose sizes are constants: its
    arguments are the inputs of the program, and the outputs of the program its results."""

    def __init__(
        self, executor: Executor, device: Any, inputs: list[int], fixed: list[bool], results: list[Any], written: list[int]
    ) -> None:
        self.executor = executor
        self.memory = device.Memory([f or i in written for i, f in zip(inputs, fixed)])
        self.device = device
        self.inputs = inputs
        """The position of the argument that is each input."""
        self.written = [(w, inputs.index(w), r) for w, r in zip(written, results)]
        """The positions of arguments, their numbers as inputs, and the ``_Output`` that is the new value of each."""
        self.results = results[len(written) :]
        """For each result a constant, or an ``_Argument`` or ``_Output``."""

    @classmethod
    def of(cls, plan: Plan) -> Optional["Direct"]:
        """``None`` if runs of the graph take more than the program."""
        if len(plan.steps) != 1 or not isinstance(plan.steps[0], Computed) or plan.symbols or plan.sizes:
            return None
        step, position = plan.steps[0], {n: i for i, n in enumerate(plan.arguments)}
        named = dict(step.inputs)
        given = [named[name] for name in step.order if name in named]
        results = [o for o in plan.outputs if isinstance(o, Node)]
        kinds = {n.meta["val"].device.type for n in (*given, *results) if isinstance(n.meta["val"], torch.Tensor)}
        devices = {ON_DEVICE.get(kind) for kind in kinds}
        if len(devices) != 1 or None in devices or len(given) != len(step.order) or any(n not in position for n in given):
            return None
        if plan.viewed or not step.copied.isdisjoint(plan.copied):
            return None
        found: list[Any] = []
        for node in plan.outputs:
            if not isinstance(node, Node):
                found.append(node)
            elif node in position:
                found.append(_Argument(position[node]))
            elif node in step.outputs and plan.order(node) is None and (plan.backward or plan.layout(node, {}) is None):
                found.append(_Output(step.outputs.index(node), node.meta["val"].dtype))
            else:
                return None
        fixed = [n in plan.fixed for n in given]
        inputs, new = [position[n] for n in given], found[: len(plan.written)]
        if any(type(r) is not _Output for r in new) or any(w not in inputs for w in plan.written):
            return None
        return cls(step.executor, devices.pop(), inputs, fixed, found, plan.written)

    def run(self, arguments: list[Any]) -> list[Any]:
        """Computes the graph, and clears the list of arguments."""
        given = self.memory.read([arguments[i] for i in self.inputs])
        kept = {r.position: arguments[r.position] for r in self.results if type(r) is _Argument}
        replaced = [arguments[i] for i, _, _ in self.written]
        arguments.clear()
        made, tensor = self.executor.call(given), self.device.tensor
        for argument, (_, i, output) in zip(replaced, self.written):
            self.memory.write(i, argument, made[output.index], output.dtype)
        return [
            tensor(made[r.index], r.dtype) if type(r) is _Output else kept[r.position] if type(r) is _Argument else r
            for r in self.results
        ]


class _Argument(NamedTuple):
    """A result that is an argument."""

    position: int


class _Output(NamedTuple):
    """A result that is an output of the program."""

    index: int
    dtype: torch.dtype


def _copy(graph: Graph) -> Graph:
    made = Graph()
    copied: dict[Node, Node] = {}
    out = made.graph_copy(graph, copied)
    made.output(out)
    return made


def _size(value: Any, place: Any) -> Any:
    """The number at a place as ``_fx.places`` returns it: an extent, a stride, an offset or the value itself."""
    if isinstance(place, tuple):
        return int(value.stride(place[1]) if place[0] == "stride" else value.storage_offset())
    if place is None and isinstance(value, float):
        return value
    return int(value if place is None else value.shape[place])


def _location(node: Node) -> Location:
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    source = None
    if len(lines) >= 2 and lines[-2].lstrip().startswith("File "):
        source = f"{lines[-2].strip()}: {lines[-1].strip()}"
    return Location(node=node.name, operator=_partition.name(node), source=source)


def _refused(part: _partition.Part, diagnostics: list[Diagnostic]) -> dict[Node, Diagnostic]:
    """The nodes of a part that the diagnostics name. If none is named, the nodes that call inner graphs, or else all nodes."""
    nodes = [n for n in part.origin.values() if n.op == "call_function"]
    found: dict[Node, Diagnostic] = {}
    for d in diagnostics:
        node = part.origin.get(d.location.node or "")
        if node is not None and node.op == "call_function":
            found[node] = d
            operator = d.message.startswith("operator ")
            found.update({n: d for n in nodes if operator and n.target == node.target})
    # A diagnostic of a node in an inner graph counts for the nodes that call inner graphs.
    takers = [n for n in nodes if _fx.inner(n)]
    return found or {n: diagnostics[0] for n in takers or nodes}


def _tell(stay: list[tuple[Node, Diagnostic]], fullgraph: bool) -> None:
    """Reports the nodes that stay in torch: as an error with ``fullgraph``, otherwise as a warning, once per operator in a
    process."""
    if fullgraph and stay:
        raise UnsupportedError([dataclasses.replace(d, location=_location(n)) for n, d in stay])
    for node, d in stay:
        name = _partition.name(node)
        if name not in _WARNED:
            _WARNED.add(name)
            source = _location(node).source
            where = f", at {source}" if source else ""
            warnings.warn(f"{name} stays in torch: {d.message}{where}", FallbackWarning, stacklevel=2)
