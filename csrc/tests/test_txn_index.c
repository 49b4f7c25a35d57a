/* The transaction index: lookups equal a linear scan, and cost a logarithm of it. */
#include "batches.h"

enum { ENTRIES_MAX = 70000 };

static uint8_t bytes[ENTRIES_MAX * OL_TXN_ENTRY_BYTES];

static void put(int64_t index, int64_t producer_id, int64_t first, int64_t last, int64_t stable) {
    uint8_t *at = bytes + OL_TXN_ENTRY_BYTES * index;
    ol_store16(at, 0);
    ol_store64(at + 2, (uint64_t)producer_id);
    ol_store64(at + 10, (uint64_t)first);
    ol_store64(at + 18, (uint64_t)last);
    ol_store64(at + 26, (uint64_t)stable);
}

/* Kafka's rule, entry by entry. */
static int64_t linear(int64_t count, int64_t fetch, int64_t upper, int64_t *hits, bool *complete) {
    int64_t found = 0;
    *complete = false;
    for (int64_t index = 0; index < count && !*complete; index++) {
        ol_aborted entry;
        ol_fault fault;
        CHECK_INT(ol_txn_entry_read(&entry, bytes, sizeof bytes, index, &fault), OL_OK);
        if (entry.last_offset >= fetch && entry.first_offset < upper) hits[found++] = index;
        *complete = entry.last_stable_offset >= upper;
    }
    return found;
}

/* All hits, fetched `capacity` at a time. */
static int64_t collect(const ol_txn_summary *summary, const uint8_t *entries, int64_t fetch,
                       int64_t upper, int64_t *hits, int64_t capacity, bool *complete) {
    int64_t total = 0, found, from = 0;
    do {
        CHECK_INT(ol_txn_index_collect(summary, entries, fetch, upper, hits + total, capacity,
                                       &found, &from, complete),
                  OL_OK);
        total += found;
    } while (found == capacity);
    return total;
}

static void lookups_equal_a_linear_scan(void) {
    static int64_t expected[ENTRIES_MAX], hits[ENTRIES_MAX + 64];
    static const int64_t sizes[] = {0, 1, 15, 16, 17, 255, 256, 257, 272, 1000};
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
        for (int shape = 0; shape < 3; shape++) {
            int64_t count = sizes[size], stable = 0;
            for (int64_t index = 0; index < count; index++) {
                int64_t last = 4 * index + 3;
                int64_t first = check_random() % 5
                                    ? last - (int64_t)(check_random() % 4)
                                    : (int64_t)(check_random() % (uint64_t)(last + 1));
                if (shape == 1 || (shape == 2 && check_random() % 3)) stable = last + 1;
                put(index, index % 7, first < 0 ? 0 : first, last, stable);
            }
            ol_fault fault;
            uint8_t *exact = exact_copy(bytes, (size_t)count * OL_TXN_ENTRY_BYTES);
            if (shape ==
                0) /* others have stable offsets that no log gives, to stop lookups anywhere */
                CHECK_INT(
                    ol_txn_index_check(exact, (size_t)count * OL_TXN_ENTRY_BYTES, 0, 0, &fault),
                    OL_OK);
            ol_txn_summary summary = {0};
            /* In two steps, so that a block is cut anywhere. */
            CHECK_INT(ol_txn_summary_extend(&summary, exact, count / 3), OL_OK);
            CHECK_INT(ol_txn_summary_extend(&summary, exact, count), OL_OK);
            for (int query = 0; query < 300; query++) {
                int64_t fetch = (int64_t)(check_random() % (uint64_t)(4 * count + 8)) - 2;
                int64_t upper = query % 2 ? fetch + (int64_t)(check_random() % 40)
                                          : (int64_t)(check_random() % (uint64_t)(4 * count + 8));
                bool complete, wanted;
                int64_t wanted_count = linear(count, fetch, upper, expected, &wanted);
                int64_t capacity = query % 3 ? 64 : 1 + query % 5;
                int64_t found = collect(&summary, exact, fetch, upper, hits, capacity, &complete);
                CHECK_INT(found, wanted_count);
                CHECK_INT(complete, wanted);
                if (found == wanted_count)
                    CHECK_BYTES(hits, expected, (size_t)found * sizeof *hits);
            }
            ol_txn_summary_free(&summary);
            free(exact);
        }
    }
}

