#!/usr/bin/env python3
"""Check that each crate uses the dependencies that its Cargo.toml names, and that each dependency of the workspace is named by a crate.

    python3 scripts/unused.py

A dependency is used if a source file of the right kind has a path that begins with its name. A dependency with another purpose,
such as enabling a feature, is listed with the reason in `[package.metadata.cargo-machete] ignored`, which `cargo machete` reads,
too.
"""
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

# The places of sources that may use a dependency of each kind. None stands for normal dependencies.
PLACES = {None: ["src"], "build": ["build.rs"], "dev": ["src", "tests", "benches", "examples"]}


def used(name, text):
    """Whether a path in a text without comments begins with `name`: `name::x`, `use name as n`, `use {name, …}`, `name!`."""
    # Patterns that begin with literal letters are fastest.
    patterns = [rf"{name}(?<![\w:.\"]{name})(::|!)", rf"use {name}\b", rf"crate {name}\b", rf"use \{{[^;]*\b{name}\b"]
    return any(re.search(p, text) for p in patterns)


assert used("naga", "    use naga::Module;") and used("log", "log::info!()") and used("a", "use a as b;") and used("b", "use {a, b};")
assert not used("log", "program.log::<u32>()") and not used("a", "x::a::b") and not used("a", "aa::b")


def code(root, places):
    """The Rust sources in these places without comment lines."""
    files = [f for p in places for f in ([root / p] if p.endswith(".rs") else (root / p).rglob("*.rs")) if f.is_file()]
    return "\n".join(re.sub(r"(?m)^[ \t]*//.*$", "", f.read_text()) for f in files)


command = ["cargo", "metadata", "--format-version=1", "--no-deps", "--offline", "--locked"]
workspace = json.loads(subprocess.check_output(command, stdin=subprocess.DEVNULL))
problems = []
named = set()
for package in workspace["packages"]:
    manifest = Path(package["manifest_path"])
    kept = ((package["metadata"] or {}).get("cargo-machete") or {}).get("ignored", [])
    texts = {kind: code(manifest.parent, places) for kind, places in PLACES.items()}
    for dependency in package["dependencies"]:
        name = dependency["rename"] or dependency["name"]
        named.add(name)
        if name not in kept and not used(name.replace("-", "_"), texts[dependency["kind"]]):
            problems.append(f"{manifest.relative_to(Path.cwd())}: {dependency['kind'] or 'normal'} dependency {name} is not used")
    problems += [f"{manifest}: {name} is ignored but no dependency" for name in kept if name not in named]
root = tomllib.loads(Path(workspace["workspace_root"], "Cargo.toml").read_text())
problems += [f"Cargo.toml: no crate uses the workspace's {name}" for name in root["workspace"]["dependencies"] if name not in named]
sys.exit("\n".join(f"error: {p}" for p in problems) or None)
