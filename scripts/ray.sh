#!/usr/bin/env bash
# Runs examples/ray_batch.py on a local Ray of two workers, on a software adapter, and compares with a single session: with a model of any
# batch size and with a fixed one. Not part of CI: it installs the Python package ray.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/setup.sh
scripts/python.sh --quiet --collect-only > /dev/null
need_python ray

out=$PWD/target/ray
mkdir -p "$out"
"$python" -c "
import numpy as np
np.save('$out/x.npy', np.random.default_rng(0).standard_normal((301, 13), dtype=np.float32))"
export PYTHONPATH=$PWD/target/python/site RAY_USAGE_STATS_ENABLED=0
for dims in "" "--dim batch=32"; do
    # shellcheck disable=SC2086
    "$python" examples/ray_batch.py fixtures/small/mlp/model.onnx "$out/x.npy" "$out/y.npy" \
        --batch 16 --workers 2 --adapter "${WGFC_ADAPTER:-llvmpipe}" --check $dims
done
