/* A parent of MIB MiB, and WORKERS children that drop these and touch a page of each STEP KiB of OWN MiB, for
 * SECONDS. */
#include "common.h"
#include <sys/wait.h>

int main(int count, char **words) {
    long workers = word(count, words, 1, 16);
    size_t bytes = word(count, words, 2, 64) * MIB, own = word(count, words, 3, 16) * MIB;
    size_t step = word(count, words, 4, 512) * 1024;
    char *data = map(bytes, MAP_PRIVATE);
    memset(data, 1, bytes);
    int ends[2];
    if (pipe(ends))
        return 1;
    for (long nth = 0; nth < workers; nth++)
        if (fork() == 0) {
            close(ends[1]);
            munmap(data, bytes);
            touch(map(own, MAP_PRIVATE), own, step);
            char byte;
            _exit(read(ends[0], &byte, 1) != 0);
        }
    sleep(word(count, words, 5, 3));
    close(ends[1]);
    while (wait(NULL) > 0)
        ;
    return 0;
}
