"""Tensors of torch that have a copy on the device, and tensors on the device that stand in torch's place."""

from __future__ import annotations

import math
import weakref
from typing import Any, Iterable, Optional

import torch

from wgfc._wgfc import Tensor

Key = tuple[Any, ...]


def _key(tensor: torch.Tensor) -> Key:
    return (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


class Resident:
    """Copies on one device. A copy holds as long as torch has counted no write to the tensor and its memory lives."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        # By the address of a storage: what each view of it was when it was copied.
        self.copies: dict[int, dict[Key, tuple[int, Tensor]]] = {}
        # By the address of the storage of a stand-in.
        self.held: dict[int, Tensor] = {}

    def upload(self, tensor: torch.Tensor) -> Tensor:
        """A copy of ``tensor`` as it is now."""
        if tensor._is_zerotensor():
            tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        # Complex numbers are pairs on the device.
        plain = torch.view_as_real(plain) if plain.is_complex() else plain
        return Tensor(plain.contiguous(), self.adapter)

    def find(self, tensor: torch.Tensor) -> Optional[Tensor]:
        """The copy of ``tensor`` that is on the device, if it is still true."""
        held = self.held_by(tensor)
        if held is not None or tensor.is_inference():
            return held
        found = self.copies.get(tensor.untyped_storage().data_ptr(), {}).get(_key(tensor))
        return found[1] if found is not None and found[0] == tensor._version else None

    def held_by(self, tensor: Any) -> Optional[Tensor]:
        """What a stand-in stands for."""
        return self.held.get(tensor.untyped_storage().data_ptr()) if isinstance(tensor, torch.Tensor) else None

    def keep(self, tensor: torch.Tensor, copy: Tensor) -> Optional[tuple[int, Key]]:
        """Remembers the copy until the memory of ``tensor`` is freed."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address == 0 or tensor.is_inference():
            return None
        if address not in self.copies:
            self.copies[address] = {}
            weakref.finalize(storage, self.copies.pop, address, None).atexit = False
        self.copies[address][_key(tensor)] = (tensor._version, copy)
        return address, _key(tensor)

    def forget(self, place: Optional[tuple[int, Key]]) -> None:
        """Frees a copy that ``keep`` remembered."""
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
    """What is on the device of ``adapter``, as ``Session`` takes it."""
    key = adapter if isinstance(adapter, (str, int, type(None))) else ("index", adapter.index)
    return _RESIDENT.setdefault(key, Resident(adapter))
