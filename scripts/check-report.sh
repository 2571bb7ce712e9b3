#!/usr/bin/env bash
# Makes pages of bundled recordings with `--report`, and has a headless Chromium look at them (scripts/check-report.py).
#
#     scripts/check-report.sh [FOLDER]      keeps pages and pictures of them in FOLDER
#
# QUIRE names the program; by default it is built. PERFETTO names a Python that has PyPI's package perfetto: then an
# exported trace is held against its schema, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v chromium > /dev/null || {
    echo "check-report: chromium is missing; install it with:" >&2
    echo "    apt-get update && apt-get install -y --no-install-recommends chromium" >&2
    exit 1
}
if [[ -z ${QUIRE:-} ]]; then
    cargo build --locked --release
    QUIRE=$(realpath -m "${CARGO_TARGET_DIR:-target}")/release/quire
fi
folder=${1:-}
if [[ -z $folder ]]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder"

page() {
    local name=$1
    shift
    "$QUIRE" "$@" --json --report "$folder/$name.html" > "$folder/$name.json"
    scripts/check-report.py "$folder/$name.html" "$folder/$name.json" ${keep:+--pictures "$folder"}
}

keep=${1:+yes}
page advise advise recordings/python-structures.qtr
page replay replay recordings/sort-threads.qtr recordings/xz-threads.qtr --setting thp=always
page limited replay recordings/xz-threads.qtr --limit 12M --swap zram:64M --assume-no-reuse
page compare compare recordings/realloc-growth.qtr
page lab lab tables --quick

"$QUIRE" export perfetto recordings/xz-threads.qtr -o "$folder/xz-threads.perfetto"
if [[ -n ${PERFETTO:-} ]]; then
    "$PERFETTO" scripts/check-perfetto.py "$folder/xz-threads.perfetto"
fi
