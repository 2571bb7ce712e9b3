/* A runtime that serves each request in an instance of its own. A pool reserves a slot of memory for each; a new instance
 * takes the slot that was idle for longest, touches a few pages of it, and its slot is given back with MADV_DONTNEED when
 * the request is over. What the instances report goes to a log, which doubles by mremap and has to move, since the next
 * buffer lies behind it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SLOT (4UL << 20)
#define SLOTS 256
#define REQUESTS 1500
#define LOG_FIRST (2UL << 20)
#define REPORT 12000

static char *map(size_t bytes, int protection) {
    char *area = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED)
        abort();
    return area;
}

int main(void) {
    char *pool = map(SLOTS * SLOT, PROT_READ | PROT_WRITE);
    char *buffer = map(LOG_FIRST, PROT_READ | PROT_WRITE);
    size_t room = LOG_FIRST, used = 0;
    char *log = map(room, PROT_READ | PROT_WRITE);
    for (unsigned request = 0; request < REQUESTS; request++) {
        char *slot = pool + request % SLOTS * SLOT;
        /* Globals and stack at its beginning, and a heap behind them. */
        for (unsigned page = 0; page < 3 + request % 5; page++)
            slot[page * 4096 + (page > 2 ? SLOT / 2 : 0)] = 1;
        buffer[request % LOG_FIRST] = 1;
        if (used + REPORT > room) {
            log = mremap(log, room, 2 * room, MREMAP_MAYMOVE);
            if (log == MAP_FAILED)
                return 1;
            room *= 2;
        }
        for (size_t byte = 0; byte < REPORT; byte++)
            log[used + byte] = (char)(request + byte);
        used += REPORT;
        if (madvise(slot, SLOT, MADV_DONTNEED))
            return 1;
    }
    printf("%zu\n", used);
    return 0;
}
