"""Programs of traces: a trace is compiled once, and run again when the same operators are recorded on the same geometries.

Where an equal trace is recorded on other sizes, a second program is compiled in which the sizes that differ are symbols.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import os
import warnings
from typing import Any, Iterator, Optional, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from wgfc import _fx
from wgfc._compile import compile
from wgfc._errors import DeviceError, Error, ModelError
from wgfc._resident import EXECUTORS, Executor
from wgfc._wgfc import Session
from wgfc._wgfc import Tensor as Held
from wgfc.torch import _graph, _memory, _record, _sizes
from wgfc.torch._memory import Buffer, buffer_of
from wgfc.torch._record import State, Trace, mapped
from wgfc.torch._sizes import Fit, Shape
from wgfc.torch._surface import MODULE
from wgfc.torch._views import Geometry


class FallbackWarning(UserWarning):
    """An operator that ran on the CPU."""


@dataclasses.dataclass
class Cut:
    """A trace that was run, as ``torch.webgpu.trace()`` reports it."""

    why: str
    """The reason for which it was cut."""
    operators: int
    """The number of recorded operators."""
    parts: int
    """The number of programs, and of operators on the CPU, that computed it."""
    dispatches: int
    """The number of kernels that the programs run."""
    compiled: bool
    """Whether it was compiled; ``False`` if an equal trace had been run before."""
    places: list[Any] = dataclasses.field(repr=False)
    overloads: list[Any] = dataclasses.field(repr=False)

    @property
    def lines(self) -> list[Optional[tuple[str, int]]]:
        """The file and line that recorded each operator. For those of the backward pass, the line of the forward pass with
        ``torch.autograd.set_detect_anomaly(True)``, else ``None``."""
        return [_record.line(p) for p in self.places]

    @property
    def names(self) -> list[str]:
        """The operators."""
        return [str(o) for o in self.overloads]


@dataclasses.dataclass
class Statistics:
    """Counts of the recorder's work in this process."""

    operators: int = 0
    runs: int = 0
    compiled: int = 0
    on_host: dict[str, int] = dataclasses.field(default_factory=dict)
    """Calls of operators that ran on the CPU, by name."""
    uploaded: int = 0
    """Bytes copied to the device."""
    downloaded: int = 0
    """Bytes copied from the device."""


STATISTICS = Statistics()
CUTS: list[Cut] = MODULE.cuts
_STRICT = os.environ.get("WGFC_TORCH_STRICT", "") not in ("", "0")


class _Constant(Exception):
    """Sizes cannot be symbols in a program."""


