#!/usr/bin/env bash
# Runs every test: unit, kernel, conformance, models, fuzz. Installs what they need when it is missing:
# two software Vulkan drivers (lavapipe, SwiftShader), the validator of SPIR-V and the Python packages onnx and onnxruntime.
#
#   scripts/test.sh [ARGUMENT ...]     options for `cargo test`
#
# VK_DRIVER_FILES, where set, names the drivers to test on instead, separated by colons.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUST_BACKTRACE="${RUST_BACKTRACE:-0}"

source scripts/setup.sh
need_drivers
need_spirv
need_python onnx==1.23.2 numpy onnxruntime

"$python" -W ignore scripts/node_cases.py
"$python" scripts/aten_cases.py
"$python" -W ignore scripts/contrib_cases.py
"$python" -W ignore scripts/flow_models.py target/flow 1 71
"$python" -W ignore scripts/ml_models.py target/ml 1 81
"$python" -W ignore scripts/reference.py light

# The example of an engine opens one adapter: lavapipe, which compiles kernels sooner.
export WGPU_ADAPTER_NAME=${WGPU_ADAPTER_NAME:-llvmpipe}
# Drivers on the CPU take a second to compile a tuned kernel: whole models run once here.
# scripts/accuracy.sh runs them at every fusion level on every adapter.
cargo test --workspace --locked "$@" -- --skip real_models
WGFC_FUSION=full WGFC_ADAPTER=${WGFC_ADAPTER:-llvmpipe} cargo test --workspace --locked "$@" --test it -- real_models
