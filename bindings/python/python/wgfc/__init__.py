"""Compiles ONNX models and PyTorch exports into a few fused WGSL kernels and runs them on any WebGPU device.

>>> import numpy as np, wgfc
>>> program = wgfc.compile("model.onnx")  # x: float32[batch, 13] → probabilities: float32[batch, 5]
>>> session = wgfc.Session(program)
>>> session.run({"x": np.zeros((2, 13), np.float32)})["probabilities"].shape
(2, 5)
"""

import atexit as _atexit
import os as _os
import sys as _sys

if _sys.platform == "linux" and "XDG_RUNTIME_DIR" not in _os.environ:
    # Without a desktop, Mesa's device-selection layer prints errors to stderr.
    _os.environ.setdefault("NODEVICE_SELECT", "1")

from wgfc._compile import CompileWarning, compile, export, load
from wgfc._errors import (
    DeviceError,
    Diagnostic,
    Error,
    InternalError,
    Location,
    ModelError,
    UnsupportedError,
)
from wgfc._suite import bench_suite
from wgfc._wgfc import (
    Adapter,
    Decoder,
    Generator,
    LogProbs,
    Port,
    Program,
    Session,
    State,
    Stream,
    Tensor,
    Tokens,
    __version__,
    adapters,
)
from wgfc._wgfc import wait_for_devices as _wait_for_devices

_atexit.register(_wait_for_devices)

__all__ = [
    "Adapter",
    "CompileWarning",
    "Decoder",
    "DeviceError",
    "Diagnostic",
    "Error",
    "Generator",
    "InternalError",
    "Location",
    "LogProbs",
    "ModelError",
    "Port",
    "Program",
    "Session",
    "State",
    "Stream",
    "Tensor",
    "Tokens",
    "UnsupportedError",
    "__version__",
    "adapters",
    "bench_suite",
    "compile",
    "export",
    "load",
]
