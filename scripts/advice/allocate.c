// allocate SLOTS ROUNDS allocates and frees blocks of 16 bytes to 300 kB in a fixed order, and keeps a few hundred MB at most: for allocators
// that are loaded before it.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252u;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

int main(int count, char **words) {
    size_t slots = count > 1 ? strtoul(words[1], NULL, 10) : 60000;
    size_t rounds = count > 2 ? strtoul(words[2], NULL, 10) : 40;
    char **blocks = calloc(slots, sizeof *blocks);
    if (blocks == NULL) return 1;
    for (size_t round = 0; round < rounds * slots; round++) {
        size_t slot = next() % slots;
        free(blocks[slot]);
        blocks[slot] = NULL;
        // Most are small; every third round of ten thousand frees more than it allocates.
        size_t size = next() % 100 < 97 ? 16 + next() % 2000 : 4096 + next() % 300000;
        if (round / 10000 % 3 == 2 && next() % 3 != 0) continue;
        blocks[slot] = malloc(size);
        if (blocks[slot] == NULL) return 1;
        memset(blocks[slot], 1, size);
    }
    return 0;
}
