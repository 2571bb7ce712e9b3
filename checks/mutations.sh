#!/usr/bin/env bash
# Do the checks find bugs? Plants each bug of checks/mutations into a copy of the tree and looks for it.
#
#     checks/mutations.sh [--for MINUTES]    those without a result, none begun after MINUTES
#     checks/mutations.sh NAME...            those that are named, whatever was found before
#     checks/mutations.sh --list             their names, and what they are
#     checks/mutations.sh --check            whether each still applies, and its test is there; nothing is built
#     checks/mutations.sh --table            the results that are there, as a table for docs/
#
# Each is looked for where its `First:` line says, then by `quire diff`, then by the tests, then by the models.
# Ends with 0 if at most one was found by nothing or does not build. The copy and its build stay in
# ${TMPDIR:-target}/quire-mutations for the next run; the logs of what found each lie there too, and results/, a
# file for each: remove one to look again. A result is of the commit that it names, and counts until the change of
# its patch is another. All else of the checkout is only read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
patches=$PWD/checks/mutations
work=${TMPDIR:-$PWD/target}/quire-mutations

# Seconds that the random programs, the tests of one crate, and one run of the models get. What takes longer hangs.
DIFF_SECONDS=60 TEST_SECONDS=900 MODEL_SECONDS=1500
# Operations of one seed: few, since a bug shows early or with other programs.
DIFF_OPS=30000
# The crates whose tests are asked first.
CRATES=(quire-file quire-pagetable quire-vma quire-thp quire-pageout quire-fault quire-space quire-vma-tree quire-frame quire-slab quire-host quire-diff quire-sync quire-arch quire-mm)

# Results that a bug may have beside what found it.
not_found="NOT FOUND" no_build="does not build"

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
    # A folder of a crate that is gone would still be one of the workspace.
    find "$work/tree" -mindepth 1 -type d -empty -delete
}

# run SECONDS COMMAND...: its output goes to the log. Returns 0 where all is well, 1 where something was found, which
# `found` then names.
run() {
    local seconds=$1 code=0 test
    shift
    timeout --kill-after=10 "$seconds" "$@" > "$log" 2>&1 < /dev/null || code=$?
    ((code == 0)) && return
    # The models are built where they run.
    if grep -q '^error: could not compile' "$log"; then
        found=$no_build
        return 1
    fi
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
        found=$no_build
        return 1
    }
}

