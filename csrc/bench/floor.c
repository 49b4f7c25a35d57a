#include "floor.h"

#include <string.h>
#include <unistd.h>

#include "endian.h"
#include "oncelog.h"

/* ---------------------------------------------------------------- varints */

static inline uint64_t zigzag(int64_t value) {
    return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}

static inline int varint_size(int64_t value) {
    int size = 1;
    for (uint64_t bits = zigzag(value); bits >= 0x80; bits >>= 7) size++;
    return size;
}

static inline uint8_t *put_varint(uint8_t *at, int64_t value) {
    uint64_t bits = zigzag(value);
    for (; bits >= 0x80; bits >>= 7) *at++ = (uint8_t)(bits | 0x80);
    *at++ = (uint8_t)bits;
    return at;
}

static inline const uint8_t *get_varint(const uint8_t *at, int64_t *value) {
    uint64_t bits = *at & 0x7f;
    for (int shift = 7; *at++ & 0x80; shift += 7) bits |= (uint64_t)(*at & 0x7f) << shift;
    *value = (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
    return at;
}

/* ---------------------------------------------------------------- encode */

static inline int64_t binary_size(const floor_binary *binary, int64_t row) {
    return binary->offsets[row + 1] - binary->offsets[row];
}

static inline uint8_t *put_binary(uint8_t *at, const floor_binary *binary, int64_t row) {
    int64_t size = binary_size(binary, row);
    at = put_varint(at, size);
    memcpy(at, binary->data + binary->offsets[row], (size_t)size);
    return at + size;
}

static uint8_t *encode_batch(uint8_t *batch, const floor_columns *columns, int64_t first,
                             int64_t last) {
    uint8_t *at = batch + OL_HEADER_BYTES;
    int64_t base_timestamp = columns->timestamps[first], max_timestamp = base_timestamp;
    for (int64_t row = first; row <= last; row++) {
        int64_t timestamp = columns->timestamps[row];
        int64_t key_size = binary_size(&columns->key, row);
        int64_t value_size = binary_size(&columns->value, row);
        int32_t header = 0, header_end = 0;
        if (columns->header_starts) {
            header = columns->header_starts[row];
            header_end = columns->header_starts[row + 1];
        }
        int64_t body = 1 + varint_size(timestamp - base_timestamp) + varint_size(row - first) +
                       varint_size(key_size) + key_size + varint_size(value_size) + value_size +
                       varint_size(header_end - header);
        for (int32_t i = header; i < header_end; i++) {
            int64_t size = binary_size(&columns->header_key, i);
            body += varint_size(size) + size;
            size = binary_size(&columns->header_value, i);
            body += varint_size(size) + size;
        }
        at = put_varint(at, body);
        *at++ = 0;
        at = put_varint(at, timestamp - base_timestamp);
        at = put_varint(at, row - first);
        at = put_binary(at, &columns->key, row);
        at = put_binary(at, &columns->value, row);
        at = put_varint(at, header_end - header);
        for (int32_t i = header; i < header_end; i++) {
            at = put_binary(at, &columns->header_key, i);
            at = put_binary(at, &columns->header_value, i);
        }
        if (timestamp > max_timestamp) max_timestamp = timestamp;
    }
    ol_store64(batch, (uint64_t)first);
    ol_store32(batch + 8, (uint32_t)(at - batch - OL_LENGTH_END));
    ol_store32(batch + 12, UINT32_MAX); /* leader epoch -1 */
    batch[16] = 2;
    ol_store16(batch + 21, 0);
    ol_store32(batch + 23, (uint32_t)(last - first));
    ol_store64(batch + 27, (uint64_t)base_timestamp);
    ol_store64(batch + 35, (uint64_t)max_timestamp);
    ol_store64(batch + 43, UINT64_MAX); /* no producer: id, epoch and sequence are -1 */
    ol_store16(batch + 51, UINT16_MAX);
    ol_store32(batch + 53, UINT32_MAX);
    ol_store32(batch + 57, (uint32_t)(last - first + 1));
    ol_store32(batch + OL_CRC_AT,
               ol_crc32c(0, batch + OL_CRC_FROM, (size_t)(at - batch - OL_CRC_FROM)));
    return at;
}

int64_t floor_encode(uint8_t *out, const floor_columns *columns, int64_t count,
                     int64_t batch_records) {
    uint8_t *at = out;
    for (int64_t first = 0; first < count; first += batch_records) {
        int64_t end = first + batch_records < count ? first + batch_records : count;
        at = encode_batch(at, columns, first, end - 1);
    }
    return at - out;
}

int64_t floor_room(int64_t batches, int64_t records, int64_t headers, int64_t data_bytes) {
    return batches * OL_HEADER_BYTES + records * 32 + headers * 10 + data_bytes;
}

/* ---------------------------------------------------------------- decode */

static inline const uint8_t *get_binary(floor_binary *binary, int64_t row, const uint8_t *at,
                                        const uint8_t *window) {
    int64_t size;
    at = get_varint(at, &size);
    if (size < 0) {
        binary->validity[row / 8] &= (uint8_t)~(1u << (row % 8));
        size = 0;
    }
    if (binary->views) {
        uint8_t *view = binary->views + 16 * row;
        int32_t fields[4] = {(int32_t)size, 0, 0, (int32_t)(at - window)};
        if (size <= 12) {
            memset(view, 0, 16);
            memcpy(view, fields, 4);
            memcpy(view + 4, at, (size_t)size);
        } else {
            memcpy(fields + 1, at, 4);
            memcpy(view, fields, 16);
        }
    } else {
        int32_t start = binary->offsets[row];
        memcpy(binary->data + start, at, (size_t)size);
        binary->offsets[row + 1] = start + (int32_t)size;
    }
    return at + size;
}

static int64_t decode_batch(floor_columns *columns, int64_t row, const uint8_t *batch,
                            const uint8_t *window) {
    int64_t base_offset = (int64_t)ol_load64(batch);
    int64_t base_timestamp = (int64_t)ol_load64(batch + 27);
    int64_t max_timestamp = (int64_t)ol_load64(batch + 35);
    int stamped = (ol_load16(batch + 21) & OL_ATTR_LOG_APPEND_TIME) != 0;
    int64_t end = row + (int32_t)ol_load32(batch + 57);
    const uint8_t *at = batch + OL_HEADER_BYTES;
    for (; row < end; row++) {
        int64_t body, timestamp_delta, offset_delta, headers;
        at = get_varint(at, &body);
        at = get_varint(at + 1, &timestamp_delta);
        at = get_varint(at, &offset_delta);
        columns->offsets[row] = base_offset + offset_delta;
        columns->timestamps[row] = stamped ? max_timestamp : base_timestamp + timestamp_delta;
        columns->timestamp_types[row] = (int8_t)stamped;
        at = get_binary(&columns->key, row, at, window);
        at = get_binary(&columns->value, row, at, window);
        at = get_varint(at, &headers);
        int32_t header = columns->header_starts[row];
        int32_t header_end = header + (int32_t)headers;
        for (; header < header_end; header++) {
            at = get_binary(&columns->header_key, header, at, window);
            at = get_binary(&columns->header_value, header, at, window);
        }
        columns->header_starts[row + 1] = header_end;
    }
    return end;
}

int64_t floor_decode(floor_columns *columns, const uint8_t *batches, int64_t size) {
    int64_t row = 0;
    columns->header_starts[0] = columns->header_key.offsets[0] = columns->header_value.offsets[0] =
        0;
    if (!columns->key.views) columns->key.offsets[0] = columns->value.offsets[0] = 0;
    for (const uint8_t *batch = batches; batch < batches + size;) {
        int64_t batch_size = OL_LENGTH_END + (int32_t)ol_load32(batch + 8);
        uint32_t crc = ol_crc32c(0, batch + OL_CRC_FROM, (size_t)batch_size - OL_CRC_FROM);
        if (crc != ol_load32(batch + OL_CRC_AT)) return -1;
        row = decode_batch(columns, row, batch, batches);
        batch += batch_size;
    }
    return row;
}

/* ---------------------------------------------------------------- limits of the machine */

uint32_t floor_crc_times(floor_crc_function *function, const void *data, size_t size,
                         int64_t times) {
    uint32_t sum = 0;
    for (int64_t i = 0; i < times; i++) sum ^= function(0, data, size);
    return sum;
}

void floor_memcpy_times(void *to, const void *from, size_t size, int64_t times) {
    for (int64_t i = 0; i < times; i++) {
        memcpy(to, from, size);
        __asm__ volatile("" : : "r"(to) : "memory"); /* or one copy would stand for all */
    }
}

uint64_t floor_sum(const void *data, size_t size) {
    const uint8_t *bytes = data;
    uint64_t sum = 0, word;
    size_t words = size / sizeof word;
    for (size_t i = 0; i < words; i++) {
        memcpy(&word, bytes + i * sizeof word, sizeof word);
        sum += word;
    }
    for (size_t at = words * sizeof word; at < size; at++) sum += bytes[at];
    return sum;
}

int64_t floor_write(int descriptor, const uint8_t *data, const int64_t *starts, int64_t parts) {
    for (int64_t i = 0; i < parts; i++) {
        for (int64_t at = starts[i]; at < starts[i + 1];) {
            ssize_t written = write(descriptor, data + at, (size_t)(starts[i + 1] - at));
            if (written <= 0) return -1;
            at += written;
        }
    }
    return starts[parts] - starts[0];
}

/* ---------------------------------------------------------------- transaction index */

int64_t floor_collect_aborted(const uint8_t *entries, int64_t count, int64_t fetch_offset,
                              int64_t upper_bound, int64_t *hits, int64_t capacity) {
    int64_t found = 0;
    for (int64_t index = 0; index < count; index++) {
        const uint8_t *entry = entries + OL_TXN_ENTRY_BYTES * index;
        if ((int64_t)ol_load64(entry + 18) >= fetch_offset &&
            (int64_t)ol_load64(entry + 10) < upper_bound) {
            if (found < capacity) hits[found] = index;
            found++;
        }
        if ((int64_t)ol_load64(entry + 26) >= upper_bound) break;
    }
    return found;
}

/* ---------------------------------------------------------------- abort filter */

void floor_abort_filter(uint8_t *visible, const ol_header *rows, int64_t row_count,
                        const ol_aborted *aborted, int64_t aborted_count, uint8_t *open) {
    int64_t next = 0;
    for (int64_t row = 0; row < row_count; row++) {
        const ol_header *batch = rows + row;
        int64_t last_offset = batch->base_offset + batch->last_offset_delta;
        for (; next < aborted_count && aborted[next].first_offset <= last_offset; next++)
            open[aborted[next].producer_id] = 1;
        if (batch->attributes & OL_ATTR_CONTROL) {
            visible[row] = 0;
            open[batch->producer_id] = 0;
        } else
            visible[row] = !(batch->attributes & OL_ATTR_TRANSACTIONAL && open[batch->producer_id]);
    }
}
