"""The device ``webgpu`` of PyTorch: ``import wgfc.torch``, then ``tensor.to("webgpu")``.

Operators on tensors of the device are recorded. What is recorded is cut into a graph, compiled and run when a value is needed on
the host, at ``torch.webgpu.synchronize()``, or after 4,096 operators.
"""

from __future__ import annotations

import dataclasses

from wgfc.torch import _autocast as _autocast, _kernels as _kernels  # register kernels
from wgfc.torch._program import STATISTICS, Cut, FallbackWarning, Statistics

__all__ = ["Cut", "FallbackWarning", "Statistics", "statistics"]


def statistics() -> Statistics:
    """Counts of the recorder's work in this process so far."""
    return dataclasses.replace(STATISTICS, on_host=dict(STATISTICS.on_host))

