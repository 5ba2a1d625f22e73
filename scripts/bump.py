#!/usr/bin/env python3
"""Set the version of the crates, the Python package and the npm package, and begin its section in CHANGELOG.md.

    python3 scripts/bump.py            prints the version, and fails if the files do not agree
    python3 scripts/bump.py 0.2.0      sets it; docs/releasing.md says what comes next
"""
import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The places of the version: the text before it and the number of occurrences. pyproject.toml has none, as maturin uses the
# crate's.
PLACES = {
    "Cargo.toml": (r'^(?:version = "|wgfc-[a-z-]+ = \{ version = ")', 8),
    "bindings/python/Cargo.toml": (r'^wgfc = \{ path = "../..", version = "', 1),
    "web/package.json": (r'^  "version": "', 1),
    "web/package-lock.json": (r'^  "version": "|(?<=^      "name": "wgfc",\n)      "version": "', 2),
}
NUMBER = r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?"


def order(version):
    """The sort key of a version. A pre-release sorts before its release."""
    number, _, pre = version.partition("-")
    parts = [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in pre.split(".")]
    return [int(n) for n in number.split(".")], not pre, parts


def found():
    """All places that state the version, as pairs of file and version."""
    for name, (before, times) in PLACES.items():
        versions = re.findall(rf"(?:{before})({NUMBER})\"", (ROOT / name).read_text(), re.M)
        if len(versions) != times:
            sys.exit(f"error: {name} names the version {len(versions)} times instead of {times}: look at PLACES in scripts/bump.py")
        yield from ((name, v) for v in versions)


def main(arguments):
    places = list(found())
    old = places[0][1]
    if different := [f"{name} has {v}" for name, v in places if v != old]:
        sys.exit(f"error: Cargo.toml has version {old}, but {', '.join(different)}")
    if not arguments:
        print(old)
        return
    new = arguments[0]
    changelog = ROOT / "CHANGELOG.md"
    text = changelog.read_text()
    if len(arguments) > 1 or not re.fullmatch(NUMBER, new):
        sys.exit(__doc__)
    if order(new) < order(old) or f"\n## {new} " in text:
        sys.exit(f"error: {new} was released, or is older than {old}")
    heading, first = "## Unreleased\n", re.search(r"## Unreleased\n(.*?)(?=\n## |\Z)", text, re.S)
    if not first or not first[1].strip():
        sys.exit("error: CHANGELOG.md says nothing under Unreleased: there is nothing to release")
    changelog.write_text(text.replace(heading, f"{heading}\n## {new} ({datetime.date.today()})\n", 1))
    for name, (before, _) in PLACES.items():
        path = ROOT / name
        path.write_text(re.sub(rf"({before}){re.escape(old)}\"", rf'\g<1>{new}"', path.read_text(), flags=re.M))
    # Lines that tell users which version to depend on.
    for name in ["README.md", "docs/tutorial.md"]:
        path = ROOT / name
        if path.exists():
            path.write_text(re.sub(r'(wgfc = \{ version = ")[\d.]+"', rf'\g<1>{".".join(new.split(".")[:2])}"', path.read_text()))
    subprocess.run(["cargo", "update", "--workspace", "--offline", "--quiet"], cwd=ROOT, check=True)
    print(f"{old} → {new}: look at `git diff`, commit it as `Version {new}`, and tag that v{new}")


main(sys.argv[1:])
