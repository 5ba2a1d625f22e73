#!/usr/bin/env bash
# Makes what tests read: the data of the cases, and meanwhile, since that takes one core, the compiler's module for web pages.
#
#   scripts/data.sh
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/setup.sh
need_python onnx==1.23.2 numpy onnxruntime
need_wasm
nice scripts/wasm.sh --quick &
"$python" -W ignore scripts/node_cases.py
"$python" scripts/aten_cases.py
"$python" -W ignore scripts/contrib_cases.py
"$python" -W ignore scripts/flow_models.py target/flow 1 71
"$python" -W ignore scripts/ml_models.py target/ml 1 81
"$python" -W ignore scripts/reference.py light
wait $!