/* The entries lie in a file that is mapped: what a lookup does not touch is not read from the disk. Entries
 * that it may not visit are given first offsets that would make them hits, after the summary was built. */
static void a_lookup_visits_few_entries(void) {
    static int64_t hits[64];
    int64_t count = ENTRIES_MAX;
    for (int64_t index = 0; index < count; index++)
        put(index, 1, 10 * index + 1, 10 * index + 9, 0); /* one long transaction is open */
    ol_txn_summary summary = {0};
    CHECK_INT(ol_txn_summary_extend(&summary, bytes, count), OL_OK);
    int64_t middle = count / 2, first = middle - middle % 256;
    /* Every entry of every block of 16 but the one asked for and the next now claims to begin at 0. */
    for (int64_t index = 0; index < count; index++)
        if (index < first || index >= first + 32)
            ol_store64(bytes + OL_TXN_ENTRY_BYTES * index + 10, 0);
    bool complete;
    int64_t found = collect(&summary, bytes, 10 * first, 10 * first + 50, hits, 64, &complete);
    CHECK_INT(found, 5); /* a scan to the end would have found tens of thousands */
    CHECK(!complete);
    for (int64_t index = 0; index < found; index++) CHECK_INT(hits[index], first + index);
    ol_txn_summary_free(&summary);
}

static void what_cannot_be_right_is_refused_where_it_lies(void) {
    ol_fault fault;
    put(0, 4, 100, 110, 105);
    put(1, 5, 105, 120, 115);
    put(2, 4, 115, 130, 131);
    size_t size = 3 * OL_TXN_ENTRY_BYTES;
    CHECK_INT(ol_txn_index_check(bytes, size, 110, 0, &fault), OL_OK);
    CHECK_INT(ol_txn_index_check(bytes, size, 111, 0, &fault), OL_E_HEADER);
    CHECK_INT(fault.position, 0);
    for (size_t cut = 0; cut <= size; cut++) {
        uint8_t *exact = exact_copy(bytes, cut);
        ol_status status = ol_txn_index_check(exact, cut, 0, 0, &fault);
        CHECK_INT(status, cut % OL_TXN_ENTRY_BYTES ? OL_E_TRUNCATED : OL_OK);
        if (status != OL_OK)
            CHECK_INT(fault.position, cut / OL_TXN_ENTRY_BYTES * OL_TXN_ENTRY_BYTES);
        free(exact);
    }
    static const struct {
        int at, bytes;
        int64_t value;
    } damages[] = {{0, 2, 1},    {0, 2, 256},  {2, 8, -1},   {10, 8, -1}, {10, 8, 121},
                   {18, 8, 110}, {10, 8, 104}, {26, 8, 104}, {26, 8, 122}};
    for (size_t damage = 0; damage < sizeof damages / sizeof *damages; damage++) {
        put(1, 5, 105, 120, 115);
        uint8_t *at = bytes + OL_TXN_ENTRY_BYTES + damages[damage].at;
        if (damages[damage].bytes == 2)
            ol_store16(at, (uint16_t)damages[damage].value);
        else
            ol_store64(at, (uint64_t)damages[damage].value);
        CHECK_INT(ol_txn_index_check(bytes, size, 0, 0, &fault), OL_E_HEADER);
        CHECK_INT(fault.position, OL_TXN_ENTRY_BYTES);
    }
    ol_aborted entry;
    CHECK_INT(ol_txn_entry_read(&entry, bytes, size, 3, &fault), OL_E_TRUNCATED);
    CHECK_INT(ol_txn_entry_read(&entry, bytes, size, -1, &fault), OL_E_TRUNCATED);
}

int main(void) {
    lookups_equal_a_linear_scan();
    a_lookup_visits_few_entries();
    what_cannot_be_right_is_refused_where_it_lies();
    return check_result();
}
