/* Records into batches: one pass over slices, batches split by size, checksum over hot bytes. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "copy.h"
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
