/* What do the kernels of producers and transactions cost, without Python in between?
 * Times    "sequence": the verdict on one batch of each of 100,000 producers, in random order; "collect": one
 *          lookup with 10 hits among 1,000,000 aborted transactions; "abort_filter": 100,000 batch headers
 *          of 50 producers, a tenth of their transactions aborted.
 * Anchor   for "collect" a linear scan, for "abort_filter" the rule at its plainest; benches/bench_sequence.py,
 *          bench_txn_index.py and bench_abort_filter.py time the same from Python.
 *
 *   bench_state [--only NAME] [--rounds N]
 */
#define _POSIX_C_SOURCE 200809L
#include "contest.h"
#include "endian.h"
#include "floor.c" /* a benchmark is one file and the library: CMake knows no more of them */
#include "oncelog.h"

enum {
    PRODUCERS = 100000,
    ENTRIES = 1000000,
    STEP = 100, /* offsets from one marker to the next */
    HITS = 10,
    ROWS = 100000,
    WRITERS = 50,
    BATCHES = 10, /* of a transaction */
    ABORT_EVERY = 10,
};

/* ---------------------------------------------------------------- sequence */

static ol_producers *table;
static int64_t asked[PRODUCERS];
static int64_t verdicts; /* so that no call is left out */

static void prepare_producers(void) {
    table = ol_producers_new();
    if (!table) fail("out of memory");
    uint32_t state = 2463534242u;
    for (int64_t i = 0; i < PRODUCERS; i++) asked[i] = 10 * i + 3;
    for (int64_t i = PRODUCERS - 1; i > 0; i--) {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        int64_t other = state % (i + 1), kept = asked[i];
        asked[i] = asked[other];
        asked[other] = kept;
    }
    for (int64_t i = 0; i < PRODUCERS; i++) {
        ol_producer_batch batch = {
            .last_offset = 10 * i + 9, .last_sequence = 9, .offset_delta = 9};
        ol_producer *entry = ol_producers_put(table, 10 * i + 3);
        if (!entry) fail("out of memory");
        ol_producer_note(entry, 0, &batch);
    }
}

static void judge(int32_t sequence, ol_verdict expected) {
    int64_t duplicate_of = -1;
    for (int64_t i = 0; i < PRODUCERS; i++)
        verdicts +=
            ol_sequence_check(table, asked[i], 0, sequence, 10, false, &duplicate_of) == expected;
}

CONTESTANT ours_sequence_next(void) { judge(10, OL_ACCEPT); }
CONTESTANT ours_sequence_again(void) { judge(0, OL_DUPLICATE); }

/* ---------------------------------------------------------------- transaction index */

static uint8_t *entries;
static ol_txn_summary summary;
static int64_t hits[2][HITS + 1], fetch_offset, upper_bound, found;

static void prepare_index(void) {
    entries = room((size_t)ENTRIES * OL_TXN_ENTRY_BYTES);
    for (int64_t i = 0; i < ENTRIES; i++) {
        uint8_t *entry = entries + i * OL_TXN_ENTRY_BYTES;
        ol_store16(entry, 0);
        ol_store64(entry + 2, (uint64_t)(i % 97));
        ol_store64(entry + 10, (uint64_t)(i * STEP + 1));
        ol_store64(entry + 18, (uint64_t)(i * STEP + STEP));
        ol_store64(entry + 26, (uint64_t)(i * STEP + STEP + 1));
    }
    if (ol_txn_summary_extend(&summary, entries, ENTRIES) != OL_OK) fail("out of memory");
    fetch_offset = (int64_t)ENTRIES * 9 / 10 * STEP + 1; /* most readers are near the end */
    upper_bound = fetch_offset + HITS * STEP - STEP / 2;
}

