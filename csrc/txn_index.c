/* The aborted transactions of one segment: entries of 34 big-endian bytes, as they lie in the file, and
 * a summary over blocks of them that makes a lookup logarithmic.
 *
 * Last offsets rise from entry to entry, first offsets do not: a transaction that was open for long ends
 * after many that began later, and while it is open the last stable offset stands still. So the end of a
 * lookup cannot be found by bisection over first offsets. The summary is a tree of minima with a fan-out
 * of 16: level 0 holds the least first offset of each 16 entries, level 1 of each 16 of those, and so on.
 * A lookup descends only where a minimum says that a hit lies below. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "endian.h"
#include "oncelog.h"

enum { FAN = OL_TXN_INDEX_FAN };

static int64_t first_offset_at(const uint8_t *entries, int64_t index) {
    return (int64_t)ol_load64(entries + OL_TXN_ENTRY_BYTES * index + 10);
}
static int64_t last_offset_at(const uint8_t *entries, int64_t index) {
    return (int64_t)ol_load64(entries + OL_TXN_ENTRY_BYTES * index + 18);
}
static int64_t stable_offset_at(const uint8_t *entries, int64_t index) {
    return (int64_t)ol_load64(entries + OL_TXN_ENTRY_BYTES * index + 26);
}

ol_status ol_txn_entry_read(ol_aborted *out, const uint8_t *entries, size_t size, int64_t index,
                            ol_fault *fault) {
    fault->position = index * OL_TXN_ENTRY_BYTES;
    fault->base_offset = -1;
    fault->record = -1;
    if (index < 0 || (uint64_t)(index + 1) * OL_TXN_ENTRY_BYTES > size)
        return ol_fail(fault, OL_E_TRUNCATED, "the file ends inside a transaction index entry");
    const uint8_t *at = entries + OL_TXN_ENTRY_BYTES * index;
    if ((int16_t)ol_load16(at) != 0)
        return ol_fail(fault, OL_E_HEADER, "transaction index entry has an unknown version");
    out->producer_id = (int64_t)ol_load64(at + 2);
    out->first_offset = first_offset_at(entries, index);
    out->last_offset = last_offset_at(entries, index);
    out->last_stable_offset = stable_offset_at(entries, index);
    return OL_OK;
}

ol_status ol_txn_index_check(const uint8_t *entries, size_t size, int64_t base_offset, int64_t from,
                             ol_fault *fault) {
    int64_t count = (int64_t)(size / OL_TXN_ENTRY_BYTES);
    int64_t last = from > 0 ? last_offset_at(entries, from - 1) : base_offset - 1;
    int64_t stable = from > 0 ? stable_offset_at(entries, from - 1) : 0;
    ol_aborted entry = {0};
    for (int64_t index = from; index < count; index++) {
        ol_status status = ol_txn_entry_read(&entry, entries, size, index, fault);
        if (status != OL_OK) return status;
        if (entry.producer_id < 0)
            return ol_fail(fault, OL_E_HEADER,
                           "transaction index entry has a negative producer id");
        if (entry.first_offset < 0 || entry.first_offset > entry.last_offset)
            return ol_fail(fault, OL_E_HEADER, "aborted transaction ends before it begins");
        if (entry.last_offset <= last)
            return ol_fail(
                fault, OL_E_HEADER,
                "last offsets of the transaction index do not rise from the segment's base");
        /* A last stable offset that is too high would end lookups before the transactions they are for. */
        if (entry.last_stable_offset < stable || entry.last_stable_offset - 1 > entry.last_offset)
            return ol_fail(fault, OL_E_HEADER,
                           "last stable offset falls or lies past the transaction's end");
        if (entry.first_offset < stable)
            return ol_fail(fault, OL_E_HEADER,
                           "aborted transaction begins below an earlier last stable offset");
        last = entry.last_offset;
        stable = entry.last_stable_offset;
    }
    if (size % OL_TXN_ENTRY_BYTES) {
        fault->position = count * OL_TXN_ENTRY_BYTES;
        fault->base_offset = -1;
        fault->record = -1;
        return ol_fail(fault, OL_E_TRUNCATED, "the file ends inside a transaction index entry");
    }
    return OL_OK;
}

/* ---------------------------------------------------------------- summary */

void ol_txn_summary_free(ol_txn_summary *summary) {
    for (int level = 0; level < OL_TXN_INDEX_LEVELS; level++) free(summary->minima[level]);
    free(summary->stable);
    memset(summary, 0, sizeof *summary);
}

