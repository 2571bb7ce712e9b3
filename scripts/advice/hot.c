/* Uses gigabytes: fills them, then reads pages of which a quarter, scattered in blocks of 64 KiB, takes most reads.
 *
 *     hot MIB READS
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096
#define BLOCK_PAGES 16

static uint64_t mix(uint64_t number) {
    number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9;
    number = (number ^ number >> 27) * 0x94d049bb133111eb;
    return number ^ number >> 31;
}

int main(int count, char **words) {
    uint64_t mib = count > 1 ? strtoull(words[1], NULL, 10) : 1024;
    uint64_t reads = count > 2 ? strtoull(words[2], NULL, 10) : 1000000;
    uint64_t pages = mib << 8, seed = 1, sum = 0;
    char *area = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED)
        return 1;
    for (uint64_t page = 0; page < pages; page++) {
        uint64_t *words = (uint64_t *)(area + page * PAGE);
        /* A third of it does not compress. */
        for (int word = 0; word < PAGE / 8; word++)
            words[word] = word % 3 ? page : mix(page << 9 | word);
    }
    for (uint64_t read = 0; read < reads; read++) {
        uint64_t page = mix(seed++) % pages;
        /* Four of five are of the hot blocks. */
        while (read % 5 && mix(page / BLOCK_PAGES) % 4)
            page = mix(seed++) % pages;
        sum += *(volatile uint64_t *)(area + page * PAGE + (read & 511) * 8);
    }
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
