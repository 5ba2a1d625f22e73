#!/usr/bin/env bash
# Tries a command line that somebody else built, with nothing but fixtures: scripts/try.sh WGFC
#
# It compiles a model and runs it, on the CPU where there is no adapter; where there is one, the self-test compares it with the CPU.
set -euo pipefail
wgfc=${1:?the path of wgfc}
model=$(cd "$(dirname "$0")/.." && pwd)/fixtures/small/mlp
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

"$wgfc" --version
"$wgfc" check "$model/model.onnx"
"$wgfc" compile "$model/model.onnx" -o "$made/mlp" --quiet
for from in "$model/model.onnx" "$made/mlp"; do
    # Outputs that ONNX's reference computed.
    case $("$wgfc" run "$from" --input x="$model/test_data_set_0/input_0.pb") in
        *'f32[1, 5]'*'0.16442, 0.259613, 0.219269'*) echo "$from: right" ;;
        *) echo "error: $from has other results" >&2 && exit 1 ;;
    esac
done
if "$wgfc" device --json | grep -q '"driver"'; then
    "$wgfc" selftest --seconds 20
else
    echo "there is no adapter: the self-test is left out"
fi
