/* An allocator that gives MIB MiB back page by page, but for one page in KEEP, and then waits for SECONDS. */
#include "common.h"

int main(int count, char **words) {
    size_t bytes = word(count, words, 1, 32) * MIB, keep = word(count, words, 3, 33);
    int lazily = count > 4 && !strcmp(words[4], "free");
    char *heap = map(bytes, MAP_PRIVATE);
    memset(heap, 7, bytes);
    /* Its peak is there for long enough to be seen. */
    usleep(100000);
    for (size_t page = 0; page < bytes / PAGE; page++)
        if (page % keep)
            madvise(heap + page * PAGE, PAGE, lazily ? MADV_FREE : MADV_DONTNEED);
    sleep(word(count, words, 2, 10));
    return 0;
}
