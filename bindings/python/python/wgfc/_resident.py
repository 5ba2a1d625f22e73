"""Copies on the device of torch tensors, and stand-ins in torch for tensors on the device.

Torch counts writes by its operators (``tensor._version``), but not those of fused optimizers, through ``tensor.data``, NumPy or
DLPack, by other processes that share the memory, or by kernels that have its address. So a copy is used only if the tensor's
bytes have not changed.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Iterable, NamedTuple, Optional

import torch

from wgfc._errors import DeviceError, Diagnostic, Error
from wgfc._wgfc import Program, Session, Tensor, fingerprint

Key = tuple[Any, ...]


def _key(tensor: torch.Tensor) -> Key:
    return (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU in the device's format: dense, with complex numbers as pairs."""
    if tensor._is_zerotensor():
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    # Complex numbers are pairs on the device.
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return plain.contiguous()


EXECUTORS: "weakref.WeakSet[Executor]" = weakref.WeakSet()
"""The executors of this process."""


class Executor:
    """A session of a program. If its device is lost, the next call makes another session, on another device."""

    def __init__(self, program: Program, adapter: Any = None) -> None:
        self.program, self.adapter = program, adapter
        EXECUTORS.add(self)
        self.session = Session(program, adapter)
        self.inputs = self.session.inputs

    def call(self, given: list[Any]) -> list[Tensor]:
        """The outputs for inputs as ``Session.call`` takes them."""
        if self.session.is_lost:
            self.session = Session(self.program, self.adapter)
        try:
            return self.session.call(given)
        except Error as e:
            if not self.session.is_lost and any(isinstance(x, Tensor) and x.is_lost for x in given):
                why = "an input was on a device that was lost, and its elements with it"
                raise DeviceError([Diagnostic(why, "device", help="compute it again, or load it")]) from e
            raise


class Copy(NamedTuple):
    """The copy of a tensor on the device."""

    version: int
    """Torch's count of writes when the copy was made."""
    bytes: Optional[tuple[int, int]]
    """The fingerprint of the bytes; ``None`` if the count of writes is trusted."""
    tensor: Tensor


class Resident:
    """Copies on one device. A copy is valid while the tensor's memory is not freed, torch counts no write to it, and its bytes
    are unchanged."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        # The copies of the views of a storage, by its address.
        self.copies: dict[int, dict[Key, Copy]] = {}
        # The tensors on the device that have a stand-in, by the address of the stand-in's storage.
        self.held: dict[int, Tensor] = {}

    def upload(self, tensor: torch.Tensor) -> Tensor:
        """A new copy of ``tensor`` on the device."""
        return Tensor(_plain(tensor), self.adapter)

    def find(self, tensor: torch.Tensor, trust: bool) -> Optional[Tensor]:
        """The copy of ``tensor`` on the device, if it is valid. With ``trust`` only torch's count of writes decides, and bytes
        are not compared."""
        held = self.held_by(tensor)
        if held is not None or tensor.is_inference():
            return held
        found = self.copies.get(tensor.untyped_storage().data_ptr(), {}).get(_key(tensor))
        if found is None or found.version != tensor._version or found.tensor.is_lost:
            return None
        return found.tensor if trust or found.bytes == fingerprint(_plain(tensor)) else None

    def held_by(self, tensor: Any) -> Optional[Tensor]:
        """The tensor on the device that a stand-in represents; ``None`` if ``tensor`` is no stand-in."""
        return self.held.get(tensor.untyped_storage().data_ptr()) if isinstance(tensor, torch.Tensor) else None

    def keep(self, tensor: torch.Tensor, copy: Tensor, trust: bool) -> Optional[tuple[int, Key]]:
        """Keeps the copy until the memory of ``tensor`` is freed. ``trust`` is as in ``find``. Returns its place for
        ``forget``."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address == 0 or tensor.is_inference():
            return None
        if address not in self.copies:
            self.copies[address] = {}
            weakref.finalize(storage, self.copies.pop, address, None).atexit = False
        bytes = None if trust else fingerprint(_plain(tensor))
        self.copies[address][_key(tensor)] = Copy(tensor._version, bytes, copy)
        return address, _key(tensor)

    def forget(self, place: Optional[tuple[int, Key]]) -> None:
        """Frees a copy, given the place that ``keep`` returned."""
        if place is not None:
            self.copies.get(place[0], {}).pop(place[1], None)

    def stand_in(self, held: Tensor, kind: torch.Tensor) -> torch.Tensor:
        """A tensor of the shape of ``held`` whose memory is a single element, for torch to pass around. ``find`` and ``held_by``
        map it to ``held``; code that reads its elements sees NaN, or 0 for integers."""
        dtype = kind.dtype
        nothing = math.nan if dtype.is_floating_point or dtype.is_complex else 0
        shape = held.shape[: kind.ndim]
        one = torch.full((1,), nothing, dtype=dtype, device=kind.device)
        storage = one.untyped_storage()
        address = storage.data_ptr()
        self.held[address] = held
        weakref.finalize(storage, self.held.pop, address, None).atexit = False
        return one.as_strided(shape, [0] * len(shape))


ON_DEVICE: dict[str, Any] = {}
"""By the type of a torch device whose tensors are in device memory, functions ``held`` and ``tensor`` that give the device tensor
of a torch tensor and the torch tensor of a device tensor."""
_RESIDENT: dict[Any, Resident] = {}


def written(tensors: Iterable[torch.Tensor]) -> None:
    """Drops the copies of tensors that were written without torch counting it."""
    for tensor in tensors:
        address = tensor.untyped_storage().data_ptr()
        for one in _RESIDENT.values():
            one.copies.get(address, {}).clear()


def resident(adapter: Any) -> Resident:
    """The copies on the device of ``adapter``, which is given as for ``Session``."""
    key = adapter if isinstance(adapter, (str, int, type(None))) else ("index", adapter.index)
    return _RESIDENT.setdefault(key, Resident(adapter))