CONTESTANT ours_collect(void) {
    int64_t from = 0;
    bool complete;
    found = 0;
    if (ol_txn_index_collect(&summary, entries, fetch_offset, upper_bound, hits[0], HITS + 1,
                             &found, &from, &complete) != OL_OK)
        fail("ours cannot collect");
}
CONTESTANT floor_collect(void) {
    found = floor_collect_aborted(entries, ENTRIES, fetch_offset, upper_bound, hits[1], HITS + 1);
}

/* ---------------------------------------------------------------- abort filter */

static ol_header rows[ROWS];
static ol_aborted aborted[ROWS / BATCHES + WRITERS];
static int64_t aborted_count;
static uint8_t masks[2][ROWS], open_writers[WRITERS];

static int by_first_offset(const void *left, const void *right) {
    const ol_aborted *a = left, *b = right;
    return (a->first_offset > b->first_offset) - (a->first_offset < b->first_offset);
}

/* Writers take turns, batch by batch; each ends its transaction with a marker after BATCHES of them. */
static void prepare_rows(void) {
    int64_t first[WRITERS] = {0}, count[WRITERS] = {0}, transactions = 0;
    for (int64_t i = 0; i < ROWS; i++) {
        int64_t writer = i % WRITERS;
        bool marker = count[writer] == BATCHES;
        rows[i] = (ol_header){.base_offset = 10 * i,
                              .last_offset_delta = 9,
                              .producer_id = writer,
                              .attributes = OL_ATTR_TRANSACTIONAL,
                              .control_type = OL_CONTROL_NONE};
        if (!count[writer]++) first[writer] = 10 * i;
        if (!marker) continue;
        bool abort = transactions++ % ABORT_EVERY == 0;
        rows[i].attributes |= OL_ATTR_CONTROL;
        rows[i].control_type = abort ? OL_CONTROL_ABORT : OL_CONTROL_COMMIT;
        if (abort)
            aborted[aborted_count++] = (ol_aborted){
                .producer_id = writer, .first_offset = first[writer], .last_offset = 10 * i + 9};
        count[writer] = 0;
    }
    qsort(aborted, (size_t)aborted_count, sizeof *aborted, by_first_offset);
}

CONTESTANT ours_abort_filter(void) {
    if (ol_abort_filter(masks[0], rows, ROWS, aborted, aborted_count) != OL_OK)
        fail("out of memory");
}
CONTESTANT floor_abort_filter_rows(void) {
    floor_abort_filter(masks[1], rows, ROWS, aborted, aborted_count, open_writers);
}

/* ---------------------------------------------------------------- the run */

/* Nothing is timed before ours and the floor have found the same. */
static void check(void) {
    verdicts = 0;
    ours_sequence_next();
    ours_sequence_again();
    if (verdicts != 2 * PRODUCERS) fail("a producer's batch is judged otherwise than it should be");
    ours_collect();
    int64_t ours = found;
    floor_collect();
    if (ours != HITS || found != HITS || memcmp(hits[0], hits[1], HITS * sizeof **hits) != 0)
        fail("ours and the linear scan collect different transactions");
    ours_abort_filter();
    floor_abort_filter_rows();
    if (memcmp(masks[0], masks[1], ROWS) != 0) fail("ours and the floor see different batches");
}

int main(int count, char **words) {
    contest made = {.rounds = 20};
    for (int i = 1; i < count; i++)
        if (!contest_option(&made, count, words, &i))
            fail("bench_state: unknown option; see the head of bench_state.c");
    prepare_producers();
    prepare_index();
    prepare_rows();
    check();
    contestant all[] = {
        {"ours_sequence_next", ours_sequence_next, PRODUCERS, -1, 0},
        {"ours_sequence_again", ours_sequence_again, PRODUCERS, -1, 0},
        {"floor_collect", floor_collect, 1, -1, 0},
        {"ours_collect", ours_collect, 1, 2, 0},
        {"floor_abort_filter_rows", floor_abort_filter_rows, ROWS, -1, 0},
        {"ours_abort_filter", ours_abort_filter, ROWS, 4, 0},
    };
    contest_run(&made, all, sizeof all / sizeof *all, 0);
    return 0;
}
