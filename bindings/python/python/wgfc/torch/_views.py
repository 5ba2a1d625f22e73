"""Views of a buffer's memory as operations on its flat value.

A tensor is described by its element type, sizes, strides and offset. Without overlapping elements, and if each stride divides the
next larger one, a view is the memory reshaped at the strides, narrowed by the digits of the offset in that mixed radix, and
permuted. Other views are read and written with ``as_strided``.

Strides and offsets are products of sizes, whereas digits are sizes. So where sizes differ between runs, digits are what symbols
stand for.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Iterator, NamedTuple, Optional

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

_ATEN = torch.ops.aten


class Geometry(NamedTuple):
    """The element type, and in elements the sizes, strides and offset of a tensor in its storage."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Digits(NamedTuple):
    """A view as a part of memory in a mixed radix."""

    extents: tuple[Any, ...]
    """The extents of the reshaped memory, outermost first; the last one is the smallest stride, if that is not 1."""
    starts: tuple[Any, ...]
    lengths: tuple[Any, ...]
    axes: tuple[int, ...]
    """The axis of the view that each digit is, outermost digit first; a last digit without an axis has length 1."""
    padding: Any
    """Elements that the reshaped memory has more than the buffer."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A view of a buffer of a known number of elements. Layouts of equal ``form`` differ only in their ``numbers``, in whose
    place symbolic sizes can stand."""

    dtype: torch.dtype
    order: tuple[int, ...]
    """The axes from the largest to the smallest stride."""
    whole: bool
    """Whether the view has each element of the buffer once."""
    sizes: tuple[Any, ...]
    elements: Any
    """The number of elements of the buffer; ``None`` where it is the product of the sizes."""
    digits: Optional[Digits]
    placed: Optional[Geometry]
    """The view by its strides, if it has no digits. Its sizes are then those of this view alone."""

    @property
    def form(self) -> Any:
        if self.digits is None:
            return self.placed, self.elements
        return self.dtype, self.order, self.whole, self.digits.axes, len(self.digits.extents)

    @property
    def numbers(self) -> tuple[Any, ...]:
        d = self.digits
        if d is None:
            return ()
        return (*self.sizes, *d.extents, *d.starts, *d.lengths, d.padding, *(() if self.whole else (self.elements,)))

    def with_numbers(self, numbers: Iterator[Any]) -> "Layout":
        """The layout of this form with other numbers."""
        d = self.digits
        if d is None:
            return self
        sizes = tuple(next(numbers) for _ in self.sizes)
        extents, starts, lengths = (tuple(next(numbers) for _ in part) for part in (d.extents, d.starts, d.lengths))
        padding, elements = next(numbers), None if self.whole else next(numbers)
        return dataclasses.replace(self, sizes=sizes, elements=elements, digits=Digits(extents, starts, lengths, d.axes, padding))

    @property
    def is_expanded(self) -> bool:
        """Whether several indices of the view are one element of the buffer."""
        return self.digits is not None and any(n != 1 for a, n in enumerate(self.sizes) if a not in self.digits.axes)

    @property
    def in_memory(self) -> tuple[Any, ...]:
        """The sizes of the axes from the largest to the smallest stride."""
        return tuple(self.sizes[a] for a in self.order)


@functools.lru_cache(1 << 16)
def layout(view: Geometry, elements: int) -> Layout:
    """The layout of a view of a buffer of ``elements`` elements."""
    found, whole = digits(view, elements), covers(view, elements)
    place, count = (view, elements) if found is None else (None, None if whole else elements)
    return Layout(view.dtype, in_memory_order(view), whole, view.sizes, count, found, place)


def flat(dtype: torch.dtype, elements: Any) -> Layout:
    """The layout of a buffer as one axis."""
    return Layout(dtype, (0,), True, (elements,), None, Digits((elements,), (0,), (elements,), (0,), 0), None)


