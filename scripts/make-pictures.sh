#!/usr/bin/env bash
# Makes the pictures in docs/pictures: parts of a page of `quire advise --report` on a bundled recording. QUIRE names the
# program; by default it is built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -z ${QUIRE:-} ]]; then
    cargo build --locked --release
    QUIRE=$(realpath -m "${CARGO_TARGET_DIR:-target}")/release/quire
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Without the costs of the host that the pictures are made on.
XDG_CACHE_HOME=$folder "$QUIRE" advise recordings/python-structures.qtr --report "$folder/page.html" > /dev/null
for figure in memory-over-time addresses-over-time-2; do
    scripts/check-report.py "$folder/page.html" --figure "$figure" --pictures docs/pictures
done
