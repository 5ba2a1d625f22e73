#!/usr/bin/env python3
"""Checks and compiles small models that could take unbounded time or memory, and prints the time and memory of each.

    cargo build --profile dist && scripts/bounded.py [--binary target/dist/wgfc] [MODEL...]

The default models are fixtures/repro and those that the test `what_is_many_is_compiled_or_refused` leaves in target/bounded. The
exit code is 1 if a model takes more than 5 s of processor time or 1 GB, or ends with a signal or an internal error.
"""
import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS, MEGABYTES = 5, 1000
ROOT = Path(__file__).resolve().parent.parent


def measure(command):
    """Returns the exit code, the processor time in seconds, the memory in megabytes and the first error."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (4 * SECONDS, 4 * SECONDS))
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, preexec_fn=limit)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        lines = errors.read().decode(errors="replace").splitlines()
    said = next((line for line in lines if line.startswith("error")), "")
    return child.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "target/dist/wgfc")
    parser.add_argument("models", nargs="*", type=Path)
    a = parser.parse_args()
    folders = [ROOT / "fixtures/repro", ROOT / "target/bounded"]
    models = a.models or sorted(m for f in folders for m in f.glob("*.onnx"))
    beyond = 0
    print("| model | command | seconds | MB | exit code |\n|---|---|---|---|---|")
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            for command in (["check"], ["compile", "-o", f"{folder}/program"]):
                code, seconds, memory, said = measure([str(a.binary), command[0], str(model), *command[1:]])
                bad = seconds > SECONDS or memory > MEGABYTES or code not in (0, 1, 2)
                beyond += bad
                row = f"| {model.name} | {command[0]} | {seconds:.2f} | {memory:.0f} | {code} |"
                print(row + (f" beyond its bounds {said}" if bad else ""), flush=True)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
