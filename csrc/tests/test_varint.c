/* Varints: what is written is read, by both readers; what does not end is refused. */
#include "check.h"
#include "varint.h"

static void round_trip32(int32_t value) {
    uint8_t at[OL_VARINT_MAX + 1];
    memset(at, 0xaa, sizeof at);
    int size = (int)(ol_varint_write(at, value) - at);
    CHECK_INT(size, ol_varint_size(value));
    CHECK(size >= 1 && size <= OL_VARINT_MAX);
    CHECK_INT(at[size], 0xaa);
    int32_t found = ~value;
    CHECK(ol_varint_near(at, &found) == at + size);
    CHECK_INT(found, value);
    uint8_t *exact = exact_copy(at, (size_t)size);
    found = ~value;
    CHECK(ol_varint_read(exact, exact + size, &found) == exact + size);
    CHECK_INT(found, value);
    for (int cut = 0; cut < size; cut++) {
        uint8_t *part = exact_copy(at, (size_t)cut);
        CHECK(ol_varint_read(part, part + cut, &found) == NULL);
        free(part);
    }
    free(exact);
}

static void round_trip64(int64_t value) {
    uint8_t at[OL_VARLONG_MAX + 1];
    memset(at, 0xaa, sizeof at);
    int size = (int)(ol_varlong_write(at, value) - at);
    CHECK_INT(size, ol_varlong_size(value));
    CHECK(size >= 1 && size <= OL_VARLONG_MAX);
    CHECK_INT(at[size], 0xaa);
    int64_t found = ~value;
    CHECK(ol_varlong_near(at, &found) == at + size);
    CHECK_INT(found, value);
    uint8_t *exact = exact_copy(at, (size_t)size);
    found = ~value;
    CHECK(ol_varlong_read(exact, exact + size, &found) == exact + size);
    CHECK_INT(found, value);
    for (int cut = 0; cut < size; cut++) {
        uint8_t *part = exact_copy(at, (size_t)cut);
        CHECK(ol_varlong_read(part, part + cut, &found) == NULL);
        free(part);
    }
    free(exact);
}

static void known_bytes(void) {
    /* From the description of zigzag: 0, -1, 1, -2, 2 ... are 0, 1, 2, 3, 4 ... */
    static const struct {
        int32_t value;
        uint8_t size, bytes[5];
    } known[] = {
        {0, 1, {0}},
        {-1, 1, {1}},
        {1, 1, {2}},
        {63, 1, {0x7e}},
        {-64, 1, {0x7f}},
        {64, 2, {0x80, 1}},
        {-65, 2, {0x81, 1}},
        {8191, 2, {0xfe, 0x7f}},
        {8192, 3, {0x80, 0x80, 1}},
        {INT32_MAX, 5, {0xfe, 0xff, 0xff, 0xff, 0x0f}},
        {INT32_MIN, 5, {0xff, 0xff, 0xff, 0xff, 0x0f}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint8_t at[OL_VARINT_MAX];
        CHECK_INT(ol_varint_write(at, known[i].value) - at, known[i].size);
        CHECK_BYTES(at, known[i].bytes, known[i].size);
        uint8_t wide[OL_VARLONG_MAX];
        CHECK_INT(ol_varlong_write(wide, known[i].value) - wide, known[i].size);
        CHECK_BYTES(wide, known[i].bytes, known[i].size);
    }
}

static void too_long(void) {
    uint8_t ones[16];
    memset(ones, 0xff, sizeof ones);
    int32_t small = -1;
    int64_t large = -1;
    CHECK(ol_varint_near(ones, &small) == NULL);
    CHECK(ol_varlong_near(ones, &large) == NULL);
    for (int size = 0; size <= 16; size++) {
        uint8_t *exact = exact_copy(ones, (size_t)size);
        CHECK(ol_varint_read(exact, exact + size, &small) == NULL);
        CHECK(ol_varlong_read(exact, exact + size, &large) == NULL);
        free(exact);
    }
    /* The longest forms end in time: five and ten bytes, the surplus bits of the last are dropped. */
    uint8_t longest[10] = {0x80, 0x80, 0x80, 0x80, 0x00};
    CHECK(ol_varint_read(longest, longest + 5, &small) == longest + 5);
    CHECK_INT(small, 0);
    memset(longest, 0x80, 9);
    longest[9] = 0;
    CHECK(ol_varlong_read(longest, longest + 10, &large) == longest + 10);
    CHECK_INT(large, 0);
}

int main(void) {
    known_bytes();
    for (int64_t value = -70000; value <= 70000; value++) {
        round_trip32((int32_t)value);
        round_trip64(value);
    }
    for (int bit = 0; bit < 64; bit++)
        for (int64_t near = -2; near <= 2; near++) {
            uint64_t power = (uint64_t)1 << bit;
            round_trip64((int64_t)(power + (uint64_t)near));
            round_trip64((int64_t)(0 - power + (uint64_t)near));
            round_trip32((int32_t)(uint32_t)(power + (uint64_t)near));
            round_trip32((int32_t)(uint32_t)(0 - power + (uint64_t)near));
        }
    for (int i = 0; i < 100000; i++) {
        uint64_t bits = check_random() >> (check_random() % 64);
        round_trip64((int64_t)bits);
        round_trip32((int32_t)(uint32_t)bits);
    }
    too_long();
    return check_result();
}
