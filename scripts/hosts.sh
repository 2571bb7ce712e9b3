#!/usr/bin/env bash
# Runs the tests and `quire diff` on hosts that are set in ways that Linux lets others see: with root only.
#
#     scripts/hosts.sh [--state NAME]... [--part tests|diff]... [--seeds N] [--ops N] [--concurrent N]
#                      [--host-tests] [--again]
#
#     ksm       equal pages are merged, those of zeros with the page of zeros
#     zram      a swap device in compressed RAM
#     paged     the same, and beside it a program in a memory cgroup that is paged out and in all the time
#     always    transparent huge pages without being asked
#     never     no transparent huge pages
#     memcg     all runs in a memory cgroup with a limit
#
# By default all of these, both parts, ten seeds of 100 000 operations and 2000 concurrent programs. More states, for
# those who name them: `tight` (a memory cgroup as small as `quire diff` can have, for --part diff), `quota` (a cgroup
# with the time of one CPU), `sizes` (all sizes of folios always), `overcommit` (vm.overcommit_memory 1), `numa` (NUMA
# balancing), `plain` (nothing is set).
#
# With --host-tests the tests are those of the packages that compare with Linux, record its programs or read its
# settings, without doctests: what depends on the host, in a part of the time.
#
# A line for each result, also in target/hosts/COMMIT/results; the logs are beside it. What was good there is not run
# again, so an interrupted run goes on where it was; --again runs all. Ends with 0 if all is good. The host is as before
# afterwards: if the script was killed, after the next run of it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

HUGE=/sys/kernel/mm/transparent_hugepage KSM=/sys/kernel/mm/ksm VM=/proc/sys/vm
# What is to be restored, a line each; for a run that did not come to it.
KEPT=/run/quire-hosts
SWAP_BYTES=2G
# What the program beside may have, and what it uses.
BESIDE_LIMIT=64M BESIDE_MIB=192
# What the runs may have in a memory cgroup, in bytes, and in a cgroup of CPU time, in microseconds of each 100 000.
MEMCG_LIMIT=$((1 << 30)) TIGHT_LIMIT=$((128 << 20)) QUOTA=100000
# What depends on the host.
HOST_PACKAGES=(quire-diff quire-measure quire-lab quire-record quire-replay quire-advise quire-cli)
# Seconds that one part may take.
MOST_SECONDS=5400

say() {
    printf 'hosts: %s\n' "$*"
}

die() {
    say "$*" >&2
    exit 2
}

usage() {
    sed -n '2,/^set /{ /^#/ s/^# \{0,1\}//p }' "${BASH_SOURCE[0]}" >&2
    exit 2
}

states=() parts=() seeds=10 ops=100000 concurrent=2000 again=0 tests=tests which=(--workspace)
while (($# > 0)); do
    case $1 in
    --state | --part | --seeds | --ops | --concurrent)
        (($# > 1)) || usage
        case $1 in
        --state) states+=("$2") ;;
        --part) parts+=("$2") ;;
        --seeds) seeds=$2 ;;
        --ops) ops=$2 ;;
        --concurrent) concurrent=$2 ;;
        esac
        shift
        ;;
    --host-tests) tests=host-tests which=("${HOST_PACKAGES[@]/#/--package=}" --tests) ;;
    --again) again=1 ;;
    *) usage ;;
    esac
    shift
