#!/usr/bin/env bash
# The library's dependencies must stay few: the crates of docs/dependencies.md and no others, none of which is named and not used.
#
#   scripts/dependencies.sh             compares
#   UPDATE_EXPECT=1 scripts/dependencies.sh    writes docs/dependencies.md anew
set -euo pipefail
cd "$(dirname "$0")/.."
page=docs/dependencies.md
target=x86_64-unknown-linux-gnu

# crates ARGUMENT ...: the names of what a package needs to be built, one a line.
crates() {
    cargo tree --offline --locked --target $target -e normal --prefix none -f '{p}' "$@" | cut -d' ' -f1 | sort -u
}

# keeps_out WHAT CRATES NAME ...: these are not among the crates.
keeps_out() {
    local what=$1 crates=$2 name
    shift 2
    for name in "$@"; do
        if grep -qx "$name" <<<"$crates"; then
            echo "error: $what depends on $name (cargo tree -e normal -i $name)" >&2
            exit 1
        fi
    done
}

python3 scripts/unused.py
program=$(crates -p wgfc-program)
runtime=$(crates -p wgfc-runtime)
library=$(crates -p wgfc --no-default-features)
all=$(crates -p wgfc)
python=$(crates -p wgfc-python)
keeps_out "the program's crate" "$program" wgpu naga petgraph gemm rayon wgfc-ir
keeps_out "the runtime" "$runtime" wgfc-ir wgfc-compiler egg tera prost petgraph gemm rayon serde_json
module=$(cargo tree --offline --locked --target wasm32-unknown-unknown -e normal --prefix none -f '{p}' -p wgfc-wasm | cut -d' ' -f1 | sort -u)
keeps_out "the module for web pages" "$module" naga wgpu wasm-bindgen js-sys web-sys gemm rayon
cpu=$(cargo tree --offline --locked --target wasm32-unknown-unknown -e normal --prefix none -f '{p}' -p wgfc-cpu | cut -d' ' -f1 | sort -u)
keeps_out "the CPU's module for web pages" "$cpu" naga wgpu wasm-bindgen js-sys web-sys rayon
keeps_out "the Python package" "$python" axum
keeps_out "the library without default features" "$library" clap indicatif tokenizers minijinja image gemm rayon tracing-subscriber wgfc-selftest

list() { tr '\n' ' ' <<<"$1" | sed 's/ $//' | fold -s -w 118 | sed 's/^/    /; s/ *$//'; }
count() { wc -l <<<"$1" | tr -d ' '; }
made=$(
    # Everything up to the lists is written by hand.
    sed '/^## Crates/,$d' $page
    cat <<EOF
## Crates
Without build scripts' and development dependencies, on Linux; \`scripts/dependencies.sh\` writes this list and CI compares it.

The types of programs alone (\`wgfc-program\`), $(count "$program"):

$(list "$program")

The runtime (\`wgfc-runtime\`), $(count "$runtime"):

$(list "$runtime")

The library without default features, $(count "$library"):

$(list "$library")

What the default features add, $(count "$(comm -13 <(echo "$library") <(echo "$all"))"):

$(list "$(comm -13 <(echo "$library") <(echo "$all"))")

What the Python package has beside the library with \`fast\`, $(count "$(comm -13 <(echo "$all") <(echo "$python"))"):

$(list "$(comm -13 <(echo "$all") <(echo "$python"))")
EOF
)
if [ -n "${UPDATE_EXPECT:-}" ]; then
    echo "$made" >$page
elif ! diff -u $page <(echo "$made") >&2; then
    echo "error: $page differs: look whether what is new is worth it, then UPDATE_EXPECT=1 $0" >&2
    exit 1
fi
