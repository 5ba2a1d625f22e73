"""Decompositions of operators, mostly of gradients, for which torch has none or an inaccurate one."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

from wgfc import _foreach

_ATEN = torch.ops.aten
_OWN: dict[Any, Callable[..., Any]] = {}


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The operators that AOTAutograd replaces before a graph is compiled."""
    more = torch._decomp.get_decompositions([_ATEN.batch_norm_backward, _ATEN.rrelu_with_noise_backward])
    found = {**_foreach.decompositions(), **torch._decomp.core_aten_decompositions(), **more, **_OWN}
    # In torch's decomposition the second result is the attention weights; the operator's is the logsumexp.
    found.pop(_ATEN._scaled_dot_product_flash_attention_for_cpu.default, None)
    # Torch's decomposition suffers from cancellation if the variance is small; the importer's formula does not.
    found.pop(_ATEN.native_group_norm_backward.default, None)
    # With this decomposition AOTAutograd would give a detached result a gradient.
    found.pop(_ATEN.detach.default, None)
    # Torch's decomposition does not copy tensors whose elements share memory, as the operator does.
    found.pop(_ATEN.select_scatter.default, None)
    return found


def _of(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        _OWN.update(dict.fromkeys(operators, f))
        return f

    return register


@_of(_ATEN.replication_pad1d_backward.default, _ATEN.replication_pad2d_backward.default, _ATEN.replication_pad3d_backward.default)
def _replication_pad(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """The gradient of replication padding: border elements also receive the gradients of their copies."""
    for i in range(len(padding) // 2):
        axis, (before, behind) = x.ndim - 1 - i, padding[2 * i : 2 * i + 2]
        n = x.shape[axis]
        spread = [0, 0] * i
        inner = grad.narrow(axis, max(before, 0), n + min(before, 0) + min(behind, 0))
        inner = _ATEN.constant_pad_nd(inner, [*spread, max(-before, 0), max(-behind, 0)])
        if before > 0:
            first = grad.narrow(axis, 0, before).sum(axis, keepdim=True)
            inner = inner + _ATEN.constant_pad_nd(first, [*spread, 0, n - 1])
        if behind > 0:
            last = grad.narrow(axis, grad.shape[axis] - behind, behind).sum(axis, keepdim=True)
            inner = inner + _ATEN.constant_pad_nd(last, [*spread, n - 1, 0])
        grad = inner
    return grad


def _scattered(grad: Tensor, x: Tensor, indices: Tensor, axes: int) -> Tensor:
    """Adds gradients to the positions of the maxima. ``indices`` are flat indices into the last ``axes`` axes."""
    flat = x.new_zeros(x.shape).flatten(-axes)
    return flat.scatter_add(-1, indices.flatten(-axes), grad.flatten(-axes)).reshape(x.shape)


@_of(_ATEN.adaptive_max_pool2d_backward.default)
def _adaptive_max_pool2d(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    return _scattered(grad, x, indices, 2)


@_of(_ATEN.adaptive_max_pool3d_backward.default)
def _adaptive_max_pool3d(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    return _scattered(grad, x, indices, 3)


@_of(_ATEN.fractional_max_pool2d_backward.default)
def _fractional_max_pool2d(grad: Tensor, x: Tensor, kernel: Any, size: Any, indices: Tensor) -> Tensor:
    return _scattered(grad, x, indices, 2)


@_of(_ATEN.fractional_max_pool3d_backward.default)
def _fractional_max_pool3d(grad: Tensor, x: Tensor, kernel: Any, size: Any, indices: Tensor) -> Tensor:
    return _scattered(grad, x, indices, 3)


def _slope(difference: Tensor, grad: Tensor, distance: Tensor, p: float) -> Tensor:
    """The derivative of a p-norm ``distance`` with respect to ``difference``; 0 where the norm is 0."""
    size = difference.abs()
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return grad * difference.sign()
    if math.isinf(p):
        return grad * difference.sign() * (size == distance)
    zero = distance == 0
    safe = torch.where(zero, 1, distance)
    if p == 2:
        return torch.where(zero, 0, grad * difference / safe)
    if p < 1:
        zero = zero | (difference == 0)
    slope = difference.sign() * torch.where(zero, 1, size).pow(p - 1) * grad / safe.pow(p - 1)
    return torch.where(zero, 0, slope)


@_of(_ATEN._cdist_backward.default)
def _cdist(grad: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Tensor:
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    slope = _slope(difference, grad.unsqueeze(-1), distances.unsqueeze(-1), p)
    return slope.sum(-2).sum_to_size(x.shape)


@_of(_ATEN._pdist_backward.default)
def _pdist(grad: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    slope = _slope(x[first] - x[second], grad.unsqueeze(-1), distances.unsqueeze(-1), p)
    return torch.zeros_like(x).index_add(0, first, slope).index_add(0, second, -slope)


@_of(torch.ops.prims.convert_element_type.default)
def _convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    return _ATEN._to_copy(x, dtype=dtype)


if hasattr(torch.ops.prims, "fma"):

    @_of(torch.ops.prims.fma.default)
    def _fma(a: Any, b: Any, c: Any) -> Tensor:
        return a * b + c


@_of(_ATEN._embedding_bag_per_sample_weights_backward.default)
def _embedding_bag_weights(
    grad: Tensor, table: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, mode: int, padding: int = -1
) -> Tensor:
    """The gradient with respect to the per-sample weights of an embedding bag: dot products of table rows and the gradients of
    their bags."""
    each = (grad.index_select(0, _bags(indices, offsets, bags)) * table.index_select(0, indices)).sum(-1)
    return torch.where(indices != padding, each, 0)


def _bags(indices: Tensor, offsets: Tensor, bags: Tensor) -> Tensor:
    """The bag of each index, computed from the offsets if torch's forward pass did not return it."""
    if bags.shape[0] == indices.shape[0]:
        return bags
    at = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    return torch.searchsorted(offsets, at, right=True) - 1


@_of(_ATEN._embedding_bag_backward.default)
def _embedding_bag(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bags: Tensor,
    sizes: Tensor,
    largest: Tensor,
    rows: int,
    scale_by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: Optional[Tensor],
    padding: int = -1,
) -> Any:
    """The gradient of a dense table of embeddings."""
    if sparse or scale_by_frequency:
        return NotImplemented
    zeros = grad.new_zeros((rows, grad.shape[1]))
    bags = _bags(indices, offsets, bags)
    if mode == 2:
        present = (sizes > 0).unsqueeze(-1)
        return zeros.scatter_add(0, torch.where(present, largest, 0).long(), torch.where(present, grad, 0))
    each = grad.index_select(0, bags)
    if mode == 1:
        each = each / sizes.index_select(0, bags).clamp(min=1).unsqueeze(-1)
    if weights is not None:
        each = each * weights.unsqueeze(-1)
    each = torch.where((indices != padding).unsqueeze(-1), each, 0)
    return zeros.index_add(0, indices, each)


@_of(_ATEN._neg_view.default)
def _negative(x: Tensor) -> Tensor:
    return -x


def _linear(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    """The cubic convolution kernel with the coefficient -1/2."""
    x = x.abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2
    return torch.where(x <= 1, near, torch.where(x < 2, far, 0))


def _resized_back(
    grad: Tensor, axis: int, extent: int, kernel: Callable[[Tensor], Tensor], width: int, corners: bool, factor: Optional[float]
) -> Tensor:
    """The gradient of antialiased resizing along one axis, whose kernel spans ``width`` inputs. The gradient of an input is the
    weighted sum of the gradients of all results to which the input contributes."""
    made, device = grad.shape[axis], grad.device
    one = torch.ones((), device=device)
    # ``distance`` is the spacing of results in units of inputs. ``of_result`` and ``of_input`` bound the number of inputs that a
    # result reads, and of results that read an input.
    if corners:
        distance = one * (extent - 1) / torch.sym_max(made - 1, 1) * torch.sym_min(made - 1, 1)
        of_result, of_input = width * (extent - 1) // torch.sym_max(made - 1, 1), width * (made - 1) // torch.sym_max(extent - 1, 1)
    elif factor:
        distance = one / factor
        of_result, of_input = math.floor(width / factor), math.floor(width * factor)
    else:
        distance = one * extent / made
        of_result, of_input = width * extent // made, width * made // extent
    stretch = distance.clamp(min=1)
    reach = stretch * (width / 2)

    def weight(i: Tensor, o: Tensor) -> Tensor:
        return kernel((i + 0.5 - distance * (o + 0.5)) / stretch)

    def neighbours(first: Tensor, count: int) -> Tensor:
        return first.floor()[:, None] + torch.arange(torch.sym_max(count, width) + 3, device=device)

    results, inputs = torch.arange(made, device=device), torch.arange(extent, device=device)
    i = neighbours(distance * (results + 0.5) - reach - 0.5, of_result)
    total = torch.where((i >= 0) & (i < extent), weight(i, results[:, None]), 0).sum(1)
    o = neighbours((((inputs + 0.5 - reach) / distance.clamp(min=1e-9)) - 0.5).clamp(min=0), of_input)
    at = o.clamp(max=made - 1).long()
    weights = torch.where(o < made, weight(inputs[:, None], o) / total[at], 0)
    parts = grad.index_select(axis, at.flatten()).unflatten(axis, at.shape)
    return (parts * weights.reshape([*at.shape, *[1] * (grad.ndim - axis - 1)])).sum(axis + 1)


def _resizing(kernel: Callable[[Tensor], Tensor], width: int) -> Callable[..., Tensor]:
    def backward(
        grad: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: Optional[float] = None,
        scales_w: Optional[float] = None,
    ) -> Tensor:
        wide = grad.float() if grad.dtype in (torch.float16, torch.bfloat16) else grad
        for axis, factor in ((2, scales_h), (3, scales_w)):
            wide = _resized_back(wide, axis, input_size[axis], kernel, width, align_corners, factor)
        return wide.to(grad.dtype)

    return backward


_OWN[_ATEN._upsample_bicubic2d_aa_backward.default] = _resizing(_cubic, 4)
_OWN[_ATEN._upsample_bilinear2d_aa_backward.default] = _resizing(_linear, 2)


@_of(_ATEN.logcumsumexp.default)
def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """A prefix logsumexp in logarithmically many steps, each of which doubles the number of elements that a result covers."""
    if x.ndim == 0 or not x.is_floating_point():
        return NotImplemented
    n, reach = x.shape[dim], 1
    if not isinstance(n, int):
        return NotImplemented
    made = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    while reach < n:
        before = made.new_full([*made.shape[: dim % x.ndim], reach, *made.shape[dim % x.ndim + 1 :]], -math.inf)
        shifted = torch.cat([before, made.narrow(dim, 0, n - reach)], dim)
        made = torch.logaddexp(made, shifted)
        reach *= 2
    return made.to(x.dtype)
