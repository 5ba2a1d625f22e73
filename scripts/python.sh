#!/usr/bin/env bash
# Builds the Python package's wheel and runs its tests on what is in it. Installs what they need when it is missing: a software
# Vulkan driver and the Python packages maturin, numpy and pytest.
#
#   scripts/python.sh [ARGUMENT ...]     options for pytest
#
# WGFC_PROFILE=release builds the wheel as users get it, without it as the other tests are built, sharing what they built.
# Tests that need torch or ml_dtypes are skipped where these are not installed.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/setup.sh
need_drivers
need_python maturin numpy pytest

out=$PWD/target/python
options=(--profile dev --features workspace)
[ "${WGFC_PROFILE:-dev}" = dev ] || options=(--profile "$WGFC_PROFILE")
rm -rf "$out"
"$python" -m maturin build --quiet --manifest-path bindings/python/Cargo.toml --target-dir target --compatibility linux \
    --out "$out/wheels" "${options[@]}"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --target "$out/site" "$out"/wheels/*.whl
PYTHONPATH=$out/site WGFC_CACHE_DIR=$out/cache WGFC_ADAPTER=${WGFC_ADAPTER:-llvmpipe} \
    "$python" -m pytest -p no:cacheprovider bindings/python "$@"
