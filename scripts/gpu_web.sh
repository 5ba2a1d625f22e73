#!/usr/bin/env bash
# The npm package on a real GPU: what a page runs, in headless Chromium, under Dawn (Chromium's WebGPU) in node, and under wgpu (Firefox's) in
# Deno.
#
#   scripts/gpu_web.sh pack FOLDER [PART...]   here: what the GPU machine needs, packed; PARTs are dawn, deno, native, page, ort and chromium
#   scripts/gpu_web.sh unpack FOLDER           on the GPU machine: unpacks what is in the folder; may be repeated, with other parts in it
#   scripts/gpu_web.sh cases                   and runs all cases and checks, without and with f16 and subgroups
#   scripts/gpu_web.sh bench                   and measures what pages do, beside the command line; JSON files in $OUT, and tables: of programs
#                                              for every device (NAME), and for this one as the page measures it (NAME-measured)
#   scripts/gpu_web.sh suite                   and measures the engines and the command line as `wgfc bench suite` does, with a report in $OUT
#
# The GPU machine needs Vulkan, bash, tar and xz, and this repository's files at the same commit. `pack` takes node and Chromium's headless
# shell from Debian, Dawn and Deno from npm, and the command line from target/release/wgfc; Chromium is in pieces of 32 MB. Dawn offers f16 on
# NVIDIA only where it is told to (vulkan_enable_f16_on_nvidia); DAWN_TOGGLES changes its toggles. What is unpacked is in WGFC_WORK
# (target/web/gpu).
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?pack, unpack, cases, bench or suite}
toggles=${DAWN_TOGGLES-vulkan_enable_f16_on_nvidia}
work=$(realpath -m "${WGFC_WORK:-target/web/gpu}")
models=(
    "mobilenetv2 pixel_values:f32:1x3x224x224 --dim batch=1"
    "resnet50 pixel_values:f32:1x3x224x224 --dim batch=1"
    "bert-base input_ids:i64:1x128=5,attention_mask:i64:1x128=1 --dim batch=1 --dim seq=128"
)
decoders=("qwen-f32 qwen2.5-0.5b" "qwen-f16 qwen2.5-0.5b --precision f16" "qwen-q4 qwen2.5-0.5b-q4f16")

# Simulations with their loop in a kernel (NAME), and with dispatches for each step (NAME-steps).
loops=(
    "cartpole genomes:f32:4096x58,state:f32:4096x4 --dim population=4096 --fix steps=500"
    "portfolio genomes:f32:10000x246,signals:f32:1500x36 --dim population=10000 --dim steps=1500"
)

