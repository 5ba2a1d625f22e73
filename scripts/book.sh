#!/usr/bin/env bash
# Builds the book in docs/ into target/book; a warning or a dead link is an error. Sphinx is installed when it is missing. The page of
# commands comes from target/debug/wgfc, or from the program that WGFC names.
#
#   scripts/book.sh
#   scripts/book.sh --run      also runs the commands of the tutorial, on a software adapter
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

[ -n "${WGFC:-}" ] || [ -x target/debug/wgfc ] || cargo build --locked --bin wgfc
need_python sphinx==9.0.4 myst-parser==5.2.0 furo==2025.12.19
rm -rf target/book
"$python" -m sphinx --quiet --fail-on-warning --keep-going --jobs auto -c docs -d target/book/.doctrees . target/book
rm -rf target/book/.doctrees
[ -f target/book/index.html ] || echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' >target/book/index.html
touch target/book/.nojekyll

[ "${1:-}" = --run ] || exit 0
need_drivers
need_python numpy
WGFC_ADAPTER=${WGFC_ADAPTER:-llvmpipe} "$python" scripts/examples.py ${WGFC:+"$WGFC"}
