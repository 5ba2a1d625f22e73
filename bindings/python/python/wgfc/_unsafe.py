"""Operators whose results share the memory of their argument although torch's schema does not say so, as views."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule


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


_NAMED: dict[str, Callable[..., Any]] = {
    "unsafe_chunk": _chunk,
    "unsafe_split": _split,
    "unsafe_split_with_sizes": _split_with_sizes,
}
_ATEN = torch.ops.aten
_TARGETS: dict[Any, Callable[..., Any]] = {
    **{getattr(torch, name): made for name, made in _NAMED.items()},
    _ATEN.unsafe_chunk.default: _chunk,
    _ATEN.unsafe_split.Tensor: _split,
    _ATEN.unsafe_split_with_sizes.default: _split_with_sizes,
}


def with_views(module: GraphModule) -> GraphModule:
    """Has a graph that Dynamo has captured make views where ``unsafe_split`` and its like share memory: what is written to the argument
    must be in its pieces, and the other way round. AOTAutograd sees what shares memory by the schemas alone. Graphs inside of it likewise."""
    for inner in module.modules():
        if isinstance(inner, GraphModule):
            _replace(inner)
    return module


def _replace(module: GraphModule) -> None:
    changed = False
    for node in list(module.graph.nodes):
        found = _NAMED.get(node.target) if node.op == "call_method" else _TARGETS.get(node.target) if node.op == "call_function" else None
        if found is None:
            continue
        # Torch calls the argument ``self`` in operators and ``input`` in functions.
        kwargs = {"x" if k in ("self", "input", "tensor") else k: v for k, v in node.kwargs.items()}
        with module.graph.inserting_before(node):
            new = module.graph.call_function(found, node.args, kwargs)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        module.graph.erase_node(node)
        changed = True
    if changed:
        module.recompile()