pack() {
    local folder=$1 here=target/web/engines
    shift
    local parts=("$@")
    [ ${#parts[@]} -gt 0 ] || parts=(dawn deno native page ort chromium)
    source scripts/setup.sh
    mkdir -p "$folder" "$here"
    [ -d "$here/node_modules/webgpu" ] && [ -d "$here/node_modules/deno" ] ||
        (cd "$here" && echo '{"private":true}' >package.json && npm install --silent webgpu@0.6.2 deno@2.9.6)
    for part in "${parts[@]}"; do
        case $part in
            dawn)
                xz -c -T2 "$(command -v node)" >"$folder/node.xz"
                xz -c -T2 "$here/node_modules/webgpu/dist/linux-x64/dawn.node" >"$folder/dawn.node.xz"
                ;;
            deno) xz -c -T2 "$here/node_modules/@deno/linux-x64-glibc/deno" >"$folder/deno.xz" ;;
            native)
                strip -o "$here/wgfc" target/release/wgfc
                xz -c -T2 "$here/wgfc" >"$folder/wgfc.xz"
                ;;
            page) pack_page "$folder" ;;
            ort)
                (cd web/bench && npm ci --silent)
                tar -C web/bench/node_modules/onnxruntime-web/dist -cJf "$folder/ort.tar.xz" ort.webgpu.min.mjs \
                    ort-wasm-simd-threaded.asyncify.mjs ort-wasm-simd-threaded.asyncify.wasm
                ;;
            chromium) pack_chromium "$folder" "$here/chromium" ;;
            *)
                echo "error: $part is no part; there are dawn, deno, native, page, ort and chromium" >&2
                return 1
                ;;
        esac
    done
    du -h "$folder"/*
}

# The package, the tests' packages and the cases, for every device and for one with f16 and subgroups.
pack_page() {
    (cd web && npm ci --silent && npm run --silent build)
    need_python onnx==1.23.2 numpy
    "$python" -W ignore scripts/node_cases.py
    cargo test --locked --test it -- --ignored --exact web::web_cases
    WGFC_WEB_PROFILE=web/engines/features.json cargo test --locked --test it -- --ignored --exact web::web_cases
    tar -cJf "$1/page.tar.xz" --exclude='*.d.ts' --exclude=playwright-core/lib/vite web/dist web/build web/node_modules/@huggingface \
        web/node_modules/playwright-core target/web/cases target/web/cases-features
}

# Chromium's headless shell with the libraries that it needs, but for those of the compiler and the C library.
pack_chromium() {
    local folder=$1 to=$2 shell=/usr/lib/chromium/chromium-headless-shell
    [ -x $shell ] || install chromium-headless-shell
    rm -rf "$to"
    mkdir -p "$to/lib"
    cp -rL /usr/lib/chromium "$to/chromium"
    rm -rf "$to"/chromium/{chromium,chrome_crashpad_handler,locales,resources.pak} "$to"/chromium/*VkLayer* "$to"/chromium/*mock*
    ldd $shell | awk '$3 ~ /^\// && $1 !~ /^lib(c|m|dl|pthread|rt|resolv|gcc_s|stdc\+\+)\.so/ { print $3 }' | xargs -I{} cp -L {} "$to/lib/"
    cp -L /usr/lib/*-linux-gnu/{,nss/}lib{nssckbi,softokn3,freebl3,freeblpriv3}.so "$to/lib/" 2>/dev/null || true
    rm -f "$folder"/chromium.tar.xz.*
    tar -C "$to" -cf - . | xz -T2 | split -b 32000000 -d -a 1 - "$folder/chromium.tar.xz."
    echo "$(("$(ls "$folder"/chromium.tar.xz.* | wc -l)"))" >"$folder/chromium.pieces"
}

unpack() {
    mkdir -p "$work/chromium"
    for file in "$1"/*; do
        case $(basename "$file") in
            page.tar.xz) tar -xJf "$file" ;;
            ort.tar.xz) mkdir -p "$work/ort" && tar -C "$work/ort" -xJf "$file" ;;
            chromium.*) cp "$file" "$work/" ;;
            *.xz)
                xz -dc "$file" >"$work/$(basename "$file" .xz)"
                chmod +x "$work/$(basename "$file" .xz)"
                ;;
        esac
    done
    if [ -f "$work/chromium.pieces" ] && [ "$(ls "$work"/chromium.tar.xz.* | wc -l)" = "$(cat "$work/chromium.pieces")" ]; then
        cat "$work"/chromium.tar.xz.* | tar -C "$work/chromium" -xJf -
        rm "$work"/chromium.tar.xz.*
    fi
    ls "$work"
}

# Runs a program of web/engines under an engine.
under() {
    local engine=$1 program=$2
    shift 2
    local toggle=()
    case $engine in
        dawn)
            for t in ${toggles//,/ }; do toggle+=(--toggle "$t"); done
            WGFC_DAWN=$work/dawn.node "$work/node" "web/engines/$program.mjs" "${toggle[@]}" "$@"
            ;;
        chromium) in_chromium "web/engines/$program.mjs" --browser "$@" ;;
        deno) "$work/deno" run -q -A --no-lock --import-map web/engines/imports.json "web/engines/$program.mjs" "$@" ;;
    esac
}

# Runs a program of node that opens Chromium, on the GPU.
in_chromium() {
    WGFC_GPU=1 WGFC_DAWN_TOGGLES=$toggles CHROMIUM=$work/chromium/chromium/chromium-headless-shell LD_LIBRARY_PATH=$work/chromium/lib "$work/node" "$@"
}

# The engines that are there, or those of ENGINES.
engines() {
    if [ -n "${ENGINES:-}" ]; then
        echo "$ENGINES"
        return
    fi
    [ -x "$work/chromium/chromium/chromium-headless-shell" ] && [ -x "$work/node" ] && echo chromium
    [ -x "$work/node" ] && [ -e "$work/dawn.node" ] && echo dawn
    [ -x "$work/deno" ] && echo deno
    true
}

cases() {
    local failed=0 without
    for engine in $(engines); do
        if [ "$engine" = chromium ]; then
            in_chromium --test --test-timeout 600000 web/test/browser.mjs || failed=1
            WGFC_CASES=/ WGFC_FEATURES=shader-f16,subgroups WGFC_CASE_FOLDER=target/web/cases-features \
                in_chromium --test --test-timeout 600000 web/test/browser.mjs || failed=1
            continue
        fi
        # Deno's workers cannot read files synchronously, which the compiler's module does.
        without=()
        [ "$engine" = dawn ] && [ -f web/dist/compiler/compiler.wasm ] || without=(--without compiler)
        under "$engine" cases "${without[@]}" || failed=1
        WGFC_CASE_FOLDER=target/web/cases-features under "$engine" cases --features shader-f16,subgroups --only / || failed=1
    done
    return $failed
}

# compile NAME FIXTURE OPTION...: a program of a model with random weights. It is made once, but with --force, as by another profile.
compile() {
    local name=$1 fixture=$2
    shift 2
    [ -d "$WGFC_PLANS/$name" ] && [[ " $* " != *" --force "* ]] || "$work/wgfc" compile "fixtures/$fixture.onnx" --random-weights -q -o "$WGFC_PLANS/$name" "$@"
}

bench() {
    export WGFC_PLANS=$work/plans/
    mkdir -p "$WGFC_PLANS" "${OUT:=$work/out}"
    local specs=() plans=() first profile=$OUT/profile.json
    read -r first _ <<<"$(engines | tr '\n' ' ')"
    under "$first" bench --json "$profile" measure
    for model in "${models[@]}"; do
        read -r name inputs options <<<"$model"
        # shellcheck disable=SC2086
        compile "$name" "$name" $options --target web
        # shellcheck disable=SC2086
        compile "$name-measured" "$name" $options --profile "$profile" --force
        specs+=("$name" "$inputs" "$name-measured" "$inputs")
    done
    for loop in "${loops[@]}"; do
        read -r name inputs options <<<"$loop"
        # shellcheck disable=SC2086
        compile "$name" "simulations/$name/model" $options --target web
        # shellcheck disable=SC2086
        compile "$name-steps" "simulations/$name/model" $options --target web --without loops
        specs+=("$name" "$inputs" "$name-steps" "$inputs")
    done
    for decoder in "${decoders[@]}"; do
        read -r name fixture options <<<"$decoder"
        # shellcheck disable=SC2086
        compile "$name" "$fixture" $options --generate --target web
        # shellcheck disable=SC2086
        compile "$name-measured" "$fixture" $options --generate --profile "$profile" --force
        plans+=("$name" "$name-measured")
    done
    local states=() part name
    for part in "" mean. square.; do
        for name in encoder decoder threshold centre; do states+=(--state "state.$part$name=state.$part$name"); done
    done
    [ -d "$WGFC_PLANS/sae" ] || "$work/wgfc" compile fixtures/torch/sae_step.pt2 -q -o "$WGFC_PLANS/sae" --target web --dim s77=4096 --state-capacity any \
        --state state.count=state.count "${states[@]}"
    for ((i = 0; i < ${#specs[@]}; i += 2)); do
        "$work/wgfc" bench "$WGFC_PLANS/${specs[i]}" --random-inputs --no-tuning --json >"$OUT/native-${specs[i]}.json"
    done
    for plan in "${plans[@]}"; do
        "$work/wgfc" bench decode "$WGFC_PLANS/$plan" --past 64 --tokens 192 --capacity 1024 --no-tuning --json >"$OUT/native-$plan.json"
    done
    "$work/wgfc" bench dispatch --json >"$OUT/native-dispatch.json"
    "$work/wgfc" train "$WGFC_PLANS/sae" --random-data 4096 --input rate=0.001 --init state.encoder=random --init state.decoder=random --steps 100 --json >"$OUT/native-train.json"
    for engine in $(engines); do
        under "$engine" bench --json "$OUT/$engine-dispatch.json" dispatch || true
        under "$engine" bench --json "$OUT/$engine-models.json" model "${specs[@]}" || true
        under "$engine" bench --json "$OUT/$engine-decode.json" decode "${plans[@]}" || true
        under "$engine" bench --json "$OUT/$engine-train.json" train sae x:f32:4096x768,rate:f32:=0.001 || true
    done
    # Each in a page of its own, as its first result has the engine's download.
    if [ -d "$work/ort" ] && [ -d "$work/chromium/chromium" ]; then
        export WGFC_ORT=$work/ort/
        for model in "${models[@]}"; do
            read -r name inputs _ <<<"$model"
            under chromium bench --json "$OUT/ort-$name.json" ort "$name" "$inputs" || true
        done
        under chromium bench --json "$OUT/ort-decode.json" ort-decode qwen2.5-0.5b-q4f16 || true
    fi
    shopt -s nullglob
    "$work/node" web/engines/table.mjs "$OUT"/{native,chromium,dawn,deno,ort}-*.json | tee "$OUT/tables.md"
}

# Programs for this device as the page measures it, and records of all engines with rows of the same names.
suite() {
    export WGFC_PLANS=$work/suite/
    mkdir -p "$WGFC_PLANS" "${OUT:=$work/out}"
    local first profile=$OUT/profile.json
    read -r first _ <<<"$(engines | tr '\n' ' ')"
    under "$first" bench --json "$profile" measure
    for model in "${models[@]}"; do
        read -r name _ options <<<"$model"
        # shellcheck disable=SC2086
        compile "$name" "$name" $options --profile "$profile"
    done
    for decoder in "${decoders[@]}"; do
        read -r name fixture options <<<"$decoder"
        # shellcheck disable=SC2086
        compile "$name" "$fixture" $options --generate --profile "$profile"
    done
    "$work/wgfc" bench suite -o "$OUT/native-suite.json"
    for engine in $(engines); do under "$engine" suite "$OUT/$engine-suite.json" || true; done
    shopt -s nullglob
    "$work/wgfc" bench report "$OUT"/{native,chromium,dawn,deno}-suite.json -o "$OUT/suite.html" --markdown "$OUT/suite.md"
}

shift
case $what in
    pack | unpack) "$what" "${@:?a folder}" ;;
    cases | bench | suite) "$what" ;;
    *)
        echo "error: $what is none of pack, unpack, cases, bench and suite" >&2
        exit 1
        ;;
esac
