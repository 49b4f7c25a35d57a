/* Headers: every field to its place and back, and nothing believed before it is checked. */
#include "batches.h"

static const ol_header wide = {
    .size = OL_HEADER_BYTES,
    .base_offset = 0x0102030405060708,
    .base_timestamp = 0x1112131415161718,
    .max_timestamp = 0x2122232425262728,
    .producer_id = 0x3132333435363738,
    .last_offset_delta = 0x41424344,
    .record_count = 0,
    .base_sequence = 0x51525354,
    .partition_leader_epoch = 0x61626364,
    .crc = 0x71727374,
    .attributes = 0x0110,
    .producer_epoch = 0x0301,
};

static void fields_have_their_places(void) {
    static const uint8_t expected[OL_HEADER_BYTES] = {
        1,    2,    3,    4,    5,    6,    7,    8,    0,    0,    0,    49,   0x61,
        0x62, 0x63, 0x64, 2,    0x71, 0x72, 0x73, 0x74, 0x01, 0x10, 0x41, 0x42, 0x43,
        0x44, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24,
        0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0x03,
        0x01, 0x51, 0x52, 0x53, 0x54, 0,    0,    0,    0};
    uint8_t at[OL_HEADER_BYTES];
    ol_header_write(at, &wide);
    CHECK_BYTES(at, expected, sizeof expected);
    ol_header found;
    ol_fault fault;
    CHECK_INT(ol_header_read(&found, at, sizeof at, 0, false, &fault), OL_OK);
    CHECK_INT(found.base_offset, wide.base_offset);
    CHECK_INT(found.size, wide.size);
    CHECK_INT(found.position, 0);
    CHECK_INT(found.base_timestamp, wide.base_timestamp);
    CHECK_INT(found.max_timestamp, wide.max_timestamp);
    CHECK_INT(found.producer_id, wide.producer_id);
    CHECK_INT(found.last_offset_delta, wide.last_offset_delta);
    CHECK_INT(found.record_count, wide.record_count);
    CHECK_INT(found.base_sequence, wide.base_sequence);
    CHECK_INT(found.partition_leader_epoch, wide.partition_leader_epoch);
    CHECK_INT(found.crc, wide.crc);
    CHECK_INT(found.attributes, wide.attributes);
    CHECK_INT(found.producer_epoch, wide.producer_epoch);
    CHECK_INT(found.magic, 2);
    CHECK_INT(found.crc_ok, -1);
    CHECK_INT(found.control_type, OL_CONTROL_NONE);
    CHECK_INT(ol_header_read(&found, at, sizeof at, 0, true, &fault), OL_OK);
    CHECK_INT(found.crc_ok, 0);
    fix_crc(at, sizeof at);
    CHECK_INT(ol_header_read(&found, at, sizeof at, 0, true, &fault), OL_OK);
    CHECK_INT(found.crc_ok, 1);
}

static void every_cut_is_found(void) {
    sample sample;
    sample_init(&sample, 5);
    ol_bytes whole = encode_sample(&sample, 40, INT32_MAX);
    for (size_t size = 0; size < whole.size; size++) {
        uint8_t *exact = exact_copy(whole.data, size);
        ol_header header;
        ol_fault fault;
        CHECK_INT(ol_header_read(&header, exact, size, 0, true, &fault), OL_E_TRUNCATED);
        CHECK_INT(fault.position, 0);
        CHECK_INT(fault.base_offset, size < 17 ? -1 : 40);
        CHECK_INT(fault.record, -1);
        free(exact);
    }
    ol_header header;
    ol_fault fault;
    CHECK_INT(ol_header_read(&header, whole.data, whole.size, whole.size + 1, true, &fault),
              OL_E_ARGUMENT);
    CHECK_INT(ol_header_read(&header, whole.data, whole.size, SIZE_MAX, true, &fault),
              OL_E_ARGUMENT);
    CHECK_INT(ol_header_read(&header, whole.data, whole.size, whole.size, true, &fault),
              OL_E_TRUNCATED);
    free(whole.data);
}

static void sizes_and_magics_are_judged(void) {
    static const int32_t lengths[] = {0, -1, 1, 48, INT32_MIN, INT32_MAX, 50, 1 << 20};
    uint8_t at[OL_HEADER_BYTES];
    ol_header header;
    ol_fault fault;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        ol_header_write(at, &wide);
        ol_store32(at + 8, (uint32_t)lengths[i]);
        CHECK_INT(ol_header_read(&header, at, sizeof at, 0, true, &fault),
                  lengths[i] < 49 ? OL_E_SIZE : OL_E_TRUNCATED);
    }
    ol_header_write(at, &wide);
    for (int magic = 0; magic < 256; magic++) {
        at[16] = (uint8_t)magic;
        CHECK_INT(ol_header_read(&header, at, sizeof at, 0, false, &fault), magic == 2 ? OL_OK
                                                                            : magic < 2
                                                                                ? OL_E_OLD_MAGIC
                                                                                : OL_E_MAGIC);
    }
}

