"""``torch.webgpu``: the module of torch for the device ``webgpu``, and the places where torch asks for more than a backend in
Python can register."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Optional, Union

import torch
from torch.utils import backend_registration

Device = Union[None, int, str, torch.device]


def _index(device: Device) -> int:
    """The index of a device, which is 0. Raises ``RuntimeError`` in torch's words for another one."""
    given = torch.device(device).index if isinstance(device, (str, torch.device)) else device
    if given not in (None, 0):
        raise RuntimeError(f"webgpu error: invalid device ordinal {given}; there is one device, webgpu:0")
    return 0


class Module:
    """``torch.webgpu``. ``synchronize`` and the figures of memory are set by the recorder."""

    _initialized = True
    """Torch's checkpointing keeps the state of the generators of devices that are initialized."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.flush: Callable[[str], None] = lambda why: None
        self.wait: Callable[[], None] = lambda: None
        self.usage: Callable[[], dict[str, int]] = dict
        self.reset_peaks: Callable[[], None] = lambda: None
        self.reserved: Callable[[], int] = lambda: 0
        self.trim: Callable[[], None] = lambda: None
        self.cuts: list[Any] = []

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        """Whether there is an adapter."""
        return _exists()

    def is_bf16_supported(self) -> bool:
        return False

    def init(self) -> None:
        pass

    def device_count(self) -> int:
        return int(self.is_available())

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Device) -> None:
        _index(device)

    def get_device_name(self, device: Device = None) -> str:
        """The name of the adapter that ``WGFC_ADAPTER`` chooses, or else of the best."""
        _index(device)
        return _held().adapter.name

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed(self, seed: int) -> None:
        """Sets the seed of the device's generator, which ``torch.manual_seed`` does too."""
        self.generator.manual_seed(seed)

    manual_seed_all = manual_seed

    def seed(self) -> int:
        return self.generator.seed()

    def initial_seed(self) -> int:
        return self.generator.initial_seed()

    def get_rng_state(self, device: Device = None) -> torch.Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Device = None) -> None:
        self.generator.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16]

    def synchronize(self, device: Device = None) -> None:
        """Runs what has been recorded, and waits until the device is done."""
        _index(device)
        self.flush("synchronize")
        self.wait()

    def memory_allocated(self, device: Device = None) -> int:
        """The bytes of all tensors on the device, each storage once, also those that fusion leaves out."""
        return self.memory_stats(device)["allocated_bytes.all.current"]

    def max_memory_allocated(self, device: Device = None) -> int:
        """The most bytes that tensors on the device had at a time."""
        return self.memory_stats(device)["allocated_bytes.all.peak"]

    def memory_reserved(self, device: Device = None) -> int:
        """The bytes of buffers that programs keep for their next runs, of which some hold tensors."""
        _index(device)
        return self.reserved()

    def memory_stats(self, device: Device = None) -> dict[str, int]:
        """Counts of storages and their bytes, by the names of ``torch.accelerator.memory_stats``."""
        _index(device)
        return self.usage()

    def reset_peak_memory_stats(self, device: Device = None) -> None:
        """Begins peaks anew at what is alive."""
        _index(device)
        self.reset_peaks()

    def empty_cache(self) -> None:
        """Frees the memory that programs keep between their runs."""
        self.flush("empty_cache")
        self.trim()

    Stream, Event = torch.Stream, torch.Event

    def current_stream(self, device: Device = None) -> torch.Stream:
        """The stream of the device. There is one, in which everything runs in order."""
        _index(device)
        return torch.Stream(device=DEVICE)

    @contextlib.contextmanager
    def stream(self, stream: Optional[torch.Stream]) -> Any:
        """A context in which a stream is the current one; there is one."""
        yield

    @contextlib.contextmanager
    def device(self, device: Device) -> Any:
        """A context in which a device is the current one; there is one."""
        _index(device)
        yield

    def trace(self) -> list[Any]:
        """What was recorded and run last, oldest first: ``wgfc.torch.Cut`` for each cut."""
        return list(self.cuts)