done
((${#states[@]} > 0)) || states=(ksm zram paged always never memcg)
((${#parts[@]} > 0)) || parts=(tests diff)
for word in "${states[@]}"; do
    [[ $word =~ ^(ksm|zram|paged|always|never|memcg|tight|quota|sizes|overcommit|numa|plain)$ ]] || usage
done
for word in "${parts[@]}"; do
    [[ $word =~ ^(tests|diff)$ ]] || usage
done
[[ $seeds =~ ^[1-9][0-9]*$ && $ops =~ ^[1-9][0-9]*$ && $concurrent =~ ^[0-9]+$ ]] || usage

((EUID == 0)) || die "the host's settings are changed: run this as root"
missing=()
for tool in cargo:rustup mkswap:util-linux swapon:mount swapoff:mount flock:util-linux python3:python3 cc:gcc git:git; do
    command -v "${tool%:*}" > /dev/null || missing+=("${tool%:*} is missing; install it with: apt-get install -y ${tool#*:}")
done
((${#missing[@]} == 0)) || die "$(printf '%s\n' "${missing[@]}")"

has() {
    local state
    for state in "${states[@]}"; do
        [[ " $* " != *" $state "* ]] || return 0
    done
    return 1
}

! has ksm || [[ -w $KSM/run ]] || die "this kernel merges no pages (CONFIG_KSM)"
! has always never sizes || [[ -w $HUGE/enabled ]] || die "this kernel has no transparent huge pages"
if has zram paged && [[ ! -e /sys/class/zram-control/hot_add ]]; then
    modprobe zram 2> /dev/null || die "this kernel has no zram (CONFIG_ZRAM; modprobe zram)"
fi

exec 8>> "$KEPT"
flock -n 8 || die "another run of this script changes the host now"

# The word in brackets of a choice, or the text.
value_of() {
    local text
    text=$(< "$1")
    if [[ $text =~ \[([^]]*)\] ]]; then
        printf '%s\n' "${BASH_REMATCH[1]}"
    else
        printf '%s\n' "$text"
    fi
}

# Undoes the lines of the file, last first.
restore() {
    local line what rest tries
    while IFS= read -r line; do
        read -r what rest <<< "$line"
        case $what in
        process)
            # No other process than the one that was started: a number is used again.
            [[ $(cat "/proc/${rest%% *}/stat" 2> /dev/null | cut -d' ' -f22) != "${rest##* }" ]] || kill -9 "${rest%% *}"
            ;;
        group)
            for tries in {1..50}; do
                [[ -d $rest ]] || break
                rmdir "$rest" 2> /dev/null || sleep 0.1
            done
            ;;
        swap)
            ! grep -q "^/dev/zram$rest " /proc/swaps || swapoff "/dev/zram$rest"
            if [[ -d /sys/block/zram$rest ]]; then
                echo 1 > "/sys/block/zram$rest/reset"
                echo "$rest" > /sys/class/zram-control/hot_remove
            fi
            ;;
        merging)
            # Pages that were merged are taken apart first.
            [[ $rest != 0 ]] || echo 2 > "$KSM/run"
            echo "$rest" > "$KSM/run"
            ;;
        file) printf '%s\n' "${rest#* }" > "${rest%% *}" ;;
        esac
    done < <(tac "$KEPT")
    : > "$KEPT"
}

if [[ -s $KEPT ]]; then
    say "an earlier run did not come to its end: the host is restored first"
    restore
fi
trap restore EXIT
trap 'exit 130' INT TERM HUP

# Writes a value into a file of the host, and keeps what it had.
set_file() {
    local was
    was=$(value_of "$1")
    echo "file $1 $was" >> "$KEPT"
    printf '%s\n' "$2" > "$1"
    [[ $(value_of "$1") == "$2" ]] || die "$1 does not take $2"
    wanted+=("$1 $2")
}

add_swap() {
    local number
    number=$(< /sys/class/zram-control/hot_add)
    echo "swap $number" >> "$KEPT"
    echo lz4 > "/sys/block/zram$number/comp_algorithm" 2> /dev/null || true
    echo "$SWAP_BYTES" > "/sys/block/zram$number/disksize"
    mkswap "/dev/zram$number" > /dev/null
    swapon -p 100 "/dev/zram$number"
}

paged_out() {
    awk '$1 == "pswpout" { print $2 }' /proc/vmstat
}

# Makes a cgroup that has the controller, for this run: its folder is then in `group`.
add_group() {
    local controller=$1 root=/sys/fs/cgroup/$1
    if [[ ! -d $root ]]; then
        root=/sys/fs/cgroup
        echo "+$controller" > "$root/cgroup.subtree_control" 2> /dev/null || true
    fi
    group=$root/quire-hosts-$$
    mkdir "$group" || die "no cgroup can be made below $root"
    echo "group $group" >> "$KEPT"
}

# The file with the limit of a memory cgroup.
limit_of() {
    local file=$1/memory.limit_in_bytes
    [[ -e $file ]] || file=$1/memory.max
    [[ -e $file ]] || die "$1 has no memory controller"
    printf '%s\n' "$file"
}

# What runs runs in the cgroup that was made.
run_inside() {
    inside=(bash -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group")
}

add_memcg() {
    local file
    add_group memory
    file=$(limit_of "$group")
    echo "$1" > "$file" || die "$file does not take $1"
    wanted+=("$file $1")
    run_inside
}

add_quota() {
    add_group cpu
    if [[ -e $group/cpu.cfs_quota_us ]]; then
        echo "$QUOTA" > "$group/cpu.cfs_quota_us"
        wanted+=("$group/cpu.cfs_quota_us $QUOTA")
    else
        echo "$QUOTA 100000" > "$group/cpu.max" || die "$group has no CPU controller"
        wanted+=("$group/cpu.max $QUOTA 100000")
    fi
    run_inside
}

# Starts a program that uses three times what its memory cgroup allows.
add_program() {
    local group file before pid
    add_group memory
    file=$(limit_of "$group")
    echo "$BESIDE_LIMIT" > "$file" || die "$file does not take $BESIDE_LIMIT"
    before=$(paged_out)
    # The lock is this script's alone.
    bash -c "echo \$\$ > '$group/cgroup.procs' && exec python3 -c '
import mmap, os
size = $BESIDE_MIB << 20
area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
while True:
    for page in range(0, size, 4096):
        area[page : page + 64] = os.urandom(64)
'" 8>&- < /dev/null > /dev/null 2>&1 &
    pid=$!
    disown
    echo "process $pid $(cut -d' ' -f22 "/proc/$pid/stat")" >> "$KEPT"
    for _ in {1..100}; do
        sleep 0.2
        (($(paged_out) < before + 4096)) || return 0
    done
    die "the program beside is not paged out"
}

set_state() {
    wanted=() inside=()
    case $1 in
    ksm)
        set_file "$KSM/use_zero_pages" 1
        echo "merging $(< "$KSM/run")" >> "$KEPT"
        echo 1 > "$KSM/run"
        wanted+=("$KSM/run 1")
        ;;
    zram) add_swap ;;
    paged)
        add_swap
        add_program
        ;;
    always | never) set_file "$HUGE/enabled" "$1" ;;
    sizes)
        for file in "$HUGE"/hugepages-*kB/enabled; do
            set_file "$file" always
        done
        ;;
    overcommit) set_file "$VM/overcommit_memory" 1 ;;
    numa) set_file /proc/sys/kernel/numa_balancing 1 ;;
    memcg) add_memcg "$MEMCG_LIMIT" ;;
    tight) add_memcg "$TIGHT_LIMIT" ;;
    quota) add_quota ;;
    plain) ;;
    esac
}

