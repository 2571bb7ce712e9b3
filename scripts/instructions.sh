#!/bin/bash
# Instructions per operation of the memory manager, counted by valgrind: the same on a busy machine and an idle one.
# Two runs with different numbers of operations; the difference of their counts is the operations' own. For the teardown of
# mappings, page by page and a run at a time, also what of them is what; for these, for empty tables and for moves, also how
# many are atomic.
set -euo pipefail

for tool in valgrind:valgrind objdump:binutils; do
    command -v "${tool%:*}" >/dev/null || {
        echo "${tool%:*} is missing; install it with: apt-get install ${tool#*:}" >&2
        exit 2
    }
done
cd "$(dirname "$0")/.."
# valgrind does not know the newest vector instructions, so the build is for the baseline CPU, as by default.
built() { # CRATE BENCH
    cargo bench --quiet -p "$1" --bench "$2" --no-run --message-format=json 2>/dev/null |
        grep -o "\"executable\":\"[^\"]*$2-[^\"]*\"" | tail -n 1 | cut -d'"' -f4
}
bench=$(built quire-host faults)
files=$(built quire-host files)
lab=$(built quire-lab count)
store=$(built quire-file store)
paths=$(built quire-host paths)
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

# Populated memory of 16 MiB that goes or is copied, in 1 and in 3 rounds.
pages=4096
objdump -d --no-show-raw-insn "$lab" | grep -E '\slock |\sxchg .*\(' | cut -d: -f1 | tr -d ' ' >"$work/atomic"

profile() { # NAME COUNT [OPTION...]
    valgrind --tool=callgrind --callgrind-out-file="$work/out" --dump-instr=yes --compress-pos=no "${@:3}" \
        "$lab" count "$1" "$2" >"$work/log" 2>&1
    awk -f scripts/instructions.awk "$work/atomic" "$work/out"
}

printf '\n%-34s %9s %9s %9s %9s\n' 'for each page of 16 MiB' all head removal atomic
for job in munmap exit fork; do
    for folios in 4k 32k 64k 2m; do
        for technique in pages runs; do
            name=$job-$folios-$technique
            low=$(profile "$name" 1 --collect-atstart=no '--toggle-collect=*measured::measured*')
            high=$(profile "$name" 3 --collect-atstart=no '--toggle-collect=*measured::measured*')
            echo "$low $high" | awk -v name="$name" -v pages=$((2 * pages)) '{
                printf "%-34s %9.2f %9.2f %9.2f %9.3f\n", name, ($6 - $1) / pages, ($7 - $2) / pages,
                    ($8 - $3) / pages, ($10 - $5) / pages }'
        done
    done
done

# The hottest paths: plain, with pages on lists (-lru), charged to a memcg (-charged), and both. NAME UNITS-A-ROUND
# ROUNDS-AND-MORE.
hot() {
    for few in $3 $(($3 * 3)); do
        valgrind --tool=callgrind --callgrind-out-file="$work/out" --collect-atstart=no \
            '--toggle-collect=*paths*measured*' "$paths" count "$1" "$few" 2>&1 >/dev/null |
            grep -o 'Collected : [0-9]*' | grep -o '[0-9]*'
    done | paste -sd' ' | awk -v name="$1" -v count=$(($2 * $3 * 2)) '{ printf "%-34s %9d\n", name, ($2 - $1) / count }'
}
printf '\n%-34s %9s\n' 'hottest paths, zeroing included' all
for kind in '' -lru -charged -both; do
    for name in fault munmap dontneed fork exit-child; do
        hot "$name$kind" 4096 1
    done
    for name in dontneed-one one-freed one-kept untouched; do
        hot "$name$kind" 1 200
    done
done
for name in pcp-0 pcp-9 remote-9; do
    hot "$name" 8 200
done
hot move 1024 2

printf '\n%-34s %9s %9s %9s %9s\n' 'for each recorded build, thousands' all manager head atomic
for folios in 4k 64k all; do
    for technique in pages runs; do
        name=build-$folios-$technique
        low=$(profile "$name" 2)
        high=$(profile "$name" 6)
        echo "$low $high" | awk -v name="$name" '{
            printf "%-34s %9.1f %9.1f %9.1f %9.3f\n", name, ($6 - $1) / 4e3, ($9 - $4) / 4e3, ($7 - $2) / 4e3,
                ($10 - $5) / 4e3 }'
    done
done

# What `quire lab` times, one operation of it: NAME OPERATIONS-A-ROUND.
compare() {
    for technique in "${@:3}"; do
        name=$1-$technique
        low=$(profile "$name" 1 --collect-atstart=no '--toggle-collect=*measured::measured*')
        high=$(profile "$name" 3 --collect-atstart=no '--toggle-collect=*measured::measured*')
        echo "$low $high" | awk -v name="$name" -v count=$((2 * $2)) '{
            printf "%-34s %12.2f %9.3f\n", name, ($6 - $1) / count, ($10 - $5) / count }'
    done
}

printf '\n%-34s %12s %9s\n' 'empty tables kept and freed' all atomic
compare fault 4096 keep free
compare loop 8 keep free
for border in beside page whole tables pmds; do
    compare "$border" 1000 keep free
done

printf '\n%-34s %12s %9s\n' 'mremap, a call' all atomic
for move in gib-pud gib-pmd gib-same; do
    compare "$move" 2 ptes puds
done
printf '\n%-34s %12s %9s\n' 'mremap, a page of 16 MiB' all atomic
for move in pages-pmd pages-page; do
    compare "$move" 8192 ptes puds
done

printf '\n%-34s %12s %9s\n' 'swap, a page of 16 MiB of zeros' all atomic
for way in out-4k in-4k out-2m in-2m; do
    compare "$way" 4096 bypass all
done

# 100 programs map the file.
for number in 2048 8192; do
    valgrind --tool=callgrind --callgrind-out-file="$work/out" --collect-atstart=no '--toggle-collect=*files*measured*' \
        "$files" count truncate "$number" 2>&1 >/dev/null | grep -o 'Collected : [0-9]*' | grep -o '[0-9]*'
done | paste -sd' ' | awk '{
    printf "\n%-34s %12.2f\n", "truncate, a page and program", ($2 - $1) / (6144 * 100) }'

# Of these operations, 4096 and 65536 are counted. Each takes its share of a node, and all but the look-up a lock.
printf '\n%-34s %9s %9s %9s\n' 'folio store, an entry of order' 0 4 9
for operation in lock insert find evict remove; do
    for sequence in ordered shuffled; do
        printf '%-34s' "$operation, $sequence"
        for order in 0 4 9; do
            for number in 4096 65536; do
                valgrind --tool=callgrind --callgrind-out-file="$work/out" --collect-atstart=no \
                    '--toggle-collect=*File::measured*' "$store" count "$operation-$order-$sequence" "$number" \
                    2>&1 >/dev/null | grep -o 'Collected : [0-9]*' | grep -o '[0-9]*'
            done | paste -sd' ' | awk '{ printf " %9.1f", ($2 - $1) / 61440 }'
        done
        echo
    done
done
