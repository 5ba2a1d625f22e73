#!/usr/bin/env bash
# The npm package on a real GPU: what a page runs, under Dawn (Chromium's WebGPU) in node and under wgpu (Firefox's) in Deno.
#
#   scripts/gpu_web.sh pack FOLDER [dawn] [deno] [native]   what the GPU machine needs, packed: engines, the package, cases, the command line
#   scripts/gpu_web.sh cases FOLDER                         on the GPU machine: all cases and checks, without and with f16 and subgroups
#   scripts/gpu_web.sh bench FOLDER                         and what pages do there, beside the command line; JSON files in $OUT
#   scripts/gpu_web.sh table FILE...                        the JSON files as tables
#
# The GPU machine needs Vulkan, bash, tar and xz, and this repository's files at the same commit. `pack` takes node from this machine, Dawn
# and Deno from npm, and the command line from target/release/wgfc. Dawn offers f16 on NVIDIA only where it is told to
# (vulkan_enable_f16_on_nvidia); DAWN_TOGGLES changes its toggles.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?pack, cases, bench or table}
folder=${2:?a folder}
toggles=${DAWN_TOGGLES-vulkan_enable_f16_on_nvidia}
models=(
    "mobilenetv2 pixel_values:f32:1x3x224x224 --dim batch=1"
    "resnet50 pixel_values:f32:1x3x224x224 --dim batch=1"
    "bert-base input_ids:i64:1x128=5,attention_mask:i64:1x128=1 --dim batch=1 --dim seq=128"
)
decoders=("qwen2.5-0.5b" "qwen2.5-0.5b --precision f16" "qwen2.5-0.5b-q4f16")

pack() {
    shift 2
    local parts=("$@") work=target/web/engines
    [ ${#parts[@]} -gt 0 ] || parts=(dawn deno native)
    source scripts/setup.sh
    mkdir -p "$folder" "$work"
    [ -d "$work/node_modules/webgpu" ] && [ -d "$work/node_modules/deno" ] ||
        (cd "$work" && echo '{"private":true}' >package.json && npm install --silent webgpu@0.6.2 deno@2.9.6)
    for part in "${parts[@]}"; do
        case $part in
            dawn)
                xz -c -T2 "$(command -v node)" >"$folder/node.xz"
                xz -c -T2 "$work/node_modules/webgpu/dist/linux-x64/dawn.node" >"$folder/dawn.node.xz"
                ;;
            deno) xz -c -T2 "$work/node_modules/@deno/linux-x64-glibc/deno" >"$folder/deno.xz" ;;
            native)
                strip -o "$work/wgfc" target/release/wgfc
                xz -c -T2 "$work/wgfc" >"$folder/wgfc.xz"
                ;;
        esac
    done
    (cd web && npm run --silent build)
    need_python onnx==1.23.2 numpy
    "$python" -W ignore scripts/node_cases.py
    cargo test --locked --test it -- --ignored --exact web::web_cases
    WGFC_WEB_PROFILE=web/engines/features.json cargo test --locked --test it -- --ignored --exact web::web_cases
    tar -cJf "$folder/page.tar.xz" --exclude='*.d.ts' web/dist web/build web/node_modules/@huggingface target/web/cases target/web/cases-features
    du -h "$folder"/*
}

# Unpacks what is in the folder, once.
unpack() {
    work=${WGFC_WORK:-/tmp/wgfc-web}
    mkdir -p "$work"
    for file in "$folder"/*.xz; do
        local name to
        name=$(basename "$file" .xz)
        to=$work/$name
        [ "$to" -nt "$file" ] && continue
        if [ "$name" = page.tar ]; then
            tar -xJf "$file" && touch "$to"
        else
            xz -dc "$file" >"$to" && chmod +x "$to"
        fi
    done
    export WGFC_DAWN=$work/dawn.node
}

# Runs a program of web/engines under an engine.
under() {
    local engine=$1 program=$2
    shift 2
    local toggle=()
    if [ "$engine" = dawn ]; then
        for t in ${toggles//,/ }; do toggle+=(--toggle "$t"); done
        "$work/node" "web/engines/$program.mjs" "${toggle[@]}" "$@"
    else
        "$work/deno" run -q -A --no-lock --import-map web/engines/imports.json "web/engines/$program.mjs" "$@"
    fi
}

engines() {
    [ -x "$work/node" ] && [ -e "$work/dawn.node" ] && echo dawn
    [ -x "$work/deno" ] && echo deno
    true
}

case $what in
    pack) pack "$@" ;;
    cases)
        unpack
        failed=0
        for engine in $(engines); do
            # Deno's workers have no synchronous reading of files, which the compiler's module needs.
            without=()
            [ "$engine" = dawn ] && [ -f web/dist/compiler/compiler.wasm ] || without=(--without compiler)
            under "$engine" cases "${without[@]}" || failed=1
            WGFC_CASE_FOLDER=target/web/cases-features under "$engine" cases --features shader-f16,subgroups --only / || failed=1
        done
        exit $failed
        ;;
    bench)
        unpack
        export WGFC_PLANS=$work/plans/
        mkdir -p "$WGFC_PLANS" "${OUT:=$work/out}"
        wgfc=$work/wgfc
        specs=()
        for model in "${models[@]}"; do
            read -r name inputs options <<<"$model"
            for precision in f32 f16; do
                plan=$name-$precision
                # shellcheck disable=SC2086
                [ -d "$WGFC_PLANS/$plan" ] || "$wgfc" compile "fixtures/$name.onnx" --random-weights $options --precision $precision --target web -q -o "$WGFC_PLANS/$plan" 2>/dev/null
                specs+=("$plan" "$inputs")
            done
        done
        plans=()
        for decoder in "${decoders[@]}"; do
            read -r name options <<<"$decoder"
            plan=$name-decode${options:+-${options##* }}
            # shellcheck disable=SC2086
            [ -d "$WGFC_PLANS/$plan" ] || "$wgfc" compile "fixtures/$name.onnx" --random-weights $options --generate --target web -q -o "$WGFC_PLANS/$plan" 2>/dev/null
            plans+=("$plan")
        done
        "$wgfc" bench dispatch --json >"$OUT/native-dispatch.json"
        for plan in "$WGFC_PLANS"/*; do
            name=$(basename "$plan")
            case $name in
                *-decode*) "$wgfc" bench decode "$plan" --past 64 --tokens 192 --capacity 1024 --no-tuning --json >"$OUT/native-$name.json" || true ;;
                *) "$wgfc" bench "$plan" --random-inputs --no-tuning --json >"$OUT/native-$name.json" || true ;;
            esac
        done
        for engine in $(engines); do
            under "$engine" bench --json "$OUT/$engine-dispatch.json" dispatch || true
            under "$engine" bench --json "$OUT/$engine-models.json" model "${specs[@]}" || true
            under "$engine" bench --json "$OUT/$engine-decode.json" decode "${plans[@]}" || true
        done
        ;;
    *)
        echo "error: $what is none of pack, cases, bench and table" >&2
        exit 1
        ;;
esac
