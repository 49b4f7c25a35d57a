/* Records into batches: one pass over slices, batches split by size, checksum over hot bytes. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "endian.h"
#include "oncelog.h"
#include "varint.h"

/* Batch sizes stand in an int32 that does not count its first twelve bytes. */
#define BATCH_BYTES_LIMIT ((int64_t)INT32_MAX)

ol_status ol_bytes_reserve(ol_bytes *bytes, size_t extra) {
    if (bytes->capacity - bytes->size >= extra) return OL_OK;
    if (extra > SIZE_MAX / 2 - bytes->size) return OL_E_MEMORY;
    size_t capacity = bytes->capacity + bytes->capacity / 2;
    if (capacity < bytes->size + extra) capacity = bytes->size + extra;
    uint8_t *data = realloc(bytes->data, capacity);
    if (!data) return OL_E_MEMORY;
    bytes->data = data;
    bytes->capacity = capacity;
    return OL_OK;
}

void ol_encoder_init(ol_encoder *encoder) {
    memset(encoder, 0, sizeof *encoder);
    encoder->next.partition_leader_epoch = -1;
    encoder->next.producer_id = -1;
    encoder->next.producer_epoch = -1;
    encoder->next.base_sequence = -1;
    encoder->batch_bytes_max = BATCH_BYTES_LIMIT;
}

void ol_encoder_free(ol_encoder *encoder) {
    free(encoder->out.data);
    memset(&encoder->out, 0, sizeof encoder->out);
}

static ol_status no_memory(ol_fault *fault) { return ol_fail(fault, OL_E_MEMORY, "out of memory"); }

static ol_status open_batch(ol_encoder *encoder, ol_fault *fault) {
    if (ol_bytes_reserve(&encoder->out, OL_HEADER_BYTES) != OL_OK) return no_memory(fault);
    encoder->open_at = encoder->out.size;
    encoder->out.size += OL_HEADER_BYTES;
    encoder->open_count = 0;
    encoder->open_last_delta = -1;
    encoder->open_max_timestamp = -1;
    encoder->open_base_timestamp = encoder->next.base_timestamp;
    return OL_OK;
}

static bool is_open(const ol_encoder *encoder) { return encoder->out.size != encoder->open_at; }

ol_status ol_encode_close(ol_encoder *encoder, const uint8_t *payload, size_t payload_size,
                          ol_fault *fault) {
    if (!is_open(encoder)) {
        if (!encoder->one_batch || encoder->batch_count) return OL_OK;
        ol_status status = open_batch(encoder, fault);
        if (status != OL_OK) return status;
    }
    if (payload) {
        encoder->out.size = encoder->open_at + OL_HEADER_BYTES;
        if (ol_bytes_reserve(&encoder->out, payload_size) != OL_OK) return no_memory(fault);
        ol_copy(encoder->out.data + encoder->out.size, payload, payload_size);
        encoder->out.size += payload_size;
    }
    ol_header *next = &encoder->next;
    int64_t size = (int64_t)(encoder->out.size - encoder->open_at);
    if (size > BATCH_BYTES_LIMIT) return ol_fail(fault, OL_E_TOO_LARGE, "the batch exceeds 2 GiB");
    ol_header header = *next;
    header.size = size;
    header.record_count = (int32_t)encoder->open_count;
    if (!encoder->fix_last_offset_delta)
        header.last_offset_delta =
            (int32_t)(encoder->open_last_delta < 0 ? 0 : encoder->open_last_delta);
    else if (encoder->open_last_delta > next->last_offset_delta)
        return ol_fail(fault, OL_E_ARGUMENT, "offsets pass the batch's last");
    header.base_timestamp = encoder->open_base_timestamp;
    if (!encoder->fix_max_timestamp) header.max_timestamp = encoder->open_max_timestamp;
    header.crc = 0;
    uint8_t *at = encoder->out.data + encoder->open_at;
    ol_header_write(at, &header);
    header.crc = ol_crc32c(0, at + OL_CRC_FROM, (size_t)size - OL_CRC_FROM);
    ol_header_write(at, &header);
    encoder->batch_count++;
    encoder->record_count += encoder->open_count;
    encoder->open_at = encoder->out.size;
    next->base_offset += (int64_t)header.last_offset_delta + 1;
    if (next->base_sequence >= 0) /* after 2^31 - 1 comes 0 */
        next->base_sequence =
            (int32_t)(((int64_t)next->base_sequence + encoder->open_count) & INT32_MAX);
    return OL_OK;
}

