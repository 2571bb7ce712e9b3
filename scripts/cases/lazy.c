/* Sixteen blocks of 2 MiB are written; of each, PAGES single pages are given back by MADV_FREE. The rest
 * stays. */
#include "common.h"

int main(int count, char **words) {
    long pages = word(count, words, 1, 1);
    char *heap = map_blocks(16 * BLOCK);
    memset(heap, 7, 16 * BLOCK);
    for (long page = 0; page < pages; page++)
        for (int block = 0; block < 16; block++)
            madvise(heap + block * BLOCK + (2 * page + 1) * PAGE, PAGE, MADV_FREE);
    sleep(word(count, words, 2, 3));
    return 0;
}
