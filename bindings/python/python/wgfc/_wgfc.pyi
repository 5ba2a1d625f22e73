import os
from typing import Any, Callable, Iterable, Literal, Mapping, NoReturn, Optional, Sequence, Union, final, overload

import numpy as np
import torch as pytorch

__version__: str

_Path = Union[str, "os.PathLike[str]"]
_Progress = Callable[[str, int, int], object]
_Picture = Union[str, "os.PathLike[str]", bytes, np.ndarray[Any, Any], "pytorch.Tensor"]
_Adapter = Union[None, str, int, "Adapter"]

def adapters() -> list[Adapter]: ...
def wait_for_devices() -> None: ...
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
    activations: Optional[str],
    cache_type: Optional[str],
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

@final
class Decoder:
    def __new__(cls, path: _Path, *, memory_limit: Optional[int] = None) -> Decoder: ...
    @property
    def has_tokenizer(self) -> bool: ...
    @property
    def has_chat_template(self) -> bool: ...
    @property
    def stop_tokens(self) -> list[int]: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...
    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        *,
        add_generation_prompt: bool = True,
        tokenize: Literal[True] = True,
        **variables: Any,
    ) -> list[int]: ...
    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        *,
        add_generation_prompt: bool = True,
        tokenize: Literal[False],
        **variables: Any,
    ) -> str: ...

@final
class Generator:
    def __new__(
        cls,
        model: Union[_Path, Decoder],
        adapter: _Adapter = None,
        *,
        capacity: int = 2048,
        prompt_chunk: Optional[int] = None,
        precision: Literal["f32", "f16"] = "f32",
        weights: Optional[Literal["q8", "q4"]] = None,
        activations: Optional[Literal["q8"]] = None,
        cache_type: Optional[Literal["f32", "f16", "q8"]] = None,
        keep_f32: Sequence[str] = (),
        context: Optional[Mapping[str, Any]] = None,
        cache: bool = True,
        progress: Optional[_Progress] = None,
    ) -> Generator: ...
    def generate(
        self,
        prompt: Union[str, Sequence[int]],
        *,
        max_new_tokens: Optional[int] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repetition_penalty: Optional[float] = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Optional[dict[int, float]] = None,
        seed: int = 0,
        stop: Optional[Sequence[int]] = None,
        logprobs: Optional[int] = None,
        json_schema: Optional[Union[str, bool, Mapping[str, Any]]] = None,
        regex: Optional[str] = None,
        grammar: Optional[str] = None,
        images: Sequence[_Picture] = (),
    ) -> Tokens: ...
    def complete(
        self,
        prompt: Union[str, Sequence[int]],
        *,
        max_new_tokens: Optional[int] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repetition_penalty: Optional[float] = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Optional[dict[int, float]] = None,
        seed: int = 0,
        stop: Optional[Sequence[int]] = None,
        logprobs: Optional[int] = None,
        json_schema: Optional[Union[str, bool, Mapping[str, Any]]] = None,
        regex: Optional[str] = None,
        grammar: Optional[str] = None,
        images: Sequence[_Picture] = (),
    ) -> Tokens: ...
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        *,
        max_new_tokens: Optional[int] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repetition_penalty: Optional[float] = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Optional[dict[int, float]] = None,
        seed: int = 0,
        stop: Optional[Sequence[int]] = None,
        logprobs: Optional[int] = None,
        json_schema: Optional[Union[str, bool, Mapping[str, Any]]] = None,
        regex: Optional[str] = None,
        grammar: Optional[str] = None,
        images: Sequence[_Picture] = (),
        **variables: Any,
    ) -> Tokens: ...
    def reset(self) -> None: ...
    def rewind(self, tokens: int) -> None: ...
    @property
    def decoder(self) -> Decoder: ...
    @property
    def capacity(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def adapter(self) -> Adapter: ...
    def memory(self) -> dict[str, int]: ...
    def __len__(self) -> int: ...

@final
class Tokens:
    def __iter__(self) -> Tokens: ...
    def __next__(self) -> int: ...
    @property
    def logprobs(self) -> Optional[LogProbs]: ...
    def pieces(self) -> Pieces: ...
    def text(self) -> str: ...

@final
class Pieces:
    def __iter__(self) -> Pieces: ...
    def __next__(self) -> str: ...

@final
class LogProbs:
    @property
    def chosen(self) -> float: ...
    @property
    def top(self) -> list[tuple[int, float]]: ...
