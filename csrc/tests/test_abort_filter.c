/* The consumer's algorithm over header rows, against a slow one, under the sanitizers. */
#include "batches.h"

enum { ROWS = 400, ABORTED = 60, PRODUCERS = 9 };

/* One flag a producer, the list searched anew for each batch. Last offsets are not given. */
static void slow(uint8_t *visible, const ol_header *rows, int64_t count, const ol_aborted *aborted,
                 int64_t aborted_count) {
    bool hidden[PRODUCERS] = {false}, taken[ABORTED] = {false};
    for (int64_t row = 0; row < count; row++) {
        for (int64_t entry = 0; entry < aborted_count; entry++) {
            if (taken[entry] || aborted[entry].first_offset > ol_last_offset(rows + row)) continue;
            taken[entry] = true;
            hidden[aborted[entry].producer_id] = true;
        }
        if (rows[row].attributes & OL_ATTR_CONTROL) {
            visible[row] = 0;
            if (rows[row].control_type == 0) hidden[rows[row].producer_id] = false;
        } else {
            visible[row] =
                !(rows[row].attributes & OL_ATTR_TRANSACTIONAL && hidden[rows[row].producer_id]);
        }
    }
}

static void random_lists_are_filtered_as_by_a_consumer(void) {
    for (int round = 0; round < 300; round++) {
        int64_t count = (int64_t)(check_random() % ROWS), offset = 0;
        int64_t aborted_count = (int64_t)(check_random() % ABORTED);
        ol_header *rows = calloc((size_t)count + 1, sizeof *rows);
        ol_aborted *aborted = calloc((size_t)aborted_count + 1, sizeof *aborted);
        uint8_t *found = malloc((size_t)count + 1), *expected = malloc((size_t)count + 1);
        if (!rows || !aborted || !found || !expected) abort();
        for (int64_t row = 0; row < count; row++) {
            uint64_t kind = check_random() % 8;
            rows[row].base_offset = offset;
            rows[row].last_offset_delta = (int32_t)(check_random() % 4);
            rows[row].producer_id = (int64_t)(check_random() % PRODUCERS);
            rows[row].control_type = OL_CONTROL_NONE;
            if (kind > 1) rows[row].attributes = OL_ATTR_TRANSACTIONAL;
            if (kind > 5) {
                rows[row].attributes |= OL_ATTR_CONTROL;
                rows[row].control_type = (int16_t)(kind - 6);
                rows[row].last_offset_delta = 0;
            }
            offset = ol_last_offset(rows + row) + 1 + (int64_t)(check_random() % 2);
        }
        for (int64_t entry = 0; entry < aborted_count; entry++)
            aborted[entry] =
                (ol_aborted){(int64_t)(check_random() % PRODUCERS),
                             (int64_t)(check_random() % (uint64_t)(offset + 1)), -1, -1};
        CHECK_INT(ol_abort_filter(found, rows, count, aborted, aborted_count), OL_OK);
        slow(expected, rows, count, aborted, aborted_count);
        CHECK_BYTES(found, expected, (size_t)count);
        free(rows);
        free(aborted);
        free(found);
        free(expected);
    }
}

static ol_header data(int64_t producer_id, int64_t offset) {
    return (ol_header){.producer_id = producer_id,
                       .base_offset = offset,
                       .attributes = OL_ATTR_TRANSACTIONAL,
                       .control_type = OL_CONTROL_NONE};
}

static void a_known_end_needs_no_marker(void) {
    ol_header rows[] = {data(1, 0), data(1, 4), data(1, 5), data(1, 9)};
    ol_aborted aborted[] = {{1, 8, 9, 10}, {1, 0, 4, 5}};
    uint8_t visible[4];
    CHECK_INT(ol_abort_filter(visible, rows, 4, aborted, 2), OL_OK);
    static const uint8_t expected[] = {0, 0, 1, 0};
    CHECK_BYTES(visible, expected, 4);
}

static void offsets_past_the_end_of_their_type_are_survived(void) {
    ol_header rows[] = {data(1, INT64_MAX), data(INT64_MIN, INT64_MIN)};
    rows[0].last_offset_delta = INT32_MAX;
    rows[1].last_offset_delta = INT32_MIN;
    ol_aborted aborted[] = {{INT64_MIN, INT64_MIN, INT64_MAX, 0}, {1, INT64_MAX, INT64_MIN, 0}};
    uint8_t visible[2];
    CHECK_INT(ol_abort_filter(visible, rows, 2, aborted, 2), OL_OK);
}

int main(void) {
    random_lists_are_filtered_as_by_a_consumer();
    a_known_end_needs_no_marker();
    offsets_past_the_end_of_their_type_are_survived();
    return check_result();
}
