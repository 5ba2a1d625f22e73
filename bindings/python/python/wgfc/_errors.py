"""Exceptions, with their diagnostics as data."""

from __future__ import annotations

import dataclasses
from typing import Literal, Optional, Sequence


@dataclasses.dataclass(frozen=True)
class Location:
    """A place in a model. Parts that are not known or do not apply are ``None``."""

    file: Optional[str] = None
    """The file or folder."""
    node: Optional[str] = None
    """The node's name, or a description where it has none: ``#12 (Conv)``."""
    operator: Optional[str] = None
    """Its operator."""
    opset: Optional[int] = None
    """The ONNX opset version of the node."""
    part: Optional[str] = None
    """An input, output or attribute of the node: ``input B``, ``attribute axis``."""
    source: Optional[str] = None
    """The node's origin in source code, if the model records it: ``module layers.0.mlp, model.py:12: x = self.up(x)``."""

    def __str__(self) -> str:
        inside = []
        if self.node is not None:
            version = "" if self.opset is None else f", opset {self.opset}"
            inside.append(f'node "{self.node}"' + (f" ({self.operator}{version})" if self.operator else ""))
        if self.part is not None:
            inside.append(self.part)
        return ": ".join(filter(None, [self.file, ", ".join(inside)]))


@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """A single problem: its description, place, kind and remedy."""

    message: str
    """The problem and its reason: ``MatMul inner dimensions differ: 512 and 768``."""
    kind: Literal["model", "unsupported", "device", "internal"] = "model"
    """The cause: the model (or a file, or an argument), a limitation of wgfc, the device, or a bug in wgfc."""
    location: Location = Location()
    """The place of the problem."""
    help: Optional[str] = None
    """How to solve it, in a sentence."""

    def __str__(self) -> str:
        tag = "" if self.kind == "model" else f"[{self.kind}] "
        where, what_to_do = str(self.location), self.help
        text = tag + self.message
        if where:
            text += f"\n  --> {where}"
        if self.location.source:
            text += f"\n  in {self.location.source}"
        if what_to_do:
            text += f"\n  help: {what_to_do}"
        return text


class Error(Exception):
    """All problems that were found, not only the first."""

    diagnostics: list[Diagnostic]
    """All problems; never empty."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        # The base class must have the constructor's arguments, so that the exception can be pickled.
        super().__init__(list(diagnostics))
        self.diagnostics = list(diagnostics)

    def __str__(self) -> str:
        return "\n".join(map(str, self.diagnostics))


class ModelError(Error, ValueError):
    """The model, a file, an input or an argument is wrong."""


class UnsupportedError(Error, NotImplementedError):
    """The model is valid, and wgfc does not support something in it."""


class DeviceError(Error, RuntimeError):
    """There is no adapter, or the device failed: limits exceeded, out of memory, device lost."""


class InternalError(Error, RuntimeError):
    """A bug in wgfc; please report it with the model's graph."""
