/* A server with SHARED MiB of shared anonymous memory and PRIVATE MiB of its own. All of the shared memory
 * and a quarter of the private memory is used ten times a second for SECONDS: as buffers of a
 * database are. */
#include "common.h"
#include <time.h>

int main(int count, char **words) {
    size_t shared = word(count, words, 1, 120) * MIB, own = word(count, words, 2, 40) * MIB;
    time_t end = time(NULL) + word(count, words, 3, 6);
    char *pool = map(shared, MAP_SHARED), *heap = map(own, MAP_PRIVATE);
    unsigned noise = 1;
    for (size_t at = 0; at < shared; at += sizeof noise) {
        noise = noise * 1664525 + 1013904223;
        *(unsigned *)(pool + at) = noise >> 20;
    }
    memset(heap, 1, own);
    while (time(NULL) < end) {
        touch(pool, shared, PAGE);
        touch(heap, own / 4, PAGE);
        usleep(100000);
    }
    return 0;
}
