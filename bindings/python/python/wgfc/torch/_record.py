"""The recorder: operators on tensors of the device are written to a trace, which is cut and run when a value is needed."""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
import threading
from typing import Any, Callable, NamedTuple, Optional, Union

import torch
from torch import Tensor

from wgfc.torch import _memory
from wgfc.torch._memory import Buffer, buffer_of, geometry
from wgfc.torch._surface import MODULE
from wgfc.torch._views import Geometry

_ATEN = torch.ops.aten
LIMIT = 4096
"""The number of operators at which a trace is cut."""
LOCK = threading.RLock()
"""Held while a trace is changed: the backward pass runs in another thread."""


class Mark:
    """A word in the key of an operator."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


KEYWORD, LIST, TRUE, FALSE, INTEGER, FLOAT, SEED = map(Mark, ("keyword", "list", "True", "False", "integer", "float", "seed"))
_IGNORED = ("device", "pin_memory", "layout", "generator")
"""Keyword arguments that are the same for all tensors of the device, and the generator, from which a seed is drawn."""
SEEDED = "wgfc_seed"
"""The keyword argument in the key of an operator that draws random numbers: its seed."""


class Constant(NamedTuple):
    """A float in the key of an operator that no input of a program can replace."""

    value: float


class Same(NamedTuple):
    """A result that is an argument: the number of the tensor argument."""

    argument: int


class View(NamedTuple):
    """A result in the storage of an argument."""

    argument: int
    geometry: Geometry


class New(NamedTuple):
    """A result in a storage of its own."""

    geometry: Geometry
    nbytes: int


class Grow(NamedTuple):
    """A call that gives some of its tensor arguments other sizes, as torch does for results that are passed as ``out``: the number
    and the new geometry of each."""

    arguments: list[tuple[int, Geometry]]


class Spec:
    """An operator with its constants, and the geometries of its arguments and results. Specs are compared by identity."""

    __slots__ = ("key", "operator", "results", "form", "writes", "only_views")

    def __init__(self, key: tuple[Any, ...], results: list[Any], form: Any, writes: list[int]) -> None:
        self.key = key
        self.operator = key[0].operator
        self.results = results
        """For each result ``Same``, ``View``, ``New`` or ``None``."""
        self.form = form
        """``Tensor``, ``list`` or ``tuple`` for what the operator returns, ``None`` for nothing."""
        self.writes = writes
        """The numbers of the tensor arguments that the operator writes."""
        self.only_views = bool(results) and not writes and all(isinstance(r, View) for r in results)


class Step(NamedTuple):
    """A recorded operator: the numbers of the buffers of its tensor arguments and of its new results."""

    spec: Spec
    reads: tuple[int, ...]
    makes: tuple[int, ...]


class Trace:
    """Recorded operators that have not been run."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.buffers: list[Buffer] = []
        self.numbers: list[Any] = []
        """The numbers that are values of operators, in order."""
        self.places: list[Any] = []
        """The code and the instruction that recorded each operator."""


class State:
    """The recorder of this process."""

    trace = Trace()
    specs: dict[tuple[Any, ...], Any] = {}
    run: Callable[[Trace, str], None]
    at_once: Callable[..., Any]
    eager = os.environ.get("WGFC_TORCH", "lazy") == "eager"


_FOLDERS = tuple(os.path.join(os.path.dirname(f), "") for f in (torch.__file__, os.path.dirname(os.path.abspath(__file__))))
"""The folders of torch and of this package."""
_INTERNAL: dict[int, tuple[Any, bool]] = {}
"""Codes, and whether they are of these folders, by identity: the hash of a code is computed each time."""


_CODES = 1 << 16
"""The number of codes that are known at most, as torch.compile makes new ones."""