static inline uint8_t *put_slice(uint8_t *at, ol_slice slice) {
    if (slice.size < 0) {
        *at = 1; /* -1 in zigzag */
        return at + 1;
    }
    at = ol_varint_write(at, (int32_t)slice.size);
    ol_copy(at, slice.data, (size_t)slice.size);
    return at + slice.size;
}

static inline int64_t slice_bytes(const ol_slice *slice) {
    return slice->size < 0 ? 1 : ol_varint_size((int32_t)slice->size) + slice->size;
}

static const ol_slice null_slice = {NULL, -1};

size_t ol_encode_one(uint8_t *at, ol_header *header, ol_slice key, ol_slice value) {
    /* Attributes, timestamp and offset of the record (both are the batch's own), and the count of its headers. */
    int32_t body = (int32_t)(3 + slice_bytes(&key) + slice_bytes(&value) + 1);
    uint8_t *end = ol_varint_write(at + OL_HEADER_BYTES, body);
    memset(end, 0, 3);
    end = put_slice(put_slice(end + 3, key), value);
    *end++ = 0;
    header->size = end - at;
    header->base_timestamp = header->max_timestamp;
    header->last_offset_delta = 0;
    header->record_count = 1;
    header->crc = 0;
    header->magic = 2;
    header->crc_ok = 1;
    ol_header_write(at, header);
    header->crc = ol_crc32c(0, at + OL_CRC_FROM, (size_t)header->size - OL_CRC_FROM);
    ol_store32(at + OL_CRC_AT, header->crc);
    return (size_t)header->size;
}

/* Header sizes of one record; refuses what cannot be written. */
static ol_status measure_headers(const ol_block *block, int64_t first, int64_t end, int64_t *bytes,
                                 ol_fault *fault) {
    if (end - first > INT32_MAX) return ol_fail(fault, OL_E_TOO_LARGE, "too many headers");
    *bytes = 0;
    for (int64_t i = first; i < end; i++) {
        const ol_slice *key = block->header_keys + i, *value = block->header_values + i;
        if (key->size < 0) return ol_fail(fault, OL_E_ARGUMENT, "a header key is null");
        if (key->size > INT32_MAX || value->size > INT32_MAX)
            return ol_fail(fault, OL_E_TOO_LARGE, "a header exceeds 2 GiB");
        *bytes += slice_bytes(key) + slice_bytes(value);
    }
    return OL_OK;
}

/* ---------------------------------------------------------------- records alike */

/* Nearly all records of a block have lengths and deltas of the same widths. Then the places of their fields are the
 * same, and a record is a few stores: no varint is written byte by byte, and none waits for the one before. */

enum { ALIKE_MIN = 4, ALIKE_WIDTH_MAX = 4, ALIKE_SLACK = 16 };

/* Numbers whose zigzag varint has one width: low <= n < low + span. */
typedef struct range {
    uint64_t low, span;
} range;

static inline bool is_within(range numbers, int64_t number) {
    return (uint64_t)number - numbers.low < numbers.span;
}

static inline range alike(int32_t width) { /* for numbers that are not negative */
    uint64_t low = width == 1 ? 0 : UINT64_C(1) << (7 * width - 8);
    return (range){low, (UINT64_C(1) << (7 * width - 1)) - low};
}

