/* Offset and time index: bisection in the file's own bytes, and the entries that batches add. */
#include "batches.h"

static void searches_find_the_last_entry_at_or_below(void) {
    for (int64_t count = 0; count < 40; count++) {
        uint8_t *offsets = malloc((size_t)count * OL_OFFSET_ENTRY_BYTES + 1);
        uint8_t *times = malloc((size_t)count * OL_TIME_ENTRY_BYTES + 1);
        if (!offsets || !times) abort();
        for (int64_t index = 0; index < count; index++) {
            ol_store32(offsets + OL_OFFSET_ENTRY_BYTES * index, (uint32_t)(10 * index + 5));
            ol_store32(offsets + OL_OFFSET_ENTRY_BYTES * index + 4, (uint32_t)(100 * index));
            ol_store64(times + OL_TIME_ENTRY_BYTES * index, (uint64_t)(7 * index - 7));
            ol_store32(times + OL_TIME_ENTRY_BYTES * index + 8, 1);
        }
        for (int64_t target = -20; target < 10 * count + 20; target++) {
            int64_t by_offset = -1, by_position = -1, by_time = -1;
            for (int64_t index = 0; index < count; index++) {
                if (10 * index + 5 <= target) by_offset = index;
                if (100 * index <= 10 * target) by_position = index;
                if (7 * index - 7 <= target) by_time = index;
            }
            CHECK_INT(ol_offset_index_find(offsets, count, target), by_offset);
            CHECK_INT(ol_offset_index_find_position(offsets, count, 10 * target), by_position);
            CHECK_INT(ol_time_index_find(times, count, target), by_time);
        }
        CHECK_INT(ol_offset_index_find(offsets, count, INT64_MIN), -1);
        CHECK_INT(ol_offset_index_find(offsets, count, INT64_MAX), count - 1);
        free(offsets);
        free(times);
    }
}

static void an_entry_is_made_after_more_bytes_than_the_interval(void) {
    static const struct {
        int64_t size, timestamp;
    } batches[] = {{100, 50}, {101, 40}, {100, 60}, {100, 60}, {100, 55}, {300, 60}, {100, 70}};
    enum { COUNT = sizeof batches / sizeof *batches };
    ol_header rows[COUNT] = {{0}};
    int64_t position = 0;
    for (int index = 0; index < COUNT; index++) {
        rows[index].position = position;
        rows[index].size = batches[index].size;
        rows[index].base_offset = 1000 + 10 * index;
        rows[index].last_offset_delta = 9;
        rows[index].max_timestamp = batches[index].timestamp;
        position += batches[index].size;
    }
    uint8_t offsets[OL_OFFSET_ENTRY_BYTES * COUNT], times[OL_TIME_ENTRY_BYTES * COUNT];
    ol_index_state state = {.interval_bytes = 200,
                            .max_timestamp = -1,
                            .max_timestamp_offset = -1,
                            .indexed_timestamp = -1};
    int64_t timed, made = ol_index_rows(&state, rows, COUNT, 1000, offsets, times, &timed);
    CHECK_INT(made, 3); /* exactly 200 is not more than 200: none at 401 */
    CHECK_INT(ol_load32(offsets), 29);
    CHECK_INT(ol_load32(offsets + 4), 201);
    CHECK_INT(ol_load32(offsets + 8), 59);
    CHECK_INT(ol_load32(offsets + 12), 501);
    CHECK_INT(timed, 2); /* 60 again adds nothing */
    CHECK_INT(ol_load64(times), 60);
    CHECK_INT(ol_load32(times + 8), 29);
    CHECK_INT(ol_load64(times + 12), 70);
    CHECK_INT(ol_load32(times + 20), 69);
    CHECK_INT(state.max_timestamp, 70);
    CHECK_INT(state.max_timestamp_offset, 1069);
    CHECK_INT(state.bytes_since_entry, 100);
}

static void offsets_out_of_reach_are_survived(void) {
    ol_header rows[2] = {{0}};
    rows[0] = (ol_header){
        .size = 1000, .base_offset = INT64_MAX, .last_offset_delta = INT32_MAX, .max_timestamp = 1};
    rows[1] = (ol_header){
        .size = 1000, .base_offset = INT64_MIN, .last_offset_delta = INT32_MIN, .max_timestamp = 2};
    uint8_t offsets[16], times[24];
    ol_index_state state = {.max_timestamp = -1, .indexed_timestamp = -1};
    int64_t timed;
    CHECK_INT(ol_index_rows(&state, rows, 2, INT64_MAX, offsets, times, &timed), 1);
}

int main(void) {
    searches_find_the_last_entry_at_or_below();
    an_entry_is_made_after_more_bytes_than_the_interval();
    offsets_out_of_reach_are_survived();
    return check_result();
}
