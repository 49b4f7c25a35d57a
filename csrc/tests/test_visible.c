/* Rows of many partitions: places, stretches, nulls. */
#include "check.h"
#include "oncelog.h"

static const ol_slice TOPICS[] = {
    {(const uint8_t *)"a", 1}, {(const uint8_t *)"a", 1}, {(const uint8_t *)"ab", 2}};
static const int32_t NUMBERS[] = {0, 3, 0};
static const int64_t STABLE[] = {100, INT64_MAX, INT64_MAX};
static const int64_t STARTS[] = {0, 3, 3, 4};
static const ol_aborted ABORTED[] = {
    {7, 10, 19, -1}, {7, 30, 30, -1}, {9, 5, 50, -1}, {7, 0, 9, -1}};
static const ol_aborted_index INDEX = {TOPICS, NUMBERS, STABLE, STARTS, ABORTED, 3};

static void places_are_found_by_topic_and_number(void) {
    const ol_slice topics[] = {{(const uint8_t *)"ab", 2},
                               {(const uint8_t *)"a", 1},
                               {(const uint8_t *)"a", 1},
                               {(const uint8_t *)"", 0},
                               {NULL, -1},
                               {(const uint8_t *)"a", 1}};
    const int32_t numbers[] = {0, 3, 0, 0, 0, 4};
    const int32_t expected[] = {2, 1, 0, OL_PLACE_UNKNOWN, OL_PLACE_NULL, OL_PLACE_UNKNOWN};
    const ol_integers column = {numbers, NULL, 0, 6, 4};
    int32_t found[6];
    ol_places(found, &INDEX, topics, &column, 0, 6);
    for (int i = 0; i < 6; i++) CHECK_INT(found[i], expected[i]);
}

static void rows_are_judged_in_any_order(void) {
    static const struct {
        int32_t place;
        int64_t offset;
        int64_t producer;
        int8_t attributes;
        uint8_t visible;
    } rows[] = {
        {0, 10, 7, OL_ATTR_TRANSACTIONAL, 0},
        {0, 19, 7, OL_ATTR_TRANSACTIONAL, 0},
        {0, 20, 7, OL_ATTR_TRANSACTIONAL, 1},
        {0, 9, 7, OL_ATTR_TRANSACTIONAL, 1},
        {0, 30, 7, OL_ATTR_TRANSACTIONAL, 0},
        {0, 31, 7, OL_ATTR_TRANSACTIONAL, 1},
        {0, 15, 7, 0, 1}, /* not of a transaction */
        {0, 15, 8, OL_ATTR_TRANSACTIONAL, 1},
        {0, 15, 9, OL_ATTR_TRANSACTIONAL, 0},
        {0, 60, 9, OL_ATTR_TRANSACTIONAL | OL_ATTR_CONTROL, 0},
        {0, 99, 1, 0, 1},
        {0, 100, 1, 0, 0}, /* not stable yet */
        {1, 10, 7, OL_ATTR_TRANSACTIONAL, 1},
        {2, 9, 7, OL_ATTR_TRANSACTIONAL, 0},
        {2, 10, 7, OL_ATTR_TRANSACTIONAL, 1},
        {OL_PLACE_UNKNOWN, 10, 7, OL_ATTR_TRANSACTIONAL, 1},
    };
    enum { COUNT = sizeof rows / sizeof *rows };
    int32_t places[COUNT];
    int64_t offsets[COUNT], producers[COUNT];
    int8_t attributes[COUNT];
    uint8_t visible[COUNT], null[COUNT];
    for (int step = 1; step < COUNT; step += 2) {
        for (int i = 0; i < COUNT; i++) {
            int row = i * step % COUNT;
            places[i] = rows[row].place;
            offsets[i] = rows[row].offset;
            producers[i] = rows[row].producer;
            attributes[i] = rows[row].attributes;
        }
        const ol_integers columns[] = {{offsets, NULL, 0, COUNT, 8},
                                       {producers, NULL, 0, COUNT, 8},
                                       {attributes, NULL, 0, COUNT, 1}};
        CHECK_INT(
            ol_visible(visible, null, &INDEX, places, columns, columns + 1, columns + 2, COUNT), 0);
        for (int i = 0; i < COUNT; i++) CHECK_INT(visible[i], rows[i * step % COUNT].visible);
    }
}

static void nulls_stay_null(void) {
    const int32_t places[] = {0, 0, OL_PLACE_NULL, 0};
    const int64_t numbers[] = {0, 15, 15, 15, 15};
    const int16_t attributes[] = {OL_ATTR_TRANSACTIONAL, OL_ATTR_TRANSACTIONAL,
                                  OL_ATTR_TRANSACTIONAL, OL_ATTR_TRANSACTIONAL};
    const uint8_t first_is_null = 0x1d; /* of the rows after the offset */
    const uint8_t last_is_null = 0x07;
    const ol_integers offsets = {numbers, &first_is_null, 1, 4, 8};
    const ol_integers producers = {numbers, &first_is_null, 1, 4, 8};
    const ol_integers flags = {attributes, &last_is_null, 0, 4, 2};
    uint8_t visible[4], null[4];
    CHECK_INT(ol_visible(visible, null, &INDEX, places, &offsets, &producers, &flags, 4), 3);
    CHECK_INT(null[0], 1);
    CHECK_INT(null[1], 0);
    CHECK_INT(null[2], 1);
    CHECK_INT(null[3], 1);
    CHECK_INT(visible[1], 1); /* 15 is nobody's producer id here */
}

int main(void) {
    places_are_found_by_topic_and_number();
    rows_are_judged_in_any_order();
    nulls_stay_null();
    return check_result();
}
