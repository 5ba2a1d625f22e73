"""Code that the peers of `wgfc bench kernels` share: the list of problems, the comparison, the JSON."""
import argparse
import json
import math
import sys
from pathlib import Path


def main(description, peer, prepare):
    """`prepare(parser)` adds arguments and returns a function of the parsed arguments. That returns a description of the peer and a
    function that measures a problem in seconds, or returns None if there is nothing to measure."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, help="write the JSON there")
    begin = prepare(parser)
    a = parser.parse_args()
    about, measure = begin(a)
    rows = []
    for problem in json.loads(a.problems.read_text())["rows"]:
        row = {"key": problem["key"], "ns": None}
        try:
            seconds = measure(problem)
            row["ns"] = seconds and 1e9 * seconds
        except Exception as e:  # any error of an operator about sizes or types
            row["failed"] = str(e).splitlines()[0]
        ours = problem.get("time_ns")
        if row["ns"] and ours:
            row["ratio"] = row["ns"] / ours["median"]
        ratio = f"  {peer} / wgfc {row['ratio']:.2f}" if "ratio" in row else ""
        took = f"{row['ns'] / 1e3:.1f} µs" if row["ns"] else row.get("failed", "-")
        print(f"{problem['key']}: {took}{ratio}", file=sys.stderr)
        rows.append(row)
    ratios = {}
    for r in rows:
        if "ratio" in r:
            ratios.setdefault(r["key"].split("/")[0], []).append(r["ratio"])
    every = [r for each in ratios.values() for r in each]
    for family, each in [*ratios.items(), ("all", every)]:
        if each:
            print(f"{family}: {peer} / wgfc {geometric_mean(each):.2f}, least {min(each):.2f}", file=sys.stderr)
    text = json.dumps(about | {"rows": rows}, indent=1)
    if a.out:
        a.out.write_text(text + "\n")
    else:
        print(text)


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
