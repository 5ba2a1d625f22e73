"""Kernels of the device for torch's dispatcher: each operator is recorded, except those that make or move memory."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable

import torch
from torch import Tensor

from wgfc.torch import _memory
from wgfc.torch._memory import CPU, buffer_of, bytes_needed, geometry, placed, storage, tensor
from wgfc.torch._program import STATISTICS, at_once, mirror
from wgfc.torch._record import LOCK, flush, record
from wgfc.torch._surface import _index
from wgfc.torch._views import Geometry, dense
from wgfc._resident import ON_DEVICE
from wgfc._wgfc import Tensor as Held

_ATEN = torch.ops.aten
_LIBRARY, _ALL = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
_ALL.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


def _kernel(name: str) -> Callable[[Any], Any]:
    def register(f: Any) -> Any:
        _LIBRARY.impl(name, f, "PrivateUse1")
        return f

    return register


def _new(dtype: Any, size: Any, stride: Any) -> Tensor:
    if any(n < 0 for n in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(size)}: {list(size)}")
    view = Geometry(dtype or torch.get_default_dtype(), tuple(size), tuple(stride), 0)
    return tensor(storage(bytes_needed(view)), view)


@_kernel("empty.memory_format")
def _empty(size: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    _index(device)
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        stride = dense(tuple(size))
    else:
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return _new(dtype, size, stride)


@_kernel("empty_strided")
def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    _index(device)
    return _new(dtype, size, stride)


def _redispatched(name: str) -> None:
    call = getattr(_ATEN, name).default._handle.redispatch_boxed
    _kernel(name)(lambda self, *args: call(CPU, self, *args))


for _name in ("as_strided", "view", "_reshape_alias"):
    _redispatched(_name)


@_kernel("set_.source_Storage_storage_offset")
def _set_storage(self: Tensor, source: Any, offset: int, size: Any, stride: Any = ()) -> Tensor:
    return placed(self, source, Geometry(self.dtype, tuple(size), tuple(stride) or dense(tuple(size)), offset))


@_kernel("set_.source_Storage")
def _set_whole(self: Tensor, source: Any) -> Tensor:
    return placed(self, source, Geometry(self.dtype, (source.nbytes() // self.dtype.itemsize,), (1,), 0))


@_kernel("resize_")
def _resize(self: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    view = Geometry(self.dtype, tuple(size), dense(tuple(size)), self.storage_offset())
    need = bytes_needed(view)
    if need <= self.untyped_storage().nbytes():
        return placed(self, self.untyped_storage(), view)
    old = self.clone() if self.numel() else None
    placed(self, storage(need), view)
    if old is not None:
        self.as_strided((old.numel(),), (1,)).copy_(old.reshape(-1))
    return self


@_kernel("_local_scalar_dense")
def _item(self: Tensor) -> Any:
    with LOCK:
        flush("item")
        return mirror(self).item()


@_kernel("_to_copy")
def _to_copy(self: Tensor, *, pin_memory: Any = None, non_blocking: bool = False, **kwargs: Any) -> Tensor:
    # Torch asks for pinned memory for copies to the CPU that do not block. The device has no pinned memory, so they block.
    return _ATEN._to_copy.default._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, self, **kwargs)


@_kernel("_copy_from")
def _copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    if source.is_conj() or source.is_neg():
        plain = source.conj() if source.is_conj() else source._neg_view()
        to.copy_(plain)
        record(_ATEN.conj_physical_.default if source.is_conj() else _ATEN.neg_.default, to)
        return to
    with LOCK:
        if to.device.type != "webgpu":
            flush(f"copy to {to.device.type}")
            return to.copy_(mirror(source))
        if source.device.type != "webgpu":
            dense_source = source.detach().to(to.dtype).contiguous()
            buffer = buffer_of(to)
            STATISTICS.uploaded += dense_source.nbytes
            if dense_source.numel() == 0:
                return to
            held = Held(dense_source)
            if not buffer.written and to.is_contiguous() and to.nbytes == buffer.nbytes and dense_source.shape == to.shape:
                # New memory: the upload is its contents.
                buffer.fill(held)
                return to
            of = storage(dense_source.nbytes, held)
            source = tensor(of, geometry(dense_source))
        if not _shares(source, to):
            record(_ATEN.copy_.default, to, source)
        return to


def _shares(source: Tensor, to: Tensor) -> bool:
    """Gives ``to`` the contents of ``source``, which nobody writes to, if they are all of both memories and no recorded operator
    uses them. So new values of caches and parameters, which compiled functions return, replace old ones without an operator."""
    a, b = buffer_of(source), buffer_of(to)
    free = a.number < 0 and b.number < 0 and a.held is not None and a.error is None
    if not (free and a.nbytes == b.nbytes == source.nbytes and source.dtype is to.dtype and source.shape == to.shape):
        return False
    if not (source.is_contiguous() and to.is_contiguous()):
        return False
    b.fill(a.held)
    return True


def _arange(start: Any, end: Any, step: Any = 1, **kwargs: Any) -> Tensor:
    dtype = kwargs.get("dtype")
    if dtype is not None and not dtype.is_floating_point and any(isinstance(n, float) for n in (start, end, step)):
        # The count follows from the floats, and the elements from their integral parts.
        return at_once(_ATEN.arange.start_step, (start, end, step), kwargs)
    return record(_ATEN.arange.start_step, start, end, step, **kwargs)


_kernel("arange")(lambda end, **kwargs: _arange(0, end, **kwargs))
_kernel("arange.start")(_arange)
_kernel("arange.start_step")(_arange)


@_kernel("convolution_overrideable")
def _convolution(*args: Any) -> Any:
    return record(_ATEN.convolution.default, *args)


@_kernel("convolution_backward_overrideable")
def _convolution_backward(grad: Tensor, x: Tensor, w: Tensor, *geometry: Any) -> Any:
    *window, transposed, output_padding, groups, mask = geometry
    bias = [w.shape[1] * groups if transposed else w.shape[0]]
    return record(_ATEN.convolution_backward.default, grad, x, w, bias, *window, transposed, output_padding, groups, mask)


_OWN = torch.library.Library("wgfc", "FRAGMENT")
_OWN.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float? scale, bool enable_gqa) -> Tensor"
)


def _composed(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout: float, is_causal: bool, scale: Any, gqa: bool
) -> Tensor:
    """Attention composed of products and a softmax."""
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), -torch.inf)
    call = _ATEN._scaled_dot_product_attention_math.default
    return call(query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=gqa)[0]


_OWN.impl(
    "attention",
    lambda query, key, value, mask, is_causal, scale, gqa: _composed(query, key, value, mask, 0.0, is_causal, scale, gqa),
    "CompositeImplicitAutograd",
)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention, recorded as one operator where no gradient is wanted and nothing is dropped."""
    if dropout or not _is_plain(query, key, value, mask):
        return _composed(query, key, value, mask, dropout, is_causal, scale, enable_gqa)
    return record(torch.ops.wgfc.attention.default, query, key, value, mask, is_causal, scale, enable_gqa)


