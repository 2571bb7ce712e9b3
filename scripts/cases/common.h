/* What the programs of this folder share. */
#ifndef COMMON_H
#define COMMON_H
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)
#define BLOCK (2 * MIB)

/* Number `place` of the words, or `otherwise`. */
static inline long word(int count, char **words, int place, long otherwise) {
    return place < count ? atol(words[place]) : otherwise;
}

/* Anonymous memory, shared between processes or private. */
static inline char *map(size_t bytes, int sharing) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

/* Private memory that begins at a block of 2 MiB. */
static inline char *map_blocks(size_t bytes) {
    char *at = map(bytes + BLOCK, MAP_PRIVATE);
    return (char *)(((uintptr_t)at + BLOCK - 1) & ~(uintptr_t)(BLOCK - 1));
}

/* Writes a byte in one page of each `step` bytes. */
static inline void touch(char *at, size_t bytes, size_t step) {
    for (size_t offset = 0; offset < bytes; offset += step)
        ((volatile char *)at)[offset] = 1;
}

#endif
