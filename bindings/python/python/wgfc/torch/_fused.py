"""Fused optimizers and the scaling of gradients as operators on single tensors: the formulas of ``torch.optim``'s Adam, AdamW and
SGD, and of ``torch.amp.GradScaler``."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

_ATEN = torch.ops.aten


def _gradient(grad: Tensor, scale: Optional[Tensor], maximize: bool) -> Tensor:
    grad = grad if scale is None else grad / scale
    return -grad if maximize else grad


def _unless(found: Optional[Tensor], old: Tensor, new: Tensor) -> Tensor:
    """``old`` where the scaled gradients were not finite, else ``new``."""
    return new if found is None else torch.where(found == 1, old, new)


def _adam(decoupled: bool) -> Callable[..., list[list[Tensor]]]:
    def step(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        firsts: Sequence[Tensor],
        seconds: Sequence[Tensor],
        maxima: Sequence[Tensor],
        counts: Sequence[Tensor],
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Optional[Tensor] = None,
        found_inf: Optional[Tensor] = None,
    ) -> list[list[Tensor]]:
        made: list[list[Tensor]] = [[], [], [], [], []]
        for i, (p, grad, m, v, t) in enumerate(zip(params, grads, firsts, seconds, counts)):
            g = _gradient(grad, grad_scale, maximize)
            q = p
            if weight_decay != 0:
                q, g = (p * (1 - lr * weight_decay), g) if decoupled else (p, g + p * weight_decay)
            first, second = m + (g - m) * (1 - beta1), v * beta2 + g * g * (1 - beta2)
            most = torch.maximum(maxima[i], second) if amsgrad else second
            size = most.sqrt() / (1 - beta2**t).sqrt() + eps
            q = q - first / size * (lr / (1 - beta1**t))
            news = [q, grad if grad_scale is None else grad / grad_scale, first, second]
            for j, (old, new) in enumerate(zip((p, grad, m, v), news)):
                made[j].append(_unless(found_inf, old, new))
            if amsgrad:
                made[4].append(_unless(found_inf, maxima[i], most))
        return made

    return step


def _sgd(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momenta: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Optional[Tensor] = None,
    found_inf: Optional[Tensor] = None,
) -> list[list[Tensor]]:
    made: list[list[Tensor]] = [[], [], []]
    for i, (p, grad) in enumerate(zip(params, grads)):
        g = _gradient(grad, grad_scale, maximize)
        if weight_decay != 0:
            g = g + p * weight_decay
        if momentum != 0:
            b = g if is_first_step else momenta[i] * momentum + g * (1 - dampening)
            made[2].append(_unless(found_inf, momenta[i], b))
            g = g + b * momentum if nesterov else b
        made[0].append(_unless(found_inf, p, p - g * lr))
        made[1].append(_unless(found_inf, grad, grad if grad_scale is None else grad / grad_scale))
    return made


def _unscale(grads: Sequence[Tensor], found: Tensor, inverse: Tensor) -> list[list[Tensor]]:
    for g in grads:
        found = torch.maximum(found, g.isfinite().logical_not().any().to(found.dtype))
    return [[g * inverse for g in grads], [found]]


def _update_scale(
    scale: Tensor, tracker: Tensor, found: Tensor, growth: float, backoff: float, interval: int
) -> list[list[Tensor]]:
    steps = tracker + 1
    grows = steps == interval
    grown = scale * growth
    good = torch.where(grows & grown.isfinite(), grown, scale)
    is_bad = found != 0
    return [[torch.where(is_bad, scale * backoff, good), torch.where(is_bad | grows, torch.zeros_like(steps), steps)]]


STEPS: dict[Any, Callable[..., list[list[Tensor]]]] = {
    _ATEN._fused_adam_.default: _adam(False),
    _ATEN._fused_adam_.tensor_lr: _adam(False),
    _ATEN._fused_adamw_.default: _adam(True),
    _ATEN._fused_adamw_.tensor_lr: _adam(True),
    _ATEN._fused_sgd_.default: _sgd,
    _ATEN._fused_sgd_.tensor_lr: _sgd,
    _ATEN._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    _ATEN._amp_update_scale_.default: _update_scale,
}
"""The new values of what a fused step writes, list by list."""
