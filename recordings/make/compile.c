/* An ordinary C file for the compiler to work on. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct word {
    struct word *next;
    unsigned long count;
    char text[];
};

static struct word *table[4096];

static unsigned long hash(const char *text) {
    unsigned long value = 5381;
    while (*text)
        value = value * 33 ^ (unsigned char)*text++;
    return value;
}

static struct word *find(const char *text) {
    struct word **place = &table[hash(text) % 4096];
    for (; *place; place = &(*place)->next)
        if (!strcmp((*place)->text, text))
            return *place;
    *place = calloc(1, sizeof **place + strlen(text) + 1);
    if (*place)
        strcpy((*place)->text, text);
    return *place;
}

static int by_count(const void *a, const void *b) {
    const struct word *const *left = a, *const *right = b;
    return ((*left)->count < (*right)->count) - ((*left)->count > (*right)->count);
}

int main(void) {
    char text[256];
    size_t used = 0, words = 0;
    for (int c; (c = getchar()) != EOF;) {
        if (isalpha(c) && used < sizeof text - 1) {
            text[used++] = (char)tolower(c);
        } else if (used) {
            text[used] = 0;
            struct word *word = find(text);
            if (!word)
                return fprintf(stderr, "%s\n", strerror(errno)), 1;
            words += !word->count++;
            used = 0;
        }
    }
    struct word **sorted = malloc(words * sizeof *sorted);
    size_t n = 0;
    for (size_t i = 0; sorted && i < 4096; i++)
        for (struct word *word = table[i]; word; word = word->next)
            sorted[n++] = word;
    if (sorted)
        qsort(sorted, n, sizeof *sorted, by_count);
    for (size_t i = 0; i < n && i < 20; i++)
        printf("%8lu %s\n", sorted[i]->count, sorted[i]->text);
    return 0;
}
