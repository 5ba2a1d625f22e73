#!/usr/bin/env python3
"""Check that the types, traits and functions of the library have examples in their documentation, as `cargo doc` has written it.

    cargo doc --workspace --no-deps && python3 scripts/doc_examples.py

An item has one if its page shows one (its own, or that of a method), or says `See the example of` another item. A type is served, too, by an
example elsewhere in its crate that names it, and a function by one in its module. Exceptions have a reason below.
"""
import html
import re
import sys
from pathlib import Path

# The crates of users, and of the compiler and its graphs the folders of documentation that users need. The front pages of these two say that
# the others are internal.
CRATES = {
    "wgfc": r".*",
    "wgfc_runtime": r".*",
    "wgfc_program": r".*",
    "wgfc_ir": r"(graph|build|body|scalar|op|verify|eval|text)/",
    "wgfc_compiler": r"(options|error|device|import|schedule/table)/",
}
# Folders of documentation, or items, whose items need no example.
EXCEPTIONS = {
    "wgfc/cli/": "the command line, whose manual is `wgfc help`",
    "wgfc_runtime/bind/": "steps of a run, which `bind::bind` shows, for tests of plans",
    "wgfc_program/program/": "plain data, which docs/plan-format.md describes",
    "wgfc_program/derived/planes/": "for the importer of GGUF files",
    "wgfc_program/derived/quantise/": "for the compiler, but for the quantisation of a tensor",
    "wgfc_program/exponents/": "for the compiler's bounds",
    "wgfc_ir/graph/": "parts of a graph that importers make; the page of the text form shows them",
    "wgfc_ir/op/": "attributes of operators, which importers make",
    "wgfc_ir/text/": "the parts of the parser and printer, for the compiler's text forms",
    "wgfc_ir/eval/": "variants of `evaluate` that the compiler needs",
    "wgfc_compiler/import/": "for the facade, but for `import` and `check`",
    "wgfc_compiler/schedule/table/": "for the compiler, but for `Tuning`",
}


def examples(page):
    """The text of the Rust examples of a page."""
    found = re.findall(r'<pre class="rust rust-example-rendered"><code>(.*?)</code></pre>', page, re.S)
    # rustdoc finds links that lead nowhere. A link to a crate whose documentation is written later is text in brackets.
    if re.search(r"See the\s+example\s+of\s+(the\s+)?(<a |\[<code>)", page):
        found.append("elsewhere")
    return "\n".join(html.unescape(re.sub(r"<[^>]*>", "", e)) for e in found)


def names(name, text):
    return re.search(rf"\b{name}\b", text) is not None


doc = Path(sys.argv[1] if len(sys.argv) > 1 else "target/doc")
missing, used, count, excepted = [], set(), 0, 0
for crate, places in CRATES.items():
    root = doc / crate
    index = (root / "all.html").read_text()
    items = re.findall(r'href="((?:\w+/)*)(struct|enum|trait|fn|union)\.(\w+)\.html"', index)
    shown = {}
    for page in root.rglob("*.html"):
        where = page.parent.relative_to(root).as_posix()
        shown.setdefault(where, {})[page.name] = examples(page.read_text())
    assert items and any(any(pages.values()) for pages in shown.values()), f"{root} is no documentation that this script can read"
    whole = "\n".join(text for pages in shown.values() for text in pages.values())
    for module, kind, name in items:
        if not re.fullmatch(places, module):
            continue
        count += 1
        pages = shown[module.rstrip("/") or "."]
        own = pages[f"{kind}.{name}.html"]
        near = "\n".join(pages.values()) if kind == "fn" else whole
        if own or names(name, near):
            continue
        exception = next((e for e in EXCEPTIONS if f"{crate}/{module}{name}".startswith(e)), None)
        if exception:
            used.add(exception)
            excepted += 1
        else:
            missing.append(f"{crate}::{module.replace('/', '::')}{name}")
problems = [f"{m} has no example, and no example names it: write one, or an exception in scripts/doc_examples.py" for m in missing]
problems += [f"the exception {e} is not needed" for e in EXCEPTIONS if e not in used]
if problems:
    sys.exit("\n".join(f"error: {p}" for p in problems))
print(f"{count - excepted} types, traits and functions have examples, and {excepted} are exceptions")