/* The bytes of a varint of up to four, without the bits that say which is the last. */
static inline __attribute__((always_inline)) uint32_t spread(uint32_t value) {
    value = (value & 0x3fff) | (value & 0x0fffc000) << 2;
    return (value & 0x007f007f) | (value & 0x3f803f80) << 1;
}

static inline uint32_t continued(int32_t width) { return UINT32_C(0x808080) >> 8 * (4 - width); }

static inline void store_little32(uint8_t *at, uint32_t value) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    memcpy(at, &value, 4);
}

static inline void store_little64(uint8_t *at, uint64_t value) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    memcpy(at, &value, 8);
}

/* Appends records from block[index] on that are like it, as far as they are and as `room` bytes reach: those of the batch
 * and ALIKE_SLACK more may be written. Returns the index after the last; deltas and timestamps go on from there. */
static __attribute__((noinline)) int64_t fill_alike(const ol_block *given, int64_t index,
                                                    uint8_t **out, int64_t room,
                                                    int64_t base_timestamp,
                                                    int64_t default_timestamp, int64_t *last_delta,
                                                    int64_t *max_timestamp) {
    const ol_block block = *given;
    int64_t delta = *last_delta + 1, latest = *max_timestamp, timestamp_delta;
    int64_t key_size = block.keys ? block.keys[index].size : -1;
    int64_t value_size = block.values ? block.values[index].size : -1;
    int64_t timestamp = block.timestamps ? block.timestamps[index] : default_timestamp;
    const bool has_key = key_size >= 0;
    if (block.offsets || value_size < 0 || value_size > 1 << 24 || key_size > 1 << 24 ||
        timestamp < -1 || __builtin_sub_overflow(timestamp, base_timestamp, &timestamp_delta) ||
        timestamp_delta < 0 || timestamp_delta > 1 << 26 || delta > 1 << 26)
        return index;
    const int32_t timestamp_width = ol_varlong_size(timestamp_delta),
                  offset_width = ol_varint_size((int32_t)delta),
                  key_width = has_key ? ol_varint_size((int32_t)key_size) : 1,
                  value_width = ol_varint_size((int32_t)value_size);
    /* Attributes, the varints, and at the end the count of headers. */
    const int64_t fixed = 1 + timestamp_width + offset_width + key_width + value_width + 1;
    int64_t key_bytes = has_key ? key_size : 0, body = fixed + key_bytes + value_size;
    const int32_t length_width = ol_varint_size((int32_t)body);
    const int32_t timestamp_at = length_width + 1, offset_at = timestamp_at + timestamp_width,
                  key_length_at = offset_at + offset_width;
    if (key_length_at > 8 || value_width > ALIKE_WIDTH_MAX || key_width > ALIKE_WIDTH_MAX)
        return index;
    const range lengths = alike(length_width), keys = alike(key_width), values = alike(value_width),
                offsets = alike(offset_width), timestamps = alike(timestamp_width);
    const uint64_t head = (uint64_t)continued(length_width) |
                          (uint64_t)continued(timestamp_width) << 8 * timestamp_at |
                          (uint64_t)continued(offset_width) << 8 * offset_at;
    uint64_t start = 0; /* length and timestamp */
    uint32_t key_length = 1, value_length = 0;
    uint8_t *at = *out;
    int64_t known_key = -1, known_value = -1, known_timestamp = -1; /* no value is null here */
    for (; index < block.count && is_within(offsets, delta); index++, delta++) {
        const ol_slice key = block.keys ? block.keys[index] : null_slice;
        const ol_slice value = block.values[index];
        if (block.timestamps) timestamp = block.timestamps[index];
        if (value.size != known_value || key.size != known_key || timestamp != known_timestamp) {
            if (has_key ? !is_within(keys, key.size) : key.size >= 0) break;
            if (!is_within(values, value.size) || timestamp < -1 ||
                __builtin_sub_overflow(timestamp, base_timestamp, &timestamp_delta) ||
                !is_within(timestamps, timestamp_delta))
                break;
            key_bytes = has_key ? key.size : 0;
            body = fixed + key_bytes + value.size;
            if (!is_within(lengths, body)) break;
            known_key = key.size;
            known_value = value.size;
            known_timestamp = timestamp;
            start = head | spread((uint32_t)body << 1) |
                    (uint64_t)spread((uint32_t)timestamp_delta << 1) << 8 * timestamp_at;
            if (has_key) key_length = spread((uint32_t)key.size << 1) | continued(key_width);
            value_length = spread((uint32_t)value.size << 1) | continued(value_width);
        }
        room -= length_width + body;
        if (room < 0) break;
        if (timestamp > latest) latest = timestamp;
        store_little64(at, start | (uint64_t)spread((uint32_t)delta << 1) << 8 * offset_at);
        uint8_t *to = at + key_length_at;
        store_little32(to, key_length);
        to += key_width;
        if (key_bytes) ol_copy(to, key.data, (size_t)key_bytes);
        to += key_bytes;
        store_little32(to, value_length);
        to += value_width;
        ol_copy(to, value.data, (size_t)value.size);
        to[value.size] = 0;
        at += length_width + body;
    }
    *out = at;
    *last_delta = delta - 1;
    *max_timestamp = latest;
    return index;
}

