#!/bin/bash
# Instructions per operation of the memory manager, counted by valgrind: the same on a busy machine and an idle one.
# Two runs with different numbers of operations; the difference of their counts is the operations' own.
set -euo pipefail

command -v valgrind >/dev/null || {
    echo "valgrind is missing; install it with: apt-get install valgrind" >&2
    exit 2
}
cd "$(dirname "$0")/.."
# valgrind does not know the newest vector instructions, so the build is for the baseline CPU, as by default.
bench=$(cargo bench --quiet -p quire-host --bench faults --no-run --message-format=json 2>/dev/null |
    grep -o '"executable":"[^"]*faults-[^"]*"' | tail -n 1 | cut -d'"' -f4)
few=2000
many=12000
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

instructions() { # NAME COUNT
    valgrind --tool=callgrind --callgrind-out-file="$work/out" "$bench" count "$1" "$2" 2>"$work/log" >/dev/null
    grep -o 'Collected : [0-9]*' "$work/log" | grep -o '[0-9]*'
}

printf '%-58s %9s\n' 'instructions per operation' 'count'
for name in zero fault touch map; do
    low=$(instructions "$name" $few)
    high=$(instructions "$name" $many)
    case $name in
    zero) text='zeroing a page (4 KiB)' ;;
    fault) text='page fault, zeroing included' ;;
    touch) text='first write to a page: TLB miss, fault, walk again' ;;
    map) text='mmap + munmap of one untouched page, merging' ;;
    esac
    printf '%-58s %9d\n' "$text" $(((high - low) / (many - few)))
done
