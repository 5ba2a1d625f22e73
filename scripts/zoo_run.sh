#!/usr/bin/env bash
# Runs a pack of models (scripts/zoo_pack.py) at every fusion level.
#
#   zoo_run.sh WGFC PACK OUT [ADAPTER]
#
# First all are compiled and run on all data sets, several at a time; then, one at a time, each is timed on the first data set.
# OUT gets `outputs/`, and `zoo.tsv` with a line for each command: model, level, stage, exit code, its JSON. A command may take LIMIT
# (20) seconds, everything SECONDS_IN_ALL (420); LEVELS is "full elementwise none", JOBS how many at a time, REPEAT (50) how often each is timed.
set -uo pipefail
wgfc=$(realpath "$1") pack=$2 out=$(realpath -m "$3")
export adapter=${4:+--adapter $4} wgfc out
export LIMIT=${LIMIT:-20} REPEAT=${REPEAT:-50}
seconds=${SECONDS_IN_ALL:-420} levels=${LEVELS:-full elementwise none} jobs=${JOBS:-$(($(nproc) * 3 / 4 + 1))}
start=$(date +%s)
export until=$((start + seconds * 3 / 5))
mkdir -p "$out/outputs" "$out/programs" "$out/lines"
cd "$pack" || exit 1

# said MODEL LEVEL STAGE ARGUMENT...: runs wgfc and keeps a line of what it said. When time is over nothing is run.
said() {
    local name=$1 level=$2 stage=$3 text code left=$((until - $(date +%s)))
    shift 3
    [ $left -gt 0 ] || return 124
    text=$(timeout -k 2 $((left < LIMIT ? left : LIMIT)) "$wgfc" "$@" --json 2>"$out/lines/$name-$level-$stage.err")
    code=$?
    [ -n "$text" ] || text=$(head -c 2000 "$out/lines/$name-$level-$stage.err")
    printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$level" "$stage" $code "$(tr -s '\n\t ' ' ' <<<"$text")" >>"$out/lines/$name-$level.tsv"
    return $code
}

# one LEVEL LINE: compiles a model and runs it on each data set.
one() {
    local level=$1 name fixed sizes what options sets n code
    IFS=$'\t' read -r _ name fixed sizes sets < <(sed 's/\t\t/\t \t/g; s/\t\t/\t \t/g' <<<"$2")
    IFS=$'\t' read -ra sets <<<"$sets"
    local model=$name/model.onnx program=$out/programs/$name-$level
    printf '%s\t%s\tlimit\t0\t%s\n' "$name" "$level" "$LIMIT" >"$out/lines/$name-$level.tsv"
    # shellcheck disable=SC2086 # words are options
    {
        what=$program options=
        said "$name" "$level" compile compile "$model" --output "$program" --fusion "$level" $fixed $adapter
        code=$?
        case $code in
        0) ;;
        # Where sizes must be known, `run` compiles for those of the inputs.
        1 | 2 | 3) sed -i 's/\tcompile\t/\trefused\t/' "$out/lines/$name-$level.tsv" && what=$model options="--fusion $level $fixed" ;;
        *) return ;;
        esac
        for n in "${!sets[@]}"; do
            said "$name" "$level" "run$n" run "$what" ${sets[n]} $options $adapter --output-dir "$out/outputs/$name-$level-$n" || return
        done
        [ "$what" = "$program" ] || said "$name" "$level" compile compile "$model" --output "$program" $options $sizes $adapter
        printf '%s\t%s\t%s\n' "$name" "$level" "$what ${sets[0]} $options" >"$out/lines/$name-$level.again"
    }
}
export -f one said

for level in $levels; do
    while IFS= read -r line; do printf '%s\0%s\0' "$level" "$line"; done <models.tsv
done | xargs -0 -n 2 -P "$jobs" bash -c 'one "$@"' _
export until=$((start + seconds))
echo "compiled and run after $(($(date +%s) - start)) s" >&2
for level in $levels; do
    while IFS=$'\t' read -r _ name _; do
        again=$out/lines/$name-$level.again
        [ -f "$again" ] || continue
        IFS=$'\t' read -r _ _ options <"$again"
        # shellcheck disable=SC2086
        said "$name" "$level" time run $options $adapter --repeat "$REPEAT" || said "$name" "$level" time run $options $adapter --repeat 3
    done <models.tsv
done
cat "$out"/lines/*.tsv >"$out/zoo.tsv"
rm -rf "$out/programs" "$out/lines"
echo "done after $(($(date +%s) - start)) s" >&2
