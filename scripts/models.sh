#!/usr/bin/env bash
# Builds and runs the models: loom's of the lock-free parts, shuttle's of whole machines. See docs/models.md.
#
#     scripts/models.sh            bounded, some minutes
#     scripts/models.sh --long     deeper, hours
#     scripts/models.sh [--long] loom|shuttle [NAME]    one of the two; only the models whose name holds NAME
#
# QUIRE_SCHEDULES=N sets the number of shuttle's schedules; QUIRE_SCHEDULE=TEXT replays the one that a failure printed
# (name the model too).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    sed -n '2,/^$/{ /^#/ s/^# \{0,1\}//p }' "${BASH_SOURCE[0]}" | sed '/^set /,$d' >&2
    exit 2
}

long=0 kinds="loom shuttle" name=
while (($# > 0)); do
    case $1 in
    --long) long=1 ;;
    loom | shuttle)
        kinds=$1
        name=${2:-}
        (($# <= 2)) || usage
        break
        ;;
    *) usage ;;
    esac
    shift
done

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# The flags change every crate, so each checker has a target folder of its own. What the caller's cargo was told is
# not for these builds.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET
# No debug information, no LTO: built quickly, and a panic names its line without.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false
export CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

cargo=${CARGO:-cargo}
limit=1500
if ((long)); then
    limit=86400
fi

# A name that no model has must not look like a success.
run() {
    local shown code=0
    shown=$(mktemp)
    "$@" 2>&1 | tee "$shown" || code=$?
    grep -qE '^running [1-9]' "$shown" || {
        echo "no model ran" >&2
        code=1
    }
    rm -f "$shown"
    return "$code"
}

loom() {
    local bounds=("")
    if ((long)); then
        # The models that name a bound of preemptions go on to a higher one, half an hour each. Those that name none
        # try everything in the first round.
        bounds+=("LOOM_MAX_PREEMPTIONS=6 LOOM_MAX_DURATION=1800")
    fi
    local bound
    for bound in "${bounds[@]}"; do
        # shellcheck disable=SC2086  # several settings, or none
        run env $bound RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$target/loom" \
            timeout --verbose "$limit" "$cargo" test --quiet --locked --release --lib \
            -p quire-sync -p quire-frame -p quire-slab -p quire-memcg -p quire-vma-tree -p quire-file -p quire-pagetable -p quire-vma -p quire-space -p quire-host "${name:-loom_}"
    done
}

shuttle() {
    if ((long)); then
        export QUIRE_SCHEDULES=${QUIRE_SCHEDULES:-400000}
    fi
    # Nothing captured: a failure that aborts must still print its schedule.
    run env RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR="$target/shuttle" \
        timeout --verbose "$limit" "$cargo" test --quiet --locked -p quire-host --test models "${name:-shuttle_}" \
        -- --nocapture
}

# Both at once: each builds a chain of crates, and has models that run alone at the end.
[[ $kinds != "loom shuttle" ]] || {
    shown=$(mktemp)
    loom > "$shown" 2>&1 &
    loom=$!
}
code=0
for kind in $kinds; do
    started=$SECONDS
    printf '=== %s\n' "$kind"
    if [[ $kind == loom && -n ${loom:-} ]]; then
        wait "$loom" || code=$?
        cat "$shown"
        rm -f "$shown"
    else
        "$kind" || code=$?
    fi
    printf '=== %s s: %s\n' "$((SECONDS - started))" "$kind"
done
exit "$code"
