/* 20 000 small blocks, freed after SECONDS. With the address sanitizer 16 TiB of shadow are reserved. */
#include "common.h"

#define BLOCKS 20000

int main(int count, char **words) {
    static char *all[BLOCKS];
    for (int nth = 0; nth < BLOCKS; nth++) {
        all[nth] = malloc(100 + nth % 900);
        memset(all[nth], 1, 100);
    }
    sleep(word(count, words, 1, 3));
    for (int nth = 0; nth < BLOCKS; nth++)
        free(all[nth]);
    return 0;
}
