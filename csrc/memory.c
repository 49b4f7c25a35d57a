/* Tables that grow by doubling. */
#define _DEFAULT_SOURCE /* madvise */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "oncelog.h"

enum { PAGE_BYTES = 4096, LARGE_BYTES = 1 << 20 };

/* New memory costs a fault for each page, which takes longer than to fill its 4 KiB. One call for all of them takes half of
 * that. Large pages would take less where they lie ready, and twice as long where a host has to find them first. A hint:
 * where the kernel knows no such call, the faults come one by one. */
static void populate(uint8_t *memory, size_t size) {
#ifdef MADV_POPULATE_WRITE
    uint8_t *start = memory + (PAGE_BYTES - (uintptr_t)memory % PAGE_BYTES) % PAGE_BYTES;
    uint8_t *end = memory + size - (uintptr_t)(memory + size) % PAGE_BYTES;
    if (end > start) (void)madvise(start, (size_t)(end - start), MADV_POPULATE_WRITE);
#else
    (void)memory, (void)size;
#endif
}

void *ol_grow_zeroed(void *memory, size_t had, size_t size) {
    uint8_t *grown = realloc(memory, size);
    if (!grown) return NULL;
    if (size - had >= LARGE_BYTES) populate(grown + had, size - had);
    memset(grown + had, 0, size - had);
    return grown;
}
