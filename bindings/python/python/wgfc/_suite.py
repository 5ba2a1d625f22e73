"""Measurements of a device in every way that wgfc can, as ``wgfc bench suite`` takes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Optional, Sequence, Union

from wgfc._errors import Diagnostic, Error


def bench_suite(
    path: Union[str, "os.PathLike[str]"] = "suite.json",
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    passes: Optional[int] = None,
    adapter: Optional[str] = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Measures a device, or continues what the file has, and returns the file's contents.

    The measurements run in a process of their own, whose progress goes to stderr; a file that was interrupted is continued. ``wgfc bench report`` makes a page of
    one or several files. The format is described in ``docs/suite.schema.json``.

    :param path: The file to write, or to continue.
    :param quick: Small models and few repetitions, for a minute.
    :param only: Only tasks with one of these in their name, as in ``["dispatch", "decode"]``.
    :param passes: How often each task runs: 2 if nothing is given.
    :param adapter: A part of the adapter's name, ``"best"`` or ``"software"``.
    :param progress: Whether progress and the table of results are shown.
    :raises Error: If the device cannot be measured, or the file is of another device.

    >>> record = wgfc.bench_suite("suite.json", quick=True)
    >>> [row["median"] for row in record["rows"] if row["id"] == "dispatch/one encoder, one pass/wall"]
    [4.3e-06]
    """
    path = os.fspath(path)
    arguments = ["bench", "suite", "--output", path]
    arguments += ["--quick"] if quick else []
    arguments += [a for name in only for a in ("--only", name)]
    arguments += ["--passes", str(passes)] if passes is not None else []
    arguments += ["--adapter", adapter] if adapter is not None else []
    arguments += [] if progress else ["--quiet"]
    command = [sys.executable, "-m", "wgfc", *arguments]
    if progress:
        done = subprocess.run(command, stdout=2)
        said = "it says why above"
    else:
        done = subprocess.run(command, capture_output=True, text=True)
        said = done.stderr.strip()
    if done.returncode:
        raise Error([Diagnostic(f"the device was not measured: {said}", kind="device")])
    with open(path, encoding="utf-8") as file:
        return json.load(file)
