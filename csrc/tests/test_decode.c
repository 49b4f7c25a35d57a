/* Decode: both forms of columns hold what was encoded; damage is refused by all readers alike. */
#include "batches.h"

static ol_decoder decoder_of(const uint8_t *base, size_t size, const int64_t *positions,
                             int64_t count) {
    return (ol_decoder){.base = base,
                        .size = size,
                        .positions = positions,
                        .batch_count = count,
                        .end_offset = INT64_MAX,
                        .bytes_max = INT64_MAX,
                        .check_crc = true};
}

/* Value `index` of a column in either form. */
static ol_slice value_at(const ol_columns *columns, const ol_binary *binary, int64_t index) {
    if (binary->null_count && !(binary->validity[index / 8] >> (index % 8) & 1))
        return (ol_slice){NULL, -1};
    if (!columns->views)
        return (ol_slice){binary->data.data + binary->offsets[index],
                          binary->offsets[index + 1] - binary->offsets[index]};
    const uint8_t *view = binary->views + 16 * index;
    int32_t size, window, offset;
    memcpy(&size, view, 4);
    if (size <= 12) return (ol_slice){view + 4, size};
    memcpy(&window, view + 8, 4);
    memcpy(&offset, view + 12, 4);
    const uint8_t *start =
        window < columns->window_count ? columns->windows[window] : binary->data.data;
    CHECK(memcmp(view + 4, start + offset, 4) == 0);
    CHECK(window <= columns->window_count &&
          offset + (int64_t)size <= binary->variadic_sizes[window]);
    return (ol_slice){start + offset, size};
}

static bool same(ol_slice a, ol_slice b) {
    return a.size == b.size && (a.size <= 0 || memcmp(a.data, b.data, (size_t)a.size) == 0);
}

static int64_t scan_positions(ol_bytes data, int64_t *positions) {
    ol_header rows[64];
    ol_fault fault;
    size_t count = 0, position = 0;
    CHECK_INT(
        ol_scan(rows, 64, &count, data.data, data.size, data.size, &position, true, true, &fault),
        OL_OK);
    for (size_t i = 0; i < count; i++) positions[i] = rows[i].position;
    return (int64_t)count;
}

static void columns_hold_the_sample(const ol_columns *columns, const sample *sample, int64_t first,
                                    int64_t base) {
    for (int64_t i = 0; i < columns->count; i++) {
        int64_t record = first + i;
        CHECK_INT(columns->offsets[i], base + record);
        CHECK_INT(columns->timestamps[i], sample->timestamps[record]);
        CHECK_INT(columns->timestamp_types[i], 0);
        CHECK(same(value_at(columns, &columns->key, i), sample->keys[record]));
        CHECK(same(value_at(columns, &columns->value, i), sample->values[record]));
        int32_t from = columns->header_starts[i], to = columns->header_starts[i + 1];
        CHECK_INT(to - from, record % 3 == 0 ? 2 : 0);
        if (record % 3) continue;
        const ol_binary *keys = &columns->header_key, *values = &columns->header_value;
        CHECK_INT(keys->offsets[from + 1] - keys->offsets[from], 4);
        CHECK_BYTES(keys->data.data + keys->offsets[from], "name", 4);
        CHECK_INT(keys->offsets[from + 2] - keys->offsets[from + 1], 0);
        CHECK_BYTES(values->data.data + values->offsets[from], "value", 5);
        CHECK(!(values->validity[(from + 1) / 8] >> ((from + 1) % 8) & 1));
        CHECK(values->validity[from / 8] >> (from % 8) & 1);
    }
}

