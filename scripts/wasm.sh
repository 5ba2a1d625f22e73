#!/usr/bin/env bash
# Builds the compiler as a WebAssembly module, and naga as another, which validates what that compiled: target/wasm/compiler.wasm and
# target/wasm/validator.wasm, which the npm package takes along.
#
#   scripts/wasm.sh            as it is shipped, for size: some minutes
#   scripts/wasm.sh --quick    sooner built, larger and slower: for tests; and the Rust runtime, which must stay able to run in pages
#
# With rustup it takes the target wasm32-unknown-unknown where that is installed. Else the standard library is built too, from Debian's
# packages rustc-web, cargo-web, rust-web-src and lld, which are installed when they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

profile=web
[ "${1:-}" = --quick ] && profile=web-quick
target=wasm32-unknown-unknown
build=(build --locked --profile "$profile" --target "$target" -p wgfc-wasm -p wgfc-validator)
[ "$profile" = web ] || build+=(-p wgfc-runtime)
need_wasm
if has_wasm_target; then
    cargo "${build[@]}"
else
    RUSTC=/usr/bin/rustc RUSTDOC=/usr/bin/rustdoc RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=target/wasm \
        CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld \
        /usr/bin/cargo "${build[@]}" -Zbuild-std=std,panic_abort
fi
mkdir -p target/wasm
for module in compiler=wgfc_wasm validator=wgfc_validator; do
    built=target/wasm/$target/$profile/${module#*=}.wasm
    [ -f "$built" ] || built=target/$target/$profile/${module#*=}.wasm
    to=target/wasm/${module%=*}.wasm
    cp "$built" "$to"
    echo "$to: $(stat -c %s "$to") bytes, $(gzip -9 -c "$to" | wc -c) gzipped"
done
