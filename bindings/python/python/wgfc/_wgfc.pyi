import os
from typing import Any, Callable, Iterable, Literal, Mapping, NoReturn, Optional, Sequence, Union, final, overload

import numpy as np
import torch as pytorch

__version__: str

_Path = Union[str, "os.PathLike[str]"]
_Progress = Callable[[str, int, int], object]
_Adapter = Union[None, str, int, "Adapter"]

def adapters() -> list[Adapter]: ...
def command_line(arguments: list[str]) -> NoReturn: ...
def fingerprint(array: Any) -> tuple[int, int]: ...
def compile(
    model: Union[_Path, bytes],
    *,
    dims: dict[str, int],
    expect: dict[str, int],
    values: dict[str, Any],
    taps: list[str],
    added: list[str],
    replaced: list[str],
    states: Union[None, str, dict[str, str]],
    state_capacity: Optional[int],
    precision: str,
    keep_f32: list[str],
    weights: Optional[str],
    fusion: str,
    without: list[str],
    adapter: _Adapter,
    profile: Optional[str],
    tuning: Optional[_Path],
    schedules: Optional[_Path],
    graph_only: bool,
    progress: Optional[_Progress],
) -> Program: ...
@final
class Adapter:
    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def driver(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def is_software(self) -> bool: ...
    @property
    def limits(self) -> dict[str, Any]: ...
    def destroy_device(self) -> None: ...

@final
class Port:
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[Union[int, str], ...]: ...
    @property
    def optional(self) -> bool: ...

@final
class State:
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[Union[int, str], ...]: ...
    @property
    def axis(self) -> Optional[int]: ...

@final
class Program:
    @staticmethod
    def load(path: _Path) -> Program: ...
    def save(self, path: _Path, *, force: bool = False, progress: Optional[_Progress] = None) -> None: ...
    @property
    def inputs(self) -> list[Port]: ...
    @property
    def outputs(self) -> list[Port]: ...
    @property
    def states(self) -> list[State]: ...
    @property
    def symbols(self) -> list[str]: ...
    @property
    def dispatches(self) -> int: ...
    @property
    def kernels(self) -> dict[str, str]: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def warnings(self) -> list[str]: ...
    @overload
    def inspect(
        self,
        *,
        json: Literal[False] = False,
        dims: Mapping[str, int] = {},
        profile: str = "portable",
        dispatches: bool = False,
    ) -> str: ...
    @overload
    def inspect(
        self,
        *,
        json: Literal[True],
        dims: Mapping[str, int] = {},
        profile: str = "portable",
        dispatches: bool = False,
    ) -> dict[str, Any]: ...

@final
class Session:
    def __new__(
        cls,
        program: Program,
        adapter: _Adapter = None,
        *,
        capacity: Optional[int] = None,
        trust: bool = False,
        cache: bool = True,
        progress: Optional[_Progress] = None,
    ) -> Session: ...
    @overload
    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Optional[Sequence[str]] = None,
        to: Literal["numpy"] = "numpy",
        add: Optional[Mapping[str, Any]] = None,
        replace: Optional[Mapping[str, Any]] = None,
        where: Optional[Mapping[str, Any]] = None,
    ) -> dict[str, np.ndarray]: ...
    @overload
    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Optional[Sequence[str]] = None,
        to: Literal["torch"],
        add: Optional[Mapping[str, Any]] = None,
        replace: Optional[Mapping[str, Any]] = None,
        where: Optional[Mapping[str, Any]] = None,
    ) -> dict[str, pytorch.Tensor]: ...
    @overload
    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Optional[Sequence[str]] = None,
        to: Literal["device"],
        add: Optional[Mapping[str, Any]] = None,
        replace: Optional[Mapping[str, Any]] = None,
        where: Optional[Mapping[str, Any]] = None,
    ) -> dict[str, Tensor]: ...
    @overload
    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Optional[Sequence[str]] = None,
        to: Mapping[str, Literal["numpy", "torch", "device"]],
        add: Optional[Mapping[str, Any]] = None,
        replace: Optional[Mapping[str, Any]] = None,
        where: Optional[Mapping[str, Any]] = None,
    ) -> dict[str, Any]: ...
    def call(self, inputs: Sequence[Any]) -> list[Tensor]: ...
    def stream(
        self,
        batches: Iterable[Mapping[str, Any]],
        *,
        outputs: Optional[Sequence[str]] = None,
        to: Literal["numpy", "torch"] = "numpy",
        in_flight: int = 2,
    ) -> Stream: ...
    @property
    def inputs(self) -> list[Port]: ...
    @property
    def outputs(self) -> list[Port]: ...
    @property
    def states(self) -> list[State]: ...
    @property
    def is_lost(self) -> bool: ...
    @property
    def adapter(self) -> Adapter: ...
    @overload
    def read_states(
        self, names: Optional[Sequence[str]] = None, *, to: Literal["numpy"] = "numpy"
    ) -> dict[str, np.ndarray]: ...
    @overload
    def read_states(
        self, names: Optional[Sequence[str]] = None, *, to: Literal["torch"]
    ) -> dict[str, pytorch.Tensor]: ...
    def write_states(self, values: Mapping[str, Any]) -> None: ...
    def reset(self, names: Optional[Sequence[str]] = None) -> None: ...
    def rewind(self, length: int) -> None: ...
    def grow(self, capacity: int) -> None: ...
    @property
    def state_length(self) -> int: ...
    @property
    def capacity(self) -> Optional[int]: ...
    def fork(self) -> Session: ...
    def set_symbol(self, name: str, value: int) -> None: ...
    def wait(self) -> None: ...
    def trim(self) -> None: ...
    def memory(self) -> dict[str, int]: ...

@final
class Stream:
    def __iter__(self) -> Stream: ...
    def __next__(self) -> dict[str, Any]: ...

@final
class Tensor:
    def __new__(cls, array: Any, adapter: _Adapter = None) -> Tensor: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_lost(self) -> bool: ...
    @property
    def adapter(self) -> Adapter: ...
    def reshape(self, shape: Sequence[int]) -> Tensor: ...
    def view(self, dtype: str, shape: Sequence[int]) -> Tensor: ...
    @staticmethod
    def empty(dtype: str, shape: Sequence[int], adapter: _Adapter = None) -> Tensor: ...
    def numpy(self) -> np.ndarray: ...
    def torch(self) -> pytorch.Tensor: ...
    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __len__(self) -> int: ...

@final
class HostArray:
    @property
    def dtype(self) -> str: ...
    @property
    def raw_dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
