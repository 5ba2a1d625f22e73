#!/usr/bin/env python3
"""Run the commands of README.md and docs/tutorial.md, and compare their output with the text there.

    python3 scripts/examples.py [WGFC]      WGFC is target/debug/wgfc by default

In `console` blocks, lines after `$` are run, with WGFC in the place of `cargo run --release --`. The output must contain the
lines below in this order, where `…` matches anything. `python` blocks are run if their imports are installed. Files of the
repository that a block downloads are copied instead.
"""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "docs/tutorial.md"]


def squeezed(line):
    return " ".join(line.split())


def missing(expected, printed):
    """The first expected line that does not follow the previous ones in the output; None if there is none."""
    lines = iter(printed)
    for want in expected:
        pattern = ".*".join(re.escape(part) for part in squeezed(want).split("…"))
        if not any(re.fullmatch(pattern, squeezed(line)) for line in lines):
            return want
    return None


assert missing(["a  1…", "b"], ["a 12", "x", " b"]) is None and missing(["b", "a…"], ["a 1", "b"]) == "a…", "the check itself is wrong"


def run(page, command, folder, environment):
    done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {page}: {command} ends with {done.returncode}:\n{done.stdout}")
    return done.stdout.splitlines()


def page_runs(page, wgfc):
    """Runs the commands of a page in a new folder with the repository's fixtures."""
    start, commands = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}", "WGFC_CACHE_DIR": f"{folder}/cache"}
        Path(folder, "bin").mkdir()
        Path(folder, "bin/wgfc").symlink_to(wgfc)
        for name in ["fixtures", "web"]:
            Path(folder, name).symlink_to(ROOT / name)
        for language, block in re.findall(r"^```([a-z]+)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S):
            for name in re.findall(r"curl -LO https://github.com/wgfc/wgfc/raw/main/(\S+)", block):
                Path(folder, Path(name).name).write_bytes((ROOT / name).read_bytes())
            if language == "python":
                modules = set(re.findall(r"^(?:import|from) (\w+)", block, re.M))
                if absent := [m for m in modules if importlib.util.find_spec(m) is None]:
                    print(f"{page}: a block of Python is left out: there is no {', '.join(absent)}")
                    continue
                run(page, [sys.executable, "-c", block], folder, environment)
            if language != "console":
                continue
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                command, *expected = part.splitlines()
                command = command.replace("cargo run --release --", "wgfc")
                printed = run(page, ["bash", "-c", command], folder, environment)
                if (line := missing(expected, printed)) is not None:
                    sys.exit(f"error: {page}: `{command}` does not print `{line}`, but:\n" + "\n".join(printed))
                commands += 1
    print(f"{commands} commands of {page} print what it says ({time.monotonic() - start:.0f} s)")


def main():
    wgfc = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/debug/wgfc").resolve()
    for page in PAGES:
        page_runs(page, wgfc)


main()
