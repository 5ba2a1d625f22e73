#!/usr/bin/env bash
# Compares models with ONNX Runtime's CPU provider, at every fusion level, on both software adapters.
#
#   scripts/accuracy.sh [NAME ...]       names of scripts/reference.py; all by default
#
# WGFC_FUSION=full takes one level only. Large models need some GB in target/models and some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
need_drivers
need_python onnx==1.23.2 numpy onnxruntime

"$python" -W ignore scripts/reference.py "${@:-all}"
folder=target/models
if [ $# -gt 0 ]; then
    # A folder with only the models that were asked for.
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    for name in "$@"; do
        case $name in
        all) ln -s "$PWD"/target/models/* "$folder" ;;
        light | filled) ln -s "$PWD"/target/models/"$name"_* "$folder" ;;
        *) ln -s "$PWD/target/models/$name" "$folder" ;;
        esac
    done
fi
CI=true WGFC_FUSION=${WGFC_FUSION:-none,elementwise,full} WGFC_MODELS=$folder cargo test --workspace --locked --test it real_models
