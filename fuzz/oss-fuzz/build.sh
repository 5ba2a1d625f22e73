#!/bin/bash -eu
# Builds the targets into $OUT, each with the inputs to start from.
cd "$SRC/wgfc"
cargo fuzz build -O
for target in onnx pt2 plan; do
    cp "fuzz/target/x86_64-unknown-linux-gnu/release/$target" "$OUT/"
done
find fixtures/small fixtures/repro -name '*.onnx' -size -256k -print0 | xargs -0 zip -q "$OUT/onnx_seed_corpus.zip"
find fixtures/torch fixtures/repro -name '*.pt2' -size -256k -print0 | xargs -0 zip -q "$OUT/pt2_seed_corpus.zip"
unzip -p fixtures/torch/residual.pt2 '*/models/model.json' >program.json
zip -q "$OUT/pt2_seed_corpus.zip" program.json
