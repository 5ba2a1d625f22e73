#!/usr/bin/env bash
# Builds the npm package in web/ and tests it: its modules in node, and programs in headless Chromium on SwiftShader. Installs what they
# need when it is missing: nodejs, npm, chromium, and the Python package onnx for the cases' data.
#
#   scripts/web.sh
#
# WGFC_CASES=text runs only the cases whose name contains it. UPDATE_EXPECT=1 writes the lists in tests/conformance/.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/setup.sh
command -v node >/dev/null || install nodejs
command -v npm >/dev/null || install npm
if ! node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; then
    echo "error: node $(node --version) is too old; version 20 or later is needed" >&2
    exit 1
fi
[ -n "${CHROMIUM:-}" ] || command -v chromium >/dev/null || install chromium
need_python onnx==1.23.2 numpy onnxruntime

# The module that is shipped is built by scripts/wasm.sh without --quick.
[ -n "${WGFC_COMPILER:-}" ] || scripts/wasm.sh --quick
cd web
npm ci --silent
npm run --silent check
npm run --silent build
npm test
# What `wgfc serve` has built in must be what the sources give.
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
cp -r playground/page "$before"
node playground/build.mjs --page
if ! diff -rq "$before/page" playground/page >&2; then
    echo "error: web/playground/page is not what the sources give: it has been written anew, as \`npm run page\` in web/ does; commit it" >&2
    exit 1
fi
cd ..

"$python" -W ignore scripts/node_cases.py
cargo test --workspace --locked --test it -- --ignored --exact web::web_cases
need_drivers
cargo test --workspace --locked --test it -- --ignored --exact parity::parity_cases
cd web
node --test --test-timeout 60000 test/cache.mjs
# With the features of tests, as which it was built before.
cargo test --workspace --locked --test cli --no-run
WGFC=../target/debug/wgfc node playground/build.mjs
node --test --test-timeout 300000 test/playground.mjs
WGFC=../target/debug/wgfc node --test --test-timeout 120000 test/serve.mjs
node --test --test-timeout 300000 --test-concurrency 1 test/compile.mjs test/install.mjs
node --test --test-timeout 900000 test/browser.mjs
node --test --test-timeout 60000 test/example.mjs
# Records that engines make of themselves can be read by the command line.
node engines/suite.mjs --browser --quick --passes 1 ../target/web/suite.json
../target/debug/wgfc bench report ../target/web/suite.json -o ../target/web/suite.html
[ -n "${WGFC_CASES:-}" ] || node --test test/parity.mjs
