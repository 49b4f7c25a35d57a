/* The producers of one partition: epoch fence, sequence check, duplicates, open transactions.
 *
 * Entries lie densely in one array, found through a table of 32-bit slots with linear probing, so a
 * check costs two cache lines whatever the number of producers, and a snapshot is one walk. Open
 * transactions are kept in a heap by first offset, cleaned lazily: its top is the first unstable offset. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "oncelog.h"

enum { EMPTY = -1 };

typedef struct open_txn {
    int64_t first_offset;
    int64_t producer_id;
} open_txn;

struct ol_producers {
    ol_producer *entries;
    int64_t count;
    int64_t capacity;
    int32_t *slots;
    uint64_t mask;
    open_txn *heap;
    int64_t heap_count;
    int64_t heap_capacity;
};

/* ---------------------------------------------------------------- table */

static uint64_t home_of(const ol_producers *table, int64_t producer_id) {
    return ((uint64_t)producer_id * 0x9E3779B97F4A7C15ull >> 24) & table->mask;
}

ol_producers *ol_producers_new(void) {
    ol_producers *table = calloc(1, sizeof *table);
    if (!table) return NULL;
    table->mask = 15;
    if (!(table->slots = malloc(16 * sizeof *table->slots))) {
        free(table);
        return NULL;
    }
    memset(table->slots, 0xff, 16 * sizeof *table->slots);
    return table;
}

void ol_producers_free(ol_producers *table) {
    if (!table) return;
    free(table->entries);
    free(table->slots);
    free(table->heap);
    free(table);
}

int64_t ol_producers_count(const ol_producers *table) { return table->count; }
const ol_producer *ol_producers_at(const ol_producers *table, int64_t index) {
    return table->entries + index;
}

static uint64_t slot_of(const ol_producers *table, int64_t producer_id) {
    uint64_t slot = home_of(table, producer_id);
    while (table->slots[slot] != EMPTY &&
           table->entries[table->slots[slot]].producer_id != producer_id)
        slot = (slot + 1) & table->mask;
    return slot;
}

ol_producer *ol_producers_find(const ol_producers *table, int64_t producer_id) {
    int32_t index = table->slots[slot_of(table, producer_id)];
    return index == EMPTY ? NULL : table->entries + index;
}

static bool widen(ol_producers *table) {
    uint64_t slots = (table->mask + 1) * 2;
    int32_t *fresh = malloc(slots * sizeof *fresh);
    if (!fresh) return false;
    memset(fresh, 0xff, slots * sizeof *fresh);
    free(table->slots);
    table->slots = fresh;
    table->mask = slots - 1;
    for (int64_t index = 0; index < table->count; index++)
        table->slots[slot_of(table, table->entries[index].producer_id)] = (int32_t)index;
    return true;
}

ol_producer *ol_producers_put(ol_producers *table, int64_t producer_id) {
    uint64_t slot = slot_of(table, producer_id);
    if (table->slots[slot] != EMPTY) return table->entries + table->slots[slot];
    if (table->count == INT32_MAX) return NULL;
    if (table->count == table->capacity) {
        int64_t to = table->capacity ? table->capacity * 2 : 8;
        ol_producer *moved = realloc(table->entries, (size_t)to * sizeof *moved);
        if (!moved) return NULL;
        table->entries = moved;
        table->capacity = to;
    }
    if ((uint64_t)table->count * 2 > table->mask) {
        if (!widen(table)) return NULL;
        slot = slot_of(table, producer_id);
    }
    ol_producer *entry = table->entries + table->count;
    memset(entry, 0, sizeof *entry);
    entry->producer_id = producer_id;
    entry->epoch = OL_NO_EPOCH;
    entry->coordinator_epoch = -1;
    entry->last_timestamp = -1;
    entry->txn_first_offset = -1;
    table->slots[slot] = (int32_t)table->count++;
    return entry;
}

void ol_producers_remove(ol_producers *table, int64_t producer_id) {
    uint64_t hole = slot_of(table, producer_id);
    int32_t index = table->slots[hole];
    if (index == EMPTY) return;
    /* The last entry takes the place of the removed one, then probing closes over the slot. */
    int64_t last = table->count - 1;
    if (index != last) {
        table->slots[slot_of(table, table->entries[last].producer_id)] = index;
        table->entries[index] = table->entries[last];
    }
    table->count = last;
    for (uint64_t slot = (hole + 1) & table->mask; table->slots[slot] != EMPTY;
         slot = (slot + 1) & table->mask) {
        uint64_t home = home_of(table, table->entries[table->slots[slot]].producer_id);
        if (((slot - home) & table->mask) >= ((slot - hole) & table->mask)) {
            table->slots[hole] = table->slots[slot];
            hole = slot;
        }
    }
    table->slots[hole] = EMPTY;
}

/* ---------------------------------------------------------------- batches of one producer */

const ol_producer_batch *ol_producer_last(const ol_producer *entry) {
    return entry->batch_count ? entry->batches + entry->batch_newest : NULL;
}