static void both_forms_hold_what_was_encoded(void) {
    sample sample;
    sample_init(&sample, 60);
    static const int64_t sizes[] = {1, 150, 700, INT32_MAX};
    for (int form = 0; form < 2; form++)
        for (size_t i = 0; i < 4; i++) {
            ol_bytes data = encode_sample(&sample, 500, sizes[i]);
            uint8_t *exact = exact_copy(data.data, data.size);
            int64_t positions[64], count = scan_positions(data, positions);
            ol_decoder decoder = decoder_of(exact, data.size, positions, count);
            ol_columns *columns = ol_columns_new(form);
            ol_fault fault;
            CHECK_INT(ol_decode(&decoder, columns, &fault), OL_OK);
            CHECK(ol_columns_finish(columns));
            CHECK_INT(decoder.next, count);
            CHECK_INT(columns->count, 60);
            columns_hold_the_sample(columns, &sample, 0, 500);
            ol_columns_release(columns);

            /* Ranges cut through batches; a mask hides them; small chunks go on where they stopped. */
            for (int64_t start = 495; start < 565; start += 9) {
                decoder = decoder_of(exact, data.size, positions, count);
                decoder.start_offset = start;
                decoder.end_offset = start + 20;
                columns = ol_columns_new(form);
                CHECK_INT(ol_decode(&decoder, columns, &fault), OL_OK);
                CHECK(ol_columns_finish(columns));
                int64_t from = start < 500 ? 500 : start, to = start + 20 > 560 ? 560 : start + 20;
                CHECK_INT(columns->count, to > from ? to - from : 0);
                columns_hold_the_sample(columns, &sample, from - 500, 500);
                ol_columns_release(columns);
            }
            decoder = decoder_of(exact, data.size, positions, count);
            decoder.bytes_max = 1;
            int64_t seen = 0;
            while (decoder.next < count) {
                int64_t before = decoder.next;
                columns = ol_columns_new(form);
                decoder.bytes = 0;
                CHECK_INT(ol_decode(&decoder, columns, &fault), OL_OK);
                CHECK(ol_columns_finish(columns));
                CHECK_INT(decoder.next, before + 1);
                columns_hold_the_sample(columns, &sample, seen, 500);
                seen += columns->count;
                ol_columns_release(columns);
            }
            CHECK_INT(seen, 60);
            uint8_t hidden[64] = {0};
            decoder = decoder_of(exact, data.size, positions, count);
            decoder.visible = hidden;
            columns = ol_columns_new(form);
            CHECK_INT(ol_decode(&decoder, columns, &fault), OL_OK);
            CHECK(ol_columns_finish(columns));
            CHECK_INT(columns->count, 0);
            CHECK_INT(decoder.next, count);
            ol_columns_release(columns);

            /* What is hidden is proven as well, unless nothing is. */
            exact[data.size - 1] ^= 1;
            decoder = decoder_of(exact, data.size, positions, count);
            decoder.visible = hidden;
            columns = ol_columns_new(form);
            CHECK_INT(ol_decode(&decoder, columns, &fault), OL_E_CRC);
            CHECK_INT(fault.position, positions[count - 1]);
            decoder.check_crc = false;
            CHECK_INT(ol_decode(&decoder, columns, &fault), OL_OK);
            CHECK_INT(decoder.next, count);
            ol_columns_release(columns);
            free(exact);
            free(data.data);
        }
}

static void compressed_batches_come_back_for_their_payload(void) {
    sample sample;
    sample_init(&sample, 20);
    ol_bytes plain = encode_sample(&sample, 0, INT32_MAX);
    /* A codec that stores: the payload stands behind one byte. */
    size_t size = plain.size + 1;
    uint8_t *packed = malloc(size);
    if (!packed) abort();
    memcpy(packed, plain.data, OL_HEADER_BYTES);
    packed[OL_HEADER_BYTES] = '!';
    memcpy(packed + OL_HEADER_BYTES + 1, plain.data + OL_HEADER_BYTES,
           plain.size - OL_HEADER_BYTES);
    ol_store32(packed + 8, (uint32_t)(size - OL_LENGTH_END));
    packed[22] = 4;
    fix_crc(packed, size);
    int64_t position = 0;
    for (int form = 0; form < 2; form++) {
        ol_decoder decoder = decoder_of(packed, size, &position, 1);
        ol_columns *columns = ol_columns_new(form);
        ol_fault fault;
        CHECK_INT(ol_decode(&decoder, columns, &fault), OL_COMPRESSED);
        CHECK_INT(decoder.header.size, size);
        uint8_t *payload = exact_copy(packed + OL_HEADER_BYTES + 1, plain.size - OL_HEADER_BYTES);
        CHECK_INT(
            ol_decode_payload(&decoder, columns, payload, plain.size - OL_HEADER_BYTES, &fault),
            OL_OK);
        free(payload); /* nothing points into it */
        CHECK_INT(ol_decode(&decoder, columns, &fault), OL_OK);
        CHECK(ol_columns_finish(columns));
        CHECK_INT(columns->count, 20);
        columns_hold_the_sample(columns, &sample, 0, 0);
        ol_columns_release(columns);
    }
    for (int codec = 5; codec < 8; codec++) {
        packed[22] = (uint8_t)codec;
        fix_crc(packed, size);
        ol_decoder decoder = decoder_of(packed, size, &position, 1);
        ol_columns *columns = ol_columns_new(false);
        ol_fault fault;
        CHECK_INT(ol_decode(&decoder, columns, &fault), OL_E_CODEC);
        ol_columns_release(columns);
    }
    free(packed);
    free(plain.data);
}