def _pin_memory(x: torch.Tensor, device: Device = None) -> torch.Tensor:
    # Torch asks the allocator of the accelerator for pinned memory, which WebGPU has not: uploads copy from any memory.
    return x


class _Generators(type(torch._C.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class _Generator(torch._C.Generator, metaclass=_Generators):
    """``torch.Generator``, also of the device, whose numbers come from the same state as a generator of the CPU has."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != "webgpu":
            return torch._C.Generator(device)
        _index(device)
        return super().__new__(cls, "cpu")

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE


def _on_accelerator(name: str, own: Callable[..., Any]) -> None:
    """Replaces a function of ``torch.accelerator`` that asks an allocator or a stream in C++, for this device."""
    general = getattr(torch.accelerator, name, None)
    if general is None:
        return

    @functools.wraps(general)
    def call(*args: Any, **kwargs: Any) -> Any:
        current = torch.accelerator.current_accelerator()
        return own(*args, **kwargs) if current is not None and current.type == "webgpu" else general(*args, **kwargs)

    setattr(torch.accelerator, name, call)


_unscale = torch.amp.GradScaler.unscale_


class _Single:
    """The scale of a ``GradScaler`` whose reciprocal is computed in f32, as the device has no f64: exactly for powers of two,
    which scales are unless a user gives other ones, and else to the nearest f32."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale
        self.device = scale.device

    def double(self) -> torch.Tensor:
        return self.scale


def _unscale_in_f32(scaler: Any, optimizer: Any) -> None:
    scale = scaler._scale
    if scale is None or scale.device.type != "webgpu":
        return _unscale(scaler, optimizer)
    scaler._scale = _Single(scale)
    try:
        _unscale(scaler, optimizer)
    finally:
        scaler._scale = scale


torch.amp.GradScaler.unscale_ = _unscale_in_f32  # type: ignore[method-assign]
torch.Tensor.pin_memory = _pin_memory  # type: ignore[assignment, method-assign]
torch.Tensor.is_pinned = lambda x, device=None: False  # type: ignore[assignment, method-assign]


@functools.cache
def _exists() -> bool:
    from wgfc import adapters

    return bool(adapters())


def _held() -> Any:
    from wgfc import Tensor

    return Tensor.empty("float32", [1])


if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    raise ImportError(f"wgfc.torch needs torch 2.11 or later, which takes devices in Python; {torch.__version__} is installed")
MODULE = Module()
backend_registration._setup_privateuseone_for_python_backend("webgpu", backend_module=MODULE)
backend_registration._generate_storage_methods_for_privateuse1_backend("webgpu")
DEVICE = torch.device("webgpu", 0)


_dlpack = torch.Tensor.__dlpack__


def _host_only(x: torch.Tensor, *args: Any, **named: Any) -> Any:
    if x.device.type == "webgpu":
        raise BufferError("elements of a webgpu tensor have no address; pass x.cpu()")
    return _dlpack(x, *args, **named)


def _untracked(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("webgpu: this figure is not tracked; torch.webgpu.memory_stats() and memory_reserved() have those that are")


torch.Tensor.__dlpack__ = _host_only  # type: ignore[method-assign]
torch.Generator = _Generator  # type: ignore[assignment, misc]
for _name, _own in (
    ("synchronize", MODULE.synchronize),
    ("empty_cache", MODULE.empty_cache),
    ("memory_allocated", MODULE.memory_allocated),
    ("max_memory_allocated", MODULE.max_memory_allocated),
    ("memory_reserved", MODULE.memory_reserved),
    ("max_memory_reserved", _untracked),
    ("memory_stats", MODULE.memory_stats),
    ("reset_peak_memory_stats", MODULE.reset_peak_memory_stats),
    ("reset_accumulated_memory_stats", _untracked),
    ("get_memory_info", _untracked),
):
    _on_accelerator(_name, _own)
