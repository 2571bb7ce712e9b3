/* Each run has other data: MIB MiB times 0.5 to 1.5, one page of each 8 KiB touched; then SECONDS of rest. */
#include "common.h"
#include <time.h>

int main(int count, char **words) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    srand(now.tv_nsec ^ getpid());
    double factor = 0.5 + rand() / (double)RAND_MAX;
    size_t bytes = (size_t)(word(count, words, 1, 100) * factor) * MIB;
    touch(map(bytes, MAP_PRIVATE), bytes, 2 * PAGE);
    sleep(word(count, words, 2, 3));
    return 0;
}
