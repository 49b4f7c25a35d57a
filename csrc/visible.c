/* Which records of many partitions a read_committed reader may see, judged row by row.
 *
 * Unlike the abort filter, which walks one partition in the order of its offsets, rows come in any order and
 * from anywhere: each is looked up by itself. Rows that follow each other mostly lie in the same partition and
 * the same gap or range, so what was found is kept for the next. */
#include <string.h>

#include "oncelog.h"

/* ---------------------------------------------------------------- columns */

static inline bool is_valid(const uint8_t *validity, int64_t index) {
    return !validity || (validity[index >> 3] >> (index & 7) & 1);
}

/* Whether there is a number, and which. */
static inline bool number_at(const ol_integers *column, int64_t row, int64_t *out) {
    int64_t at = column->offset + row;
    if (!is_valid(column->validity, at)) return false;
    switch (column->width) {
    case 1:
        *out = ((const int8_t *)column->values)[at];
        return true;
    case 2:
        *out = ((const int16_t *)column->values)[at];
        return true;
    case 4:
        *out = ((const int32_t *)column->values)[at];
        return true;
    default:
        *out = ((const int64_t *)column->values)[at];
        return true;
    }
}

/* ---------------------------------------------------------------- places */

static int compare_place(const ol_slice *name, int32_t number, const ol_slice *topic,
                         int64_t partition) {
    int64_t shorter = name->size < topic->size ? name->size : topic->size;
    int order = memcmp(name->data, topic->data, (size_t)shorter);
    if (order) return order;
    if (name->size != topic->size) return name->size < topic->size ? -1 : 1;
    return (number > partition) - (number < partition);
}

static int32_t find_place(const ol_aborted_index *index, const ol_slice *topic, int64_t partition) {
    int64_t low = 0, high = index->place_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = compare_place(index->topics + middle, index->numbers[middle], topic, partition);
        if (!order) return (int32_t)middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return OL_PLACE_UNKNOWN;
}

void ol_places(int32_t *places, const ol_aborted_index *index, const ol_slice *topics,
               const ol_integers *partitions, int64_t start, int64_t count) {
    ol_slice topic = {NULL, -1};
    int64_t partition = 0, number;
    int32_t place = OL_PLACE_NULL;
    for (int64_t i = 0; i < count; i++) {
        if (topics[i].size < 0 || !number_at(partitions, start + i, &number)) {
            places[i] = OL_PLACE_NULL;
            continue;
        }
        bool same = number == partition && topics[i].size == topic.size &&
                    (topics[i].data == topic.data ||
                     memcmp(topics[i].data, topic.data, (size_t)topic.size) == 0);
        if (!same) {
            /* The partitions of a topic mostly stand side by side. */
            int64_t guess = (int64_t)((uint64_t)place + (uint64_t)number - (uint64_t)partition);
            bool near =
                place >= 0 && guess >= 0 && guess < index->place_count &&
                !compare_place(index->topics + guess, index->numbers[guess], topics + i, number);
            topic = topics[i];
            partition = number;
            place = near ? (int32_t)guess : find_place(index, &topic, partition);
        }
        places[i] = place;
    }
}

/* ---------------------------------------------------------------- visibility */

enum { STRETCHES = 256 }; /* that are remembered: producers and partitions take turns */

/* Over these offsets of one producer in one partition the answer is the same. */
typedef struct stretch {
    int32_t place;
    int64_t producer_id;
    int64_t from, to; /* both included */
    bool aborted;
} stretch;

static void find_stretch(stretch *found, const ol_aborted_index *index, int32_t place,
                         int64_t producer_id, int64_t offset) {
    const ol_aborted *rows = index->aborted;
    int64_t first = index->starts[place], low = first, end = index->starts[place + 1], high = end;
    /* The first transaction that comes after (producer_id, offset). */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (rows[middle].producer_id < producer_id ||
            (rows[middle].producer_id == producer_id && rows[middle].first_offset <= offset))
            low = middle + 1;
        else
            high = middle;
    }
    *found = (stretch){place, producer_id, INT64_MIN, INT64_MAX, false};
    if (low < end && rows[low].producer_id == producer_id) found->to = rows[low].first_offset - 1;
    if (low > first && rows[low - 1].producer_id == producer_id) {
        found->aborted = offset <= rows[low - 1].last_offset;
        if (found->aborted) {
            found->from = rows[low - 1].first_offset;
            found->to = rows[low - 1].last_offset;
        } else
            found->from = rows[low - 1].last_offset + 1;
    }
}

int64_t ol_visible(uint8_t *visible, uint8_t *null, const ol_aborted_index *index,
                   const int32_t *places, const ol_integers *offsets,
                   const ol_integers *producer_ids, const ol_integers *attributes, int64_t count) {
    stretch recent[STRETCHES];
    for (int slot = 0; slot < STRETCHES; slot++) recent[slot] = (stretch){-1, 0, 0, -1, false};
    int64_t offset, producer_id, flags, nulls = 0;
    for (int64_t row = 0; row < count; row++) {
        int32_t place = places[row];
        visible[row] = null[row] = 0;
        if (place == OL_PLACE_NULL || !number_at(offsets, row, &offset) ||
            !number_at(attributes, row, &flags)) {
            null[row] = 1;
            nulls++;
            continue;
        }
        if (flags & OL_ATTR_CONTROL) continue;
        if (place >= 0 && offset >= index->stable[place]) continue;
        visible[row] = 1;
        if (place < 0 || !(flags & OL_ATTR_TRANSACTIONAL) ||
            !number_at(producer_ids, row, &producer_id))
            continue;
        uint64_t mixed = ((uint64_t)producer_id * 31 + (uint64_t)place) * 0x9E3779B97F4A7C15ull;
        stretch *known = recent + (mixed >> 32) % STRETCHES;
        if (place != known->place || producer_id != known->producer_id || offset < known->from ||
            offset > known->to)
            find_stretch(known, index, place, producer_id, offset);
        visible[row] = !known->aborted;
    }
    return nulls;
}
