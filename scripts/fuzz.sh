#!/bin/bash
# Mutates models, by structure and by bytes, and archives of torch.export: scripts/fuzz.sh [SECONDS] (600 by default)
#
# WGFC_FUZZ_MODELS names a folder of further models to mutate, WGFC_FUZZ_SEED the first seed. Each case may take 20 seconds
# and 2 GB of memory, and the process 6 GB of address space. A case that ends the process is kept in target/fuzz/, and
# fuzzing continues with the next seed.
set -u
cd "$(dirname "$0")/.." || exit 1
seconds=${1:-600}
memory=${WGFC_FUZZ_MEMORY_KB:-6000000}
build=$(cargo test --workspace --test it --no-run ${WGFC_FUZZ_PROFILE:+--profile "$WGFC_FUZZ_PROFILE"} 2>&1) || { echo "$build" >&2; exit 1; }
test=$(sed -n 's/.*(\(target[^)]*\/it-[0-9a-f]*\)).*/\1/p' <<<"$build" | tail -1)
end=$(($(date +%s) + seconds))
failed=0
for kind in structure archives bytes; do
    seed=${WGFC_FUZZ_SEED:-1}
    case $kind in
        structure) until=$((end - seconds / 2)) extension=onnx ;;
        archives) until=$((end - seconds / 4)) extension=pt2 ;;
        bytes) until=$end extension=onnx ;;
    esac
    while left=$((until - $(date +%s))); [ "$left" -gt 0 ]; do
        rm -f target/fuzz/current.seed
        (
            ulimit -v "$memory"
            WGFC_FUZZ_ALONE=1 WGFC_FUZZ_SECONDS=$left WGFC_FUZZ_SEED=$seed \
                "$test" "of_mutated_$kind" --nocapture 2>&1
        ) | grep -E '^seed|mutated models|too long|overflow|memory allocation'
        [ "${PIPESTATUS[0]}" = 0 ] && break
        failed=1
        last=$(cat target/fuzz/current.seed 2>/dev/null) || break
        [ -e "target/fuzz/$kind.$extension" ] && cp "target/fuzz/$kind.$extension" "target/fuzz/$kind-stopped-at-$last.$extension"
        seed=$((last + 1))
    done
done
exit $failed
