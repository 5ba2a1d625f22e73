#!/usr/bin/env python3
"""Writes the figures of documents anew from the measurements to which they are linked.

    python3 scripts/figures.py [FILE.md …]        (docs/report.md, docs/benchmarks-web.md and README.md, if none is named)

A figure is a link such as `[1.12 ms](../measurements/DEVICE.json "ROW")`: the median of this row. It keeps its unit and decimals; `[?](…)` and
`[? UNIT](…)` get three digits. Rows that are not in the file are an error. The tests compare figures and files.
"""
import json
import re
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r'\[([^\]\[]*)\]\(([^ ()]+\.json) "([^"]+)"\)')
FACTORS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "mJ": 1e-3}


def rows(path, known={}):
    if path not in known:
        known[path] = {r["id"]: r for r in json.loads(path.read_text())["rows"]}
    return known[path]


def scaled(value, unit):
    """A time in the unit in which it is at least 1."""
    if unit != "s":
        return value, ""
    name = next((u for u in ("s", "ms") if value >= FACTORS[u]), "µs")
    return value / FACTORS[name], name


def written(text, value, unit):
    digits, _, name = text.partition(" ")
    if digits == "?":
        if not name:
            value, name = scaled(value, unit)
        else:
            value /= FACTORS.get(name, 1.0)
        if unit == "1" and 0 < abs(value) < 0.01:
            return f"{value:.1e}".replace("e-0", "e-")
        whole = unit == "1" and value == int(value)
        decimals = 0 if whole or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
        decimals = 5 if unit == "1" and 0.99 < value < 1 else decimals
    elif "e" in digits:
        return f"{value:.1e}".replace("e-0", "e-")
    else:
        value /= FACTORS.get(name, 1.0)
        decimals = len(digits.partition(".")[2])
    return f"{value:,.{decimals}f} {name}".rstrip()


def main():
    files = [Path(f) for f in sys.argv[1:]] or [ROOT / f for f in ["docs/report.md", "docs/benchmarks-web.md", "README.md"]]
    for file in files:

        def anew(link):
            text, target, row = link.groups()
            found = rows((file.parent / target).resolve()).get(row)
            samples = [s for one in (found or {}).get("passes", []) for s in one]
            if not samples:
                raise SystemExit(f"{file}: {target} has no row `{row}`")
            return f'[{written(text, median(samples), found["unit"])}]({target} "{row}")'

        before = file.read_text()
        after = LINK.sub(anew, before)
        if after != before:
            file.write_text(after)
            print(f"{file}: written anew")


if __name__ == "__main__":
    main()
