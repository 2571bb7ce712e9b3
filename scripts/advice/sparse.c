// sparse GIB STEP ROUNDS touches one page in STEP of a region of GIB GiB, again and again: what huge pages waste most on.
#include <stdlib.h>
#include <sys/mman.h>

int main(int count, char **words) {
    size_t size = (size_t)(count > 1 ? atoi(words[1]) : 1) << 30;
    size_t step = (size_t)(count > 2 ? atoi(words[2]) : 16) << 12;
    int rounds = count > 3 ? atoi(words[3]) : 1;
    volatile char *region = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED) return 1;
    for (int round = 0; round < rounds; round++)
        for (size_t at = 0; at < size; at += step) region[at]++;
    return 0;
}
