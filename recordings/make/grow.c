/* Two arrays grow in turns, each by realloc: the C library enlarges large blocks with mremap, which has to move
 * one whenever the other lies in its way. A third is cut back now and then. */
#include <stdio.h>
#include <stdlib.h>

struct array {
    size_t used, room;
    long *items;
};

static void push(struct array *array, long item) {
    if (array->used == array->room) {
        array->room = array->room ? array->room + array->room / 2 : 1024;
        array->items = realloc(array->items, array->room * sizeof *array->items);
        if (!array->items)
            abort();
    }
    array->items[array->used++] = item;
}

static void cut(struct array *array) {
    array->used /= 4;
    array->room = array->used ? array->used : 1;
    array->items = realloc(array->items, array->room * sizeof *array->items);
    if (!array->items)
        abort();
}

int main(void) {
    struct array even = {0}, odd = {0}, recent = {0};
    for (long n = 0; n < 4000000; n++) {
        push(n % 2 ? &odd : &even, n);
        push(&recent, n);
        if (recent.used == 1000000)
            cut(&recent);
    }
    long sum = 0;
    for (size_t n = 0; n < even.used; n++)
        sum += even.items[n] - odd.items[n];
    printf("%ld %zu\n", sum, recent.used);
    free(even.items);
    free(odd.items);
    free(recent.items);
    return 0;
}
