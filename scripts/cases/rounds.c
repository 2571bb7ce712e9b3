/* Fills MIB MiB; then ROUNDS times the first half is used, with so many thousand STEPS of work for each page.
 * */
#include "common.h"

int main(int count, char **words) {
    size_t bytes = word(count, words, 1, 64) * MIB;
    long rounds = word(count, words, 2, 20), steps = word(count, words, 3, 20) * 1000;
    volatile unsigned long sum = 0;
    char *heap = map(bytes, MAP_PRIVATE);
    unsigned noise = 1;
    for (size_t at = 0; at < bytes; at += 2 * sizeof noise) {
        noise = noise * 1664525 + 1013904223;
        *(unsigned *)(heap + at) = noise;
        *(unsigned *)(heap + at + sizeof noise) = (unsigned)at;
    }
    while (rounds--)
        for (size_t at = 0; at < bytes / 2; at += PAGE) {
            sum += heap[at];
            for (long step = 0; step < steps; step++)
                sum += step;
        }
    return 0;
}
