"""Views of a buffer's memory as operations on its flat value.

A tensor is described by its element type, sizes, strides and offset. Without overlapping elements, and if each stride divides the
next larger one, a view is the memory reshaped at the strides, narrowed by the digits of the offset in that mixed radix, and
permuted. Other views are read and written with ``as_strided``.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Optional

import torch
from torch import Tensor

_ATEN = torch.ops.aten


class Geometry(NamedTuple):
    """The element type, and in elements the sizes, strides and offset of a tensor in its storage."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclasses.dataclass(frozen=True)
class Digits:
    """A view as a part of memory in a mixed radix."""

    extents: tuple[int, ...]
    """The extents of the reshaped memory, outermost first; the last one is the smallest stride, if that is not 1."""
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    axes: tuple[int, ...]
    """The axis of the view that each digit is, outermost digit first; a last digit without an axis has length 1."""
    padding: int
    """Elements that the reshaped memory has more than the buffer."""


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


def read(memory: Tensor, view: Geometry) -> Tensor:
    """The view of a buffer whose elements in the order of memory are those of ``memory``, which may have any shape."""
    found = digits(view, memory.numel())
    if found is None:
        return memory.reshape(-1).as_strided(view.sizes, view.strides, view.offset)
    if found.padding:
        memory = _ATEN.constant_pad_nd(memory.reshape(-1), [0, found.padding])
    value = memory if tuple(memory.shape) == found.extents else memory.reshape(found.extents)
    for axis, (start, length, extent) in enumerate(zip(found.starts, found.lengths, found.extents)):
        if length != extent:
            value = value.narrow(axis, start, length)
    if len(found.axes) < len(found.extents):
        value = value.squeeze(-1)
    order = [found.axes.index(a) for a in sorted(found.axes)]
    if order != sorted(order):
        value = value.permute(order)
    kept = tuple(n if a in found.axes else 1 for a, n in enumerate(view.sizes))
    if tuple(value.shape) != kept:
        value = value.reshape(kept)
    return value if kept == view.sizes else value.expand(view.sizes)


def write(memory: Tensor, value: Tensor, view: Geometry) -> Tensor:
    """``memory``, the elements of a buffer, with those of the view replaced by ``value``."""
    found = digits(view, memory.shape[0])
    if found is None or any(n > 1 and s == 0 for n, s in zip(view.sizes, view.strides)):
        return torch.as_strided_scatter(memory, value, view.sizes, view.strides, view.offset)
    elements = memory.shape[0]
    if found.padding:
        memory = _ATEN.constant_pad_nd(memory, [0, found.padding])
    value = value.reshape([view.sizes[a] for a in sorted(found.axes)])
    back = [sorted(found.axes).index(a) for a in found.axes]
    if back != sorted(back):
        value = value.permute(back)
    if len(found.axes) < len(found.extents):
        value = value.unsqueeze(-1)
    made = _scattered(memory.reshape(found.extents), value, found, 0).reshape(-1)
    return made.narrow(0, 0, elements) if found.padding else made


def _scattered(base: Tensor, value: Tensor, found: Digits, axis: int) -> Tensor:
    """``base`` with the part that begins at the digits' starts replaced by ``value``, for the axes from ``axis`` on."""
    if axis == len(found.extents):
        return value
    start, length = found.starts[axis], found.lengths[axis]
    if length == found.extents[axis]:
        return _scattered(base, value, found, axis + 1)
    part = _scattered(base.narrow(axis, start, length), value, found, axis + 1)
    return _ATEN.slice_scatter(base, part, axis, start, start + length)