def place() -> Any:
    """The code and the instruction of the first frame outside of torch and of this package. In the backward pass, which has no such
    frame, the traceback of the forward operator if anomaly detection keeps one; else ``None``."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        known = _INTERNAL.get(id(code))
        if known is None:
            if len(_INTERNAL) >= _CODES:
                _INTERNAL.clear()
            known = _INTERNAL[id(code)] = code, code.co_filename.startswith(_FOLDERS)
        if not known[1]:
            return code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    if not torch.is_anomaly_enabled():
        return None
    node = torch._C._current_autograd_node()
    return None if node is None else node.metadata.get("traceback_")


_FRAME = re.compile(r'File "(.+)", line (\d+)')
"""A frame in a traceback that is text."""


def line(of: Any) -> Optional[tuple[str, int]]:
    """The file and line of a ``place``."""
    if of is None:
        return None
    if isinstance(of, list):
        frames = (m for text in reversed(of) if (m := _FRAME.search(text)) and not m[1].startswith(_FOLDERS))
        found = next(frames, None)
        return None if found is None else (found[1], int(found[2]))
    code, instruction = of
    lines = [n for first, last, n in code.co_lines() if first <= instruction < last and n is not None]
    return code.co_filename, lines[0] if lines else code.co_firstlineno


def _counts(operator: Any) -> bool:
    """Whether the numbers of an operator decide how many elements its result has."""
    return operator._schema.name in ("aten::arange", "aten::range")


@functools.cache
def _sizes(operator: Any) -> set[Any]:
    """The positions and names of arguments in which integers may depend on sizes."""

    def is_size(a: Any) -> bool:
        kind = a.real_type
        while kind.kind() in ("ListType", "OptionalType"):
            kind = kind.getElementType()
        return kind.kind() == "SymIntType" or (_counts(operator) and str(a.type) == "number")

    found = [(i, a.name) for i, a in enumerate(operator._schema.arguments) if is_size(a)]
    return {place for pair in found for place in pair}


_SETTINGS = ("float", "Optional[float]", "List[float]", "Optional[List[float]]")
"""The types of arguments in which floats are settings, such as the epsilon of a norm, rather than values."""


class _Signature:
    """The kinds of an operator's positional arguments. It stands for the operator in keys, as its hash is computed faster."""

    __slots__ = ("operator", "values", "tensors", "counts", "draws", "settings")

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        kinds = [str(a.type) for a in operator._schema.arguments]
        self.counts = _counts(operator)
        self.draws = torch.Tag.nondeterministic_seeded in operator.tags
        """Whether the operator draws random numbers."""
        self.values = {i for i, k in enumerate(kinds) if k in ("Tensor", "number", "Optional[number]")} - (
            set(range(len(kinds))) if self.counts else set()
        )
        """The positions in which a number is a value, rather than a size or an axis."""
        of_formula = operator._schema.name.startswith(("aten::_fused_", "aten::_amp_"))
        self.settings = {
            place
            for i, a in enumerate(operator._schema.arguments)
            if (self.counts and kinds[i] == "number") or (kinds[i] in _SETTINGS and not of_formula)
            for place in (i, a.name)
        }
        """The positions and names of floats that a program holds as constants."""
        self.tensors = {i for i, k in enumerate(kinds) if k == "Tensor" and self.for_numbers(operator, i) is not operator}
        """The positions of tensors in which the operator does not take a number."""

    @staticmethod
    def for_numbers(operator: Any, place: int) -> Any:
        """The overload for a number in the place of a tensor, if this one does not take it and there is one; else this one."""
        other = {"Tensor": "Scalar", "Tensor_": "Scalar_", "Tensor_Tensor": "Tensor_Scalar"}.get(operator._overloadname)
        packet = operator.overloadpacket
        if place == 0 or other not in packet.overloads():
            return operator
        given = [1.0 if i == place else torch.empty(1, device="meta") for i, a in enumerate(operator._schema.arguments)]
        try:
            operator(*given)
        except (RuntimeError, NotImplementedError) as e:
            if "Unable to cast" in str(e):
                return getattr(packet, other)
        return operator


_SIGNATURES: dict[Any, _Signature] = {}
_SEED = torch.empty((), dtype=torch.int64)