by_diff() {
    what="quire diff"
    build build --quiet --locked -p quire-cli || return 1
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
    build test --quiet --locked --no-run "${words[@]}" || return 1
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

# What a patch changes, wherever that stands.
change() {
    grep '^[-+]' "$patches/$1.patch" | grep -v '^--- \|^+++ ' | git hash-object --stdin
}

# The file with the result of a patch, as long as the change is the one that was looked for.
result() {
    local file=$work/results/$1
    [[ -f $file ]] && grep -qx "change $(change "$1")" "$file" && printf '%s\n' "$file"
}

# What a result says of `$2`: commit, seconds, found.
of_result() {
    sed -n "s/^$2 //p" "$1"
}

table() {
    local patch name file of=0
    printf '| planted bug | found by | commit |\n|---|---|---|\n'
    for patch in "$patches"/*.patch; do
        name=$(basename "$patch" .patch)
        file=$(result "$name") || continue
        of=$((of + 1))
        printf '| %s | %s | %s |\n' "$name" "$(of_result "$file" found)" "$(of_result "$file" commit)"
    done
    say "$of of $(find "$patches" -name '*.patch' | wc -l) have a result"
}

names=() until=
while (($# > 0)); do
    case $1 in
    --list)
        for patch in "$patches"/*.patch; do
            printf '%s\n    %s\n' "$(basename "$patch" .patch)" "$(sentence "$patch")"
        done
        exit
        ;;
    --check)
        command -v git > /dev/null || die "git is missing; install it with: apt-get install git"
        stale=0
        names=$(git grep -ohE '\b(fn|mod) \w+' -- '*.rs' | cut -d' ' -f2)
        for patch in "$patches"/*.patch; do
            git apply --check "$patch" || { say "$(basename "$patch" .patch) does not apply"; stale=1; }
            # A filter that matches no test lets the bug pass, and the search goes on elsewhere.
            filter=$(awk '/^First:/ { for (i = 3; i <= NF; i++)
                if ($i ~ /^(-p|--test|--bin)$/) i++; else if ($i !~ /^(--lib|loom|shuttle)$/) print $i }' "$patch")
            filter=${filter%::}
            grep -q -- "${filter##*::}" <<< "$names" || { say "$(basename "$patch" .patch): no test $filter"; stale=1; }
        done
        exit "$stale"
        ;;
    --table)
        table
        exit
        ;;
    --for)
        [[ ${2:-} =~ ^[1-9][0-9]{0,4}$ ]] || die "--for takes minutes: --for 60"
        until=$((SECONDS + 60 * $2))
        shift
        ;;
    -*) die "usage: checks/mutations.sh [--list | --check | --table | [--for MINUTES] [NAME...]]" ;;
    *)
        [[ -f $patches/$1.patch ]] || die "$1: no such mutation; --list names them"
        names+=("$1")
        ;;
    esac
    shift
done

command -v git > /dev/null || die "git is missing; install it with: apt-get install git"
mkdir -p "$work/results"
all=$((${#names[@]} == 0))
if ((all)); then
    for patch in "$patches"/*.patch; do
        name=$(basename "$patch" .patch)
        result "$name" > /dev/null || names+=("$name")
    done
fi
if ((${#names[@]} == 0)); then
    say "each has a result"
fi
commit=$(git rev-parse --short=12 HEAD)
git diff --quiet HEAD || commit+=" and changes"
copy_tree
# What the whole copy is, by contents: the tree as it is need not be tried twice.
tree=$(cd "$work/tree" && xargs -0 sha256sum < "$work/wanted" | sha256sum | cut -c1-16)
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
((all == 0)) || steps+=("test ${CRATES[*]/#/-p }")
((${#names[@]} > 0)) || steps=()
for step in "${steps[@]}"; do
    grep -qxF "$tree $step" "$work/unchanged" 2> /dev/null && continue
    look "$step" || die "the tree without mutations fails: $found; see $log"
    printf '%s %s\n' "$tree" "$step" >> "$work/unchanged"
done

for name in "${names[@]}"; do
    [[ -z $until || $SECONDS -lt $until ]] || break
    log=$work/logs/$name.log found= started=$SECONDS
    rm -f "$work/results/$name"
    git apply "$patches/$name.patch"
    # Undone also where the search is broken off.
    trap 'git apply -R "$patches/$name.patch"' EXIT
    if search "$(sed -n 's/^First: //p' "$patches/$name.patch")"; then
        found=$not_found
    fi
    git apply -R "$patches/$name.patch"
    trap - EXIT
    # Whole or not at all: a search that is broken off has no result.
    printf '%s\n' "change $(change "$name")" "commit $commit" "seconds $((SECONDS - started))" \
        "found $found" > "$work/results.new"
    mv "$work/results.new" "$work/results/$name"
    say "$name: $((SECONDS - started)) s: $found"
done

((all == 0)) || names=()
missed=0 looked=0
line='%-48s %-8s %s\n'
# shellcheck disable=SC2059  # the format is ours
printf "$line" mutation seconds "found by"
for patch in "$patches"/*.patch; do
    name=$(basename "$patch" .patch)
    ((all)) || [[ " ${names[*]} " == *" $name "* ]] || continue
    file=$(result "$name") || continue
    found=$(of_result "$file" found)
    looked=$((looked + 1))
    [[ $found != "$not_found" && $found != "$no_build" ]] || missed=$((missed + 1))
    # shellcheck disable=SC2059
    printf "$line" "$name" "$(of_result "$file" seconds)" "$found"
done
of=$((all ? $(find "$patches" -name '*.patch' | wc -l) : ${#names[@]}))
printf '%s of %s found, %s without a result\n' "$((looked - missed))" "$of" "$((of - looked))"
((missed <= 1))
