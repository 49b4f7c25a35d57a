/* The producer table under the sanitizers: chains that grow and shrink, the heap of open transactions, and numbers
 * that no honest log holds. The rules themselves are tested in tests/native/test_sequence.py. */
#include "batches.h"

static ol_header row(int64_t producer_id, int64_t offset, int16_t attributes) {
    return (ol_header){.producer_id = producer_id,
                       .base_offset = offset,
                       .record_count = 1,
                       .attributes = attributes,
                       .control_type = attributes & OL_ATTR_CONTROL ? 0 : OL_CONTROL_NONE};
}

static void replay(ol_producers *table, ol_header row, int64_t expected_aborts) {
    ol_aborted aborted;
    int64_t count;
    CHECK_INT(ol_producers_replay(table, &row, 1, &aborted, &count), OL_OK);
    CHECK_INT(count, expected_aborts);
}

/* Ids that share their low bits meet in one chain; a flag for each says who should be there. */
static void producers_come_and_go(void) {
    enum { IDS = 512 };
    bool present[IDS] = {false};
    int64_t count = 0;
    ol_producers *table = ol_producers_new();
    CHECK(table != NULL);
    for (int step = 0; step < 20000; step++) {
        int64_t which = (int64_t)(check_random() % IDS), id = which << 40;
        if (check_random() % 2) {
            CHECK(ol_producers_put(table, id) != NULL);
            count += !present[which];
            present[which] = true;
        } else {
            ol_producers_remove(table, id);
            count -= present[which];
            present[which] = false;
        }
        CHECK_INT(ol_producers_count(table), count);
        if (step % 50) continue;
        for (int64_t each = 0; each < IDS; each++) {
            const ol_producer *found = ol_producers_find(table, each << 40);
            CHECK_INT(found != NULL, present[each]);
            if (found) CHECK_INT(found->producer_id, each << 40);
        }
    }
    ol_producers_free(table);
}

static void the_oldest_open_transaction_is_known(void) {
    enum { IDS = 64 };
    int64_t opened[IDS];
    for (int id = 0; id < IDS; id++) opened[id] = -1;
    ol_producers *table = ol_producers_new();
    for (int64_t offset = 0; offset < 20000; offset++) {
        int64_t id = (int64_t)(check_random() % IDS);
        bool ends = check_random() % 2;
        int64_t least = -1, beside = -1;
        replay(
            table,
            row(id, offset, ends ? OL_ATTR_TRANSACTIONAL | OL_ATTR_CONTROL : OL_ATTR_TRANSACTIONAL),
            ends && opened[id] >= 0);
        if (ends)
            opened[id] = -1;
        else if (opened[id] < 0)
            opened[id] = offset;
        int64_t left_out = (int64_t)(check_random() % IDS);
        for (int64_t each = 0; each < IDS; each++) {
            if (opened[each] < 0) continue;
            if (least < 0 || opened[each] < least) least = opened[each];
            if (each != left_out && (beside < 0 || opened[each] < beside)) beside = opened[each];
        }
        CHECK_INT(ol_producers_first_open_beside(table, left_out), beside);
        if (offset % 3) continue; /* asking cleans up, so it is not always done */
        CHECK_INT(ol_producers_first_open(table), least);
    }
    ol_producers_free(table);
}

static void sequences_wrap(void) {
    ol_producers *table = ol_producers_new();
    ol_header batch = row(1, 10, 0);
    batch.base_sequence = INT32_MAX - 1;
    batch.last_offset_delta = 3;
    replay(table, batch, 0);
    int64_t duplicate = -1;
    CHECK_INT(ol_sequence_check(table, 1, 0, INT32_MAX - 1, 4, false, &duplicate), OL_DUPLICATE);
    CHECK_INT(duplicate, 10);
    CHECK_INT(ol_sequence_check(table, 1, 0, 2, 1, false, &duplicate), OL_ACCEPT);
    CHECK_INT(ol_sequence_check(table, 1, 0, 3, 1, false, &duplicate), OL_OUT_OF_ORDER);
    ol_producers_free(table);
}

static void senseless_rows_are_survived(void) {
    ol_producers *table = ol_producers_new();
    for (int step = 0; step < 20000; step++) {
        ol_header odd = {.producer_id = (int64_t)check_random(),
                         .base_offset = (int64_t)check_random(),
                         .max_timestamp = (int64_t)check_random(),
                         .last_offset_delta = (int32_t)check_random(),
                         .record_count = (int32_t)check_random(),
                         .base_sequence = (int32_t)check_random(),
                         .coordinator_epoch = (int32_t)check_random(),
                         .attributes = (int16_t)check_random(),
                         .producer_epoch = (int16_t)check_random(),
                         .control_type = (int16_t)(check_random() % 4 - 2)};
        if (step % 3) odd.producer_id &= 15;
        ol_aborted aborted;
        int64_t count, duplicate;
        CHECK_INT(ol_producers_replay(table, &odd, 1, &aborted, &count), OL_OK);
        ol_sequence_check(table, odd.producer_id, odd.producer_epoch, odd.base_sequence,
                          odd.record_count, step % 2, &duplicate);
        ol_producers_judge(table, &odd, step % 2, step % 5 == 0, &duplicate);
    }
    ol_producers_first_open(table);
    ol_producers_free(table);
    ol_producers_free(NULL);
}

int main(void) {
    producers_come_and_go();
    the_oldest_open_transaction_is_known();
    sequences_wrap();
    senseless_rows_are_survived();
    return check_result();
}
