#!/usr/bin/env bash
# What recording costs a program: the ratio of its time recorded to its time alone, from paired runs one after the other
# (the median of the ratios, so that a host that is busy at times counts little), and the cost of starting a recording.
#
#     scripts/recording-cost.sh [PAIRS [QUIRE [BEFORE]]]    7 pairs of each, target/release/quire by default
#
# With BEFORE, another build of quire, it measures the ratio of a recording by QUIRE to one by BEFORE, of fewer loops and of
# a compiler, a Python and a shell.
#
# Workloads that run for a second with less than 10 000 memory calls and faults a second are to cost at most 10 percent,
# and a recording of /bin/true at most 30 ms more than /bin/true alone. Programs with large reservations (`asan`, `wasm`,
# `sparse`) are to take at most 1.3 times their own time, a loop that maps a file and reads it (`files`) 3 times. The loops
# of calls and signals at the end are no such workloads: they show what a stop costs. `others` makes system calls only, none
# of which is recorded.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pairs=${1:-7}
quire=$(realpath -m "${2:-target/release/quire}")
before=${3:+$(realpath -m "$3")}
if [[ ! $pairs =~ ^[1-9][0-9]*$ ]]; then
    sed -n '2,/^set /{ /^#/ s/^# \{0,1\}//p }' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