static int32_t sequence_before(int32_t last, int32_t delta) {
    return (int32_t)(((int64_t)last - delta) & INT32_MAX);
}

static void raise_epoch(ol_producer *entry, int16_t epoch) {
    if (entry->epoch == epoch) return;
    entry->epoch = epoch;
    entry->batch_count = 0;
    entry->batch_newest = 0;
}

void ol_producer_note(ol_producer *entry, int16_t epoch, const ol_producer_batch *batch) {
    raise_epoch(entry, epoch);
    if (entry->batch_count)
        entry->batch_newest = (uint8_t)((entry->batch_newest + 1) % OL_PRODUCER_BATCHES);
    if (entry->batch_count < OL_PRODUCER_BATCHES) entry->batch_count++;
    entry->batches[entry->batch_newest] = *batch;
    entry->last_timestamp = batch->timestamp;
}

/* ---------------------------------------------------------------- open transactions */

static bool is_current(const ol_producers *table, const open_txn *txn) {
    const ol_producer *entry = ol_producers_find(table, txn->producer_id);
    return entry && entry->txn_first_offset == txn->first_offset;
}

static void sift_down(open_txn *heap, int64_t count, int64_t at) {
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1].first_offset < heap[child].first_offset) child++;
        if (heap[at].first_offset <= heap[child].first_offset) return;
        open_txn swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
    }
}

static void drop_ended(ol_producers *table) {
    while (table->heap_count && !is_current(table, table->heap)) {
        table->heap[0] = table->heap[--table->heap_count];
        sift_down(table->heap, table->heap_count, 0);
    }
}

/* One long transaction on top would keep all that ended below it; without them the heap stays within
 * twice the open ones. */
static void sweep(ol_producers *table) {
    int64_t kept = 0;
    for (int64_t at = 0; at < table->heap_count; at++)
        if (is_current(table, table->heap + at)) table->heap[kept++] = table->heap[at];
    table->heap_count = kept;
    for (int64_t at = kept / 2; at-- > 0;) sift_down(table->heap, kept, at);
}

bool ol_producers_open_txn(ol_producers *table, ol_producer *entry, int64_t first_offset) {
    bool full = table->heap_count == table->heap_capacity;
    if (full) sweep(table);
    if (full && table->heap_count * 2 >= table->heap_capacity) {
        int64_t to = table->heap_capacity ? table->heap_capacity * 2 : 16;
        open_txn *moved = realloc(table->heap, (size_t)to * sizeof *moved);
        if (!moved) return false;
        table->heap = moved;
        table->heap_capacity = to;
    }
    entry->txn_first_offset = first_offset;
    int64_t at = table->heap_count++;
    table->heap[at] = (open_txn){first_offset, entry->producer_id};
    while (at && table->heap[(at - 1) / 2].first_offset > table->heap[at].first_offset) {
        open_txn swap = table->heap[at];
        table->heap[at] = table->heap[(at - 1) / 2];
        table->heap[(at - 1) / 2] = swap;
        at = (at - 1) / 2;
    }
    return true;
}

int64_t ol_producers_first_open(ol_producers *table) {
    drop_ended(table);
    return table->heap_count ? table->heap[0].first_offset : -1;
}

/* Below an entry that counts nothing is older, so only what has ended and the one left out are passed. */
static int64_t first_open_below(const ol_producers *table, int64_t at, int64_t left_out) {
    if (at >= table->heap_count) return -1;
    const open_txn *txn = table->heap + at;
    if (txn->producer_id != left_out && is_current(table, txn)) return txn->first_offset;
    int64_t left = first_open_below(table, 2 * at + 1, left_out);
    int64_t right = first_open_below(table, 2 * at + 2, left_out);
    return left < 0 || (right >= 0 && right < left) ? right : left;
}

int64_t ol_producers_first_open_beside(const ol_producers *table, int64_t producer_id) {
    return first_open_below(table, 0, producer_id);
}

/* ---------------------------------------------------------------- verdicts */

ol_verdict ol_sequence_check(const ol_producers *table, int64_t producer_id, int16_t epoch,
                             int32_t base_sequence, int32_t record_count, bool known_from_start,
                             int64_t *duplicate_of) {
    const ol_producer *entry = ol_producers_find(table, producer_id);
    if (!entry || entry->epoch == OL_NO_EPOCH) {
        /* No state: expired, truncated or new. A producer that always starts epochs at zero must do so
         * here, too; of an older one any sequence is taken, since its first batches may just be gone. */
        return known_from_start && base_sequence != 0 ? OL_OUT_OF_ORDER : OL_ACCEPT;
    }
    if (epoch < entry->epoch) return OL_FENCED;
    if (epoch > entry->epoch) return base_sequence == 0 ? OL_ACCEPT : OL_OUT_OF_ORDER;
    int32_t last_sequence = (int32_t)(((int64_t)base_sequence + record_count - 1) & INT32_MAX);
    for (int index = 0; index < entry->batch_count; index++) {
        const ol_producer_batch *batch = entry->batches + index;
        if (batch->last_sequence == last_sequence &&
            sequence_before(batch->last_sequence, batch->offset_delta) == base_sequence) {
            *duplicate_of = batch->last_offset - batch->offset_delta;
            return OL_DUPLICATE;
        }
    }
    const ol_producer_batch *last = ol_producer_last(entry);
    int32_t expected = last ? (int32_t)(((int64_t)last->last_sequence + 1) & INT32_MAX) : 0;
    return base_sequence == expected ? OL_ACCEPT : OL_OUT_OF_ORDER;
}

