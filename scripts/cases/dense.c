/* ROUNDS times 64 KiB at the start of each of MIB MiB are filled, and all is given back; the last filling
 * stays. */
#include "common.h"

int main(int count, char **words) {
    size_t bytes = word(count, words, 1, 512) * MIB;
    char *heap = map_blocks(bytes);
    for (long left = word(count, words, 2, 3); left >= 0; left--) {
        for (size_t at = 0; at < bytes; at += MIB)
            memset(heap + at, 1, 64 * 1024);
        if (left)
            madvise(heap, bytes, MADV_DONTNEED);
    }
    sleep(word(count, words, 3, 3));
    return 0;
}
