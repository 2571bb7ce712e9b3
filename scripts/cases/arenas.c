/* THREADS threads, one after the other, build MIB MiB of small blocks, keep one in 200 and free the rest:
 * memory that glibc's arenas hold. They wait for SECONDS, after malloc_trim where the last word is "trim". */
#include "common.h"
#include <malloc.h>
#include <pthread.h>

static size_t blocks;
static long seconds;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t built;

static void *work(void *unused) {
    pthread_mutex_lock(&turn);
    char **all = malloc(blocks * sizeof *all);
    for (size_t nth = 0; nth < blocks; nth++) {
        all[nth] = malloc(200 + nth % 56);
        memset(all[nth], (int)nth, 200);
    }
    for (size_t nth = 0; nth < blocks; nth++)
        if (nth % 200)
            free(all[nth]);
    free(all);
    pthread_mutex_unlock(&turn);
    pthread_barrier_wait(&built);
    sleep(seconds);
    return unused;
}

int main(int count, char **words) {
    long threads = word(count, words, 1, 8);
    blocks = word(count, words, 2, 30) * MIB / 256;
    seconds = word(count, words, 3, 4);
    pthread_barrier_init(&built, NULL, threads + 1);
    pthread_t *all = calloc(threads, sizeof *all);
    for (long nth = 0; nth < threads; nth++)
        pthread_create(&all[nth], NULL, work, NULL);
    pthread_barrier_wait(&built);
    if (count > 4 && !strcmp(words[4], "trim"))
        malloc_trim(0);
    for (long nth = 0; nth < threads; nth++)
        pthread_join(all[nth], NULL);
    return 0;
}