def digits(view: Geometry, elements: int) -> Optional[Digits]:
    """The view as digits of the indices of a buffer of ``elements`` elements; ``None`` if it is not of this form."""
    axes = [a for a, (n, s) in enumerate(zip(view.sizes, view.strides)) if n != 1 and s != 0]
    axes.sort(key=lambda a: -view.strides[a])
    strides = [view.strides[a] for a in axes]
    if any(n == 0 for n in view.sizes) or any(outer == inner or outer % inner for outer, inner in zip(strides, strides[1:])):
        return None
    starts, rest = [], view.offset
    for stride in strides:
        starts.append(rest // stride)
        rest %= stride
    lengths = [view.sizes[a] for a in axes]
    if not strides or strides[-1] != 1:
        strides.append(1)
        starts.append(rest)
        lengths.append(1)
    inner = [outer // stride for outer, stride in zip(strides, strides[1:])]
    if any(start + length > extent for start, length, extent in zip(starts[1:], lengths[1:], inner)):
        return None
    rows = max(-(-elements // strides[0]), starts[0] + lengths[0])
    return Digits((rows, *inner), tuple(starts), tuple(lengths), tuple(axes), rows * strides[0] - elements)


def covers(view: Geometry, elements: int) -> bool:
    """Whether the elements of the view are those of a buffer of ``elements`` elements, each once."""
    reach = 1
    for stride, size in sorted((s, n) for s, n in zip(view.strides, view.sizes) if n != 1):
        if stride != reach:
            return False
        reach *= size
    return view.offset == 0 and reach == elements


def dense(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense tensor."""
    strides, reach = [], 1
    for size in reversed(sizes):
        strides.append(reach)
        reach *= max(size, 1)
    return tuple(reversed(strides))


def in_memory_order(view: Geometry) -> tuple[int, ...]:
    """The axes from the largest to the smallest stride."""
    return tuple(sorted(range(len(view.sizes)), key=lambda a: (-view.strides[a], a)))


def read(memory: Tensor, view: Layout, number: Callable[[Any], Any] = lambda n: n) -> Tensor:
    """The view of a buffer whose elements in the order of memory are those of ``memory``, which may have any shape. ``number``
    gives what stands for a number of the layout in the graph."""
    found = view.digits
    if found is None:
        at = view.placed
        return memory.reshape(-1).as_strided(at.sizes, at.strides, at.offset)  # type: ignore[union-attr]
    if found.padding != 0:
        memory = _ATEN.constant_pad_nd(memory.reshape(-1), [0, number(found.padding)])
    extents = [number(n) for n in found.extents]
    value = memory if has_sizes(memory, extents) else memory.reshape(extents)
    for axis, (start, length, extent) in enumerate(zip(found.starts, found.lengths, found.extents)):
        if length != extent:
            value = value.narrow(axis, number(start), number(length))
    if len(found.axes) < len(found.extents):
        value = value.squeeze(-1)
    order = [found.axes.index(a) for a in sorted(found.axes)]
    if order != sorted(order):
        value = value.permute(order)
    if len(found.axes) < len(view.sizes):
        value = value.reshape([number(n) if a in found.axes else 1 for a, n in enumerate(view.sizes)])
    return value.expand([number(n) for n in view.sizes]) if view.is_expanded else value


def has_sizes(value: Tensor, sizes: list[Any]) -> bool:
    """Whether the sizes of a tensor are these for all values of symbols."""
    return len(sizes) == value.ndim and all(statically_known_true(a == b) for a, b in zip(value.shape, sizes))


def write(memory: Tensor, value: Tensor, view: Layout, number: Callable[[Any], Any] = lambda n: n) -> Tensor:
    """``memory``, the elements of a buffer on one axis, with those of the view replaced by ``value``."""
    found = view.digits
    if found is None:
        at = view.placed
        return torch.as_strided_scatter(memory, value, at.sizes, at.strides, at.offset)  # type: ignore[union-attr]
    for axis, size in enumerate(view.sizes):
        if axis not in found.axes and size != 1:
            value = value.narrow(axis, 0, 1)
    elements = memory.shape[0]
    if found.padding != 0:
        memory = _ATEN.constant_pad_nd(memory, [0, number(found.padding)])
    value = value.reshape([number(view.sizes[a]) for a in sorted(found.axes)])
    back = [sorted(found.axes).index(a) for a in found.axes]
    if back != sorted(back):
        value = value.permute(back)
    if len(found.axes) < len(found.extents):
        value = value.unsqueeze(-1)
    made = _scattered(memory.reshape([number(n) for n in found.extents]), value, found, 0, number).reshape(-1)
    return made.narrow(0, 0, elements) if found.padding != 0 else made


def _scattered(base: Tensor, value: Tensor, found: Digits, axis: int, number: Callable[[Any], Any]) -> Tensor:
    """``base`` with the part that begins at the digits' starts replaced by ``value``, for the axes from ``axis`` on."""
    if axis == len(found.extents):
        return value
    start, length = found.starts[axis], found.lengths[axis]
    if length == found.extents[axis]:
        return _scattered(base, value, found, axis + 1, number)
    start, length = number(start), number(length)
    part = _scattered(base.narrow(axis, start, length), value, found, axis + 1, number)
    return _ATEN.slice_scatter(base, part, axis, start, start + length)