/* Appends records to the open batch until it is full (OL_BATCH_FULL) or the block ends. The encoder's
 * fields live in locals meanwhile: a store through uint8_t may alias anything, so the compiler would
 * reload each of them after every byte. Inlined twice, because most records have no headers and a
 * quarter of the time would go into finding that out. */
static inline __attribute__((always_inline)) ol_status fill_batch(ol_encoder *encoder,
                                                                  const ol_block *given,
                                                                  int64_t *done, bool headers,
                                                                  ol_fault *fault) {
    const ol_block block = *given;
    const int64_t default_timestamp = encoder->default_timestamp,
                  base_offset = encoder->next.base_offset;
    const int64_t base_timestamp = encoder->open_base_timestamp,
                  batch_bytes_max = encoder->batch_bytes_max;
    const size_t open_at = encoder->open_at;
    int64_t last_delta = encoder->open_last_delta, max_timestamp = encoder->open_max_timestamp;
    int64_t index = *done;
    size_t used = encoder->out.size;
    ol_status status = OL_OK;
    for (; index < block.count; index++) {
        if (!headers && block.count - index >= ALIKE_MIN) {
            /* What lies in the way is written below, and then it is tried again. */
            uint8_t *at = encoder->out.data + used;
            int64_t room = (int64_t)(encoder->out.capacity - used) - ALIKE_SLACK,
                    left = batch_bytes_max - (int64_t)(used - open_at);
            index = fill_alike(given, index, &at, left < room ? left : room, base_timestamp,
                               default_timestamp, &last_delta, &max_timestamp);
            used = (size_t)(at - encoder->out.data);
            if (index == block.count) break;
        }
        const ol_slice key = block.keys ? block.keys[index] : null_slice;
        const ol_slice value = block.values ? block.values[index] : null_slice;
        const int64_t timestamp = block.timestamps ? block.timestamps[index] : default_timestamp;
        const int64_t offset_delta =
            block.offsets ? (int64_t)((uint64_t)block.offsets[index] - (uint64_t)base_offset)
                          : last_delta + 1;
        int64_t timestamp_delta, first_header = 0, end_header = 0, header_bytes = 0;
        if (key.size > INT32_MAX || value.size > INT32_MAX) {
            status = ol_fail(fault, OL_E_TOO_LARGE, "a key or value exceeds 2 GiB");
            break;
        }
        if (offset_delta <= last_delta || offset_delta > INT32_MAX) {
            status = ol_fail(fault, OL_E_ARGUMENT,
                             "offsets must rise and stay within 2^31 of the base offset");
            break;
        }
        if (timestamp < -1 || __builtin_sub_overflow(timestamp, base_timestamp, &timestamp_delta)) {
            status = ol_fail(fault, OL_E_TIMESTAMP,
                             "the timestamp is negative or too far from the batch's first");
            break;
        }
        if (headers) {
            first_header = block.header_starts[index];
            end_header = block.header_ends[index];
            status = measure_headers(given, first_header, end_header, &header_bytes, fault);
            if (status != OL_OK) break;
        }
        const int64_t body = 1 + ol_varlong_size(timestamp_delta) +
                             ol_varint_size((int32_t)offset_delta) + slice_bytes(&key) +
                             slice_bytes(&value) +
                             ol_varint_size((int32_t)(end_header - first_header)) + header_bytes;
        if (body > BATCH_BYTES_LIMIT - OL_HEADER_BYTES - OL_VARINT_MAX) {
            status = ol_fail(fault, OL_E_TOO_LARGE, "the record exceeds 2 GiB");
            break;
        }
        const int64_t record_bytes = ol_varint_size((int32_t)body) + body;
        if (last_delta >= 0 && (int64_t)(used - open_at) + record_bytes > batch_bytes_max) {
            status = OL_BATCH_FULL;
            break;
        }
        if (encoder->out.capacity - used < (size_t)record_bytes) {
            encoder->out.size = used;
            if (ol_bytes_reserve(&encoder->out, (size_t)record_bytes) != OL_OK) {
                status = no_memory(fault);
                break;
            }
        }
        uint8_t *at = encoder->out.data + used;
        at = ol_varint_write(at, (int32_t)body);
        *at++ = 0; /* record attributes: none are defined */
        at = ol_varlong_write(at, timestamp_delta);
        at = ol_varint_write(at, (int32_t)offset_delta);
        at = put_slice(at, key);
        at = put_slice(at, value);
        at = ol_varint_write(at, (int32_t)(end_header - first_header));
        for (int64_t i = first_header; headers && i < end_header; i++) {
            at = put_slice(at, block.header_keys[i]);
            at = put_slice(at, block.header_values[i]);
        }
        used += (size_t)record_bytes;
        last_delta = offset_delta;
        if (timestamp > max_timestamp) max_timestamp = timestamp;
    }
    encoder->out.size = used;
    encoder->open_count += index - *done;
    encoder->open_last_delta = last_delta;
    encoder->open_max_timestamp = max_timestamp;
    *done = index;
    if (status != OL_OK) fault->record = (int32_t)(index < INT32_MAX ? index : INT32_MAX);
    return status;
}

