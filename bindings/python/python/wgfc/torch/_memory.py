"""Tensors on the device: plain tensors of torch whose storage carries a buffer.

A storage has a unique address that nobody reads. Its Python object, which torch keeps as long as the storage lives, has the
attribute ``handle``. So views, detached tensors and tensors saved for the backward pass all find the buffer, which is freed with
the last of them.
"""

from __future__ import annotations

import threading
from typing import Any, Iterable, Optional

import torch
from torch import Tensor

from wgfc._wgfc import Tensor as Held
from wgfc.torch._surface import DEVICE
from wgfc.torch._views import Geometry

_ATEN, _SET, _KEY = torch.ops.aten, torch._C.DispatchKeySet, torch._C.DispatchKey
CPU, META = _SET(_KEY.CPU), _SET(_KEY.Meta)
_make_storage, _make_empty = torch._C._construct_storage_from_data_pointer, torch._C._acc.create_empty_tensor
_set = _ATEN.set_.source_Storage_storage_offset._handle.redispatch_boxed
_as_strided = _ATEN.as_strided.default._handle.redispatch_boxed
_ALIGNMENT = 256
LACKING = {torch.float64, torch.complex32, torch.complex128}
"""Types of which no tensor can be on the device. Operators on complex64 run on the CPU."""


class Buffer:
    """The memory of a storage."""

    held: Optional[Held] = None
    """The contents on the device, without those that the current trace writes; ``None`` for zeros."""
    written = False
    """Whether something was written, or is by an operator of the trace."""
    alive = True
    """Whether a tensor refers to the storage."""
    number = -1
    """The buffer's number in the current trace, or -1."""
    seen: Optional[tuple[torch.dtype, tuple[int, ...], Held]] = None
    """The type and shape as which the contents were read last, and the contents so."""
    error: Optional[BaseException] = None
    """The exception of the run that should have computed the contents."""

    def __init__(self, nbytes: int, address: int) -> None:
        self.nbytes = nbytes
        self.address = address

    def fill(self, held: Optional[Held]) -> None:
        """Replaces the contents."""
        self.held, self.written, self.error, self.seen = held, True, None, None


class Usage:
    """Counts of the storages of this process and their bytes, also of those that fusion leaves out: made and freed in all, and the
    peak of those alive."""

    made = freed = peak = 0
    made_bytes = freed_bytes = peak_bytes = 0


class Handle:
    """What a storage carries; it is freed with the storage."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        BY_ADDRESS[buffer.address] = buffer
        Usage.made += 1
        Usage.made_bytes += buffer.nbytes
        if (alive := Usage.made_bytes - Usage.freed_bytes) > Usage.peak_bytes:
            Usage.peak_bytes = alive
        if (alive := Usage.made - Usage.freed) > Usage.peak:
            Usage.peak = alive

    def __del__(self) -> None:
        self.buffer.alive = False
        Usage.freed += 1
        Usage.freed_bytes += self.buffer.nbytes
        BY_ADDRESS.pop(self.buffer.address, None)


class _Addresses:
    """Ranges of addresses, each given out once, as savers of checkpoints compare the ranges of storages."""

    next = 1 << 44
    lock = threading.Lock()


BY_ADDRESS: dict[int, Buffer] = {}
"""Buffers by the addresses of their storages, for storages that C++ makes anew over an address, as unpickling does."""


def storage(nbytes: int, held: Optional[Held] = None) -> torch.UntypedStorage:
    """A new storage on the device."""
    with _Addresses.lock:
        address = _Addresses.next
        _Addresses.next = address + (nbytes // _ALIGNMENT + 1) * _ALIGNMENT
    made = _make_storage(address, DEVICE, nbytes)
    buffer = Buffer(nbytes, address)
    if held is not None:
        buffer.fill(held)
    made.handle = Handle(buffer)
    return made


def made(view: Geometry, nbytes: int) -> tuple[Tensor, Buffer]:
    """A tensor in a storage of its own, to which an operator of the trace writes."""
    of = storage(nbytes)
    buffer = of.handle.buffer
    buffer.written = True
    return _set(CPU, _make_empty(_NOTHING, view.dtype), of, view.offset, view.sizes, view.strides), buffer


_NOTHING = (0,)


def tensor(of: torch.UntypedStorage, view: Geometry) -> Tensor:
    """A tensor in a storage."""
    refuse_lacking(view.dtype)
    return _set(CPU, _make_empty(_NOTHING, view.dtype), of, view.offset, view.sizes, view.strides)


def refuse_lacking(dtype: torch.dtype) -> None:
    """Raises ``TypeError`` in torch's words for a type that the device lacks."""
    if dtype in LACKING:
        name = str(dtype).removeprefix("torch.")
        raise TypeError(
            f"Cannot convert a webgpu Tensor to {name} dtype as the webgpu device doesn't support {name}. "
            f"Please use {'float32' if dtype is torch.float64 else 'complex64'} instead."
        )