/* A marker of an old epoch comes from a producer that was replaced. Where every transaction bumps the
 * epoch, its marker's must be above the known one; the same marker again, with nothing open, is harmless. */
static ol_verdict judge_marker(const ol_producer *entry, const ol_header *row, bool bumps_epoch) {
    bool is_open = entry->txn_first_offset >= 0;
    if (row->producer_epoch < entry->epoch) return OL_FENCED;
    if (bumps_epoch && row->producer_epoch == entry->epoch && is_open) return OL_FENCED;
    return row->coordinator_epoch < entry->coordinator_epoch ? OL_OLD_COORDINATOR : OL_ACCEPT;
}

ol_verdict ol_producers_judge(const ol_producers *table, const ol_header *row, bool is_client,
                              bool bumps_epoch, int64_t *duplicate_of) {
    if (row->producer_id < 0) return OL_ACCEPT;
    const ol_producer *entry = ol_producers_find(table, row->producer_id);
    if (row->attributes & OL_ATTR_CONTROL)
        return entry ? judge_marker(entry, row, bumps_epoch) : OL_ACCEPT;
    bool is_transactional = row->attributes & OL_ATTR_TRANSACTIONAL;
    ol_verdict verdict = OL_ACCEPT;
    if (is_client)
        verdict =
            ol_sequence_check(table, row->producer_id, row->producer_epoch, row->base_sequence,
                              row->record_count, bumps_epoch && is_transactional, duplicate_of);
    else if (row->producer_epoch < (entry ? entry->epoch : OL_NO_EPOCH))
        verdict = OL_FENCED;
    if (verdict != OL_ACCEPT) return verdict;
    bool is_open = entry && entry->txn_first_offset >= 0;
    return is_open && !is_transactional ? OL_OPEN_TRANSACTION : OL_ACCEPT;
}

/* ---------------------------------------------------------------- replay */

static ol_status replay_marker(ol_producers *table, const ol_header *row, ol_aborted *aborted,
                               int64_t *aborted_count) {
    ol_producer *entry = ol_producers_put(table, row->producer_id);
    if (!entry) return OL_E_MEMORY;
    int64_t first_offset = entry->txn_first_offset;
    raise_epoch(entry, row->producer_epoch);
    entry->txn_first_offset = -1;
    entry->coordinator_epoch = row->coordinator_epoch;
    entry->last_timestamp = row->max_timestamp;
    if (first_offset < 0 || row->control_type != OL_CONTROL_ABORT) return OL_OK;
    int64_t next_open = ol_producers_first_open(table);
    int64_t stable = next_open < 0 ? (int64_t)((uint64_t)row->base_offset + 1) : next_open;
    aborted[(*aborted_count)++] =
        (ol_aborted){row->producer_id, first_offset, row->base_offset, stable};
    return OL_OK;
}

ol_status ol_producers_replay(ol_producers *table, const ol_header *rows, int64_t row_count,
                              ol_aborted *aborted, int64_t *aborted_count) {
    *aborted_count = 0;
    for (int64_t index = 0; index < row_count; index++) {
        const ol_header *row = rows + index;
        if (row->producer_id < 0) continue;
        if (row->attributes & OL_ATTR_CONTROL) {
            /* Only ABORT and COMMIT concern a producer; others are the controller's. */
            if (row->control_type != OL_CONTROL_ABORT && row->control_type != OL_CONTROL_COMMIT)
                continue;
            ol_status status = replay_marker(table, row, aborted, aborted_count);
            if (status != OL_OK) return status;
            continue;
        }
        ol_producer *entry = ol_producers_put(table, row->producer_id);
        if (!entry) return OL_E_MEMORY;
        /* Compaction may have emptied the batch, but its span still says how many sequences it held. */
        ol_producer_batch batch = {
            .last_sequence =
                (int32_t)(((int64_t)row->base_sequence + row->last_offset_delta) & INT32_MAX),
            .offset_delta = row->last_offset_delta,
            .last_offset = ol_last_offset(row),
            .timestamp = row->max_timestamp,
        };
        ol_producer_note(entry, row->producer_epoch, &batch);
        if ((row->attributes & OL_ATTR_TRANSACTIONAL) && entry->txn_first_offset < 0 &&
            !ol_producers_open_txn(table, entry, row->base_offset))
            return OL_E_MEMORY;
    }
    return OL_OK;
}
