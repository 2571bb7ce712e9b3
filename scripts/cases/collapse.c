/* MIB MiB of which one page in four is touched, collapsed by MADV_COLLAPSE; then SECONDS of rest. */
#include "common.h"
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

int main(int count, char **words) {
    size_t bytes = word(count, words, 1, 64) * MIB;
    char *heap = map_blocks(bytes);
    touch(heap, bytes, 4 * PAGE);
    madvise(heap, bytes, MADV_COLLAPSE);
    sleep(word(count, words, 2, 3));
    return 0;
}
