#!/usr/bin/env bash
# Packs every crate as `cargo publish` would, and looks whether all is in it that must be. Builds nothing. The Python package is
# packed by maturin instead.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo package --workspace --exclude wgfc-python --no-verify --locked --allow-dirty --quiet 2>&1 |
    { grep -v -e '^warning: ignoring \(test\|benchmark\) ' || true; } >&2
# Fails where the packages' versions do not agree.
version=$(python3 scripts/bump.py)
for manifest in Cargo.toml */Cargo.toml; do
    ! grep -q '^publish = false' "$manifest" || continue
    name=$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -1)
    files=$(tar tzf "target/package/$name-$version.crate" | sed "s|^$name-$version/||")
    # Texts and bytes that sources include are looked for beside them.
    included=$(cd "$(dirname "$manifest")" && grep -rhoE --include='*.rs' \
        'include_(str|bytes)!\(concat!\("[^"]*' src | sed -E 's|.*"(\.\./)*||; s|$|*|' | sort -u || true)
    for want in README.md LICENSE-MIT LICENSE-APACHE $included; do
        # shellcheck disable=SC2254 # a pattern
        if ! grep -q "^${want//\*/.*}" <<<"$files"; then
            echo "error: $want is not in the package $name: add it to \`include\` in $manifest" >&2
            exit 1
        fi
    done
done
