/* STACKS stacks of fibres of 2 MiB, whose lowest page is a guard by MADV_GUARD_INSTALL, or ("protect") by
 * mprotect. */
#include "common.h"
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

int main(int count, char **words) {
    int protect = count > 3 && !strcmp(words[3], "protect");
    for (long nth = 0; nth < word(count, words, 1, 200); nth++) {
        char *stack = map(BLOCK, MAP_PRIVATE | MAP_NORESERVE);
        if (protect ? mprotect(stack, PAGE, PROT_NONE) : madvise(stack, PAGE, MADV_GUARD_INSTALL)) {
            perror("guard");
            return 1;
        }
        memset(stack + BLOCK - 2 * PAGE, 1, 2 * PAGE);
    }
    sleep(word(count, words, 2, 3));
    return 0;
}
