/* Encode: batches split, close and refuse as they promise. */
#include "batches.h"

static void splitting_keeps_the_promise(void) {
    sample sample;
    sample_init(&sample, 60);
    static const int64_t sizes[] = {1, 61, 100, 137, 300, 1000, INT32_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ol_bytes out = encode_sample(&sample, 1000, sizes[i]);
        ol_header rows[64];
        ol_fault fault;
        size_t count = 0, position = 0;
        CHECK_INT(
            ol_scan(rows, 64, &count, out.data, out.size, out.size, &position, true, true, &fault),
            OL_OK);
        int64_t offset = 1000, sequence = 11;
        for (size_t row = 0; row < count; row++) {
            CHECK(rows[row].size <= sizes[i] || rows[row].record_count == 1);
            CHECK_INT(rows[row].base_offset, offset);
            CHECK_INT(rows[row].base_sequence, sequence);
            CHECK_INT(rows[row].last_offset_delta, rows[row].record_count - 1);
            CHECK_INT(rows[row].producer_id, 77);
            offset += rows[row].record_count;
            sequence += rows[row].record_count;
        }
        CHECK_INT(offset, 1060);
        CHECK(count == (sizes[i] == 1 ? 60u : sizes[i] == INT32_MAX ? 1u : count));
        free(out.data);
    }
}

static void sequences_wrap(void) {
    ol_encoder encoder;
    ol_fault fault;
    ol_encoder_init(&encoder);
    encoder.next.base_sequence = INT32_MAX - 1;
    encoder.batch_bytes_max = 1;
    ol_block block = {.count = 4};
    int64_t done = 0;
    CHECK_INT(ol_encode(&encoder, &block, &done, &fault), OL_OK);
    CHECK_INT(ol_encode_close(&encoder, NULL, 0, &fault), OL_OK);
    static const int32_t expected[] = {INT32_MAX - 1, INT32_MAX, 0, 1};
    for (int i = 0; i < 4; i++)
        CHECK_INT((int32_t)ol_load32(encoder.out.data + 68 * i + 53), expected[i]);
    CHECK_INT(encoder.next.base_sequence, 2);
    ol_encoder_free(&encoder);
    CHECK(encoder.out.data == NULL);
}

static void a_full_batch_waits_for_its_codec(void) {
    sample sample;
    sample_init(&sample, 30);
    ol_encoder encoder;
    ol_fault fault;
    ol_encoder_init(&encoder);
    encoder.compress = true;
    encoder.batch_bytes_max = 300;
    int64_t done = 0, last = 0;
    int full = 0;
    ol_status status;
    while ((status = ol_encode(&encoder, &sample.block, &done, &fault)) == OL_BATCH_FULL) {
        CHECK(done > last && encoder.out.size - encoder.open_at <= 300);
        last = done;
        full++;
        CHECK_INT(ol_encode_close(&encoder, (const uint8_t *)"packed", 6, &fault), OL_OK);
    }
    CHECK_INT(status, OL_OK);
    CHECK(full > 2);
    CHECK_INT(ol_encode_close(&encoder, NULL, 0, &fault), OL_OK);
    CHECK_INT(encoder.batch_count, full + 1);
    CHECK_BYTES(encoder.out.data + OL_HEADER_BYTES, "packed", 6);
    ol_header header;
    CHECK_INT(ol_header_read(&header, encoder.out.data, encoder.out.size, 0, true, &fault), OL_OK);
    CHECK_INT(header.size, OL_HEADER_BYTES + 6);
    CHECK_INT(header.crc_ok, 1);
    ol_encoder_free(&encoder);
}

