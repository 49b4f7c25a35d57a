/* Any bytes as an index of each kind, as a list of aborted transactions and as header rows of a damaged log.
 *
 * Beside memory errors, this looks for lookups that disagree with a walk over all entries. Seeds: the files in
 * tests/golden. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "endian.h"
#include "oncelog.h"

enum { ENTRIES_MAX = 4096, ROWS_MAX = 256, QUERIES = 24 };

#define REQUIRE(condition)                                                  \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                        \
        }                                                                   \
    } while (0)

/* A number that an entry holds, or one beside it: others are rarely of interest. */
static int64_t target(const uint8_t *data, size_t size, int query, size_t width) {
    if (size < 8) return query;
    size_t at = (size_t)query * 2654435761u % (size - 7);
    if (query % 3) at -= at % width;
    if (at + 8 > size) at = size - 8;
    int64_t value = (int64_t)ol_load64(data + at);
    return (int64_t)((uint64_t)value + (uint64_t)(query % 5) - 2);
}

static void lookups(const ol_txn_summary *summary, const uint8_t *data, size_t size,
                    int64_t count) {
    static int64_t hits[ENTRIES_MAX];
    ol_fault fault;
    for (int query = 0; query < QUERIES; query++) {
        int64_t fetch = target(data, size, query, 2), upper = target(data, size, query + 7, 2);
        int64_t found = 0, total = 0, from = 0, capacity = 1 + query * 3, next = 0;
        bool complete, expected = false;
        do {
            REQUIRE(ol_txn_index_collect(summary, data, fetch, upper, hits + total, capacity,
                                         &found, &from, &complete) == OL_OK);
            REQUIRE(found <= capacity && total + found <= count);
            total += found;
            if (count - total < capacity) capacity = count - total + 1;
            if (capacity > ENTRIES_MAX - total) capacity = ENTRIES_MAX - total;
        } while (found && capacity);
        for (int64_t index = 0; index < count && !expected; index++) {
            ol_aborted entry;
            REQUIRE(ol_txn_entry_read(&entry, data, size, index, &fault) == OL_OK);
            if (entry.last_offset >= fetch && entry.first_offset < upper) {
                REQUIRE(next < total && hits[next] == index);
                next++;
            }
            expected = entry.last_stable_offset >= upper;
        }
        REQUIRE(next == total && complete == expected);
    }
}

static void as_txn_index(const uint8_t *data, size_t size) {
    ol_fault fault;
    ol_status status = ol_txn_index_check(data, size, 0, 0, &fault);
    if (status != OL_OK) {
        REQUIRE(fault.position >= 0 && fault.position <= (int64_t)size);
        REQUIRE(fault.position % OL_TXN_ENTRY_BYTES == 0 && fault.what);
        size = (size_t)fault.position; /* what lies before is sound */
        REQUIRE(ol_txn_index_check(data, size, 0, 0, &fault) == OL_OK);
    }
    int64_t count = (int64_t)(size / OL_TXN_ENTRY_BYTES);
    if (count >= ENTRIES_MAX) count = ENTRIES_MAX - 1;
    ol_txn_summary summary = {0};
    for (int step = 1; step <= 3; step++) {
        REQUIRE(ol_txn_summary_extend(&summary, data, count * step / 3) == OL_OK);
        REQUIRE(summary.entries == count * step / 3);
    }
    lookups(&summary, data, (size_t)count * OL_TXN_ENTRY_BYTES, count);
    ol_txn_summary_free(&summary);
}

/* Bisection in entries that may not rise: some slot, and the right one where they do. */
static void as_offset_and_time_index(const uint8_t *data, size_t size) {
    int64_t offsets = (int64_t)(size / OL_OFFSET_ENTRY_BYTES);
    int64_t times = (int64_t)(size / OL_TIME_ENTRY_BYTES);
    for (int query = 0; query < QUERIES; query++) {
        int64_t wanted = target(data, size, query, 4);
        int64_t slots[] = {ol_offset_index_find(data, offsets, wanted >> 32),
                           ol_offset_index_find_position(data, offsets, (int32_t)wanted),
                           ol_time_index_find(data, times, wanted)};
        for (int kind = 0; kind < 3; kind++)
            REQUIRE(slots[kind] >= -1 && slots[kind] < (kind < 2 ? offsets : times));
        /* Whatever the order, the slot itself is at or below, and the next one above. */
        if (slots[2] >= 0)
            REQUIRE((int64_t)ol_load64(data + OL_TIME_ENTRY_BYTES * slots[2]) <= wanted);
        if (slots[2] + 1 < times)
            REQUIRE((int64_t)ol_load64(data + OL_TIME_ENTRY_BYTES * (slots[2] + 1)) > wanted);
    }
}

static void as_rows(const uint8_t *data, size_t size) {
    static ol_header rows[ROWS_MAX];
    static ol_aborted aborted[ROWS_MAX];
    static uint8_t visible[ROWS_MAX], offset_entries[ROWS_MAX * OL_OFFSET_ENTRY_BYTES],
        time_entries[ROWS_MAX * OL_TIME_ENTRY_BYTES];
    int64_t count = (int64_t)(size / sizeof *rows), found = 0, timed = 0;
    if (count > ROWS_MAX) count = ROWS_MAX;
    memcpy(rows, data, (size_t)count * sizeof *rows);
    for (int64_t row = 0; row < count; row++) {
        rows[row].size &= INT32_MAX; /* a scan finds no other */
        rows[row].control_type %= 4;
        if (row % 2) rows[row].producer_id &= 7;
    }
    ol_producers *table = ol_producers_new();
    REQUIRE(table);
    REQUIRE(ol_producers_replay(table, rows, count, aborted, &found) == OL_OK);
    REQUIRE(found <= count && ol_producers_count(table) <= count);
    int64_t first = ol_producers_first_open(table);
    REQUIRE(ol_producers_first_open_beside(table, INT64_MIN) == first);
    REQUIRE(ol_abort_filter(visible, rows, count, aborted, found) == OL_OK);
    for (int64_t row = 0; row < count; row++) {
        REQUIRE(visible[row] <= 1);
        if (rows[row].attributes & OL_ATTR_CONTROL) REQUIRE(!visible[row]);
        int64_t duplicate = -1;
        ol_sequence_check(table, rows[row].producer_id, rows[row].producer_epoch,
                          rows[row].base_sequence, rows[row].record_count, row % 2, &duplicate);
    }
    size_t listed = size / sizeof *aborted;
    if (listed > ROWS_MAX) listed = ROWS_MAX;
    memcpy(aborted, data, listed * sizeof *aborted);
    REQUIRE(ol_abort_filter(visible, rows, count, aborted, (int64_t)listed) == OL_OK);
    ol_index_state state = {.interval_bytes = 100, .max_timestamp = -1, .indexed_timestamp = -1};
    int64_t made = ol_index_rows(&state, rows, count, 0, offset_entries, time_entries, &timed);
    REQUIRE(made <= count && timed <= made);
    while (ol_producers_count(table))
        ol_producers_remove(table, ol_producers_at(table, 0)->producer_id);
    REQUIRE(ol_producers_first_open(table) == -1);
    ol_producers_free(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    uint8_t *data = malloc(size ? size : 1); /* of exactly that size */
    REQUIRE(data);
    if (size) memcpy(data, input, size);
    as_txn_index(data, size);
    as_offset_and_time_index(data, size);
    as_rows(data, size);
    free(data);
    return 0;
}
