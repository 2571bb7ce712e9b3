/* A service that fills slowly: sessions come and most of them go, and what is free is given back to the kernel at times. Its heap grows
 * by small steps, so page faults find no place for a huge page, and what is left is sparse.
 *
 *     sessions SECONDS
 */
#define _DEFAULT_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 60000
#define TICKS 20

static uint64_t state = 88172645463325252u;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

int main(int count, char **words) {
    int seconds = count > 1 ? atoi(words[1]) : 20;
    char **sessions = calloc(COUNT, sizeof *sessions);
    if (sessions == NULL) return 1;
    int ticks = seconds * TICKS;
    for (int tick = 0; tick < ticks; tick++) {
        /* As many as came so far in the first half; in the second they are replaced. */
        for (int n = 0; n < 2 * COUNT / ticks; n++) {
            int place = tick < ticks / 2 ? (tick * (2 * COUNT / ticks) + n) % COUNT : (int)(next() % COUNT);
            size_t size = 200 + next() % 3000;
            free(sessions[place]);
            if ((sessions[place] = malloc(size)) == NULL) return 1;
            memset(sessions[place], 1, size);
        }
        if (tick % (ticks / 8) == ticks / 8 - 1) {
            /* The neighbours of a few stay: whole pages between them are free. */
            for (int place = 0; place < COUNT; place++)
                if (place / 16 % 4) {
                    free(sessions[place]);
                    sessions[place] = NULL;
                }
            malloc_trim(0);
        }
        usleep(1000000 / TICKS);
    }
    return 0;
}