class Program:
    """The parts that compute a trace: programs on the device, and operators that run on the CPU."""

    def __init__(
        self, trace: Trace, alive: frozenset[int], unset: frozenset[int], fit: Fit, base: Optional["Program"] = None
    ) -> None:
        """``fit`` has the sizes of the trace as symbols, or none. ``base`` is the program of equal operators for constant sizes."""
        self.steps = list(trace.steps)
        self.places = trace.places
        self.unset = unset
        self.fit = fit
        self.base = base
        written = {n for s in self.steps for n in (*s.makes, *(s.reads[i] for i in s.spec.writes))}
        self.outputs = written & alive
        self.numbers = list(trace.numbers if base is None else base.numbers)
        words = (w for s in self.steps for w in s.spec.key if _record.is_number(w))
        seeds = [i for i, w in enumerate(words) if w is _record.SEED]
        self.is_lifted = set(seeds if base is None else base.is_lifted)
        """The positions of numbers that are inputs of the program."""
        self.refused: set[int] = set() if base is None else set(base.refused)
        self.parts: Optional[list[Any]] = None

    def accepts(self, values: Sequence[int]) -> bool:
        """Whether the program is right for these values of the symbols."""
        return all(p.condition(*values) for p in self.parts or () if isinstance(p, Compiled))

    def changed(self, trace: Trace) -> list[int]:
        """The positions of numbers that the program holds as constants and the trace has other ones for."""
        lifted = self.is_lifted
        pairs = enumerate(zip(self.numbers, trace.numbers))
        return [i for i, (a, b) in pairs if i not in lifted and (a != b or math.copysign(1, a) != math.copysign(1, b))]

    def prepare(self, trace: Trace, shapes: Sequence[Shape], values: Sequence[int]) -> None:
        """Compiles the program, unless it is compiled and holds no other number as a constant than the trace has."""
        changed = self.changed(trace)
        if changed:
            self.is_lifted.update(changed)
            self.parts = None
        while self.parts is None:
            self.numbers = list(trace.numbers)
            self.parts = self._build(shapes, values)

    def run(self, trace: Trace, values: Sequence[int]) -> None:
        for part in self.parts or ():
            part.run(trace, values)

    def _build(self, shapes: Sequence[Shape], values: Sequence[int]) -> Optional[list[Any]]:
        """The parts; ``None`` if a step was refused that was not known to be."""
        ranges: list[tuple[int, int]] = []
        start = 0
        for i in sorted(self.refused) + [len(self.steps)]:
            if start < i:
                ranges.append((start, i))
            if i < len(self.steps):
                ranges.append((i, i + 1))
            start = i + 1
        places = list(itertools.accumulate((sum(map(_record.is_number, s.spec.key)) for s in self.steps), initial=0))
        sized = [_sizes.sized(s, numbers) for s, numbers in zip(shapes, self.fit.steps)]
        parts: list[Any] = []
        unset = set(self.unset)
        for first, last in ranges:
            steps = self.steps[first:last]
            written = {n for s in steps for n in (*s.makes, *(s.reads[i] for i in s.spec.writes))}
            later = {n for s in self.steps[last:] for n in s.reads}
            wanted = sorted(written & (self.outputs | later))
            at = range(places[first], places[last])
            if first in self.refused:
                parts.append(OnHost(first, at))
            elif wanted:
                lifted = [i - at.start for i in at if i in self.is_lifted]
                try:
                    numbers = self.numbers[at.start : at.stop]
                    graph = _graph.build(steps, sized[first:last], values, wanted, unset, numbers, lifted)
                    if graph.condition is None:
                        raise _Constant
                    parts.append(Compiled(graph, at.start))
                except _Constant:
                    raise
                except _graph.Refused as e:
                    self._refuse({first + e.step}, e.why)
                    return None
                except DeviceError:
                    raise
                except Error as e:
                    named = {graph.origin[n] for d in e.diagnostics if (n := d.location.node or "") in graph.origin}
                    operators = {steps[i].spec.operator for i in named}
                    same = {i for i, s in enumerate(steps) if s.spec.operator in operators}
                    self._refuse({first + i for i in same or range(len(steps))}, e.diagnostics[0].message)
                    return None
                except Exception as e:
                    # Torch's tracer and serializer raise exceptions of many types for graphs that they cannot represent.
                    self._refuse(set(range(first, last)), f"{type(e).__name__}: {e}")
                    return None
            unset -= written
        return parts

    def _refuse(self, steps: set[int], why: str) -> None:
        if self.base is not None:
            # The program with constant sizes computes these steps on the device.
            raise _Constant(why)
        if steps <= self.refused:
            raise RuntimeError(f"webgpu: a part of the recorded operators could not be compiled: {why}")
        self.refused |= steps
        for i in sorted(steps):
            tell(self.steps[i].spec.operator, why, _record.line(self.places[i]))


_WARNED: set[str] = set()


def tell(operator: Any, why: str, line: Optional[tuple[str, int]]) -> None:
    """Warns, once per operator, that it runs on the CPU; an exception with ``WGFC_TORCH_STRICT``."""
    name = str(operator)
    where = f", at {line[0]}:{line[1]}" if line else ""
    message = f"{name} runs on the CPU, and its tensors are copied there and back: {why}{where}"
    if _STRICT:
        raise NotImplementedError(message)
    if name not in _WARNED:
        _WARNED.add(name)
        warnings.warn(message, FallbackWarning, stacklevel=3)


@dataclasses.dataclass(frozen=True)
class _Symbol:
    """An input of a program without elements, whose extent is the value of a symbol."""

    index: int