static void a_scan_goes_on_where_it_stopped(void) {
    sample sample;
    sample_init(&sample, 40);
    ol_bytes whole = encode_sample(&sample, 0, 200);
    ol_header rows[64], part[64];
    ol_fault fault;
    size_t count = 0, position = 0;
    CHECK_INT(ol_scan(rows, 64, &count, whole.data, whole.size, whole.size, &position, true, true,
                      &fault),
              OL_OK);
    CHECK_INT(position, whole.size);
    CHECK(count > 5 && count < 64);
    size_t total = count;
    for (size_t capacity = 0; capacity < 7; capacity++) {
        size_t found = 0;
        position = 0;
        while (position < whole.size) {
            CHECK_INT(ol_scan(part, capacity, &count, whole.data, whole.size, whole.size, &position,
                              true, true, &fault),
                      OL_OK);
            CHECK(count <= capacity);
            if (!capacity) break;
            CHECK_BYTES(part, rows + found, count * sizeof *rows);
            found += count;
        }
        CHECK_INT(found, capacity ? total : 0);
    }
    /* A flipped byte in the third batch: noted, or the end. */
    size_t third = (size_t)rows[2].position;
    whole.data[third + 70] ^= 1;
    position = 0;
    CHECK_INT(ol_scan(part, 64, &count, whole.data, whole.size, whole.size, &position, true, false,
                      &fault),
              OL_OK);
    CHECK_INT(count, total);
    for (size_t i = 0; i < total; i++) CHECK_INT(part[i].crc_ok, i != 2);
    position = 0;
    CHECK_INT(ol_scan(part, 64, &count, whole.data, whole.size, whole.size, &position, true, true,
                      &fault),
              OL_E_CRC);
    CHECK_INT(count, 2);
    CHECK_INT(position, third);
    CHECK_INT(fault.position, third);
    CHECK_INT(fault.base_offset, rows[2].base_offset);
    free(whole.data);
}

static void a_restamp_is_a_new_checksum(void) {
    for (int64_t count = 0; count < 40; count += 13) {
        sample sample;
        sample_init(&sample, count ? count : 1);
        ol_bytes whole = encode_sample(&sample, 0, INT32_MAX);
        for (int damage = 0; damage < 2; damage++) {
            ol_header header;
            ol_fault fault;
            CHECK_INT(ol_header_read(&header, whole.data, whole.size, 0, false, &fault), OL_OK);
            header.base_offset = 123456789;
            header.partition_leader_epoch = 9;
            header.max_timestamp = -1;
            header.producer_id = 1ll << 60;
            header.producer_epoch = 3;
            header.base_sequence = 4 + damage;
            header.attributes |= OL_ATTR_TRANSACTIONAL | OL_ATTR_LOG_APPEND_TIME;
            if (damage) whole.data[whole.size - 1] ^= 0x40;
            ol_header_restamp(whole.data, &header);
            ol_header found;
            CHECK_INT(ol_header_read(&found, whole.data, whole.size, 0, true, &fault), OL_OK);
            CHECK_INT(found.crc_ok, !damage);
            CHECK_INT(found.crc, header.crc);
            CHECK_INT(found.producer_id, 1ll << 60);
            CHECK_INT(found.base_offset, 123456789);
        }
        free(whole.data);
    }
}

static void control_keys_are_read_or_not(void) {
    /* length, attributes, timestamp, offset, key length, key, value length, value, headers */
    static const struct {
        const char *record;
        size_t size;
        int type, epoch;
    } known[] = {
        {"\x20\0\0\0\x08\0\0\0\1\x0c\0\0\0\0\0\7\0", 17, 1, 7},
        {"\x20\0\0\0\x08\0\0\0\0\x0c\0\0\x7f\xff\xff\xff\0", 17, 0, INT32_MAX},
        {"\x20\0\0\0\x08\0\0\0\2\x0c\0\0\0\0\0\7\0", 17, 2, -1},
        {"\x20\0\0\0\x08\0\0\x7f\xff\x0c\0\0\0\0\0\7\0", 17, INT16_MAX, -1},
        {"\x20\0\0\0\x08\0\0\xff\xff\x0c\0\0\0\0\0\7\0", 17, OL_CONTROL_UNREADABLE, -1},
        {"\x14\0\0\0\x08\0\0\0\1\1\0", 11, 1, -1},
        {"\x10\0\0\0\x08\0\0\0\1", 9, 1, -1}, /* the record ends with its key */
        {"\x12\0\0\0\x06\0\0\0\1\0\0", 11, OL_CONTROL_UNREADABLE, -1},
        {"\x0c\0\0\0\1\1\0", 7, OL_CONTROL_UNREADABLE, -1},
        {"\x7e\0\0\0\x08\0\0\0\1", 9, OL_CONTROL_UNREADABLE, -1},
        {"\x02\0", 2, OL_CONTROL_UNREADABLE, -1},
        {"\x80\x80", 2, OL_CONTROL_UNREADABLE, -1},
        {"", 0, OL_CONTROL_UNREADABLE, -1},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint8_t at[128];
        ol_header header = wide;
        header.attributes = OL_ATTR_CONTROL | OL_ATTR_TRANSACTIONAL;
        header.size = (int64_t)(OL_HEADER_BYTES + known[i].size);
        ol_header_write(at, &header);
        memcpy(at + OL_HEADER_BYTES, known[i].record, known[i].size);
        uint8_t *exact = exact_copy(at, (size_t)header.size);
        ol_fault fault;
        CHECK_INT(ol_header_read(&header, exact, (size_t)header.size, 0, false, &fault), OL_OK);
        CHECK_INT(header.control_type, known[i].type);
        CHECK_INT(header.coordinator_epoch, known[i].epoch);
        free(exact);
    }
}

int main(void) {
    fields_have_their_places();
    every_cut_is_found();
    sizes_and_magics_are_judged();
    a_scan_goes_on_where_it_stopped();
    a_restamp_is_a_new_checksum();
    control_keys_are_read_or_not();
    return check_result();
}
