#!/usr/bin/env bash
# Builds the fuzzers and runs each for a time; fails when one finds something. See fuzz/README.md.
#
#     scripts/fuzz.sh [SECONDS [TARGET...]]    60 seconds and all targets by default
#
# What is new in the inputs stays in a folder of its own below the target folder, and is used again by the next run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-60}
if [[ ! $seconds =~ ^[1-9][0-9]*$ ]]; then
    sed -n '2,/^set /{ /^#/ s/^# \{0,1\}//p }' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
shift || true

missing=0
cargo fuzz --version > /dev/null 2>&1 || {
    echo "cargo-fuzz is missing; install it with: cargo install cargo-fuzz --version 0.13.1 --locked" >&2
    missing=1
}
command -v c++ > /dev/null || command -v g++ > /dev/null || command -v clang++ > /dev/null || {
    echo "a C++ compiler is missing; install it with: apt-get install -y g++" >&2
    missing=1
}
((missing == 0)) || exit 2

CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")/fuzz
export CARGO_TARGET_DIR
# What the caller's cargo was told is not for these builds.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET

targets=("$@")
if ((${#targets[@]} == 0)); then
    mapfile -t targets < <(cargo fuzz list)
fi
cargo fuzz build -s none

failed=0
for target in "${targets[@]}"; do
    printf '=== %s\n' "$target"
    # The first folder gets what is new; the kept inputs are only read.
    found=$CARGO_TARGET_DIR/found/$target
    mkdir -p "$found"
    # A trace is larger than a few calls.
    most=512
    [[ $target == trace_* ]] && most=65536
    # Traces are kept once for all their targets.
    cargo fuzz run -s none "$target" "$found" "fuzz/corpus/${target/#trace_*/trace_reader}" -- \
        -max_total_time="$seconds" -max_len="$most" -timeout=20 -rss_limit_mb=1024 -print_final_stats=1 -verbosity=0 ||
        failed=1
done
exit "$failed"