[[ -z $before || -x $before ]] || { echo "$before is missing" >&2; exit 2; }
[[ -x $quire ]] || { echo "$quire is missing; build it with: cargo build --release -p quire-cli" >&2; exit 2; }
for tool in cc:gcc python3:python3; do
    command -v "${tool%:*}" > /dev/null || { echo "${tool%:*} is missing; install it with: apt-get install ${tool#*:}" >&2; exit 2; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$work/load.c" << 'C'
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile uint64_t sink;
static void work(uint64_t rounds) {
    uint64_t x = 1;
    while (rounds--) x = x * 6364136223846793005u + 1442695040888963407u;
    sink += x;
}
static void *map(size_t len) {
    return mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static sigjmp_buf back;
static void handler(int signal) { (void)signal; siglongjmp(back, 1); }

/* The work is the same however long it takes: rounds is what fills some time alone. */
int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    uint64_t rounds = count > 2 ? strtoull(words[2], 0, 10) : 1;
    if (!strcmp(what, "compute")) {
        work(rounds * 1000000);
    } else if (!strcmp(what, "calls")) { /* a mapping and its unmapping in each round, two touches */
        for (uint64_t n = 0; n < rounds; n++) {
            char *p = map(8192);
            p[0] = p[4096] = 1;
            munmap(p, 8192);
            work(400000);
        }
    } else if (!strcmp(what, "faults")) { /* 16 pages touched in each round */
        char *p = map(rounds * 65536);
        madvise(p, rounds * 65536, MADV_NOHUGEPAGE);
        for (uint64_t n = 0; n < rounds; n++) {
            for (int page = 0; page < 16; page++) p[n * 65536 + page * 4096] = 1;
            work(1600000);
        }
    } else if (!strcmp(what, "resident")) { /* 256 MiB that is used over and over */
        size_t len = 256 << 20;
        char *p = map(len);
        for (uint64_t n = 0; n < rounds; n++)
            for (size_t at = 0; at < len; at += 64) p[at]++;
    } else if (!strcmp(what, "others")) { /* calls that are not recorded */
        for (uint64_t n = 0; n < rounds * 1000; n++) syscall(SYS_getppid);
    } else if (!strcmp(what, "mincore")) {
        char *p = map(65536);
        unsigned char vector[16];
        for (uint64_t n = 0; n < rounds; n++) mincore(p, 65536, vector);
    } else if (!strcmp(what, "signals")) {
        volatile char *p = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = handler;
        sigaction(SIGSEGV, &action, 0);
        for (volatile uint64_t n = 0; n < rounds; n++)
            if (!sigsetjmp(back, 1)) *p = 1;
    } else if (!strcmp(what, "writes")) { /* of a mapped file, by call, with its length set */
        int file = open(words[3], O_RDWR | O_CREAT | O_TRUNC, 0600);
        char block[4096] = {1};
        ftruncate(file, 1 << 20);
        char *p = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        for (uint64_t n = 0; n < rounds; n++) {
            pwrite(file, block, sizeof block, n % 256 * 4096);
            sink += p[n % 256 * 4096];
        }
    } else if (!strcmp(what, "opens")) { /* of a file that is mapped */
        mmap(0, 4096, PROT_READ, MAP_PRIVATE, open("/bin/sh", O_RDONLY), 0);
        for (uint64_t n = 0; n < rounds; n++) close(open("/bin/sh", O_RDONLY));
    } else if (!strcmp(what, "files") || !strcmp(what, "maps of files")) { /* read whole, or not at all */
        int file = open("/bin/sh", O_RDONLY);
        size_t step = !strcmp(what, "files") ? 4096 : 65536;
        for (uint64_t n = 0; n < rounds; n++) {
            char *p = mmap(0, 65536, PROT_READ, MAP_PRIVATE, file, 0);
            for (size_t at = 0; at < 65536 && step < 65536; at += step) sink += p[at];
            munmap(p, 65536);
        }
    } else if (!strcmp(what, "sparse")) { /* a page of each of 5000 mappings of 1 GiB, over and over */
        volatile char *mappings[5000];
        for (int n = 0; n < 5000; n++) {
            int prot = n & 1 ? PROT_READ : PROT_READ | PROT_WRITE;
            mappings[n] = mmap(0, 1L << 30, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        }
        for (uint64_t round = 0; round < rounds; round++)
            for (int n = 0; n < 5000; n++) sink += mappings[n][0];
    } else if (!strcmp(what, "wasm")) { /* 100 reservations of 8 GiB with 4 MiB in use, used over and over */
        char *memories[100];
        for (int n = 0; n < 100; n++) {
            memories[n] = mmap(0, 8L << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            mprotect(memories[n], 4 << 20, PROT_READ | PROT_WRITE);
        }
        for (uint64_t round = 0; round < rounds; round++)
            for (int n = 0; n < 100; n++)
                for (size_t at = 0; at < 4 << 20; at += 64) memories[n][at]++;
    } else if (!strcmp(what, "blocks")) { /* of the heap, taken and given back */
        char *blocks[1000] = {0};
        for (uint64_t n = 0; n < rounds; n++) {
            char **block = &blocks[n * 7919 % 1000];
            free(*block);
            *block = malloc(100 + n % 900);
            memset(*block, 1, 100);
        }
    } else if (!strcmp(what, "mappings")) {
        for (uint64_t n = 0; n < rounds; n++)
            mmap(0, 4096, n & 1 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    } else {
        return 2;
    }
    return 0;
}
C
cc -O1 -o "$work/load" "$work/load.c"
# Without LeakSanitizer, which traces the program.
cc -O1 -fsanitize=address -o "$work/asan" "$work/load.c" || echo "asan: the compiler cannot do that"
export ASAN_OPTIONS=detect_leaks=0

cat > "$work/pairs.py" << 'PYTHON'
import os, statistics, subprocess, sys, time

pairs, quire, work = int(sys.argv[1]), sys.argv[2], sys.argv[3]

def seconds(command):
    begun = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun

def measure(name, command, options=()):
    alone, recorded = [], []
    for _ in range(pairs):
        # The kernel takes the events of the recording before away for another 80 ms; one that opens some meanwhile
        # would wait for that.
        time.sleep(0.3)
        alone.append(seconds(command))
        recorded.append(seconds([quire, "record", *options, "-o", work + "/cost.qtr", "--", *command]))
    ratio = statistics.median(b / a for a, b in zip(alone, recorded))
    more = statistics.median(b - a for a, b in zip(alone, recorded))
    print(f"{name:28} alone {statistics.median(alone):8.3f} s  recorded {statistics.median(recorded):8.3f} s  "
          f"ratio {ratio:6.2f}  more {1000 * more:8.1f} ms", flush=True)

def against(name, command, before):
    ratios, processor = [], []
    for pair in range(pairs):
        took = {}
        for recorder in (quire, before) if pair % 2 else (before, quire):
            time.sleep(0.3)
            used = os.times()
            wall = seconds([recorder, "record", "-o", work + "/cost.qtr", "--", *command])
            now = os.times()
            took[recorder] = wall, sum(now[2:4]) - sum(used[2:4])
        ratios.append(took[quire][0] / took[before][0])
        processor.append(took[quire][1] / max(took[before][1], 0.01))
    low, high = min(ratios), max(ratios)
    print(f"{name:20} time {statistics.median(ratios):6.3f} ({low:.3f} to {high:.3f})  "
          f"processor time {statistics.median(processor):6.3f}", flush=True)

load = work + "/load"
if len(sys.argv) > 4:
    with open(work + "/source.c", "w") as source:
        source.write("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n")
        for n in range(2000):
            source.write(f"int f{n}(int a) {{ for (int i = 0; i < a; i++) a ^= printf(\"%d\", i * {n}); return a; }}\n")
    imports = "import json, http.server, sqlite3, email, asyncio, unittest, xml.dom.minidom, decimal, ctypes, multiprocessing"
    for name, command in [
        ("calls", [load, "calls", "3000"]),
        ("faults", [load, "faults", "700"]),
        ("files", [load, "files", "80000"]),
        ("maps of files", [load, "maps of files", "50000"]),
        ("writes", [load, "writes", "100000", work + "/written"]),
        ("opens", [load, "opens", "100000"]),
        ("cc", ["cc", "-O1", "-c", work + "/source.c", "-o", work + "/source.o"]),
        ("python", [sys.executable, "-B", "-c", imports + "\nfor n in range(3000000): pass"]),
        ("ten execs", ["sh", "-c", "for n in 1 2 3 4 5 6 7 8 9 10; do ls -l / /usr/lib | sort > /dev/null; done"]),
    ]:
        against(name, command, sys.argv[4])
    sys.exit()
measure("start", ["/bin/true"])
measure("start, pagemap", ["/bin/true"], ["--faults", "pagemap"])
for name, rounds in [("compute", 1500), ("calls", 3000), ("faults", 700), ("resident", 60)]:
    measure(name, [load, name, str(rounds)])
    measure(name + ", no reuse", [load, name, str(rounds)], ["--no-reuse"])
measure("calls, stops", [load, "calls", "3000"], ["--calls", "stops"])
for more in [], ["--calls", "stops"]:
    measure("others" + ", stops" * bool(more), [load, "others", "1000"], more)
if os.path.exists(work + "/asan"):
    measure("asan", [work + "/asan", "blocks", "500000"])
for name, rounds in [("wasm", 34), ("sparse", 5000), ("files", 80000), ("maps of files", 50000)]:
    measure(name, [load, name, str(rounds)])
for name, rounds in [("mincore", 50000), ("signals", 30000), ("mappings", 60000)]:
    measure(name, [load, name, str(rounds)])
PYTHON
python3 "$work/pairs.py" "$pairs" "$quire" "$work" ${before:+"$before"}
