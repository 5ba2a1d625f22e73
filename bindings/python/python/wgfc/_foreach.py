"""Decompositions of operators on lists of tensors, as optimizers use with ``foreach=True``, into operators on single tensors."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

_ATEN = torch.ops.aten
_NAMED = {
    "norm": lambda x, ord=2, dtype=None: _ATEN.linalg_vector_norm(x, ord, dtype=dtype),
    "zero": _ATEN.zeros_like,
    "max": _ATEN.amax,
}
"""List operators whose operator on single tensors has another name or other arguments."""
_LAST = {"addcmul": ("value", 3), "addcdiv": ("value", 3)}
"""Keyword-only arguments of operators on single tensors, with their positions in the list operators."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decompositions of all list operators that write no argument, by operator."""
    found: dict[Any, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.partition(".")
        if not packet.startswith("aten::_foreach_") or packet.endswith("_"):
            continue
        inner = packet.removeprefix("aten::_foreach_")
        one = _NAMED.get(inner) or getattr(_ATEN, inner, None)
        operator = getattr(getattr(_ATEN, packet.removeprefix("aten::"), None), overload or "default", None)
        if one is None or operator is None or len(operator._schema.returns) != 1 or overload.endswith("out"):
            continue
        found[operator] = functools.partial(_each, one, inner, operator._schema)
    return found


def _each(one: Callable[..., Any], name: str, schema: Any, *args: Any, **kwargs: Any) -> list[Any]:
    given = dict(zip((a.name for a in schema.arguments), args)) | kwargs
    types = {a.name: str(a.type) for a in schema.arguments}
    count = max(len(v) for k, v in given.items() if types[k].startswith("List[Tensor"))
    made = []
    for i in range(count):
        # Lists and the tensor ``scalars`` have a value for each tensor; other arguments apply to all tensors.
        own = {k: v[i] if types[k].startswith("List[") or k == "scalars" else v for k, v in given.items()}
        positional = [v for k, v in own.items() if not (k in kwargs or _is_last(name, schema, k))]
        named = {("value" if _is_last(name, schema, k) else k): v for k, v in own.items() if k in kwargs or _is_last(name, schema, k)}
        made.append(_of_one(one, name, positional, named))
    return made


def _is_last(name: str, schema: Any, argument: str) -> bool:
    _, at = _LAST.get(name, ("", -1))
    return at >= 0 and len(schema.arguments) > at and schema.arguments[at].name == argument


def _of_one(one: Callable[..., Any], name: str, positional: list[Any], named: dict[str, Any]) -> Any:
    value = named.get("value")
    if name in ("maximum", "minimum") and not isinstance(positional[1], torch.Tensor):
        one = _ATEN.clamp_min if name == "maximum" else _ATEN.clamp_max
    if name in _LAST and isinstance(value, torch.Tensor):
        # ``addcmul`` and ``addcdiv`` accept only a number as ``value``, not a tensor.
        x, a, b = positional
        return x + value * (a * b if name == "addcmul" else a / b)
    return one(*positional, **named)
