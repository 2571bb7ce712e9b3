/* ROUNDS times maps MIB MiB, touches each page, works for a while, and unmaps. */
#include "common.h"

int main(int count, char **words) {
    size_t bytes = word(count, words, 2, 32) * MIB;
    long steps = word(count, words, 3, 1) * 1000000;
    volatile unsigned long sum = 0;
    for (long nth = 0; nth < word(count, words, 1, 20); nth++) {
        char *at = map(bytes, MAP_PRIVATE);
        touch(at, bytes, PAGE);
        for (long step = 0; step < steps; step++)
            sum += step;
        munmap(at, bytes);
    }
    return 0;
}