class Compiled:
    """A part of a trace that a program on the device computes."""

    def __init__(self, graph: _graph.Graph, start: int) -> None:
        self.start = start
        self.inputs = graph.inputs
        self.lifted = graph.lifted
        placeholders = [n for n in graph.module.graph.nodes if n.op == "placeholder"]
        position = {n: i for i, n in enumerate(placeholders)}
        before = len(graph.symbols) + len(self.lifted)
        self.condition = graph.condition
        results = list(dict.fromkeys(n for _, n in graph.outputs if n.op != "placeholder"))
        self.targets = [
            (b, ("input", position[n] - before) if n.op == "placeholder" else ("result", results.index(n)))
            for b, n in graph.outputs
        ]
        self.executor: Optional[Executor] = None
        self.dispatches = 0
        if results:
            program = compile(_fx.archive(graph.module, results))
            self.dispatches = program.dispatches
            STATISTICS.compiled += 1
            self.executor = Executor(program)
            numbers, carriers = _fx.numbers(graph.module), _fx.carriers(graph.module)
            places = {"integers": numbers.integers, "floats": numbers.floats}
            self.lists = {name: [position[n] for n in nodes] for name, nodes in places.items()}
            self.order: list[Any] = []
            """The inputs of the program: positions of tensors, symbols, or names."""
            for port in self.executor.inputs:
                kind, _, index = port.name.partition("_")
                if kind == "input":
                    self.order.append(int(index) - before)
                elif kind == "size":
                    self.order.append(_Symbol(graph.symbols.index(str(carriers[int(index)]))))
                else:
                    self.order.append(port.name)

    def run(self, trace: Trace, values: Sequence[int]) -> None:
        buffers, numbers = trace.buffers, trace.numbers
        held = [
            _memory.contents(buffers[n], dtype, tuple(_sizes.value(e, values) for e in shape) if values else shape)
            for n, dtype, shape in self.inputs
        ]
        made: list[Held] = []
        if self.executor is not None:
            given: list[Any] = []
            for place in self.order:
                if isinstance(place, int):
                    given.append(held[place])
                elif isinstance(place, _Symbol):
                    given.append(torch.empty(values[place.index], 0, dtype=torch.uint8))
                else:
                    count = len(values)
                    own = [values[i] if i < count else numbers[self.start + self.lifted[i - count]] for i in self.lists[place]]
                    given.append(np.array(own, np.int64 if place == "integers" else np.float32))
            made = self.executor.call(given)
            STATISTICS.runs += 1
        for n, (kind, i) in self.targets:
            buffers[n].fill(held[i] if kind == "input" else made[i])


class OnHost:
    """A recorded operator that torch computes on the CPU."""

    def __init__(self, index: int, places: range) -> None:
        self.index, self.places = index, places

    def run(self, trace: Trace, values: Sequence[int]) -> None:
        step, buffers = trace.steps[self.index], trace.buffers
        slots, own = iter(step.reads), iter([trace.numbers[i] for i in self.places])
        memory: dict[int, torch.UntypedStorage] = {}

        def tensor(view: Geometry) -> Tensor:
            n = next(slots)
            if n not in memory:
                memory[n] = downloaded(buffers[n])
            return torch.empty(0, dtype=view.dtype).set_(memory[n], view.offset, view.sizes, view.strides)

        args, kwargs = _record.arguments(step.spec.key, tensor, lambda word: _record.as_given(word, next(own)))
        seed = kwargs.pop(_record.SEEDED, None)
        with torch.no_grad(), _seeded(step.spec.operator, kwargs, seed):
            made = step.spec.operator(*args, **kwargs)
        count(step.spec.operator)
        for i in step.spec.writes:
            n = step.reads[i]
            buffers[n].fill(uploaded(memory[n]))
        makes = iter(step.makes)
        for r, m in zip(step.spec.results, [made] if isinstance(made, Tensor) else made or ()):
            if type(r) is _record.New:
                of = torch.UntypedStorage(r.nbytes)
                if m.numel() and r.nbytes:
                    torch.empty(0, dtype=r.geometry.dtype).set_(of, 0, r.geometry.sizes, r.geometry.strides).copy_(m)
                buffers[next(makes)].fill(uploaded(of))


def count(operator: Any) -> None:
    name = str(operator)
    STATISTICS.on_host[name] = STATISTICS.on_host.get(name, 0) + 1


_LARGE = 1 << 28
"""The size in bytes from which on buffers are compared with the limits of the device."""


def downloaded(buffer: Buffer) -> torch.UntypedStorage:
    """A copy of a buffer's contents on the CPU. The trace must not write to it."""
    if buffer.error is not None:
        _memory.contents(buffer, torch.uint8, (buffer.nbytes,))
    if buffer.held is None or not buffer.nbytes:
        if buffer.nbytes >= _LARGE and (error := _memory.exhausted([buffer])) is not None:
            raise error
        return torch.zeros(buffer.nbytes, dtype=torch.uint8).untyped_storage()
    STATISTICS.downloaded += buffer.nbytes
    return buffer.held.view("uint8", [buffer.nbytes]).torch().untyped_storage()


def uploaded(of: torch.UntypedStorage) -> Optional[Held]:
    """A copy of a storage of the CPU on the device."""
    if not of.nbytes():
        return None
    STATISTICS.uploaded += of.nbytes()
    return Held(torch.empty(0, dtype=torch.uint8).set_(of))


