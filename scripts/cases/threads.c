/* THREADS idle threads with stacks of 2 MiB, of glibc's or ("own") of the program's own memory, for SECONDS.
 * */
#include "common.h"
#include <pthread.h>

static long seconds;

static void *idle(void *unused) {
    volatile char frame[8192];
    memset((char *)frame, 1, sizeof frame);
    sleep(seconds);
    return unused;
}

int main(int count, char **words) {
    long threads = word(count, words, 1, 200);
    int own = count > 3 && !strcmp(words[3], "own");
    seconds = word(count, words, 2, 3);
    pthread_t *all = calloc(threads, sizeof *all);
    for (long nth = 0; nth < threads; nth++) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        if (own)
            pthread_attr_setstack(&attributes, map(BLOCK, MAP_PRIVATE | MAP_NORESERVE), BLOCK);
        else
            pthread_attr_setstacksize(&attributes, BLOCK);
        if (pthread_create(&all[nth], &attributes, idle, NULL))
            return 1;
    }
    for (long nth = 0; nth < threads; nth++)
        pthread_join(all[nth], NULL);
    return 0;
}