def _is_plain(*given: Any) -> bool:
    """Whether all are tensors with elements, of which no gradient is wanted."""
    grad = torch.is_grad_enabled()
    for x in given:
        if x is not None and ((grad and x.requires_grad) or type(x) not in (Tensor, torch.nn.Parameter)):
            return False
    return True


def _linear(x: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    """A linear layer, recorded as one operator where no gradient is wanted; else composed as torch composes it."""
    if not _is_plain(x, weight, bias):
        made = torch.matmul(x, weight.t())
        return made if bias is None else made + bias
    return record(_ATEN.linear.default, x, weight, bias)


for _key in ("AutogradPrivateUse1", "PrivateUse1"):
    _LIBRARY.impl("linear", _linear, _key)
    _LIBRARY.impl("scaled_dot_product_attention", _attention, _key)


def _register() -> None:
    """Registers a kernel for each operator that torch does not compose of others. Structured operators have a composite kernel
    that would compute sizes in C++ and call the ``out`` overload; list operators one with a call for each tensor."""
    has = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    for full in torch._C._dispatch_get_all_op_names():
        name = full.removeprefix("aten::")
        if not full.startswith("aten::"):
            continue
        lists = name.startswith(("_foreach_", "_fused_")) and ".out" not in full and not full.endswith("_out")
        structured = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeExplicitAutogradNonFunctional")
        if has(full, "PrivateUse1") and not lists and not structured:
            continue
        packet, _, overload = name.partition(".")
        try:
            _kernel(name)(functools.partial(record, getattr(getattr(_ATEN, packet), overload or "default")))
        except (AttributeError, RuntimeError):
            # Some names have no overload in Python, and some take no kernel; calls of those go to the fallback.
            continue


_register()
_ALL.fallback(record, "PrivateUse1")
for _key in ("Conjugate", "Negative"):
    # ``copy_`` goes through these keys, and ``_copy_from`` behind it would resolve the bits by ``copy_`` without end.
    _LIBRARY.impl("_copy_from", torch.library.fallthrough_kernel, _key)


_NEVER: Any = (lambda: None, 0, None, None, None)
"""The entry in ``Memory.known`` of a tensor that has not been read, or is not the whole of its memory."""


class _OnDevice:
    """Tensors of the device as the arguments and results of programs of ``torch.compile``."""

    @staticmethod
    def held(x: Tensor) -> Held:
        """The elements of a tensor, which is copied on the device unless they are the whole of its memory, in order."""
        with LOCK:
            if not (x.is_contiguous() and x.storage_offset() == 0 and x.nbytes == x.untyped_storage().nbytes()):
                x = x.clone(memory_format=torch.contiguous_format)
            buffer = buffer_of(x)
            if buffer.number >= 0:
                flush("compiled function")
            return _memory.contents(buffer, x.dtype, tuple(x.shape))

    class Memory:
        """The memory of the tensors that a program reads and writes, call after call."""

        def __init__(self, is_kept: list[bool]) -> None:
            """``is_kept`` states of each tensor whether it is usually the one of the call before."""
            self.known: list[Any] = [_NEVER if kept else None for kept in is_kept]
            """For each tensor that is kept a weak reference to it, its address, its buffer, the buffer's contents, and the elements."""

        def read(self, tensors: list[Tensor]) -> list[Held]:
            """The elements of the tensors."""
            known, found = self.known, []
            for i, x in enumerate(tensors):
                last = known[i]
                if last is None:
                    found.append(_OnDevice.held(x))
                    continue
                of, address, buffer, contents, held = last
                # Other tensors can be assigned to the ``data`` of a parameter, and its memory can be written.
                known_still = of() is x and x.data_ptr() == address and buffer.held is contents
                if known_still and buffer.number < 0 and buffer.error is None:
                    found.append(held)
                    continue
                held = _OnDevice.held(x)
                found.append(held)
                buffer = buffer_of(x)
                is_whole = buffer.seen is not None and buffer.seen[2] is held
                known[i] = (weakref.ref(x), x.data_ptr(), buffer, buffer.held, held) if is_whole else _NEVER
            return found

        def write(self, i: int, x: Tensor, held: Held, dtype: torch.dtype) -> None:
            """Replaces the elements of the tensor that was read in place ``i``."""
            of, address, buffer, _, before = self.known[i] or _NEVER
            if of() is x and buffer.number < 0 and x.dtype is dtype and held.shape == before.shape:
                buffer.fill(held)
                self.known[i] = of, address, buffer, held, held
            else:
                x.copy_(_OnDevice.tensor(held, dtype))

    @staticmethod
    def tensor(held: Held, dtype: torch.dtype) -> Tensor:
        """A tensor with these elements."""
        sizes = tuple(held.shape)
        view = Geometry(dtype, sizes, dense(sizes), 0)
        return tensor(storage(bytes_needed(view), held), view)


ON_DEVICE["webgpu"] = _OnDevice

_elements_as_text = torch._tensor_str._tensor_str


def _tensor_str(x: Tensor, indent: int) -> str:
    # Torch would choose the format of numbers in float64, with many operators.
    return _elements_as_text(x.cpu() if x.device.type == "webgpu" else x, indent)


torch._tensor_str._tensor_str = _tensor_str  # type: ignore[assignment]
