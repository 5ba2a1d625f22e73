#!/usr/bin/env python3
"""Draws docs/fusion.svg: the nodes of one layer of a model in columns above the kernels that compute them.

    pip install onnx
    fusion_picture.py [--wgfc target/debug/wgfc] [--model fixtures/bert-base.onnx] [--dispatches 2-9] [--dim batch=1 --dim seq=128]

A node that several kernels compute is above the first of them."""
import argparse, html, json, pathlib, subprocess

import onnx

ROOT = pathlib.Path(__file__).parent.parent
COLOURS = {"matmul": ("#e4effa", "#2f6fb5"), "attention": ("#fdf0dc", "#b9770e"), "row": ("#f0e7fa", "#8a4fbf"), "map": ("#e2f4ea", "#2e8b57"), "conv": ("#fbe5ee", "#b8336a")}
WIDTH, STEP, LEFT, TOP = 118, 24, 16, 66


def box(x, y, w, h, text, colours, bold=False):
    fill, stroke = colours
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" fill="{fill}" stroke="{stroke}"/>'
        f'<text x="{x + w / 2}" y="{y + h / 2 + 4}" text-anchor="middle"{weight} fill="#1f2430">{html.escape(text)}</text>'
    )


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--wgfc", default=str(ROOT / "target/debug/wgfc"))
    p.add_argument("--model", default=str(ROOT / "fixtures/bert-base.onnx"))
    p.add_argument("--name", default="a layer of BERT")
    p.add_argument("--dispatches", default="2-9", help="first and last")
    p.add_argument("--dim", action="append", default=None)
    p.add_argument("--out", default=str(ROOT / "docs/fusion.svg"))
    a = p.parse_args()
    dims = [x for d in a.dim or ["batch=1", "seq=128"] for x in ("--dim", d)]
    made = json.loads(subprocess.run([a.wgfc, "inspect", a.model, "--json", *dims], check=True, capture_output=True).stdout)
    operators = {n.name: n.op_type for n in onnx.load(a.model, load_external_data=False).graph.node}
    first, last = map(int, a.dispatches.split("-"))
    # Nodes of earlier kernels belong to the previous layer.
    seen = {n for d in made["dispatch_list"][:first] for n in d["nodes"]}
    columns = []
    for d in made["dispatch_list"][first : last + 1]:
        new = [n for n in d["nodes"] if n not in seen and n in operators]
        seen |= set(new)
        columns.append((d["family"], [operators[n] for n in new]))
    nodes, deepest = sum(len(c[1]) for c in columns), max(len(c[1]) for c in columns)
    bottom = TOP + deepest * STEP + 18
    width, height = 2 * LEFT + len(columns) * WIDTH - 10, bottom + 62
    s = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="11">'
    s += f"<title>{a.name}: {nodes} nodes, {len(columns)} kernels</title>"
    s += f'<rect width="100%" height="100%" fill="#ffffff"/><text x="{LEFT}" y="30" font-size="15" font-weight="600" fill="#1f2430">{a.name}: {nodes} nodes of the ONNX graph become {len(columns)} kernels</text>'
    s += f'<text x="{LEFT}" y="50" fill="#4a5162">above: the nodes; below: the dispatches, each with the nodes over it</text>'
    for i, (family, names) in enumerate(columns):
        x, w = LEFT + i * WIDTH, WIDTH - 10
        for k, name in enumerate(names):
            s += box(x, bottom - 18 - (len(names) - k) * STEP, w, STEP - 5, name, ("#f4f5f8", "#9aa3b5"))
        s += f'<path d="M{x + w / 2} {bottom - 17}v12m-4 -5l4 5l4 -5" fill="none" stroke="#7d8799"/>'
        s += box(x, bottom, w, 34, family, COLOURS.get(family, COLOURS["map"]), True)
    pathlib.Path(a.out).write_text(s + "</svg>\n")
    print(a.out, nodes, "nodes", len(columns), "kernels")


main()
