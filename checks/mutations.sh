#!/usr/bin/env bash
# Do the checks find bugs? Plants each bug of checks/mutations into a copy of the tree and looks for it.
#
#     checks/mutations.sh [NAME...]    all, or those that are named
#     checks/mutations.sh --list      their names, and what they are
#     checks/mutations.sh --check     whether each still applies; nothing is built
#
# Each is looked for where its `First:` line says, then by `quire diff`, then by the tests, then by the models. Ends
# with 0 if at most one is not found. The copy and its build stay in ${TMPDIR:-target}/quire-mutations for the next run;
# the logs of what found each lie there too. All else of the checkout is only read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
patches=$PWD/checks/mutations
work=${TMPDIR:-$PWD/target}/quire-mutations

# Seconds that the random programs, the tests of one crate, and one run of the models get. What takes longer hangs.
DIFF_SECONDS=60 TEST_SECONDS=900 MODEL_SECONDS=1500
# Operations of one seed: few, since a bug shows early or with other programs.
DIFF_OPS=30000
# The crates whose tests are asked first.
CRATES=(quire-file quire-pagetable quire-vma quire-thp quire-paging quire-space quire-vma-tree quire-frame quire-slab quire-host quire-diff quire-sync quire-arch quire-mm)

say() {
    printf 'mutations: %s\n' "$*" >&2
}

die() {
    say "$*"
    exit 2
}

# What a patch says about itself, on one line.
sentence() {
    sed '/^First:/d; /^diff --git /,$d; /^--- /,$d' "$1" | paste -sd' ' | sed 's/ *$//'
}

# Brings the copy up to date. Only files that differ are written: their new times tell cargo what to build.
copy_tree() {
    mkdir -p "$work/tree" "$work/logs"
    git ls-files -z -co --exclude-standard | while IFS= read -r -d '' file; do
        if [[ -L $file && -d $file ]]; then
            mkdir -p "$(dirname "$work/tree/$file")"
            ln -sfn "$(readlink "$file")" "$work/tree/$file"
        fi
        [[ -f $file ]] || continue
        printf '%s\0' "$file"
        cmp -s "$file" "$work/tree/$file" && continue
        mkdir -p "$(dirname "$work/tree/$file")"
        cp "$file" "$work/tree/$file"
        touch "$work/tree/$file"
    done | sort -z > "$work/wanted"
    (cd "$work/tree" && find . -type f -printf '%P\0' | sort -z | comm -z -13 "$work/wanted" - | xargs -0r rm)
}

# run SECONDS COMMAND...: its output goes to the log. Returns 0 where all is well, 1 where something was found, which
# `found` then names.
run() {
    local seconds=$1 code=0 test
    shift
    timeout --kill-after=10 "$seconds" "$@" > "$log" 2>&1 < /dev/null || code=$?
    ((code == 0)) && return
    # The models are built where they run.
    ! grep -q '^error: could not compile' "$log" || die "$name: does not build"
    test=$(grep -m1 -oaP "^test \K\S+(?= .*FAILED$)|^\S+(?= --- FAILED$)|^thread '\K[\w:]+(?=' .*panicked)" "$log" || true)
    found=$what${test:+ ($test)}
    if ((code == 124 || code == 137)); then
        found+=", hangs"
    fi
    return 1
}

build() {
    cargo "$@" > "$log" 2>&1 || {
        tail -40 "$log" >&2
        die "$name: does not build"
    }
}

by_diff() {
    what="quire diff"
    build build --quiet --locked -p quire-cli
    local seed=0 end=$((SECONDS + DIFF_SECONDS))
    while ((SECONDS < end && ++seed)); do
        run $((2 * DIFF_SECONDS)) "$CARGO_TARGET_DIR/debug/quire" diff --seed "$seed" --ops "$DIFF_OPS" \
            --concurrent 200 --shrink 0 || return 1
    done
}

