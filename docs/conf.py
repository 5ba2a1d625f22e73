"""The book of this folder, for Sphinx; scripts/book.sh builds it. The source folder is the repository's root, as some pages are there."""
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
REPOSITORY = "https://github.com/wgfc/wgfc"

project = "wgfc"
copyright = "the authors of wgfc; MIT or Apache-2.0"
version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "web/*.md", "web/playground/*.md", "bindings/python/*.md", "fuzz/*.md", "compiler/tests/filetests/*.md"]
exclude_patterns = ["target", "**/node_modules"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"wgfc {version}"
html_copy_source = False
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": ""}
# There is no lexer for WGSL and for wgfc's own text formats.
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]


def linked(app, docname, source):
    """Redirects links to files that are not part of the book to the repository. Links to pages of the book and to images stay."""
    folder = ROOT / os.path.dirname(docname)

    def change(link):
        path, _, anchor = link[1].partition("#")
        file = (folder / path).resolve()
        inside = file.suffix in {".png", ".svg"} or os.path.relpath(file, ROOT).removesuffix(".md") in app.project.docnames
        if inside or not file.exists():
            return link[0]
        return f"]({REPOSITORY}/{'tree' if file.is_dir() else 'blob'}/main/{os.path.relpath(file, ROOT)}{'#' * bool(anchor)}{anchor})"

    source[0] = re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", change, source[0])
    if docname == "docs/commands":
        source[0] += commands()


def commands():
    """The help of each command, from the program that was built."""
    wgfc = os.environ.get("WGFC", ROOT / "target/debug/wgfc")
    help_of = lambda *a: subprocess.run([wgfc, *a], check=True, capture_output=True, text=True).stdout
    text = help_of("--help")
    names = re.findall(r"^  ([a-z]+) ", text.partition("Commands:")[2].partition("\nOptions:")[0], re.M)
    parts = [("wgfc", text)] + [(f"wgfc {name}", help_of(name, "-h")) for name in names if name != "help"]
    return "".join(f"\n## `{name}`\n```text\n{text}```\n" for name, text in parts)


def setup(app):
    app.connect("source-read", linked)