ol_status ol_encode(ol_encoder *encoder, const ol_block *block, int64_t *done, ol_fault *fault) {
    while (*done < block->count) {
        fault->position = (int64_t)encoder->open_at;
        fault->base_offset = encoder->next.base_offset;
        fault->record = (int32_t)*done;
        if (!is_open(encoder)) {
            ol_status status = open_batch(encoder, fault);
            if (status != OL_OK) return status;
            if (!encoder->fix_base_timestamp)
                encoder->open_base_timestamp =
                    block->timestamps ? block->timestamps[*done] : encoder->default_timestamp;
        }
        ol_status status = block->header_starts ? fill_batch(encoder, block, done, true, fault)
                                                : fill_batch(encoder, block, done, false, fault);
        if (status == OL_BATCH_FULL) {
            if (encoder->one_batch)
                return ol_fail(fault, OL_E_TOO_LARGE, "the batch exceeds its size limit");
            if (encoder->compress) return OL_BATCH_FULL;
            status = ol_encode_close(encoder, NULL, 0, fault);
        }
        if (status != OL_OK) {
            /* A batch whose first record was refused is not open: the next one begins it anew. */
            if (!encoder->open_count) encoder->out.size = encoder->open_at;
            return status;
        }
    }
    return OL_OK;
}
