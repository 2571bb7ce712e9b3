#!/usr/bin/env bash
# Runs what README shows for `quire sweep`, unchanged: GNU parallel with a job killed and one repeated, a Slurm array by
# a loop that sets SLURM_ARRAY_TASK_ID and _COUNT as Slurm does, and Ray on one node. What they merge to must be equal to
# what `quire advise` prints for the same recordings.
#
#     scripts/check-sweep.sh             parallel and slurm
#     scripts/check-sweep.sh ray         Ray: from PyPI, in a venv below target/ (some 300 MB)
#     scripts/check-sweep.sh all         all of them
#
# QUIRE names the program; without it target/release/quire, or else the debug build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=$PWD
quire=${QUIRE:-target/release/quire}
[[ -x $quire ]] || quire=target/debug/quire
[[ -x $quire ]] || { echo "$quire is missing: cargo build --release" >&2; exit 2; }
quire=$(realpath "$quire")

case ${1:-} in
'' | ray | all) ;;
*)
    sed -n '2,/^set /{ /^#/ s/^# \{0,1\}//p }' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/recordings"
ln -s "$quire" "$work/bin/quire"
export PATH=$work/bin:$PATH XDG_CACHE_HOME=/nonexistent
# Two programs; a name that a shell must not read, and one of which no line is to be lost.
cp recordings/git-log.qtr "$work/recordings/it's \$HOME & more.qtr"
cp recordings/shell-pipes.qtr "$work/recordings"
cd "$work"

# The text of README below the mark NAME.
shown() { # NAME
    awk -v mark="<!-- $1 -->" '
        $0 == mark { found = 1 }
        found && /^```/ { if (inside) exit; inside = 1; next }
        inside' "$root/README.md"
}

compare() { # NAME
    if ! cmp --silent expected "merged.$1"; then
        echo "$1: what is merged differs from what quire advise prints" >&2
        diff expected "merged.$1" | head -20 >&2
        exit 1
    fi
    echo "$1: equal to quire advise"
}

# The advice of each program, in the order of the paths of their recordings.
for recording in recordings/*.qtr; do
    quire advise "$recording"
done > expected
of_programs=$(wc -l < expected)
merged() { # NAME
    quire advise --from results > all
    head -n "$of_programs" all > "merged.$1"
    grep -q '^Fleet: 2 programs' all || { echo "$1: nothing of the fleet" >&2; exit 1; }
}

eval "$(grep -o 'quire sweep -o results recordings/\*.qtr > lines' "$root/README.md" | head -1)"
lines=$(wc -l < lines)
((lines > 30)) || { echo "only $lines lines" >&2; exit 1; }

if [[ ${1:-} != ray ]]; then
    if ! command -v parallel > /dev/null || ! parallel --version 2> /dev/null | grep -q 'GNU parallel'; then
        echo "GNU parallel is missing; install it with: apt-get install parallel" >&2
        exit 2
    fi
    eval "$(shown parallel)"
    merged parallel
    compare parallel
    # A job that is killed in its work leaves nothing; one that runs twice counts once.
    rm "results/$(printf "%0${#lines}d" 7).json"
    sed -n 7p lines > line
    bash -c "exec $(cat line)" &
    kill -KILL $!
    wait $! 2> /dev/null && { echo "the job was not killed" >&2; exit 1; }
    code=0
    quire advise --from results > without 2> told || code=$?
    ((code == 1)) && grep -q "^quire: line 7 of $lines of sweep" told || { cat told >&2; exit 1; }
    sh line
    cp "results/$(printf "%0${#lines}d" 7).json" results/repeated.json
    merged repeated 2> told
    grep -q 'repeated, with the result of' told || { cat told >&2; exit 1; }
    compare repeated

    rm -r results
    shown slurm > sweep.sbatch
    # Fewer tasks than lines.
    export SLURM_ARRAY_TASK_COUNT=7
    for ((SLURM_ARRAY_TASK_ID = 1; SLURM_ARRAY_TASK_ID <= SLURM_ARRAY_TASK_COUNT; SLURM_ARRAY_TASK_ID++)); do
        export SLURM_ARRAY_TASK_ID
        sh sweep.sbatch
    done
    # A task that is left without a line.
    SLURM_ARRAY_TASK_ID=$((lines + 1)) SLURM_ARRAY_TASK_COUNT=$((lines + 1)) sh sweep.sbatch
    merged slurm
    compare slurm
fi

if [[ ${1:-} == ray || ${1:-} == all ]]; then
    venv=${CARGO_TARGET_DIR:-$root/target}/venv-ray
    if ! "$venv/bin/python" -c 'import ray' 2> /dev/null; then
        python3 -m venv "$venv" || { echo "no venv; install it with: apt-get install python3-venv" >&2; exit 2; }
        "$venv/bin/pip" install --quiet ray
    fi
    rm -rf results
    shown ray > sweep.py
    RAY_USAGE_STATS_ENABLED=0 "$venv/bin/python" sweep.py > ray.log 2>&1 || { cat ray.log >&2; exit 1; }
    merged ray
    compare ray
fi
