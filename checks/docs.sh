#!/usr/bin/env bash
# The documents name tests and files, and the code names documents: each must exist.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bad=0
while read -r test; do
    file=${test%::*} name=${test##*::}
    file=${file##*::}
    # A folder of tests may also hold tables, whose rows have names.
    if ! grep -rqE --include="$file.rs" "fn $name\b" crates tools &&
        ! grep -rqE "fn $name\b|\"$name\"" {crates,tools}/*/src/*/"$file" {crates,tools}/*/tests/"$file" 2> /dev/null; then
        echo "docs/ names the test $test, which is not there" >&2
        bad=1
    fi
done < <(grep -ohE '`[a-z_0-9]+(::[a-z_0-9]+)+`' docs/{locking,hazards,models}.md | tr -d '`' | sort -u)

for document in README.md docs/*.md recordings/README.md fuzz/README.md bench/README.md checks/mutations/README.md; do
    while read -r link; do
        path=$(dirname "$document")/${link%%#*}
        if [[ ! -e $path ]]; then
            echo "$document links to $link, which is not there" >&2
            bad=1
        fi
    done < <(grep -oE '\]\([^)]+\)' "$document" | sed -E 's/^\]\(//; s/\)$//' | grep -vE '^(https?:|#)')
done

# Files in backquotes, by their path or the end of it. `mine.rs` is the reader's own.
tracked=$(git ls-files)
while read -r file; do
    if ! grep -qE "(^|/)${file//./\\.}\$" <<< "$tracked" && [[ $file != */mine.rs ]]; then
        echo "a document names the file $file, which is not there" >&2
        bad=1
    fi
done < <(git ls-files '*.md' | xargs grep -ohE '`[a-zA-Z0-9_./-]+\.(rs|md|sh|awk|toml|json)`' | tr -d '`' | sort -u)
while read -r document; do
    if [[ ! -e $document ]]; then
        echo "the code names $document, which is not there" >&2
        bad=1
    fi
done < <(git grep -ohE 'docs/[a-zA-Z0-9_-]+\.md' -- '*.rs' '*.sh' '*.toml' .ci | sort -u)

# Crates without examples in their documentation are not looked through for some, which takes a second each.
while read -r manifest; do
    if find "${manifest%/*}/src" -name '*.rs' -exec awk '
        FNR == 1 { inside = 0 }
        /^ *\/\/[\/!] ```/ {
            inside = !inside
            if (inside && /```(rust|no_run|should_panic|compile_fail)?$/) print FILENAME ":" FNR
        }' {} + | grep .; then
        echo "$manifest has \`doctest = false\`, but its documentation has examples" >&2
        bad=1
    fi
done < <(git ls-files '*Cargo.toml' | xargs grep -l '^doctest = false')
exit "$bad"
