"""Conversions between arrays of NumPy and torch and arrays of the native module."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    import torch

    from wgfc._wgfc import HostArray


def asarray(given: Any) -> numpy.ndarray:
    """Numbers, lists and objects with ``__array__`` as NumPy converts them."""
    import numpy

    return numpy.asarray(given)


def to_numpy(host: HostArray) -> numpy.ndarray:
    """A NumPy array of the elements of ``host``. Types that NumPy lacks are ml_dtypes' if that is installed, otherwise
    ``host.raw_dtype``. The array shares the bytes of ``host`` unless integers of less than a byte are converted."""
    import numpy

    array = numpy.asarray(host)
    if host.dtype == array.dtype.name:
        return array
    try:
        import ml_dtypes
    except ImportError:
        return array
    own = getattr(ml_dtypes, host.dtype, None)
    if own is None:
        return array
    # Integers of less than a byte are stored as numbers, floats as bits.
    return array.astype(own) if "float" not in host.dtype else array.view(own)


def to_torch(host: HostArray) -> torch.Tensor:
    """A torch tensor that shares the bytes of ``host``."""
    import torch

    if host.raw_dtype == host.dtype or host.dtype == "bfloat16":
        return torch.from_dlpack(host)
    import numpy

    bits = torch.from_numpy(numpy.asarray(host))
    own = getattr(torch, host.dtype, None)
    # Torch has types of less than a byte, but no arithmetic for them, so these stay integers of one byte.
    return bits if own is None or not host.dtype.startswith("float8") else bits.view(own)


def exported(model: Any) -> bool:
    """Whether it is a ``torch.export.ExportedProgram``. torch is not imported for this: if nothing has imported it, the answer is
    no."""
    export = getattr(sys.modules.get("torch"), "export", None)
    kind = getattr(export, "ExportedProgram", None)
    return kind is not None and isinstance(model, kind)
