#!/usr/bin/env python3
"""Check that every crate we depend on has a licence that deny.toml allows.

    python3 scripts/licences.py

`cargo deny` checks this and more, but must be installed. Without a network, only the crates that a build for this platform has
downloaded can be checked.
"""
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ALLOWED = set(tomllib.loads(Path(__file__).parent.with_name("deny.toml").read_text())["licenses"]["allow"])


def allowed(expression):
    """Whether licences in ALLOWED satisfy an SPDX expression. An old-style `/` means OR."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def any_of():
        result = all_of()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            result = all_of() or result
        return result

    def all_of():
        result = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            result = one() and result
        return result

    def one():
        token = tokens.pop(0)
        if token == "(":
            result = any_of()
            tokens.pop(0)
            return result
        if tokens and tokens[0] == "WITH":
            token = f"{token} WITH {tokens[1]}"
            del tokens[:2]
        return token in ALLOWED

    return any_of()


assert allowed("(MIT OR GPL-2.0) AND Zlib") and not allowed("MIT AND GPL-2.0"), "the check itself is wrong"


def metadata(*options):
    command = ["cargo", "metadata", "--format-version=1", "--locked", *options]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    return json.loads(run.stdout) if run.returncode == 0 else None


host = re.search(r"host: (.*)", subprocess.check_output(["rustc", "-vV"], text=True)).group(1)
found = metadata() or metadata("--offline", f"--filter-platform={host}")
if found is None:
    sys.exit("error: cargo metadata fails; is Cargo.lock up to date?")
packages = [p for p in found["packages"] if p["source"]]
bad = [f"{p['name']} {p['version']}: {p['license']}" for p in packages if not allowed(p["license"] or "none")]
print(f"{len(packages)} crates, {len(bad)} with a licence that is not on the list")
sys.exit("\n".join(bad) or None)
