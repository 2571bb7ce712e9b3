#!/usr/bin/env bash
# The documents name tests and files: each must exist.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bad=0
while read -r test; do
    file=${test%%::*} name=${test##*::}
    # A folder of tests may also hold tables, whose rows have names.
    if ! grep -rqE --include="$file.rs" "fn $name\b" crates tools &&
        ! grep -rqE "fn $name\b|\"$name\"" {crates,tools}/*/src/*/"$file" {crates,tools}/*/tests/"$file" 2> /dev/null; then
        echo "docs/ names the test $test, which is not there" >&2
        bad=1
    fi
done < <(grep -ohE '`[a-z_]+::[a-z_0-9]+`' docs/locking.md docs/models.md | tr -d '`' | sort -u)

for document in README.md docs/*.md recordings/README.md fuzz/README.md bench/README.md checks/mutations/README.md; do
    while read -r link; do
        path=$(dirname "$document")/${link%%#*}
        if [[ ! -e $path ]]; then
            echo "$document links to $link, which is not there" >&2
            bad=1
        fi
    done < <(grep -oE '\]\([^)]+\)' "$document" | sed -E 's/^\]\(//; s/\)$//' | grep -vE '^(https?:|#)')
done
exit "$bad"
