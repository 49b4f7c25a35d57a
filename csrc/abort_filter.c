/* Which batches a read_committed reader may see: the consumer's algorithm over header rows.
 *
 * Aborted transactions are taken up in the order of their first offsets as the batches reach them; from
 * then on the producer's transactional batches are hidden until its ABORT marker. Where the last offset
 * of a transaction is known, it ends there even if the marker is not among the batches. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "oncelog.h"

typedef struct open_abort {
    int64_t producer_id; /* FREE: an empty slot */
    int64_t last_offset;
} open_abort;

#define FREE INT64_MIN

typedef struct abort_set {
    open_abort *slots;
    uint64_t mask;
} abort_set;

static uint64_t slot_of(const abort_set *set, int64_t producer_id) {
    return ((uint64_t)producer_id * 0x9E3779B97F4A7C15ull >> 20) & set->mask;
}

static open_abort *find(const abort_set *set, int64_t producer_id) {
    for (uint64_t slot = slot_of(set, producer_id);; slot = (slot + 1) & set->mask) {
        open_abort *at = set->slots + slot;
        if (at->producer_id == producer_id || at->producer_id == FREE) return at;
    }
}

/* Linear probing without tombstones: what follows is moved back over the gap. */
static void drop(abort_set *set, open_abort *gone) {
    uint64_t hole = (uint64_t)(gone - set->slots);
    for (uint64_t slot = (hole + 1) & set->mask; set->slots[slot].producer_id != FREE;
         slot = (slot + 1) & set->mask) {
        uint64_t home = slot_of(set, set->slots[slot].producer_id);
        if (((slot - home) & set->mask) >= ((slot - hole) & set->mask)) {
            set->slots[hole] = set->slots[slot];
            hole = slot;
        }
    }
    set->slots[hole].producer_id = FREE;
}

static int by_first_offset(const void *left, const void *right) {
    const ol_aborted *a = left, *b = right;
    if (a->first_offset != b->first_offset) return a->first_offset < b->first_offset ? -1 : 1;
    return (a->last_offset > b->last_offset) - (a->last_offset < b->last_offset);
}

ol_status ol_abort_filter(uint8_t *visible, const ol_header *rows, int64_t row_count,
                          const ol_aborted *aborted, int64_t aborted_count) {
    ol_aborted *queue = NULL;
    abort_set set = {NULL, 0};
    bool sorted = true;
    for (int64_t i = 1; i < aborted_count; i++)
        sorted &= aborted[i - 1].first_offset <= aborted[i].first_offset;
    if (!sorted) {
        if (!(queue = malloc((size_t)aborted_count * sizeof *queue))) return OL_E_MEMORY;
        memcpy(queue, aborted, (size_t)aborted_count * sizeof *queue);
        qsort(queue, (size_t)aborted_count, sizeof *queue, by_first_offset);
        aborted = queue;
    }
    uint64_t slots = 8;
    while (slots < 2 * (uint64_t)aborted_count) slots *= 2;
    set.mask = slots - 1;
    if (!(set.slots = malloc(slots * sizeof *set.slots))) {
        free(queue);
        return OL_E_MEMORY;
    }
    for (uint64_t slot = 0; slot < slots; slot++) set.slots[slot].producer_id = FREE;

    int64_t next = 0;
    for (int64_t row = 0; row < row_count; row++) {
        const ol_header *batch = rows + row;
        int64_t last_offset = ol_last_offset(batch);
        for (; next < aborted_count && aborted[next].first_offset <= last_offset; next++) {
            open_abort *at = find(&set, aborted[next].producer_id);
            int64_t ends = aborted[next].last_offset < 0 ? INT64_MAX : aborted[next].last_offset;
            if (at->producer_id == FREE || at->last_offset < ends) at->last_offset = ends;
            at->producer_id = aborted[next].producer_id;
        }
        if (batch->attributes & OL_ATTR_CONTROL) {
            visible[row] = 0;
            if (batch->control_type == 0) {
                open_abort *at = find(&set, batch->producer_id);
                /* A later transaction of this producer may be among the queue's already. */
                if (at->producer_id != FREE &&
                    (at->last_offset <= last_offset || at->last_offset == INT64_MAX))
                    drop(&set, at);
            }
            continue;
        }
        visible[row] = 1;
        if (!(batch->attributes & OL_ATTR_TRANSACTIONAL)) continue;
        open_abort *at = find(&set, batch->producer_id);
        if (at->producer_id == FREE) continue;
        if (batch->base_offset > at->last_offset)
            drop(&set, at);
        else
            visible[row] = 0;
    }
    free(set.slots);
    free(queue);
    return OL_OK;
}
