"""``torch.compile(model, backend="wgfc")``.

From the graph that Dynamo captures, AOTAutograd makes functional graphs of core ATen operators: one for inference, or one forward
and one backward graph. Programs on the device compute them, and operators that wgfc does not support run in torch in between.
torch finds this backend by its name if wgfc is installed.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import Any, Callable, Mapping, Optional, Sequence

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes

from wgfc import _partition
from wgfc._decompositions import decompositions
from wgfc._joint import partition
from wgfc._resident import written
from wgfc._plan import STATISTICS, FallbackWarning, Plan, Settings, Statistics
from wgfc._unsafe import with_views

__all__ = ["FallbackWarning", "Statistics", "statistics", "wgfc"]

_COMPILE = ("profile", "fusion", "without", "tuning", "schedules")
_LOCK = threading.RLock()


def _stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Drops the copies of parameters that a fused optimizer has written: torch does not count these writes."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            written(group["params"])


register_optimizer_step_post_hook(_stepped)


def statistics() -> Statistics:
    """Counts of the backend's work in this process so far."""
    return dataclasses.replace(STATISTICS)


def wgfc(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    options: Optional[Mapping[str, Any]] = None,
    mode: Optional[str] = None,
    **_: Any,
) -> Callable[..., Any]:
    """The backend: compiles a graph that Dynamo has captured.

    ``options`` of ``torch.compile``: with ``fullgraph=True`` an operator that would stay in torch is an ``UnsupportedError``;
    with ``trust_versions=True`` parameters count as unchanged if torch has counted no write to them, and their bytes are not
    compared; ``adapter`` is as for ``Session``; ``profile``, ``fusion``, ``without``, ``tuning`` and ``schedules`` are as for
    ``wgfc.compile``.
    """
    given = dict(options or {})
    settings = Settings(
        bool(given.pop("fullgraph", False)),
        bool(given.pop("trust_versions", False)),
        given.pop("adapter", None),
        {k: given.pop(k) for k in _COMPILE if k in given},
    )
    if given:
        known = ", ".join(("fullgraph", "trust_versions", "adapter", *_COMPILE))
        raise ValueError(f"options: unknown option {next(iter(given))!r}; known are {known}")
    if mode not in (None, "default"):
        raise ValueError(f"mode: the backend wgfc has no mode {mode!r}; pass none")
    backend = aot_autograd(
        fw_compiler=functools.partial(_compiled, settings, "forward"),
        bw_compiler=functools.partial(_compiled, settings, "backward"),
        inference_compiler=functools.partial(_compiled, settings, "inference"),
        decompositions=decompositions(),
        partition_fn=partition,
        # Without gradients a plan writes new values to arguments itself.
        keep_inference_input_mutations=not torch.is_grad_enabled(),
    )
    # With the math backend, attention and its gradient consist of matrix products and softmax, which wgfc can fuse into one
    # kernel.
    with sdpa_kernel(SDPBackend.MATH):
        return backend(with_views(module), inputs)


def _compiled(settings: Settings, kind: str, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None or kind == "backward" else context.fw_metadata
    returned = None
    if metadata is not None and kind == "forward":
        # The tokens of effects precede the function's results.
        returned = metadata.num_forward_returns + len(metadata.tokens)
    fixed = set(metadata.static_input_indices) if metadata is not None else set()
    # The new values of written arguments precede other results.
    effects = 0 if metadata is None else len(metadata.tokens)
    written = [] if metadata is None else [effects + i for i in metadata.mutated_inp_runtime_indices]
    own = _partition.take_writes(module) if kind == "inference" else []
    replaced = dict(enumerate(own)) | {len(own) + effects + i: argument for i, argument in enumerate(written)}
    # Torch compiles in a fake-tensor mode, which is disabled here because the plan reads the values of constants.
    with _LOCK, _disable_current_modes():
        plan = Plan(settings, module, kind == "backward", returned, fixed, replaced, len(own))

    def run(arguments: list[Any]) -> list[Any]:
        with _LOCK:
            return plan.run(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
