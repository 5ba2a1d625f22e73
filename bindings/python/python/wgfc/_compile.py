"""``wgfc.compile`` and ``wgfc.export``, which make programs from models."""

from __future__ import annotations

import io
import os
import warnings
from typing import TYPE_CHECKING, Any, Callable, Collection, Literal, Mapping, Optional, Union

from wgfc import _arrays, _wgfc
from wgfc._errors import Diagnostic, UnsupportedError
from wgfc._wgfc import Adapter, Program

if TYPE_CHECKING:
    import torch

Path = Union[str, "os.PathLike[str]"]
Progress = Callable[[str, int, int], object]


class CompileWarning(UserWarning):
    """A program differs from the model in a way that its author may not expect, such as narrower types: see
    ``Program.warnings``."""


def compile(
    model: Union[Path, bytes, bytearray, memoryview, torch.export.ExportedProgram],
    *,
    dims: Optional[Mapping[str, int]] = None,
    expect: Optional[Mapping[str, int]] = None,
    values: Optional[Mapping[str, Any]] = None,
    taps: Collection[str] = (),
    added: Collection[str] = (),
    replaced: Collection[str] = (),
    states: Union[None, Literal["auto"], Mapping[str, str]] = None,
    state_capacity: Optional[int] = None,
    precision: Literal["f32", "f16"] = "f32",
    keep_f32: Collection[str] = (),
    weights: Optional[Literal["q8", "q4"]] = None,
    activations: Optional[Literal["q8"]] = None,
    cache_type: Optional[Literal["f32", "f16", "q8"]] = None,
    fusion: Literal["none", "elementwise", "full"] = "full",
    without: Collection[str] = (),
    adapter: Union[None, str, int, Adapter] = None,
    profile: Optional[Path] = None,
    tuning: Optional[Path] = None,
    schedules: Optional[Path] = None,
    graph_only: bool = False,
    progress: Optional[Progress] = None,
) -> Program:
    """Compiles a model into a program, which ``Session`` runs and ``Program.save`` writes.

    ``model`` is a path, the bytes of a file, or what ``torch.export.export`` returned. Weights in other files are looked for in the folder
    of a path; with bytes there is none. The same model and options give the same program on every machine.

    ``dims``
        Values of symbolic sizes: ``{"batch": 8}``. Other sizes stay symbolic, and the program accepts any value of them.
    ``expect``
        Expected values of sizes that stay symbolic, for which kernels are optimized; 64 by default.
    ``values``
        Inputs to fix, by name: arrays, or numbers and lists of them. They become constants and are no inputs of the program.
        Values that determine shapes must be known during compilation.
    ``taps``
        Tensors of the model to return as extra outputs, by name.
    ``added``, ``replaced``
        Tensors of the model that runs may add to or replace, by name: see ``Session.run``. In PyTorch programs, modules have
        names, too.
    ``states``, ``state_capacity``
        States, which stay on the device from run to run, such as a key-value cache: ``"auto"`` to detect them by structure, or a
        dict from inputs to the outputs that are their next values. ``state_capacity`` is the capacity in positions of states that
        are filled along an axis; if it is not given, each ``Session`` sets it. If only ``state_capacity`` is given, ``states`` is
        ``"auto"``.
    ``precision``
        ``"f32"``: values have the model's types. ``"f16"``: f32 weights, caches and, if the device supports f16, tensors between
        kernels are stored as f16; inputs, outputs and all arithmetic stay f32. Tensors whose values f16 cannot hold stay f32:
        ``Program.inspect`` lists them. A run whose outputs are not all finite then gives a ``RuntimeWarning``.
    ``weights``
        ``"q8"`` or ``"q4"`` quantizes the weights of matrix products to 8 or 4 bits, with one scale per block of 32.
    ``activations``
        ``"q8"`` lets products with quantized weights round the other operand to 8 bits, in groups of 32 with one scale, and multiply
        integers.
    ``cache_type``
        The type of key-value caches among the states: ``"f32"`` (the model's, also with ``precision="f16"``), ``"f16"``, or ``"q8"``: 8
        bits, with one scale per 32 elements of a head. By default that of ``precision``.
    ``keep_f32``
        Nodes of the model whose values and weights ``precision`` and ``weights`` leave in f32.
    ``fusion``, ``without``
        The level of fusion, and names of parts of full fusion to disable: ``"approximate"``, ``"merge"``, ….
    ``adapter``
        The adapter to compile for: a part of its name, its number or one of ``wgfc.adapters()``. The compiler uses its limits and
        speeds, and the results of ``wgfc tune`` and ``wgfc device --measure`` on it. Without it the program runs on every WebGPU
        device.
    ``profile``, ``tuning``, ``schedules``
        A device profile, by name (``"portable"``, ``"discrete"``, ``"integrated"``, ``"software"``, ``"swiftshader"``) or file; a
        file of measured schedules; a file of hand-written schedules.
    ``graph_only``
        Reads no weights: the program can be inspected, but not run.
    ``progress``
        Called with ``(stage, number, of)`` when a stage is done. If it raises an exception, it is not called again, and the
        exception is raised at the end of the compilation.

    Raises ``ModelError`` or ``UnsupportedError`` with all problems that were found. Each of the program's warnings is a
    ``CompileWarning``.
    """
    if _arrays.exported(model):
        model = _archive(model)
    elif isinstance(model, (bytearray, memoryview)):
        model = bytes(model)
    program = _wgfc.compile(
        model,
        dims=dict(dims or {}),
        expect=dict(expect or {}),
        values=dict(values or {}),
        taps=list(taps),
        added=list(added),
        replaced=list(replaced),
        states=dict(states) if isinstance(states, Mapping) else states,
        state_capacity=state_capacity,
        precision=precision,
        keep_f32=list(keep_f32),
        weights=weights,
        activations=activations,
        cache_type=cache_type,
        fusion=fusion,
        without=list(without),
        adapter=adapter,
        profile=None if profile is None else os.fspath(profile),
        tuning=tuning,
        schedules=schedules,
        graph_only=graph_only,
        progress=progress,
    )
    for message in program.warnings:
        warnings.warn(message, CompileWarning, stacklevel=2)
    return program


