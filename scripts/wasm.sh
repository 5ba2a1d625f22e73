#!/usr/bin/env bash
# Builds the WebAssembly modules that the npm package takes along, in target/wasm: the compiler (compiler.wasm), naga, which validates what
# that compiled (validator.wasm), and the evaluator, which runs models on the CPU with SIMD (cpu.wasm).
#
#   scripts/wasm.sh            as it is shipped, for size: some minutes
#   scripts/wasm.sh --quick    sooner built, larger and slower: for tests; and the Rust runtime, which must stay able to run in pages
#
# With rustup it takes the target wasm32-unknown-unknown where that is installed. Else the standard library is built too, from Debian's
# packages rustc-web, cargo-web, rust-web-src and lld, which are installed when they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

quick=
[ "${1:-}" = --quick ] && quick=-quick
target=wasm32-unknown-unknown
packages=(-p wgfc-wasm -p wgfc-validator)
need_wasm

# build PROFILE PACKAGE ...: the packages for pages. For size the standard library sorts by smaller code, which makes the compiler 3 % smaller.
build() {
    local profile=$1 standard=()
    shift
    [ "$profile" != web ] || standard=(-Zbuild-std-features=optimize_for_size)
    local arguments=(build --locked --profile "$profile" --target "$target" "$@")
    if has_wasm_target; then
        cargo "${arguments[@]}"
    else
        RUSTC=/usr/bin/rustc RUSTDOC=/usr/bin/rustdoc RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=target/wasm \
            CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld \
            /usr/bin/cargo "${arguments[@]}" -Zbuild-std=std,panic_abort "${standard[@]}"
    fi
}
simd=-Ctarget-feature=+simd128
if [ -n "$quick" ]; then
    # All together, so that what they share is compiled once.
    cpu=web-quick
    CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS=$simd build web-quick "${packages[@]}" -p wgfc-runtime -p wgfc-cpu
else
    cpu=web-cpu
    build web "${packages[@]}"
    CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS=$simd build web-cpu -p wgfc-cpu
fi
mkdir -p target/wasm
for module in "compiler=web$quick/wgfc_wasm" "validator=web$quick/wgfc_validator" "cpu=$cpu/wgfc_cpu"; do
    path=$target/${module#*=}.wasm
    built=target/wasm/$path
    [ -f "$built" ] || built=target/$path
    to=target/wasm/${module%=*}.wasm
    cp "$built" "$to"
    echo "$to: $(stat -c %s "$to") bytes, $(gzip -9 -c "$to" | wc -c) gzipped"
done