static bool grow_to(int64_t **array, int64_t *capacity, int64_t count) {
    if (count <= *capacity) return true;
    int64_t to = *capacity * 2 > count ? *capacity * 2 : count;
    int64_t *moved = realloc(*array, (size_t)to * sizeof **array);
    if (!moved) return false;
    *array = moved;
    *capacity = to;
    return true;
}

/* Lowers the minimum of `value`'s block on every level; blocks open as they are reached. */
static bool note_first(ol_txn_summary *summary, int64_t index, int64_t value) {
    for (int level = 0; level < OL_TXN_INDEX_LEVELS; level++) {
        index /= FAN;
        if (!grow_to(&summary->minima[level], &summary->capacity[level], index + 1)) return false;
        if (index >= summary->count[level]) {
            summary->minima[level][index] = value;
            summary->count[level] = index + 1;
        } else if (value < summary->minima[level][index]) {
            summary->minima[level][index] = value;
        }
        if (!index && summary->count[level] == 1) {
            if (summary->levels < level + 1) summary->levels = level + 1;
            return true;
        }
        if (summary->levels < level + 2) {
            /* A level above starts with what its first block already holds. */
            summary->levels = level + 2;
            if (!grow_to(&summary->minima[level + 1], &summary->capacity[level + 1], 1))
                return false;
            int64_t least = INT64_MAX;
            for (int64_t i = 0; i < summary->count[level] && i < FAN; i++)
                if (summary->minima[level][i] < least) least = summary->minima[level][i];
            summary->minima[level + 1][0] = least;
            summary->count[level + 1] = 1;
        }
    }
    return true;
}

ol_status ol_txn_summary_extend(ol_txn_summary *summary, const uint8_t *entries, int64_t count) {
    for (int64_t index = summary->entries; index < count; index++) {
        int64_t block = index / FAN, stable = stable_offset_at(entries, index);
        if (!note_first(summary, index, first_offset_at(entries, index)) ||
            !grow_to(&summary->stable, &summary->stable_capacity, block + 1))
            return OL_E_MEMORY;
        int64_t so_far = index % FAN ? summary->stable[block]
                         : block     ? summary->stable[block - 1]
                                     : INT64_MIN;
        summary->stable[block] = stable > so_far ? stable : so_far;
        summary->entries = index + 1;
    }
    return OL_OK;
}

/* ---------------------------------------------------------------- lookup */

/* First entry whose last offset is at least `offset`. */
static int64_t first_ending_at(const uint8_t *entries, int64_t count, int64_t offset) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (last_offset_at(entries, middle) < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* First entry whose last stable offset has reached `upper`, which is the last one that a lookup needs;
 * `count` if none has. The summary's maxima run on from block to block, so they can be bisected. */
static int64_t first_stable_at(const ol_txn_summary *summary, const uint8_t *entries, int64_t count,
                               int64_t upper) {
    int64_t blocks = (count + FAN - 1) / FAN, low = 0, high = blocks;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (summary->stable[middle] < upper)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == blocks) return count;
    for (int64_t index = low * FAN; index < count; index++)
        if (stable_offset_at(entries, index) >= upper) return index;
    return count;
}

/* First entry in [index, end) whose first offset is below `upper`; `end` if there is none. */
static int64_t next_hit(const ol_txn_summary *summary, const uint8_t *entries, int64_t index,
                        int64_t end, int64_t upper) {
    while (index < end) {
        if (index % FAN == 0) {
            /* At a block's edge: climb while whole blocks hold nothing. */
            int level = 0;
            int64_t block = index / FAN;
            if (summary->minima[0][block] >= upper) {
                while (level + 1 < summary->levels && block % FAN == 0 &&
                       summary->minima[level + 1][block / FAN] >= upper) {
                    block /= FAN;
                    level++;
                }
                block++;
                for (; level >= 0; level--) block *= FAN;
                index = block;
                continue;
            }
        }
        if (first_offset_at(entries, index) < upper) return index;
        index++;
    }
    return end;
}

ol_status ol_txn_index_collect(const ol_txn_summary *summary, const uint8_t *entries,
                               int64_t fetch_offset, int64_t upper_bound, int64_t *hits,
                               int64_t capacity, int64_t *found, int64_t *from, bool *complete) {
    int64_t count = summary->entries;
    int64_t end = first_stable_at(summary, entries, count, upper_bound);
    *complete = end < count;
    end += *complete;
    int64_t index = *from;
    if (index == 0) index = first_ending_at(entries, count, fetch_offset);
    for (*found = 0; *found < capacity; index++) {
        index = next_hit(summary, entries, index, end, upper_bound);
        if (index >= end) break;
        hits[(*found)++] = index;
    }
    *from = index;
    return OL_OK;
}