def load(path: Path) -> Program:
    """Reads a program from a folder that ``Program.save``, or the command ``wgfc compile``, has written."""
    return Program.load(path)


def export(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Optional[Mapping[str, Any]] = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    decompose: bool = False,
    **options: Any,
) -> Program:
    """Compiles a module of PyTorch: ``torch.export.export`` and ``wgfc.compile`` in one.

    ``args`` and ``kwargs`` are example inputs on the CPU. ``dynamic_shapes`` says which of their extents may change, as for
    ``torch.export.export``: ``{"x": {0: torch.export.Dim("batch")}}``. Dynamic extents must not be 0 or 1 in the examples. The
    module is exported in its current mode: call ``module.eval()`` for inference. With ``decompose`` torch first decomposes all
    operators into core ATen operators (``run_decompositions``). ``options`` are those of ``compile``.
    """
    import torch

    program = torch.export.export(
        module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=strict
    )
    return compile(program.run_decompositions() if decompose else program, **options)


def _archive(program: torch.export.ExportedProgram) -> bytes:
    """The bytes of a ``.pt2`` file."""
    import torch
    from torch._export.serde.serialize import SerializeError

    from wgfc import _fx

    module = _fx.readable(program.graph_module)
    if module is not program.graph_module:
        guards = getattr(program, "_guards_code", None)
        program = torch.export.ExportedProgram(
            root=module,
            graph=module.graph,
            graph_signature=program.graph_signature,
            state_dict=program.state_dict,
            range_constraints=program.range_constraints,
            module_call_graph=program.module_call_graph,
            example_inputs=program.example_inputs,
            constants=program.constants,
            verifiers=program.verifiers,
        )
        if guards is not None:
            program._guards_code = guards
    file = io.BytesIO()
    try:
        torch.export.save(program, file)
    except SerializeError as e:
        first = str(e).splitlines()[0] if str(e) else "an object"
        raise UnsupportedError(
            [
                Diagnostic(
                    f"torch cannot write the exported program down, which wgfc reads: {first}",
                    "unsupported",
                    help="run_decompositions() may replace it; otherwise remove it from the module",
                )
            ]
        ) from e
    return file.getvalue()