/* Columns that are full end before the batch that does not fit any more, and say so. */
static void full_columns_end_early(void) {
    sample sample;
    sample_init(&sample, 4);
    ol_bytes data = encode_sample(&sample, 0, INT32_MAX);
    int64_t positions[] = {0, 0};
    ol_decoder decoder = decoder_of(data.data, data.size, positions, 2);
    ol_columns *columns = ol_columns_new(false);
    ol_fault fault;
    decoder.bytes_max = 1;
    CHECK_INT(ol_decode(&decoder, columns, &fault), OL_OK);
    CHECK_INT(decoder.next, 1);
    size_t before = columns->value.data.size;
    columns->value.data.size = INT32_MAX - 10; /* as if two gigabytes had come before */
    decoder.bytes_max = INT64_MAX;
    CHECK_INT(ol_decode(&decoder, columns, &fault), OL_OK);
    CHECK_INT(decoder.next, 1);
    CHECK_INT(columns->count, 4);
    columns->value.data.size = before;
    columns->count = 0;
    columns->key.data.size = INT32_MAX - 10;
    decoder.bytes_max = INT64_MAX;
    CHECK_INT(ol_decode(&decoder, columns, &fault), OL_E_TOO_LARGE);
    ol_columns_release(columns);
    free(data.data);
}

static int unpinned;
static void count_unpin(void *pin) {
    CHECK(pin == &unpinned);
    unpinned++;
}

static void the_last_release_unpins(void) {
    ol_columns *columns = ol_columns_new(true);
    CHECK(ol_columns_finish(columns));
    columns->pin = &unpinned;
    columns->unpin = count_unpin;
    ol_columns_retain(columns);
    ol_columns_retain(columns);
    ol_columns_release(columns);
    ol_columns_release(columns);
    CHECK_INT(unpinned, 0);
    ol_columns_release(columns);
    CHECK_INT(unpinned, 1);
    ol_columns_release(NULL);
}

/* Reads a batch in every way; all agree on its status, and on the records of sound ones. */
static ol_status read_all(const uint8_t *data, size_t size) {
    static const int64_t position = 0;
    ol_fault fault = {0}, other = {0};
    ol_header header;
    ol_status status = ol_header_read(&header, data, size, 0, false, &fault);
    if (status == OL_OK)
        status = ol_records_check(&header, data + OL_HEADER_BYTES,
                                  (size_t)header.size - OL_HEADER_BYTES, &fault);
    for (int form = 0; form < 2; form++) {
        ol_decoder decoder = decoder_of(data, size, &position, 1);
        decoder.check_crc = false;
        decoder.include_control = true;
        ol_columns *columns = ol_columns_new(form);
        CHECK_INT(ol_decode(&decoder, columns, &other), status);
        if (status == OL_OK) {
            CHECK(ol_columns_finish(columns));
            CHECK_INT(columns->count, header.record_count);
            size_t at = 0;
            for (int64_t i = 0; i < columns->count; i++) {
                ol_record record;
                CHECK_INT(ol_record_next(&record, &header, data + OL_HEADER_BYTES,
                                         (size_t)header.size - OL_HEADER_BYTES, &at),
                          OL_OK);
                CHECK_INT(columns->offsets[i], record.offset);
                CHECK_INT(columns->timestamps[i], record.timestamp);
                CHECK(same(value_at(columns, &columns->key, i), record.key));
                CHECK(same(value_at(columns, &columns->value, i), record.value));
                CHECK_INT(columns->header_starts[i + 1] - columns->header_starts[i],
                          record.header_count);
                for (int32_t h = 0; h < record.header_count; h++) {
                    ol_slice name, value;
                    CHECK_INT(ol_record_header_next(&record, &name, &value), OL_OK);
                }
                CHECK(record.header_count == 0 || record.headers == record.end);
            }
            CHECK_INT(at, (size_t)header.size - OL_HEADER_BYTES);
        } else {
            CHECK_INT(other.status, fault.status);
            CHECK_INT(other.record, fault.record);
            CHECK_INT(other.base_offset, fault.base_offset);
            CHECK_INT(other.position, 0);
        }
        ol_columns_release(columns);
    }
    return status;
}

