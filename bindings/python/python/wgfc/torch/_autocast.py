"""Autocast on the device: which operators run in f16, in f32, or in the widest type of their arguments.

The operators are those for which torch has autocast kernels on CUDA. Their kinds are those of torch's documentation, "Autocast Op
Reference".
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from wgfc.torch._record import mapped

_LOWER = (
    "_convolution addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d "
    "conv_transpose3d convolution einsum gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell matmul mm mv prelu rnn_relu_cell "
    "rnn_tanh_cell scaled_dot_product_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell _flash_attention_forward"
).split()
"""Operators that compute in the type of the autocast context."""
_PROMOTED = (
    "addcdiv addcmul atan2 bilinear cat cross dot grid_sampler index_put scatter_add stack tensordot vdot index_copy"
).split()
"""Operators that compute in the widest type of their arguments. All others compute in f32."""
_KEY = torch._C.DispatchKey.AutocastPrivateUse1
_LIBRARY = torch.library.Library("aten", "IMPL")


def _castable(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device.type == "webgpu" and x.is_floating_point()


def _kernel(operator: Any, kind: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if kind == "lower":
            to = torch.get_autocast_dtype("webgpu")
        elif kind == "single":
            to = torch.float32
        else:
            found: list[torch.dtype] = []
            mapped([list(args), list(kwargs.values())], lambda x: found.append(x.dtype) if _castable(x) else None)
            to = torch.float32 if torch.float32 in found or not found else found[0]

        def cast(x: Any) -> Any:
            return x.to(to) if _castable(x) else x

        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            return operator(*[mapped(a, cast) for a in args], **{k: mapped(v, cast) for k, v in kwargs.items()})

    return call


def _register() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in torch._C._dispatch_get_all_op_names():
        if not full.startswith("aten::") or not has(full, "AutocastCUDA"):
            continue
        name, _, overload = full.removeprefix("aten::").partition(".")
        operator = getattr(getattr(torch.ops.aten, name), overload or "default")
        kind = "lower" if name in _LOWER else "promoted" if name in _PROMOTED else "single"
        _LIBRARY.impl(full.removeprefix("aten::"), _kernel(operator, kind), "AutocastPrivateUse1")


_register()
