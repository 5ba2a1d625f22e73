"""Tensors of torch that have a copy on the device, and tensors on the device that stand in torch's place.

Torch counts the writes that go through its operators (``tensor._version``), but not those of fused optimizers, through ``tensor.data``, NumPy,
DLPack, another process that shares the memory, or a kernel that has its address. So a copy is used only while the bytes are those that were copied.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Iterable, NamedTuple, Optional

import torch

from wgfc._wgfc import Tensor, fingerprint

Key = tuple[Any, ...]


def _key(tensor: torch.Tensor) -> Key:
    return (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU in the form that the device has: dense, complex numbers as pairs."""
    if tensor._is_zerotensor():
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    # Complex numbers are pairs on the device.
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return plain.contiguous()


class Copy(NamedTuple):
    """The copy of a tensor on the device."""

    version: int
    """Torch's count of writes when the copy was made."""
    bytes: Optional[tuple[int, int]]
    """The hash of the bytes; ``None`` if the count of writes is trusted."""
    tensor: Tensor


class Resident:
    """Copies on one device. A copy is valid as long as the tensor's memory is not freed, torch counts no write to it, and its bytes are the same."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        # The copies of the views of a storage, by its address.
        self.copies: dict[int, dict[Key, Copy]] = {}
        # Tensors on the device, by the address of the storage of their stand-in.
        self.held: dict[int, Tensor] = {}

    def upload(self, tensor: torch.Tensor) -> Tensor:
        """A copy of ``tensor`` as it is now."""
        return Tensor(_plain(tensor), self.adapter)

    def find(self, tensor: torch.Tensor, trust: bool) -> Optional[Tensor]:
        """The copy of ``tensor`` that is on the device, if it is still valid. With ``trust`` torch's count of writes decides, and bytes are
        not compared."""
        held = self.held_by(tensor)
        if held is not None or tensor.is_inference():
            return held
        found = self.copies.get(tensor.untyped_storage().data_ptr(), {}).get(_key(tensor))
        if found is None or found.version != tensor._version:
            return None
        return found.tensor if trust or found.bytes == fingerprint(_plain(tensor)) else None

    def held_by(self, tensor: Any) -> Optional[Tensor]:
        """The tensor that a stand-in represents."""
        return self.held.get(tensor.untyped_storage().data_ptr()) if isinstance(tensor, torch.Tensor) else None

    def keep(self, tensor: torch.Tensor, copy: Tensor, trust: bool) -> Optional[tuple[int, Key]]:
        """Keeps the copy until the memory of ``tensor`` is freed; ``trust`` as for ``find``."""
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
        """Frees a copy that ``keep`` has kept."""
        if place is not None:
            self.copies.get(place[0], {}).pop(place[1], None)

    def stand_in(self, held: Tensor, kind: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape with one element of memory, for torch to carry about. What computes with it finds what is on
        the device; anything else reads values that are no numbers."""
        dtype = kind.dtype
        nothing = math.nan if dtype.is_floating_point or dtype.is_complex else 0
        shape = held.shape[: kind.ndim]
        one = torch.full((1,), nothing, dtype=dtype, device=kind.device)
        storage = one.untyped_storage()
        address = storage.data_ptr()
        self.held[address] = held
        weakref.finalize(storage, self.held.pop, address, None).atexit = False
        return one.as_strided(shape, [0] * len(shape))


_RESIDENT: dict[Any, Resident] = {}


def written(tensors: Iterable[torch.Tensor]) -> None:
    """Forgets the copies of tensors that were written without torch counting it."""
    for tensor in tensors:
        address = tensor.untyped_storage().data_ptr()
        for one in _RESIDENT.values():
            one.copies.get(address, {}).clear()


def resident(adapter: Any) -> Resident:
    """The tensors on the device of ``adapter``, which has the form that ``Session`` takes."""
    key = adapter if isinstance(adapter, (str, int, type(None))) else ("index", adapter.index)
    return _RESIDENT.setdefault(key, Resident(adapter))