class _Call:
    """The key, tensors, buffers and numbers of the arguments of a call."""

    __slots__ = ("key", "tensors", "buffers", "numbers")

    def __init__(self, signature: _Signature) -> None:
        self.key: list[Any] = [signature]
        self.tensors: list[Tensor] = []
        self.buffers: list[Buffer] = []
        self.numbers: list[Any] = []

    def add(self, a: Any, is_setting: bool = False) -> None:
        """Adds an argument that is not an integer in the place of a value."""
        kind = type(a)
        if kind is Tensor or isinstance(a, Tensor):
            try:
                buffer = a.untyped_storage().handle.buffer
            except (AttributeError, NotImplementedError):
                return self._other(a)
            self.tensors.append(a)
            self.buffers.append(buffer)
            self.key.append((a.dtype, a.shape, a.stride(), a.storage_offset()))
        elif kind is float and is_setting:
            self.key.append(Constant(a))
        elif kind is float:
            self.numbers.append(a)
            self.key.append(FLOAT)
        elif kind is list or kind is tuple:
            self.key += (LIST, len(a))
            for v in a:
                self.add(v, is_setting)
        elif kind is bool:
            self.key.append(TRUE if a else FALSE)
        else:
            self.key.append(a)

    def _other(self, a: Tensor) -> None:
        """Adds a tensor whose storage has no handle."""
        if a.device.type == "webgpu":
            self.tensors.append(a)
            self.buffers.append(buffer_of(a))
            self.key.append((a.dtype, a.shape, a.stride(), a.storage_offset()))
        elif a.dim() == 0 and a.device.type == "cpu":
            # A tensor without axes on the CPU is allowed beside tensors of a device.
            self.key.append(("scalar", a.dtype))
            self.numbers.append(a.item())
        else:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, webgpu:0 and {a.device}!"
            )