class _Family:
    """The programs of traces of one form."""

    def __init__(self, sample: list[Shape], program: Program) -> None:
        self.samples = [sample]
        self.program = program
        """The program of the first trace, for constant sizes."""
        self.sized: list[Program] = []
        """Programs for symbolic sizes."""
        self.constant = False
        """Whether sizes cannot be symbols."""


_KEPT = 4096
"""The number of programs that are kept, and of forms. Of operators with their arguments 16 times as many are."""
_PROGRAMS: "collections.OrderedDict[Any, tuple[Program, tuple[int, ...]]]" = collections.OrderedDict()
"""By trace, the program and the values of its symbols."""
_FAMILIES: "collections.OrderedDict[Any, _Family]" = collections.OrderedDict()
_TRIES = 4
"""The number of programs with symbols that are tried for a form."""


def _program(trace: Trace, key: Any, alive: frozenset[int], unset: frozenset[int]) -> tuple[Program, tuple[int, ...]]:
    """The program that computes a trace, compiled, and the values of its symbols."""
    program, values = _PROGRAMS.get(key, (None, ()))
    if program is not None and not program.changed(trace):
        return program, values
    shapes = _shapes(trace)
    if program is not None:
        program.prepare(trace, shapes, values)
        return program, values
    form = (tuple((s.form, t.reads, t.makes) for s, t in zip(shapes, trace.steps)), alive, unset)
    family = _FAMILIES.get(form)
    if family is not None:
        _FAMILIES.move_to_end(form)
    for sized in family.sized if family else ():
        found = sized.fit.values(shapes)
        if found is not None and sized.accepts(found):
            sized.prepare(trace, shapes, found)
            return sized, found
    if family is not None and not family.constant and len(family.sized) < _TRIES:
        fit = Fit([*family.samples, shapes])
        values = fit.values(shapes) or ()
        sized = Program(trace, alive, unset, fit, family.program)
        try:
            sized.prepare(trace, shapes, values)
            family.samples.append(shapes)
            family.sized.append(sized)
            return sized, values
        except _Constant:
            family.constant = True
    program = _constant(trace, shapes, alive, unset)
    if family is None:
        _FAMILIES[form] = _Family(shapes, program)
    return program, ()


def _shapes(trace: Trace) -> list[Shape]:
    return _sizes.shapes(trace.steps, [b.nbytes for b in trace.buffers])


def _constant(trace: Trace, shapes: list[Shape], alive: frozenset[int], unset: frozenset[int]) -> Program:
    """The program for the sizes of a trace alone."""
    program = Program(trace, alive, unset, Fit([shapes]))
    program.prepare(trace, shapes, ())
    return program


def run(trace: Trace, why: str) -> None:
    """Runs a trace that was cut."""
    # Buffers with a number are read by the operators that were recorded after the cut.
    alive = frozenset(i for i, b in enumerate(trace.buffers) if b.alive or b.number >= 0)
    unset = frozenset(i for i, b in enumerate(trace.buffers) if b.held is None and b.error is None)
    key = (tuple(trace.steps), alive, unset)
    before = STATISTICS.compiled
    STATISTICS.operators += len(trace.steps)
    program, values = _program(trace, key, alive, unset)
    _PROGRAMS[key] = program, values
    _PROGRAMS.move_to_end(key)
    try:
        program.run(trace, values)
    except ModelError:
        if not values:
            raise
        # Kernels can exclude sizes that torch admits, for example if they were chosen for tall matrices.
        program = _constant(trace, _shapes(trace), alive, unset)
        _PROGRAMS[key] = program, ()
        program.run(trace, ())
    except DeviceError as e:
        raise _memory.exhausted(trace.buffers, e) or e
    parts = program.parts or ()
    dispatches = sum(p.dispatches for p in parts if isinstance(p, Compiled))
    overloads = [s.spec.operator for s in trace.steps]
    CUTS.append(Cut(why, len(trace.steps), len(parts), dispatches, STATISTICS.compiled > before, trace.places, overloads))
    del CUTS[:-64]
    for kept in (_PROGRAMS, _FAMILIES):
        if len(kept) > _KEPT:
            kept.popitem(last=False)  # type: ignore[attr-defined]
    if len(State.specs) > 16 * _KEPT:
        # Programs and shapes are of specs, which are compared by identity.
        for kept in (State.specs, _PROGRAMS, _FAMILIES):
            kept.clear()
        _sizes.forget()