static void damage_is_refused_by_all_alike(void) {
    sample sample;
    sample_init(&sample, 12);
    ol_bytes data = encode_sample(&sample, 500, INT32_MAX);
    CHECK_INT(read_all(data.data, data.size), OL_OK);
    /* Every byte behind the magic to every value, in a block that ends with the batch. */
    int refused = 0;
    for (size_t at = 21; at < data.size; at++)
        for (int value = 0; value < 256; value++) {
            if (at == 22 && value & 7) continue; /* codecs */
            uint8_t *bad = exact_copy(data.data, data.size);
            bad[at] = (uint8_t)value;
            refused += read_all(bad, data.size) != OL_OK;
            free(bad);
        }
    CHECK(refused > 1000);
    /* Several bytes at once, and batches that end too early. */
    for (int i = 0; i < 200000; i++) {
        size_t size = OL_HEADER_BYTES + check_random() % (data.size - OL_HEADER_BYTES + 1);
        uint8_t *bad = exact_copy(data.data, size);
        ol_store32(bad + 8, (uint32_t)(size - OL_LENGTH_END));
        ol_store32(bad + 57, (uint32_t)(check_random() % 14));
        for (uint64_t edits = check_random() % 4; edits && size > OL_HEADER_BYTES; edits--)
            bad[OL_HEADER_BYTES + check_random() % (size - OL_HEADER_BYTES)] =
                (uint8_t)check_random();
        read_all(bad, size);
        free(bad);
    }
    free(data.data);
}

/* The records of a payload one by one: ol_record_next knows nothing of the records before. */
static bool sound_one_by_one(const ol_header *header, const uint8_t *payload, size_t size,
                             ol_record *records) {
    size_t position = 0;
    int64_t last = header->base_offset - 1;
    for (int32_t index = 0; index < header->record_count; index++) {
        ol_record *record = records + index;
        if (ol_record_next(record, header, payload, size, &position) != OL_OK) return false;
        ol_record rest = *record;
        ol_slice key, value;
        for (int32_t i = 0; i < rest.header_count; i++)
            if (ol_record_header_next(&rest, &key, &value) != OL_OK) return false;
        if (rest.headers != rest.end || record->offset <= last ||
            record->offset > ol_last_offset(header))
            return false;
        last = record->offset;
    }
    return position == size;
}

static void columns_hold_the_records(const ol_columns *columns, const ol_record *records,
                                     int32_t count) {
    CHECK_INT(columns->count, count);
    for (int32_t i = 0; i < count; i++) {
        CHECK_INT(columns->offsets[i], records[i].offset);
        CHECK_INT(columns->timestamps[i], records[i].timestamp);
        CHECK(same(value_at(columns, &columns->key, i), records[i].key));
        CHECK(same(value_at(columns, &columns->value, i), records[i].value));
        CHECK_INT(columns->header_starts[i + 1] - columns->header_starts[i],
                  records[i].header_count);
    }
}

/* Many at a time, where what a record is like is known from the one before, and never more than asked for. */
static void many_at_a_time_are_the_records(const ol_header *header, const uint8_t *payload,
                                           size_t size, const ol_record *records) {
    for (int64_t capacity = 2; capacity < 17; capacity += 7) {
        ol_record some[16];
        size_t position = 0;
        int64_t count;
        for (int64_t first = 0; first < header->record_count; first += count) {
            count = ol_records_next(some, capacity, header, payload, size, &position);
            CHECK(count > 0 && count <= capacity);
            CHECK(memcmp(some, records + first, (size_t)count * sizeof *some) == 0);
        }
        CHECK_INT(position, size);
        CHECK_INT(ol_records_next(some, capacity, header, payload, size, &position), 0);
    }
}

