/* Any bytes as a log: scanned, checked, decoded in both forms, exported to Arrow, encoded again.
 *
 * Checksums would stop nearly every input at the door, so those of the batches that are found are
 * made right first. Beside memory errors, this looks for readers that disagree, and for records that
 * do not survive being encoded again. Seeds: the files in tests/golden. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "endian.h"
#include "oncelog.h"

enum { ROWS_MAX = 64 };

#define REQUIRE(condition)                                                  \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                        \
        }                                                                   \
    } while (0)

static ol_columns *decode_all(const uint8_t *data, size_t size, const int64_t *positions,
                              int64_t count, bool views, ol_status *status, ol_fault *fault) {
    ol_decoder decoder = {.base = data,
                          .size = size,
                          .positions = positions,
                          .batch_count = count,
                          .end_offset = INT64_MAX,
                          .bytes_max = INT64_MAX,
                          .check_crc = true,
                          .include_control = true,
                          .create_time = true};
    ol_columns *columns = ol_columns_new(views);
    REQUIRE(columns);
    while ((*status = ol_decode(&decoder, columns, fault)) == OL_COMPRESSED) {
        /* No codec here: the payload is taken as it is. */
        size_t payload = (size_t)decoder.header.size - OL_HEADER_BYTES;
        *status = ol_decode_payload(
            &decoder, columns, data + decoder.header.position + OL_HEADER_BYTES, payload, fault);
        if (*status != OL_OK) break;
    }
    REQUIRE(*status != OL_E_ARGUMENT && *status != OL_BATCH_FULL && *status != OL_SKIPPED);
    if (*status == OL_OK) REQUIRE(decoder.next == count);
    REQUIRE(ol_columns_finish(columns));
    return columns;
}

static ol_slice value_at(const ol_columns *columns, const ol_binary *binary, int64_t index) {
    if (binary->null_count && !(binary->validity[index / 8] >> (index % 8) & 1))
        return (ol_slice){NULL, -1};
    if (!columns->views || binary == &columns->header_key || binary == &columns->header_value) {
        REQUIRE(binary->offsets[index] <= binary->offsets[index + 1]);
        REQUIRE(binary->offsets[index + 1] <= (int64_t)binary->data.size);
        return (ol_slice){binary->data.data + binary->offsets[index],
                          binary->offsets[index + 1] - binary->offsets[index]};
    }
    const uint8_t *view = binary->views + 16 * index;
    int32_t size, window, offset;
    memcpy(&size, view, 4);
    memcpy(&window, view + 8, 4);
    memcpy(&offset, view + 12, 4);
    if (size <= 12) return (ol_slice){view + 4, size};
    REQUIRE(window >= 0 && window <= columns->window_count && offset >= 0);
    REQUIRE(offset + (int64_t)size <= binary->variadic_sizes[window]);
    const uint8_t *from =
        window < columns->window_count ? columns->windows[window] : binary->data.data;
    REQUIRE(memcmp(view + 4, from + offset, 4) == 0);
    return (ol_slice){from + offset, size};
}

static void require_same(ol_slice a, ol_slice b) {
    REQUIRE(a.size == b.size);
    REQUIRE(a.size <= 0 || memcmp(a.data, b.data, (size_t)a.size) == 0);
}

static void require_same_columns(const ol_columns *a, const ol_columns *b) {
    REQUIRE(a->count == b->count && a->header_count == b->header_count);
    for (int64_t i = 0; i < a->count; i++) {
        REQUIRE(a->offsets[i] == b->offsets[i]);
        REQUIRE(a->timestamps[i] == b->timestamps[i]);
        REQUIRE(a->timestamp_types[i] == b->timestamp_types[i]);
        REQUIRE(a->header_starts[i + 1] == b->header_starts[i + 1]);
        require_same(value_at(a, &a->key, i), value_at(b, &b->key, i));
        require_same(value_at(a, &a->value, i), value_at(b, &b->value, i));
    }
    for (int64_t i = 0; i < a->header_count; i++) {
        ol_slice key = value_at(a, &a->header_key, i);
        REQUIRE(ol_utf8_valid(key.data, (size_t)key.size));
        require_same(key, value_at(b, &b->header_key, i));
        require_same(value_at(a, &a->header_value, i), value_at(b, &b->header_value, i));
    }
}

static void export_to_arrow(ol_columns *columns) {
    struct ArrowSchema schema;
    struct ArrowArray array;
    REQUIRE(ol_arrow_schema(&schema, columns->views) == OL_OK);
    REQUIRE(ol_arrow_array(&array, columns) == OL_OK);
    REQUIRE(array.length == columns->count && array.n_children == schema.n_children);
    struct ArrowArray moved = *array.children[4];
    array.children[4]->release = NULL;
    array.release(&array);
    moved.release(&moved);
    schema.release(&schema);
}

static void *room(int64_t count, size_t width) {
    void *block = malloc((size_t)(count ? count : 1) * width);
    REQUIRE(block);
    return block;
}