# by_test PACKAGES-AND-TARGETS... [NAME]: all targets if none is named.
by_test() {
    what="cargo test $*"
    local words=("$@") filter=() last=${*: -1} before=
    (($# > 1)) && before=${*: -2:1}
    if [[ $last != -* && $before != -p && $before != --test ]]; then
        filter=("$last")
        unset 'words[-1]'
    fi
    [[ ${words[*]} == *" --"* ]] || words+=(--lib --tests)
    build test --quiet --locked --no-run "${words[@]}"
    run "$TEST_SECONDS" cargo test --locked "${words[@]}" -- "${filter[@]}"
}

by_models() {
    what="scripts/models.sh $*"
    run "$MODEL_SECONDS" scripts/models.sh "$@"
}

# look STEP: one step of the search, as a `First:` line names it.
look() {
    local words
    read -ra words <<< "$1"
    say "$name: $1"
    "by_${words[0]}" "${words[@]:1}"
}

# The whole search. Returns 1 if the mutation was found.
search() {
    local first=$1 step
    local steps=("$first" diff)
    for step in "${CRATES[@]}"; do
        steps+=("test -p $step")
    done
    steps+=("test --workspace --lib --bins --tests" models)
    for step in "${!steps[@]}"; do
        # The first step may be one of the others.
        [[ $step -gt 0 && ${steps[step]} == "$first" ]] && continue
        look "${steps[step]}" || return 1
    done
}

names=()
for argument in "$@"; do
    case $argument in
    --list)
        for patch in "$patches"/*.patch; do
            printf '%s\n    %s\n' "$(basename "$patch" .patch)" "$(sentence "$patch")"
        done
        exit
        ;;
    --check)
        command -v git > /dev/null || die "git is missing; install it with: apt-get install git"
        stale=0
        for patch in "$patches"/*.patch; do
            git apply --check "$patch" || { say "$(basename "$patch" .patch) does not apply"; stale=1; }
        done
        exit "$stale"
        ;;
    -*) die "usage: checks/mutations.sh [--list | --check | NAME...]" ;;
    *)
        [[ -f $patches/$argument.patch ]] || die "$argument: no such mutation; --list names them"
        names+=("$argument")
        ;;
    esac
done
if ((${#names[@]} == 0)); then
    for patch in "$patches"/*.patch; do
        names+=("$(basename "$patch" .patch)")
    done
fi

command -v git > /dev/null || die "git is missing"
copy_tree
cd "$work/tree"
# The copy is no repository; without this git would look for one above it.
export GIT_CEILING_DIRECTORIES=$work
export CARGO_TARGET_DIR=$work/target CARGO_PROFILE_DEV_DEBUG=false CARGO_INCREMENTAL=1
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET

for name in "${names[@]}"; do
    git apply --check "$patches/$name.patch" || die "$name: the patch does not apply"
done

# What finds something in the tree as it is says nothing about mutations. (A few of them do not pay for all tests.)
name=unchanged log=$work/logs/unchanged.log found=
steps=(diff)
(($# > 0)) || steps+=("test ${CRATES[*]/#/-p }")
for step in "${steps[@]}"; do
    look "$step" || die "the tree without mutations fails: $found; see $log"
done

table='%-48s %-8s %s\n'
missed=0 rows=()
for name in "${names[@]}"; do
    log=$work/logs/$name.log found= started=$SECONDS
    git apply "$patches/$name.patch"
    # Undone also where the search is broken off.
    trap 'git apply -R "$patches/$name.patch"' EXIT
    if search "$(sed -n 's/^First: //p' "$patches/$name.patch")"; then
        found="NOT FOUND"
        missed=$((missed + 1))
    fi
    git apply -R "$patches/$name.patch"
    trap - EXIT
    # shellcheck disable=SC2059  # the format is ours
    rows+=("$(printf "$table" "$name" "$((SECONDS - started))" "$found")")
    say "${rows[-1]}"
done

# shellcheck disable=SC2059
printf "$table" mutation seconds "found by"
printf '%s\n' "${rows[@]}"
printf '%s of %s found\n' "$((${#names[@]} - missed))" "${#names[@]}"
((missed <= 1))
