#!/usr/bin/env bash
# Makes random models with NNSmith and compares them with ONNX Runtime, fused and unfused, on both software adapters.
#
#   scripts/nnsmith.sh [FROM [TO]]       seeds of models (1 to 201)
#
# WGFC_ADAPTER=llvmpipe takes one adapter, WGFC_FUSION=full,elementwise,none other levels. Models are kept in target/nnsmith/models, where
# report.tsv has a line for each: seed, adapter, level, what came of it, seconds, and why. Not part of CI: it installs torch.
set -euo pipefail
cd "$(dirname "$0")/.."
from=${1:-1}
to=${2:-$((from + 200))}

source scripts/setup.sh
need_drivers
need_python nnsmith==0.1.0 onnx==1.23.2 onnxruntime torch onnxscript numpy

folder=$PWD/target/nnsmith/models
"$python" -W ignore scripts/nnsmith_models.py "$folder" "$from" "$to"
WGFC_GENERATED=$folder WGFC_GENERATED_SEEDS=$from..$to cargo test --workspace --locked --test it generated_models -- --nocapture
