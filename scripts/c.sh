#!/usr/bin/env bash
# Builds the C library for distribution and says how large it is, and where that is more than the 6 MB that it should have.
#
#   scripts/c.sh [ARGUMENT ...]     options for cargo: `--features compile` for the compiler, whose size is not limited
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --locked --profile c -p wgfc-c "$@"
for name in libwgfc_c.so libwgfc_c.dylib wgfc_c.dll libwgfc_c.a wgfc_c.lib; do
    file=target/c/$name
    [ -e "$file" ] || continue
    size=$(wc -c <"$file")
    echo "$file: $size bytes"
    case $name in *.a | *.lib) continue ;; esac
    if [ $# = 0 ] && [ "$size" -gt 6000000 ]; then
        echo "warning: $file has $size bytes, more than 6,000,000" >&2
    fi
done