def record(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Records an operator and returns tensors for its results. The operator runs at once, on the CPU, if its results cannot be
    described without its values."""
    signature = _SIGNATURES.get(operator)
    if signature is None:
        signature = _SIGNATURES[operator] = _Signature(operator)
    call = _Call(signature)
    key, add, values = call.key, call.add, signature.values
    with LOCK:
        for i, a in enumerate(args):
            kind = type(a)
            if kind is Tensor:
                add(a)
            elif kind is int or kind is float or kind is bool:
                if i in signature.tensors:
                    return record(_Signature.for_numbers(operator, i), *args, **kwargs)
                if kind is float and i in signature.settings:
                    key.append(Constant(a))
                elif kind is int and i in values:
                    call.numbers.append(a)
                    key.append(INTEGER)
                else:
                    add(a)
            elif a is None:
                key.append(None)
            else:
                add(a, i in signature.settings)
        for name, a in kwargs.items():
            if name not in _IGNORED:
                key += (KEYWORD, name)
                add(a, name in signature.settings)
        if signature.draws:
            key += (KEYWORD, SEEDED, SEED)
            generator = kwargs.get("generator")
            call.numbers.append(int(_SEED.random_(generator=MODULE.generator if generator is None else generator)))
        words = tuple(key)
        spec = State.specs.get(words)
        if spec is None:
            spec = State.specs[words] = infer(words, args, kwargs, call.tensors) or False
        if type(spec) is not Spec:
            if spec is False:
                return State.at_once(operator, args, kwargs)
            for i, view in spec.arguments:
                x, of = call.tensors[i], call.tensors[i].untyped_storage()
                need = _memory.bytes_needed(view)
                _memory.placed(x, of if need <= of.nbytes() else _memory.storage(need), view)
            return record(operator, *args, **kwargs)
        if spec.only_views:
            made: list[Any] = [_memory.viewed(call.tensors[r.argument], r.geometry) for r in spec.results]
            return made[0] if spec.form is Tensor else spec.form(made)
        trace = State.trace
        known, buffers = trace.buffers, call.buffers
        for b in buffers:
            if b.number < 0:
                b.number = len(known)
                known.append(b)
        made, makes = [], []
        for r in spec.results:
            if type(r) is New:
                x, buffer = _memory.made(r.geometry, r.nbytes)
                buffer.number = len(known)
                known.append(buffer)
                makes.append(buffer.number)
                made.append(x)
            elif type(r) is Same:
                made.append(call.tensors[r.argument])
            else:
                made.append(None if r is None else _memory.viewed(call.tensors[r.argument], r.geometry))
        for i in spec.writes:
            buffers[i].written = True
        steps = trace.steps
        steps.append(Step(spec, tuple([b.number for b in buffers]), tuple(makes)))
        trace.places.append(place())
        if call.numbers:
            trace.numbers += call.numbers
        if State.eager:
            flush("each operator")
        elif len(steps) >= LIMIT:
            flush("length", _last_beginning(steps))
        return made[0] if spec.form is Tensor else None if spec.form is None else spec.form(made)


_BEGINNING = 16
"""The number of operators by which the beginning of a trace is known again."""


def _last_beginning(steps: list[Step]) -> int:
    """The number of operators up to where the trace begins for the last time, if it repeats its beginning in its second half; else
    the number of all. A loop that needs no value is so cut at the same place each time, and the same programs run again."""
    specs = [s.spec for s in steps]
    first = specs[:_BEGINNING]
    for i in range(len(specs) - _BEGINNING, len(specs) // 2, -1):
        if specs[i] is first[0] and specs[i : i + _BEGINNING] == first:
            return i
    return len(specs)


def _split(trace: Trace, count: int) -> tuple[Trace, Trace]:
    """The first operators of a trace, and the others. The buffers have their numbers in the others."""
    first, rest = Trace(), Trace()
    lifted = sum(is_number(w) for s in trace.steps[:count] for w in s.spec.key)
    first.steps = trace.steps[:count]
    first.buffers = trace.buffers[: 1 + max((n for s in first.steps for n in (*s.reads, *s.makes)), default=-1)]
    first.numbers, rest.numbers = trace.numbers[:lifted], trace.numbers[lifted:]
    first.places, rest.places = trace.places[:count], trace.places[count:]

    def again(n: int) -> int:
        buffer = trace.buffers[n]
        if buffer.number < 0:
            buffer.number = len(rest.buffers)
            rest.buffers.append(buffer)
        return buffer.number

    rest.steps = [s._replace(reads=tuple(map(again, s.reads)), makes=tuple(map(again, s.makes))) for s in trace.steps[count:]]
    return first, rest


def flush(why: str, count: Optional[int] = None) -> None:
    """Cuts the trace, after its first ``count`` operators if that is given, and runs it. An exception leaves its message in the
    buffers that the run should have written."""
    with LOCK:
        trace = State.trace
        State.trace = Trace()
        for buffer in trace.buffers:
            buffer.number = -1
        if not trace.steps:
            return
        if count is not None and count < len(trace.steps):
            trace, State.trace = _split(trace, count)
        try:
            State.run(trace, why)
        except BaseException as e:
            if (lines := [at for p in (trace.places[0], trace.places[-1]) if (at := line(p)) is not None]) and hasattr(e, "add_note"):
                e.add_note("in operators recorded from " + " to ".join(f"{file}:{n}" for file, n in lines))
            for step in trace.steps:
                for n in (*step.makes, *(step.reads[i] for i in step.spec.writes)):
                    trace.buffers[n].error = e
            raise


MODULE.flush = flush


def is_number(word: Any) -> bool:
    """Whether a word in the key of an operator stands for one of the trace's numbers."""
    return word is INTEGER or word is FLOAT or word is SEED or (type(word) is tuple and word[0] == "scalar")


def arguments(
    key: tuple[Any, ...],
    tensor: Callable[[Geometry], Any],
    number: Callable[[Any], Any],
    size: Callable[[int], Any] = lambda n: n,
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an operator, given its key. In order, ``tensor`` is called for each tensor, ``number`` with the word of each
    of the trace's numbers, and ``size`` for each integer that may depend on sizes."""
    words, sizes = iter(key[1:]), _sizes(key[0].operator)

    def one(word: Any, place: Any) -> Any:
        if word is LIST:
            return [one(next(words), place) for _ in range(next(words))]
        if word is TRUE or word is FALSE:
            return word is TRUE
        if is_number(word):
            return number(word)
        if type(word) is Constant:
            return word.value
        if type(word) is tuple:
            return tensor(Geometry(word[0], tuple(word[1]), tuple(word[2]), word[3]))
        return size(word) if type(word) is int and place in sizes else word

    args, kwargs = [], {}
    for word in words:
        if word is KEYWORD:
            name = next(words)
            kwargs[name] = one(next(words), name)
        else:
            args.append(one(word, len(args)))
    if any(a.name == "device" for a in key[0].operator._schema.arguments):
        kwargs["device"] = torch.device("cpu")
    return args, kwargs


def as_given(word: Any, number: Any) -> Any:
    """The argument that a number of the trace was: the number, or a tensor without axes."""
    if word is INTEGER or word is FLOAT:
        return number
    return torch.full((), number, dtype=torch.int64 if word is SEED else word[1])


def mapped(x: Any, f: Callable[[Any], Any]) -> Any:
    """``x`` with ``f`` applied to the leaves of its lists."""
    return [mapped(v, f) for v in x] if isinstance(x, (list, tuple)) else f(x)


_STATISTICS = {_ATEN.native_batch_norm.default: ("running_mean", "running_var")}
"""Arguments that operators write although their schemas do not say so."""


def infer(key: tuple[Any, ...], args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> Union[Spec, Grow, None]:
    """The spec of a call, from the operator's meta kernel; ``None`` if results depend on values, or if there is no such kernel."""
    operator = key[0].operator
    if torch.Tag.dynamic_output_shape in operator.tags or torch.Tag.data_dependent_output in operator.tags:
        # An index by integers has a known number of elements, in contrast to one by a mask.
        if operator is not _ATEN.index.Tensor or any(t.dtype in (torch.bool, torch.uint8) for t in tensors[1:]):
            return None
    if any(t.is_complex() for t in tensors):
        return None
    metas: dict[int, tuple[Tensor, Tensor]] = {}
    bases: dict[int, torch.UntypedStorage] = {}

    def down(x: Any) -> Any:
        if isinstance(x, Tensor) and x.device.type == "webgpu":
            if id(x) not in metas:
                of = x.untyped_storage()
                base = bases.setdefault(of._cdata, torch.UntypedStorage(of.nbytes(), device="meta"))
                m = torch.empty(0, dtype=x.dtype, device="meta").set_(base, x.storage_offset(), x.shape, x.stride())
                metas[id(x)] = (m, x)
            return metas[id(x)][0]
        if isinstance(x, torch._C.Generator):
            return None
        return torch.device("meta") if isinstance(x, torch.device) else x

    named = {n: mapped(v, down) for n, v in kwargs.items()}
    if any(a.name == "device" for a in operator._schema.arguments) and ("device" in named or not tensors):
        named["device"] = torch.device("meta")
    try:
        with torch.no_grad():
            made = operator(*mapped(args, down), **named)
    except NotImplementedError:
        if operator._schema.returns:
            return None
        # Without results there is nothing to infer: the fused optimizers only write to their arguments.
        made = None
    except RuntimeError:
        # The CPU's kernel computes the results, or raises the exception of arguments that do not fit.
        return None
    is_written = {id(x): w for x, w in passed(operator, args, kwargs)}
    grown = {id(t): geometry(m) for m, t in metas.values() if m.shape != t.shape or m.stride() != t.stride()}
    if any(not is_written.get(t) for t in grown):
        return None
    if grown:
        return Grow([(i, grown[id(t)]) for i, t in enumerate(tensors) if id(t) in grown])
    position = {id(metas[id(t)][0]): i for i, t in reversed(list(enumerate(tensors)))}
    own = {b._cdata: c for c, b in bases.items()}
    first = {t.untyped_storage()._cdata: i for i, t in reversed(list(enumerate(tensors)))}
    results: list[Any] = []
    for m in [made] if isinstance(made, Tensor) else made or ():
        if m is None:
            results.append(None)
        elif not isinstance(m, Tensor) or m.is_complex():
            return None
        elif id(m) in position:
            results.append(Same(position[id(m)]))
        elif (c := own.get(m.untyped_storage()._cdata)) is not None:
            results.append(View(first[c], geometry(m)))
        else:
            g = geometry(m)
            _memory.refuse_lacking(g.dtype)
            results.append(New(g, _memory.bytes_needed(g)))
    form = Tensor if isinstance(made, Tensor) else None if made is None else tuple if isinstance(made, tuple) else list
    return Spec(key, results, form, [i for i, (_, written) in enumerate(passed(operator, args, kwargs)) if written])


def passed(operator: Any, args: Any, kwargs: dict[str, Any]) -> list[tuple[Tensor, bool]]:
    """The tensors of the device among the arguments, in order, and whether the operator writes each."""
    schema = operator._schema.arguments
    found: list[tuple[Tensor, bool]] = []
    for a, v in itertools.chain(zip(schema, args), ((a, kwargs[a.name]) for a in schema if a.name in kwargs)):
        written = a.name in _STATISTICS.get(operator, ()) or (a.alias_info is not None and a.alias_info.is_write)
        listed = v if isinstance(v, (list, tuple)) else [v]
        found += [(x, written) for x in listed if isinstance(x, Tensor) and x.device.type == "webgpu"]
    return found
