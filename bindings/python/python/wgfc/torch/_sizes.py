"""Traces of equal form: the same operators on tensors whose sizes differ.

A trace is its form and numbers: the sizes among the arguments of its operators, and the numbers of the layouts of their tensors.
From traces of one form follows how the numbers depend on a few symbols, each as ``factor * symbol + offset``. This is a guess from
few traces, so a program for symbols is used for a trace only after all of its numbers have been compared with the expressions.
"""

from __future__ import annotations

import itertools
from typing import Any, Iterator, NamedTuple, Optional, Sequence

from wgfc.torch._record import New, Spec, Step, arguments
from wgfc.torch._views import Geometry, Layout, layout


class Affine(NamedTuple):
    """``factor * symbol + offset``, for the symbol of this number."""

    symbol: int
    factor: int
    offset: int


class Shape:
    """The form and the numbers of a recorded operator. Shapes are compared by identity."""

    __slots__ = ("form", "numbers", "reads", "makes")

    def __init__(self, spec: Spec, reads: Sequence[int], makes: Sequence[int]) -> None:
        """``reads`` and ``makes`` have the bytes of the buffers of the tensors that the operator reads and makes."""
        sizes: list[int] = []
        given = iter(reads)
        self.reads: list[Layout] = []

        def see(view: Geometry) -> Layout:
            found = layout(view, next(given) // view.dtype.itemsize)
            self.reads.append(found)
            return found

        def size(n: int) -> str:
            sizes.append(n)
            return "size"

        args, kwargs = arguments(spec.key, lambda view: see(view).form, lambda word: str(word), size)
        news = [r.geometry for r in spec.results if type(r) is New]
        self.makes = [layout(view, n // view.dtype.itemsize) for view, n in zip(news, makes)]
        results = tuple((type(r), r.argument if r is not None and type(r) is not New else None) for r in spec.results)
        words = (spec.operator, _frozen(args), _frozen(kwargs), results, tuple(m.form for m in self.makes))
        self.form = _FORMS.setdefault(words, len(_FORMS))
        self.numbers = tuple(itertools.chain(sizes, *(x.numbers for x in (*self.reads, *self.makes))))


_FORMS: dict[Any, int] = {}
_SHAPES: dict[Any, Shape] = {}


def _frozen(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return tuple(map(_frozen, x))
    if isinstance(x, dict):
        return tuple((k, _frozen(v)) for k, v in x.items())
    return x


def shapes(steps: Sequence[Step], nbytes: Sequence[int]) -> list[Shape]:
    """The shape of each step, given the bytes of the trace's buffers."""
    made = []
    for step in steps:
        key = (step.spec, *[nbytes[n] for n in step.reads], *[nbytes[n] for n in step.makes])
        shape = _SHAPES.get(key)
        if shape is None:
            shape = _SHAPES[key] = Shape(step.spec, key[1 : 1 + len(step.reads)], key[1 + len(step.reads) :])
        made.append(shape)
    return made


def forget() -> None:
    """Frees the shapes, with the specs that they are of."""
    _SHAPES.clear()
    _FORMS.clear()


class Fit:
    """How the numbers of traces of one form depend on symbols."""

    def __init__(self, samples: Sequence[Sequence[Shape]]) -> None:
        places: dict[tuple[Shape, ...], tuple[int, ...]] = {}
        self.steps: list[tuple[Any, ...]] = []
        """For each step its numbers as integers and ``Affine`` ones."""
        self.places: list[tuple[int, int]] = []
        """The step and the position at which each symbol's value is a number."""
        first: dict[tuple[int, ...], tuple[int, int]] = {}
        for i, same in enumerate(zip(*samples)):
            if same not in places:
                places[same] = ()
                for j, values in enumerate(zip(*(s.numbers for s in same))):
                    if any(v != values[0] for v in values):
                        first.setdefault(values, (i, j))
        known: dict[tuple[int, ...], Any] = {}
        symbols: list[tuple[int, ...]] = []
        # The slowest of the numbers that change is a size rather than a product of one.
        for values in sorted(first, key=lambda v: (max(v) - min(v), v)):
            for s, of in enumerate(symbols):
                if (found := _affine(values, of)) is not None:
                    known[values] = Affine(s, *found)
                    break
            else:
                known[values] = Affine(len(symbols), 1, 0)
                symbols.append(values)
                self.places.append(first[values])
        expressions: dict[tuple[Shape, ...], tuple[Any, ...]] = {}
        for same in zip(*samples):
            if same not in expressions:
                numbers = zip(*(s.numbers for s in same))
                expressions[same] = tuple(v[0] if all(n == v[0] for n in v) else known[v] for v in numbers)
            self.steps.append(expressions[same])

    def values(self, trace: Sequence[Shape]) -> Optional[tuple[int, ...]]:
        """The symbols' values in a trace of this form; ``None`` if its numbers are not those that follow from them."""
        found = tuple(trace[i].numbers[j] for i, j in self.places)
        for expressions, shape in {(id(e), s): (e, s) for e, s in zip(self.steps, trace)}.values():
            if any(value(e, found) != n for e, n in zip(expressions, shape.numbers)):
                return None
        return found


def _affine(values: Sequence[int], of: Sequence[int]) -> Optional[tuple[int, int]]:
    """The factor and the offset with which ``values`` follow from ``of``; ``None`` if they do not."""
    j = next(i for i, n in enumerate(of) if n != of[0])
    factor, rest = divmod(values[j] - values[0], of[j] - of[0])
    offset = values[0] - factor * of[0]
    return (factor, offset) if not rest and all(factor * n + offset == v for n, v in zip(of, values)) else None


def value(expression: Any, values: Sequence[int]) -> int:
    """The value of an integer or an ``Affine`` number, given the symbols' values."""
    if isinstance(expression, Affine):
        return expression.factor * values[expression.symbol] + expression.offset
    return expression


class Sized(NamedTuple):
    """The layouts and sizes of a step, with integers or ``Affine`` numbers."""

    reads: list[Layout]
    makes: list[Layout]
    sizes: list[Any]


def sized(shape: Shape, numbers: Optional[Sequence[Any]] = None) -> Sized:
    """The layouts of a shape and the sizes among its operator's arguments, with other numbers in the place of its own."""
    numbers = shape.numbers if numbers is None else numbers
    rest: Iterator[Any] = iter(numbers)
    count = len(numbers) - sum(len(x.numbers) for x in (*shape.reads, *shape.makes))
    sizes = [next(rest) for _ in range(count)]
    return Sized([x.with_numbers(rest) for x in shape.reads], [x.with_numbers(rest) for x in shape.makes], sizes)