static void what_cannot_be_written_is_refused(void) {
    static const int64_t stamps[] = {5, -2}, far[] = {-1, INT64_MAX};
    static const int64_t back[] = {3, 3}, below[] = {-1}, beyond[] = {(int64_t)INT32_MAX + 1},
                         lowest[] = {INT64_MIN};
    static const int64_t zero = 0, one = 1;
    ol_slice null_key = slice(NULL), value = slice("v"),
             huge = {(const uint8_t *)"", (int64_t)INT32_MAX + 1};
    ol_slice nearly = {(const uint8_t *)"", INT32_MAX - 70};
    const struct {
        ol_block block;
        ol_status status;
        int32_t record;
    } cases[] = {
        {{.count = 2, .timestamps = stamps}, OL_E_TIMESTAMP, 1},
        {{.count = 2, .timestamps = far}, OL_E_TIMESTAMP, 1},
        {{.count = 2, .offsets = back}, OL_E_ARGUMENT, 1},
        {{.count = 1, .offsets = below}, OL_E_ARGUMENT, 0},
        {{.count = 1, .offsets = beyond}, OL_E_ARGUMENT, 0},
        {{.count = 1, .offsets = lowest}, OL_E_ARGUMENT, 0},
        {{.count = 1, .values = &huge}, OL_E_TOO_LARGE, 0},
        {{.count = 1, .keys = &huge}, OL_E_TOO_LARGE, 0},
        {{.count = 1, .values = &nearly}, OL_E_TOO_LARGE, 0},
        {{.count = 1,
          .header_starts = &zero,
          .header_ends = &one,
          .header_keys = &null_key,
          .header_values = &value},
         OL_E_ARGUMENT,
         0},
        {{.count = 1,
          .header_starts = &zero,
          .header_ends = &one,
          .header_keys = &huge,
          .header_values = &value},
         OL_E_TOO_LARGE,
         0},
        {{.count = 1,
          .header_starts = &zero,
          .header_ends = &one,
          .header_keys = &value,
          .header_values = &huge},
         OL_E_TOO_LARGE,
         0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ol_encoder encoder;
        ol_fault fault = {0};
        ol_encoder_init(&encoder);
        encoder.default_timestamp = 9;
        int64_t done = 0;
        CHECK_INT(ol_encode(&encoder, &cases[i].block, &done, &fault), cases[i].status);
        CHECK_INT(fault.status, cases[i].status);
        CHECK_INT(fault.record, cases[i].record);
        CHECK_INT(done, cases[i].record);
        CHECK(fault.what && *fault.what);
        /* The encoder is as it was: a good record goes in, and its batch is sound. */
        ol_block good = {.count = 1};
        int64_t more = 0;
        CHECK_INT(ol_encode(&encoder, &good, &more, &fault), OL_OK);
        CHECK_INT(ol_encode_close(&encoder, NULL, 0, &fault), OL_OK);
        CHECK_INT(encoder.record_count, cases[i].record + 1);
        CHECK_INT(encoder.batch_count, 1);
        ol_header header;
        CHECK_INT(ol_header_read(&header, encoder.out.data, encoder.out.size, 0, true, &fault),
                  OL_OK);
        CHECK_INT(header.crc_ok, 1);
        CHECK_INT(ol_records_check(&header, encoder.out.data + OL_HEADER_BYTES,
                                   encoder.out.size - OL_HEADER_BYTES, &fault),
                  OL_OK);
        ol_encoder_free(&encoder);
    }
}

static void one_batch_is_one_batch(void) {
    ol_encoder encoder;
    ol_fault fault;
    ol_encoder_init(&encoder);
    encoder.one_batch = encoder.fix_last_offset_delta = encoder.fix_base_timestamp =
        encoder.fix_max_timestamp = true;
    encoder.next.last_offset_delta = 9;
    encoder.next.base_timestamp = 5;
    encoder.next.max_timestamp = 50;
    CHECK_INT(ol_encode_close(&encoder, NULL, 0, &fault), OL_OK);
    CHECK_INT(encoder.out.size, OL_HEADER_BYTES);
    ol_header header;
    CHECK_INT(ol_header_read(&header, encoder.out.data, encoder.out.size, 0, true, &fault), OL_OK);
    CHECK_INT(header.record_count, 0);
    CHECK_INT(header.last_offset_delta, 9);
    CHECK_INT(header.base_timestamp, 5);
    CHECK_INT(header.max_timestamp, 50);
    CHECK_INT(header.crc_ok, 1);
    /* There is no second one. */
    CHECK_INT(ol_encode_close(&encoder, NULL, 0, &fault), OL_OK);
    CHECK_INT(encoder.batch_count, 1);
    ol_encoder_free(&encoder);

    sample sample;
    sample_init(&sample, 10);
    ol_encoder_init(&encoder);
    encoder.one_batch = true;
    encoder.batch_bytes_max = 150;
    int64_t done = 0;
    CHECK_INT(ol_encode(&encoder, &sample.block, &done, &fault), OL_E_TOO_LARGE);
    CHECK(done > 0 && done < 10);
    ol_encoder_free(&encoder);
}

static void nothing_is_no_batch(void) {
    ol_encoder encoder;
    ol_fault fault;
    ol_encoder_init(&encoder);
    ol_block block = {0};
    int64_t done = 0;
    CHECK_INT(ol_encode(&encoder, &block, &done, &fault), OL_OK);
    CHECK_INT(ol_encode_close(&encoder, NULL, 0, &fault), OL_OK);
    CHECK_INT(encoder.batch_count, 0);
    CHECK_INT(encoder.out.size, 0);
    ol_encoder_free(&encoder);
}

static void room_is_made_or_refused(void) {
    ol_bytes bytes = {0};
    CHECK_INT(ol_bytes_reserve(&bytes, 0), OL_OK);
    CHECK_INT(ol_bytes_reserve(&bytes, 10), OL_OK);
    CHECK(bytes.capacity >= 10 && bytes.size == 0);
    bytes.size = 10;
    CHECK_INT(ol_bytes_reserve(&bytes, SIZE_MAX), OL_E_MEMORY);
    CHECK_INT(ol_bytes_reserve(&bytes, SIZE_MAX - 10), OL_E_MEMORY);
    CHECK_INT(ol_bytes_reserve(&bytes, SIZE_MAX / 2), OL_E_MEMORY);
    CHECK(bytes.data && bytes.capacity >= 10 && bytes.size == 10);
    free(bytes.data);
}

/* A block of many records is written with stores of whole words where they are alike; one record at a time never is.
 * Sizes, times and offsets cross every width of their varints, and batches fill up anywhere. */
static void records_alike_are_written_as_one_by_one(void) {
    enum { COUNT = 700, DATA = 20000 };
    static uint8_t data[DATA];
    static ol_slice keys[COUNT], values[COUNT];
    static int64_t timestamps[COUNT];
    static const int64_t limits[] = {1, 90, 1000, 65536, INT32_MAX};
    static const int64_t sizes[] = {0, 1, 12, 55, 63, 64, 70, 100, 8180, 8191, 8192, 16000};
    uint32_t random = 1;
    for (int i = 0; i < DATA; i++) data[i] = (uint8_t)(i * 7 + i / 256);
    for (int round = 0; round < 120; round++) {
        bool has_keys = round & 1, has_times = round & 2, is_even = round & 4;
        int64_t time = 1700000000000;
        for (int i = 0; i < COUNT; i++) {
            random = random * 1664525 + 1013904223;
            uint32_t pick = random >> 8;
            int64_t size = is_even ? 100 : sizes[(pick >> 5) % (round % 5 ? 8 : 12)];
            values[i] = (ol_slice){data + pick % 1000, pick % 41 == 0 ? -1 : size};
            keys[i] = (ol_slice){data + pick % 999, pick % 3 ? (int64_t)((pick >> 4) % 80) : -1};
            time += pick % 29 ? (int64_t)((pick >> 3) % 4) * (round % 7 * 40) : -5000;
            timestamps[i] = pick % 97 ? time : -1;
        }
        ol_encoder many, single;
        ol_fault fault;
        for (int way = 0; way < 2; way++) {
            ol_encoder *encoder = way ? &single : &many;
            ol_encoder_init(encoder);
            encoder->default_timestamp = 1700000000123;
            encoder->batch_bytes_max = limits[round % 5];
            for (int64_t first = 0; first < COUNT;) {
                ol_block block = {.count = way ? 1 : COUNT,
                                  .keys = has_keys ? keys + first : NULL,
                                  .values = values + first,
                                  .timestamps = has_times ? timestamps + first : NULL};
                int64_t done = 0;
                CHECK_INT(ol_encode(encoder, &block, &done, &fault), OL_OK);
                first += block.count;
            }
            CHECK_INT(ol_encode_close(encoder, NULL, 0, &fault), OL_OK);
        }
        CHECK_INT(many.batch_count, single.batch_count);
        CHECK_INT(many.out.size, single.out.size);
        if (many.out.size == single.out.size)
            CHECK_BYTES(many.out.data, single.out.data, single.out.size);
        ol_encoder_free(&many);
        ol_encoder_free(&single);
    }
}

int main(void) {
    splitting_keeps_the_promise();
    sequences_wrap();
    a_full_batch_waits_for_its_codec();
    what_cannot_be_written_is_refused();
    one_batch_is_one_batch();
    nothing_is_no_batch();
    room_is_made_or_refused();
    records_alike_are_written_as_one_by_one();
    return check_result();
}