/* The records of one batch under its own header again; false where the encoder refuses them. */
static bool encode_again(ol_encoder *encoder, const ol_header *header, const ol_columns *columns) {
    int64_t count = columns->count, headers = columns->header_count;
    ol_slice *keys = room(count, sizeof *keys), *values = room(count, sizeof *values);
    ol_slice *names = room(headers, sizeof *names), *texts = room(headers, sizeof *texts);
    int64_t *starts = room(count, sizeof *starts), *ends = room(count, sizeof *ends);
    for (int64_t i = 0; i < count; i++) {
        keys[i] = value_at(columns, &columns->key, i);
        values[i] = value_at(columns, &columns->value, i);
        starts[i] = columns->header_starts[i];
        ends[i] = columns->header_starts[i + 1];
    }
    for (int64_t i = 0; i < headers; i++) {
        names[i] = value_at(columns, &columns->header_key, i);
        texts[i] = value_at(columns, &columns->header_value, i);
    }
    ol_block block = {count, keys,  values, columns->timestamps, columns->offsets, starts,
                      ends,  names, texts};
    ol_encoder_init(encoder);
    encoder->next = *header;
    encoder->next.attributes &= ~OL_ATTR_CODEC;
    encoder->one_batch = encoder->fix_base_timestamp = encoder->fix_max_timestamp = true;
    encoder->fix_last_offset_delta = true;
    int64_t done = 0;
    ol_fault fault;
    ol_status status = ol_encode(encoder, &block, &done, &fault);
    /* Kafka's logs may hold timestamps that producers may not send. */
    REQUIRE(status == OL_OK || status == OL_E_TIMESTAMP);
    if (status == OL_OK) {
        REQUIRE(done == count);
        REQUIRE(ol_encode_close(encoder, NULL, 0, &fault) == OL_OK);
        REQUIRE(encoder->batch_count == 1 && encoder->record_count == count);
    }
    free(keys);
    free(values);
    free(names);
    free(texts);
    free(starts);
    free(ends);
    return status == OL_OK;
}

static void one_batch(const uint8_t *data, size_t size, const ol_header *header) {
    ol_fault fault = {0}, other = {0};
    ol_status status, second;
    const uint8_t *payload = data + header->position + OL_HEADER_BYTES;
    size_t payload_size = (size_t)header->size - OL_HEADER_BYTES;
    ol_columns *copied = decode_all(data, size, &header->position, 1, false, &status, &fault);
    ol_columns *viewed = decode_all(data, size, &header->position, 1, true, &second, &other);
    REQUIRE(status == second);
    bool unknown_codec = (header->attributes & OL_ATTR_CODEC) > 4;
    REQUIRE(unknown_codec == (status == OL_E_CODEC));
    if (!unknown_codec) REQUIRE(ol_records_check(header, payload, payload_size, &other) == status);
    if (status == OL_OK) {
        REQUIRE(copied->count == header->record_count);
        require_same_columns(copied, viewed);
        export_to_arrow(copied);
        export_to_arrow(viewed);
        ol_header plain = *header;
        plain.attributes &= ~OL_ATTR_LOG_APPEND_TIME;
        size_t at = 0;
        for (int64_t i = 0; i < copied->count; i++) {
            ol_record record;
            REQUIRE(ol_record_next(&record, &plain, payload, payload_size, &at) == OL_OK);
            REQUIRE(record.offset == copied->offsets[i] &&
                    record.timestamp == copied->timestamps[i]);
            require_same(record.key, value_at(copied, &copied->key, i));
            require_same(record.value, value_at(copied, &copied->value, i));
            for (int32_t h = 0; h < record.header_count; h++) {
                ol_slice name, value;
                REQUIRE(ol_record_header_next(&record, &name, &value) == OL_OK);
            }
        }
        REQUIRE(at == payload_size);
        ol_encoder encoder;
        if (encode_again(&encoder, header, copied)) {
            int64_t start = 0;
            ol_columns *again =
                decode_all(encoder.out.data, encoder.out.size, &start, 1, true, &status, &fault);
            REQUIRE(status == OL_OK);
            require_same_columns(copied, again);
            ol_columns_release(again);
        }
        ol_encoder_free(&encoder);
    } else if (!unknown_codec) {
        REQUIRE(fault.record == other.record && fault.base_offset == other.base_offset);
    }
    ol_columns_release(copied);
    ol_columns_release(viewed);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    static ol_header rows[ROWS_MAX];
    ol_fault fault;
    size_t count = 0, position = 0;
    uint8_t *data = malloc(size ? size : 1); /* of exactly that size, and writable */
    REQUIRE(data);
    if (size) memcpy(data, input, size);
    ol_status status =
        ol_scan(rows, ROWS_MAX, &count, data, size, size, &position, true, false, &fault);
    REQUIRE(position <= size && count <= ROWS_MAX);
    REQUIRE(status == OL_OK || fault.position == (int64_t)position);
    int64_t positions[ROWS_MAX];
    size_t expected = 0;
    for (size_t i = 0; i < count; i++) {
        REQUIRE(rows[i].position == (int64_t)expected && rows[i].size >= OL_HEADER_BYTES);
        expected += (size_t)rows[i].size;
        positions[i] = rows[i].position;
        uint8_t *at = data + positions[i];
        ol_store32(at + OL_CRC_AT,
                   ol_crc32c(0, at + OL_CRC_FROM, (size_t)rows[i].size - OL_CRC_FROM));
        /* A restamp with nothing changed changes nothing. */
        ol_header same = rows[i];
        uint32_t crc = ol_load32(at + OL_CRC_AT);
        ol_header_restamp(at, &same);
        REQUIRE(ol_load32(at + OL_CRC_AT) == crc);
    }
    REQUIRE(expected == position);
    for (size_t i = 0; i < count; i++) one_batch(data, size, &rows[i]);
    /* All at once, then from the middle of the offsets on. */
    for (int views = 0; views < 2; views++) {
        ol_columns *columns =
            decode_all(data, size, positions, (int64_t)count, views, &status, &fault);
        export_to_arrow(columns);
        ol_columns_release(columns);
    }
    int64_t target = count ? rows[count / 2].base_offset : 0;
    for (int by_timestamp = 0; by_timestamp < 2; by_timestamp++) {
        position = 0;
        ol_seek(data, size, &position, target, by_timestamp, &fault);
        REQUIRE(position <= size);
    }
    free(data);
    return 0;
}
