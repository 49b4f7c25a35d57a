/* Offset and time indexes of a segment: search in the files' own big-endian entries, and the entries
 * that a run of batches adds.
 *
 * .index entries are int32 offset relative to the base, int32 position; .timeindex entries int64
 * timestamp, int32 relative offset. Keys rise, so both are bisected where they lie. */
#include <limits.h>

#include "endian.h"
#include "oncelog.h"

/* Slot of the greatest key <= target, -1 if all are above. */
#define LAST_AT_MOST(key_at)                     \
    int64_t low = 0, high = count;               \
    while (low < high) {                         \
        int64_t middle = low + (high - low) / 2; \
        if ((key_at) <= target)                  \
            low = middle + 1;                    \
        else                                     \
            high = middle;                       \
    }                                            \
    return low - 1

int64_t ol_offset_index_find(const uint8_t *entries, int64_t count, int64_t target) {
    LAST_AT_MOST((int64_t)(int32_t)ol_load32(entries + OL_OFFSET_ENTRY_BYTES * middle));
}

int64_t ol_offset_index_find_position(const uint8_t *entries, int64_t count, int64_t target) {
    LAST_AT_MOST((int64_t)(int32_t)ol_load32(entries + OL_OFFSET_ENTRY_BYTES * middle + 4));
}

int64_t ol_time_index_find(const uint8_t *entries, int64_t count, int64_t target) {
    LAST_AT_MOST((int64_t)ol_load64(entries + OL_TIME_ENTRY_BYTES * middle));
}

/* What lies out of an entry's reach is the caller's to refuse before it is written. */
static uint32_t relative(int64_t offset, int64_t base_offset) {
    return (uint32_t)((uint64_t)offset - (uint64_t)base_offset);
}

int64_t ol_index_rows(ol_index_state *state, const ol_header *rows, int64_t row_count,
                      int64_t base_offset, uint8_t *offset_entries, uint8_t *time_entries,
                      int64_t *time_count) {
    int64_t made = 0;
    *time_count = 0;
    for (int64_t index = 0; index < row_count; index++) {
        const ol_header *row = rows + index;
        int64_t last_offset = ol_last_offset(row);
        if (row->max_timestamp > state->max_timestamp) {
            state->max_timestamp = row->max_timestamp;
            state->max_timestamp_offset = last_offset;
        }
        if (state->bytes_since_entry > state->interval_bytes) {
            uint8_t *entry = offset_entries + OL_OFFSET_ENTRY_BYTES * made++;
            ol_store32(entry, relative(last_offset, base_offset));
            ol_store32(entry + 4, (uint32_t)(int32_t)row->position);
            /* Equal timestamps add nothing: the first entry already finds them. */
            if (state->max_timestamp > state->indexed_timestamp) {
                entry = time_entries + OL_TIME_ENTRY_BYTES * (*time_count)++;
                ol_store64(entry, (uint64_t)state->max_timestamp);
                ol_store32(entry + 8, relative(state->max_timestamp_offset, base_offset));
                state->indexed_timestamp = state->max_timestamp;
            }
            state->bytes_since_entry = 0;
        }
        state->bytes_since_entry += row->size;
    }
    return made;
}
