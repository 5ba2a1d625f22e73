"""Replacement of ``unsafe_split`` and similar operators, whose results share memory with the argument although torch's schemas do
not say so."""

from __future__ import annotations

import operator
from typing import Any, Callable, Sequence

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from wgfc._errors import Diagnostic, Location, UnsupportedError


def _views(split: Callable[..., Sequence[Tensor]]) -> Callable[..., list[Tensor]]:
    def pieces(x: Tensor, size: Any, dim: int = 0) -> list[Tensor]:
        start, made = 0, []
        for piece in split(x, size, dim):
            made.append(x.narrow(dim, start, piece.shape[dim]))
            start = start + piece.shape[dim]
        return made

    return pieces


def _chunk(x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    return _views(torch.unsafe_chunk)(x, chunks, dim)


def _split(x: Tensor, split_size: Any, dim: int = 0) -> list[Tensor]:
    return _views(torch.unsafe_split)(x, split_size, dim)


def _split_with_sizes(x: Tensor, split_sizes: Sequence[Any], dim: int = 0) -> list[Tensor]:
    return _views(torch.unsafe_split_with_sizes)(x, split_sizes, dim)


_VIEWS: dict[str, Callable[..., Any]] = {
    "unsafe_chunk": _chunk,
    "unsafe_split": _split,
    "unsafe_split_with_sizes": _split_with_sizes,
}
_SAFE: dict[str, Callable[..., Any]] = {
    "unsafe_chunk": lambda x, chunks, dim=0: torch.chunk(x, chunks, dim),
    "unsafe_split": lambda x, split_size, dim=0: torch.split(x, split_size, dim),
    "unsafe_split_with_sizes": lambda x, split_sizes, dim=0: torch.split(x, split_sizes, dim),
}
_ATEN = torch.ops.aten
_TARGETS: dict[Any, str] = {
    **{getattr(torch, name): name for name in _VIEWS},
    _ATEN.unsafe_chunk.default: "unsafe_chunk",
    _ATEN.unsafe_split.Tensor: "unsafe_split",
    _ATEN.unsafe_split_with_sizes.default: "unsafe_split_with_sizes",
}
_IN_PLACE = {getattr(operator, f"__i{name}__") for name in "add sub mul matmul truediv floordiv mod pow lshift rshift and or xor".split()}
"""Functions such as ``operator.iadd``."""


def with_views(module: GraphModule) -> GraphModule:
    """Replaces ``unsafe_split`` and similar operators by views, in a graph that Dynamo has captured and in its inner graphs.
    AOTAutograd learns from schemas alone which tensors share memory, and without views it would miss that writes to the argument
    change the pieces and the other way round.

    If gradients are computed, the replacement is ``split``, whose gradients are the same unless the shared memory is written to.

    Raises
    ------
    UnsupportedError
        The graph writes to the shared memory and computes gradients, for which PyTorch uses the overwritten values.
    """
    for inner in module.modules():
        if isinstance(inner, GraphModule):
            _replace(inner)
    return module


def _replace(module: GraphModule) -> None:
    changed, written = False, None
    for node in list(module.graph.nodes):
        name = node.target if node.op == "call_method" else _TARGETS.get(node.target) if node.op == "call_function" else None
        if name not in _VIEWS:
            continue
        # The argument is named ``self`` in operators, ``input`` in functions and ``tensor`` in some of them.
        kwargs = {"x" if k in ("self", "input", "tensor") else k: v for k, v in node.kwargs.items()}
        argument = (*node.args, *kwargs.values())[0] if "x" not in kwargs else kwargs["x"]
        shared = [*_example(argument), *_example(node)]
        differentiable = any(t.requires_grad for t in shared)
        written = _written(module.graph) if differentiable and written is None else written
        if differentiable and not written.isdisjoint(map(_memory, shared)):
            message = f"the program writes to memory that the results of {name} share, and computes gradients of it"
            raise UnsupportedError([Diagnostic(message, "unsupported", _place(node), f"use {name[7:]}, or write to a clone")])
        with module.graph.inserting_before(node):
            new = module.graph.call_function((_SAFE if differentiable else _VIEWS)[name], node.args, kwargs)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        module.graph.erase_node(node)
        changed = True
    if changed:
        module.recompile()


def _place(node: Node) -> Location:
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    return Location(node=node.name, operator=str(node.target), source=lines[-1].strip() if lines else None)


def _example(node: Any) -> list[Tensor]:
    """The example tensors of a node from Dynamo's tracing."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return [t for t in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(t, Tensor)]


def _memory(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def _written(graph: Graph) -> set[int]:
    """The storages that a graph writes to."""
    found = set()
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "").split(".")[0]
        given = [node.kwargs["out"]] if "out" in node.kwargs else []
        in_place = name.endswith("_") and not name.endswith("__") or name == "setitem" or node.target in _IN_PLACE
        if in_place or name.startswith("__i"):
            given += node.args[:1]
        for argument in given:
            for n in argument if isinstance(argument, (list, tuple)) else [argument]:
                found |= {_memory(t) for t in _example(n)}
    return found