/* Decodes one batch in both forms and compares with the records read one by one. */
static bool read_like_one_by_one(const uint8_t *data, size_t size) {
    ol_record records[16];
    ol_header header;
    ol_fault fault;
    CHECK_INT(ol_header_read(&header, data, size, 0, false, &fault), OL_OK);
    const uint8_t *payload = data + OL_HEADER_BYTES;
    bool sound = sound_one_by_one(&header, payload, size - OL_HEADER_BYTES, records);
    CHECK_INT(ol_records_check(&header, payload, size - OL_HEADER_BYTES, &fault) == OL_OK, sound);
    if (sound) many_at_a_time_are_the_records(&header, payload, size - OL_HEADER_BYTES, records);
    for (int form = 0; form < 2; form++) {
        int64_t position = 0;
        ol_decoder decoder = decoder_of(data, size, &position, 1);
        decoder.check_crc = false;
        ol_columns *columns = ol_columns_new(form);
        CHECK_INT(ol_decode(&decoder, columns, &fault) == OL_OK, sound);
        CHECK(ol_columns_finish(columns));
        if (sound) columns_hold_the_records(columns, records, header.record_count);
        ol_columns_release(columns);
    }
    return sound;
}

/* Records of one size are proven by comparison with the one before. Every byte of them takes every value: none may
 * pass that would not pass alone, and what passes is read the same. */
static void records_of_one_shape_are_read_like_any_other(void) {
    static const char text[] = "forty bytes of text, more than a view holds inside";
    enum { RECORDS = 14 }; /* enough for a run of records that are a step behind each other */
    static const struct {
        int64_t key, value, step; /* sizes, and milliseconds from one record to the next */
    } shapes[] = {{-1, -1, 0},    {4, 20, 0},      {0, 0, 1},  {3, 20, 100},
                  {16, 40, 5000}, {-1, 30, 70000}, {13, -1, 9}};
    for (size_t each = 0; each < sizeof shapes / sizeof *shapes; each++) {
        sample sample = {.count = RECORDS};
        for (int64_t i = 0; i < RECORDS; i++) {
            sample.keys[i] = (ol_slice){(const uint8_t *)text + i % 3, shapes[each].key};
            sample.values[i] = (ol_slice){(const uint8_t *)text + i % 5, shapes[each].value};
            sample.timestamps[i] = 1000 + i * shapes[each].step;
        }
        sample.block = (ol_block){.count = RECORDS,
                                  .keys = sample.keys,
                                  .values = sample.values,
                                  .timestamps = sample.timestamps};
        ol_bytes data = encode_sample(&sample, 300, INT32_MAX);
        CHECK(read_like_one_by_one(data.data, data.size));
        int passed = 0;
        for (size_t at = OL_HEADER_BYTES; at < data.size; at++)
            for (int value = 0; value < 256; value++) {
                uint8_t *bad = exact_copy(data.data, data.size);
                bad[at] = (uint8_t)value;
                passed += read_like_one_by_one(bad, data.size);
                free(bad);
            }
        CHECK(passed > 1000);
        for (int i = 0; i < 20000; i++) { /* several bytes, a wrong count, an early end */
            size_t size = data.size - check_random() % 3 * (check_random() % 30);
            uint8_t *bad = exact_copy(data.data, size);
            ol_store32(bad + 8, (uint32_t)(size - OL_LENGTH_END));
            ol_store32(bad + 57, (uint32_t)(RECORDS - 1 + check_random() % 3));
            for (uint64_t edits = check_random() % 4; edits; edits--)
                bad[OL_HEADER_BYTES + check_random() % (size - OL_HEADER_BYTES)] =
                    (uint8_t)check_random();
            read_like_one_by_one(bad, size);
            free(bad);
        }
        free(data.data);
    }
}

int main(void) {
    both_forms_hold_what_was_encoded();
    compressed_batches_come_back_for_their_payload();
    full_columns_end_early();
    the_last_release_unpins();
    damage_is_refused_by_all_alike();
    records_of_one_shape_are_read_like_any_other();
    return check_result();
}