def _sessions() -> Iterator[Session]:
    """The sessions of programs for the device, those of compiled functions included."""
    sessions = (executor.session for executor in list(EXECUTORS) if executor.adapter is None)
    return (s for s in sessions if not s.is_lost)


def _wait() -> None:
    # All sessions share the device, and waiting for one waits for all runs.
    for session in itertools.islice(_sessions(), 1):
        session.wait()


def _trim() -> None:
    for session in _sessions():
        session.trim()


def _reserved() -> int:
    return sum(session.memory()["activations"] for session in _sessions())


def _stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Cuts the trace after a step of an optimizer, so that each step of a loop is one program, which runs while the next is
    recorded."""
    if any(p.device.type == "webgpu" for group in optimizer.param_groups for p in group["params"][:1]):
        _record.flush("optimizer")


register_optimizer_step_post_hook(_stepped)
State.run = staticmethod(run)  # type: ignore[assignment]
MODULE.wait, MODULE.trim, MODULE.reserved = _wait, _trim, _reserved
MODULE.usage, MODULE.reset_peaks = _memory.usage, _memory.reset_peaks


def mirror(x: Tensor) -> Tensor:
    """The tensor on the CPU, in memory that is a copy of its buffer."""
    return torch.empty(0, dtype=x.dtype).set_(downloaded(buffer_of(x)), x.storage_offset(), x.shape, x.stride())


@contextlib.contextmanager
def _seeded(operator: Any, kwargs: dict[str, Any], seed: Any) -> Iterator[None]:
    """A context in which an operator on the CPU draws its numbers from a seed, if there is one. The state of the CPU's generator,
    from which operators without the argument ``generator`` draw, is the same afterwards."""
    if seed is None:
        yield
    elif any(a.name == "generator" for a in operator._schema.arguments):
        kwargs["generator"] = torch.Generator().manual_seed(int(seed))
        yield
    else:
        state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(int(seed))
        try:
            yield
        finally:
            torch.default_generator.set_state(state)


def at_once(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs an operator on the CPU that cannot be recorded."""
    _record.flush(f"operator {operator}")
    moved: dict[int, tuple[Tensor, Tensor]] = {}
    memory: dict[int, torch.UntypedStorage] = {}

    def down(x: Any) -> Any:
        if isinstance(x, Tensor) and x.device.type == "webgpu":
            buffer = buffer_of(x)
            if id(buffer) not in memory:
                memory[id(buffer)] = downloaded(buffer)
            m = torch.empty(0, dtype=x.dtype).set_(memory[id(buffer)], x.storage_offset(), x.shape, x.stride())
            moved[id(m)] = (m, x)
            return m
        return torch.device("cpu") if isinstance(x, torch.device) else x

    named = {n: mapped(v, down) for n, v in kwargs.items()}
    if "device" in named:
        named["device"] = torch.device("cpu")
    seed = None
    if torch.Tag.nondeterministic_seeded in operator.tags:
        generator = kwargs.get("generator")
        seed = torch.empty((), dtype=torch.int64).random_(generator=MODULE.generator if generator is None else generator)
    with torch.no_grad(), _seeded(operator, named, seed):
        made = operator(*mapped(args, down), **named)
    count(operator)
    tell(operator, "its results' sizes depend on values, or torch describes them for the CPU only", _record.line(_record.place()))
    written = {id(x) for x, is_written in _record.passed(operator, args, kwargs) if is_written}
    for m, x in moved.values():
        if id(x) not in written:
            continue
        of, buffer = m.untyped_storage(), buffer_of(x)
        view = _memory.geometry(m)
        if view != _memory.geometry(x) or of.nbytes() > buffer.nbytes:
            _memory.placed(x, _memory.storage(of.nbytes(), uploaded(of)), view)
        else:
            buffer.fill(uploaded(of))
    own = {m.untyped_storage()._cdata: x for m, x in moved.values()}
    known: dict[int, torch.UntypedStorage] = {}

    def up(m: Any) -> Any:
        if isinstance(m, (list, tuple)):
            return type(m)(map(up, m))
        if not isinstance(m, Tensor):
            return m
        if id(m) in moved:
            return moved[id(m)][1]
        of = m.untyped_storage()
        if of._cdata in own:
            place = own[of._cdata].untyped_storage()
        else:
            place = known.setdefault(of._cdata, _memory.storage(of.nbytes(), uploaded(of)))
        return _memory.tensor(place, _memory.geometry(m))

    return up(made)


State.at_once = staticmethod(at_once)  # type: ignore[assignment]