def placed(x: Tensor, of: torch.UntypedStorage, view: Geometry) -> Tensor:
    """Puts an existing tensor into a storage."""
    return _set(CPU, x, of, view.offset, view.sizes, view.strides)


def viewed(x: Tensor, view: Geometry) -> Tensor:
    """Another tensor in the storage of ``x``."""
    if view.dtype is x.dtype:
        return _as_strided(META, x, view.sizes, view.strides, view.offset)
    return tensor(x.untyped_storage(), view)


def buffer_of(x: Tensor) -> Buffer:
    """The buffer in which a tensor on the device lies."""
    of = x.untyped_storage()
    try:
        return of.handle.buffer
    except AttributeError:
        return BY_ADDRESS[of.data_ptr()]


def geometry(x: Tensor) -> Geometry:
    """The geometry of a tensor, with plain numbers."""
    return Geometry(x.dtype, tuple(x.shape), x.stride(), x.storage_offset())


def bytes_needed(view: Geometry) -> int:
    """The bytes from the beginning of a storage to the end of a tensor in it."""
    if 0 in view.sizes:
        return 0
    return (1 + view.offset + sum((n - 1) * s for n, s in zip(view.sizes, view.strides))) * view.dtype.itemsize


def name_of(dtype: torch.dtype) -> str:
    """The type's name as the native module has it."""
    return str(dtype).removeprefix("torch.")


def allocated() -> int:
    """The bytes of all storages that are alive."""
    return Usage.made_bytes - Usage.freed_bytes


def usage() -> dict[str, int]:
    """The counts of ``Usage`` by the names of ``torch.accelerator.memory_stats``."""
    counts = {"current": Usage.made - Usage.freed, "peak": Usage.peak, "allocated": Usage.made, "freed": Usage.freed}
    sizes = {"current": allocated(), "peak": Usage.peak_bytes, "allocated": Usage.made_bytes, "freed": Usage.freed_bytes}
    both = {"allocated": counts, "allocated_bytes": sizes}
    return {f"{name}.all.{k}": v for name, found in both.items() for k, v in found.items()}


def reset_peaks() -> None:
    """Begins peaks anew at what is alive."""
    Usage.peak, Usage.peak_bytes = Usage.made - Usage.freed, allocated()


def exhausted(buffers: Iterable[Buffer], error: Optional[BaseException] = None) -> Optional[torch.OutOfMemoryError]:
    """The exception, in torch's words, if a buffer is larger than the device can have, or if ``error`` says that its memory is
    exhausted; else ``None``."""
    adapter = Held.empty("uint8", [1]).adapter
    most, largest = adapter.limits["buffer_bytes"], max((b.nbytes for b in buffers), default=0)
    if largest > most:
        why = f"A buffer of {adapter.name} has at most {most / 2**30:.2f} GiB."
    elif "out of device memory" in str(error):
        why = f"{allocated() / 2**30:.2f} GiB are in tensors that are alive."
    else:
        return None
    tried = f"Tried to allocate {largest / 2**30:.2f} GiB. " if largest > most else ""
    return torch.OutOfMemoryError(f"webgpu out of memory. {tried}{why} Use smaller batches, or compute in parts.")


def contents(buffer: Buffer, dtype: torch.dtype, sizes: tuple[int, ...]) -> Held:
    """The contents of a buffer as a dense tensor of this type and shape, of as many bytes."""
    if buffer.error is not None:
        raise RuntimeError("the tensor has no value, because the run that should have computed it failed") from buffer.error
    seen = buffer.seen
    if seen is not None and seen[0] is dtype and seen[1] == sizes:
        return seen[2]
    if buffer.held is None:
        buffer.held = Held.empty(name_of(dtype), list(sizes))
    held = buffer.held
    if held.shape != sizes or held.dtype != name_of(dtype):
        held = held.view(name_of(dtype), list(sizes))
    buffer.seen = dtype, sizes, held
    return held


_new_storage = torch.UntypedStorage.__new__


def _untyped(cls: Any, *args: Any, device: Any = None, **named: Any) -> Any:
    # Torch has no allocator for the device in C++ and would crash.
    if device is not None and torch.device(device).type == "webgpu":
        return storage(args[0] if args and isinstance(args[0], int) else 0)
    return _new_storage(cls, *args, **({} if device is None else {"device": device}), **named)


torch.UntypedStorage.__new__ = staticmethod(_untyped)  # type: ignore[method-assign]
