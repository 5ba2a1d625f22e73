"""The device ``webgpu`` of torch, in a process of its own: it changes torch for the whole process."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", minversion="2.15")
CASES = pathlib.Path(__file__).parent / "device_cases.py"


def test_tensors_on_the_device_behave_as_on_the_cpu():
    run = subprocess.run([sys.executable, CASES], capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout + run.stderr