# Whether what was set still is: a test that restores too much would hide what comes after it.
is_set() {
    local line number
    for line in "${wanted[@]}"; do
        [[ $(value_of "${line%% *}") == "${line#* }" ]] || {
            lost="${line%% *} is $(value_of "${line%% *}") now"
            return 1
        }
    done
    while read -r what number rest; do
        case $what in
        swap) grep -q "^/dev/zram$number " /proc/swaps || lost="/dev/zram$number is no swap device now" ;;
        process) [[ -e /proc/$number ]] || lost="the program beside has ended" ;;
        esac
    done < "$KEPT"
    [[ -z $lost ]]
}

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
commit=$(git rev-parse --short HEAD)
# Of a tree that is changed each change has results of its own.
[[ -z $(git status --porcelain) ]] || commit+=-$(git diff HEAD | sha1sum | cut -c1-8)
results=$target/hosts/$commit
mkdir -p "$results"
((again == 0)) || rm -f "$results"/*.good
say "logs and results in $results"

# What is built is built before anything is set.
quire=$target/release/quire
[[ " ${parts[*]} " != *" diff "* ]] || cargo build --release --locked --quiet -p quire-cli
[[ " ${parts[*]} " != *" tests "* ]] || cargo test "${which[@]}" --locked --quiet --no-run

failed=0

# report NAME LOG CODE SECONDS WORDS: the line of a result.
report() {
    local name=$1 log=$2 code=$3 seconds=$4 words=$5 verdict=good
    lost=
    is_set || words="$words; the state did not hold: $lost"
    ((code == 0)) && [[ -z $lost ]] || verdict=FAILED
    if [[ $verdict == good ]]; then
        : > "$results/$name.good"
    else
        failed=1
        words="$words (exit code $code, $log)"
    fi
    say "$(printf '%-6s %s: %s, %s s' "$verdict" "$name" "$words" "$seconds")" | tee -a "$results/results"
}

run_tests() {
    local name=$1-$tests log=$results/$1-$tests.log code=0 started=$SECONDS
    timeout --kill-after=60 "$MOST_SECONDS" "${inside[@]}" cargo test "${which[@]}" --locked --no-fail-fast \
        > "$log" 2>&1 8>&- < /dev/null || code=$?
    local sums
    sums=$(awk '/^test result:/ { passed += $4; failed += $6 } END { print passed + 0 " passed, " failed + 0 " failed" }' "$log")
    report "$name" "$log" "$code" "$((SECONDS - started))" "$sums"
    grep -aE '^test .* FAILED$' "$log" | sed 's/^/    /' | tee -a "$results/results" || true
}

run_diff() {
    local state=$1 seed=$2 name=$1-diff-$2 log=$results/$1-diff-$2.log code=0 started=$SECONDS
    timeout --kill-after=60 "$MOST_SECONDS" "${inside[@]}" "$quire" diff --seed "$seed" --ops "$ops" \
        --concurrent "$concurrent" > "$log" 2>&1 8>&- < /dev/null || code=$?
    local words
    words=$(grep -am1 'operations compared' "$log" | sed 's/^seed [0-9]*: //; s/ (.*//' || true)
    report "$name" "$log" "$code" "$((SECONDS - started))" "${words:-no report}"
    grep -aE '^  (this host|the host|[0-9]+ programs differed)' "$log" | cut -c1-200 | sed 's/^/  /' |
        tee -a "$results/results" || true
}

for state in "${states[@]}"; do
    left=()
    for part in "${parts[@]}"; do
        case $part in
        tests) [[ -e $results/$state-$tests.good || -e $results/$state-tests.good ]] || left+=(tests) ;;
        diff)
            for ((seed = 1; seed <= seeds; seed++)); do
                [[ -e $results/$state-diff-$seed.good ]] || left+=("$seed")
            done
            ;;
        esac
    done
    ((${#left[@]} > 0)) || {
        say "good   $state: all of it, in an earlier run"
        continue
    }
    set_state "$state"
    for what in "${left[@]}"; do
        if [[ $what == tests ]]; then
            run_tests "$state"
        else
            run_diff "$state" "$what"
        fi
    done
    restore
done
((failed == 0)) && say "all good" || say "not all good"
exit "$failed"
