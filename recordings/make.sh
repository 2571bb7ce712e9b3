#!/bin/bash
# Makes the recordings in this folder again. Needs the programs that README.md names, and the right to use ptrace
# and perf events. Work files go to a temporary folder.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
make=$here/make
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo build --release --quiet --manifest-path "$here/../Cargo.toml"
target=${CARGO_TARGET_DIR:-$here/../target}
record() { # NAME COMMAND...
    local name=$1
    shift
    echo "== $name: $*" >&2
    "$target/release/quire" record -o "$work/$name.qtr" -- "$@" >/dev/null
    # Without the folders of the machine that it was made on.
    "$target/release/quire" trace strip --keep-names "$work/$name.qtr" "$here/$name.qtr"
}

# What the programs work on is made before anything is recorded, and is the same every time.
text() { # LINES
    awk -v lines="$1" 'BEGIN { for (n = 0; n < lines; n++) {
        x = (x * 1103515245 + 12345 + n) % 2147483648
        print x, "line", n % 977, "of", x % 65537 } }'
}
text 60000 >"$work/large.txt"
text 150000 >"$work/unsorted.txt"
gcc -O1 -o "$work/grow" "$make/grow.c"
gcc -O1 -o "$work/pool" "$make/pool.c"
gcc -O1 -c -o "$work/words.o" "$make/compile.c"
git init --quiet --initial-branch=main "$work/repo"
cd "$work/repo"
git config user.name Someone
git config user.email someone@example.org
for n in $(seq 1 12); do
    mkdir -p "part$((n % 4))"
    text $((200 * n)) >"part$((n % 4))/file$n.txt"
    cp "$make/compile.c" "part$((n % 4))/word$n.c"
    echo "$n" >>changes
    git add .
    git commit --quiet --message "Change $n"
done
cd "$work"

# A python of pyenv or the like is a script; the interpreter itself is meant.
python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
record python-structures "$python" "$make/structures.py"
record gcc-compile gcc -O2 -Wall -o "$work/words" "$make/compile.c"
record xz-threads xz -3 -T2 --block-size=1MiB --keep --stdout "$work/large.txt"
record sort-threads env LC_ALL=C sort --parallel=2 --buffer-size=24M -k5,5n "$work/unsorted.txt"
record git-history git -C "$work/repo" -c pack.threads=2 repack -a -d -f --quiet
record git-log git -C "$work/repo" log --stat -p
record sqlite-queries bash -c "exec sqlite3 :memory: <'$make/queries.sql'"
record realloc-growth "$work/grow"
record instance-pool "$work/pool"
record shell-pipes bash -c 'for n in 1 2 3 4; do seq $((n * 2000)) | sort -r | tail -n 1; done'
record linker gcc -static -o "$work/words-static" "$work/words.o"
mkdir "$work/site"
ln "$work/large.txt" "$work/unsorted.txt" "$work/words.o" "$work/site"
record web-server "$python" "$make/server.py" "$work/site" large.txt unsorted.txt words.o
record cpp-headers g++ -O1 -c -o "$work/headers.o" "$make/headers.cpp"
record sqlite-file bash -c "exec sqlite3 '$work/entries.db' <'$make/mapped.sql'"
record python-modules "$python" "$make/modules.py"
