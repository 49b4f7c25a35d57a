/* Batch headers: read with every field doubted, scan, write, restamp. The layout table stands in
 * engine/segment/batch.py. */
#include <string.h>

#include "endian.h"
#include "oncelog.h"
#include "varint.h"

/* Control batches are never compressed; their single record's key starts with version and type, and a
 * marker's value with version and coordinator epoch. What does not look like that stays unreadable:
 * the batch is hidden from readers all the same. */
static void read_control(ol_header *header, const uint8_t *at, const uint8_t *end) {
    header->control_type = OL_CONTROL_UNREADABLE;
    if (header->attributes & OL_ATTR_CODEC) return;
    int32_t body, delta, size;
    int64_t timestamp;
    if (!(at = ol_varint_read(at, end, &body)) || body < 1 || body > end - at) return;
    end = at + body;
    at++; /* attributes */
    if (!(at = ol_varlong_read(at, end, &timestamp))) return;
    if (!(at = ol_varint_read(at, end, &delta))) return;
    if (!(at = ol_varint_read(at, end, &size)) || size < 4 || size > end - at) return;
    int16_t type = (int16_t)ol_load16(at + 2);
    if (type < 0) return;
    header->control_type = type;
    at += size;
    if (type > 1) return; /* only ABORT and COMMIT name a coordinator */
    if (!(at = ol_varint_read(at, end, &size)) || size < 6 || size > end - at) return;
    header->coordinator_epoch = (int32_t)ol_load32(at + 2);
}

ol_status ol_header_read(ol_header *header, const uint8_t *base, size_t size, size_t position,
                         bool check_crc, ol_fault *fault) {
    fault->position = (int64_t)position;
    fault->base_offset = -1;
    fault->record = -1;
    if (position > size)
        return ol_fail(fault, OL_E_ARGUMENT, "position lies past the end of the buffer");
    size_t left = size - position;
    const uint8_t *at = base + position;
    if (left < 17) return ol_fail(fault, OL_E_TRUNCATED, "the bytes end inside the batch header");
    int64_t length = (int32_t)ol_load32(at + 8);
    header->base_offset = (int64_t)ol_load64(at);
    header->magic = (int8_t)at[16];
    fault->base_offset = header->base_offset;
    /* Old messages have other sizes, so the magic is judged before the size is; but the smallest of them
     * counts fourteen bytes, and zeros that a crash left behind are not one. */
    if (header->magic == 0 || header->magic == 1) {
        if (length < 14)
            return ol_fail(fault, OL_E_SIZE, "batch length is smaller than any message");
        return ol_fail(fault, OL_E_OLD_MAGIC, "message format 0 or 1, from before record batches");
    }
    if (header->magic != 2) return ol_fail(fault, OL_E_MAGIC, "magic byte is not 2");
    if (length < OL_HEADER_BYTES - OL_LENGTH_END)
        return ol_fail(fault, OL_E_SIZE, "batch length is smaller than a batch header");
    if (left < OL_HEADER_BYTES)
        return ol_fail(fault, OL_E_TRUNCATED, "the bytes end inside the batch header");
    if ((uint64_t)length + OL_LENGTH_END > left)
        return ol_fail(fault, OL_E_TRUNCATED, "the bytes end inside the batch");
    header->position = (int64_t)position;
    header->size = length + OL_LENGTH_END;
    header->partition_leader_epoch = (int32_t)ol_load32(at + 12);
    header->crc = ol_load32(at + OL_CRC_AT);
    header->attributes = (int16_t)ol_load16(at + 21);
    header->last_offset_delta = (int32_t)ol_load32(at + 23);
    header->base_timestamp = (int64_t)ol_load64(at + 27);
    header->max_timestamp = (int64_t)ol_load64(at + 35);
    header->producer_id = (int64_t)ol_load64(at + 43);
    header->producer_epoch = (int16_t)ol_load16(at + 51);
    header->base_sequence = (int32_t)ol_load32(at + 53);
    header->record_count = (int32_t)ol_load32(at + 57);
    header->crc_ok = -1;
    if (check_crc)
        header->crc_ok =
            ol_crc32c(0, at + OL_CRC_FROM, (size_t)header->size - OL_CRC_FROM) == header->crc ? 1
                                                                                              : 0;
    header->control_type = OL_CONTROL_NONE;
    header->coordinator_epoch = -1;
    if (header->attributes & OL_ATTR_CONTROL)
        read_control(header, at + OL_HEADER_BYTES, at + header->size);
    return OL_OK;
}

ol_status ol_scan(ol_header *rows, size_t capacity, size_t *count, const uint8_t *base, size_t size,
                  size_t stop, size_t *position, bool check_crc, bool stop_at_bad_crc,
                  ol_fault *fault) {
    for (*count = 0; *count < capacity && *position < stop; ++*count) {
        ol_header *row = rows + *count;
        ol_status status = ol_header_read(row, base, size, *position, check_crc, fault);
        if (status != OL_OK) return status;
        if (stop_at_bad_crc && row->crc_ok == 0)
            return ol_fail(fault, OL_E_CRC, "checksum does not match the batch");
        *position += (size_t)row->size;
    }
    return OL_OK;
}

ol_status ol_seek(const uint8_t *base, size_t size, size_t *position, int64_t target,
                  bool by_timestamp, ol_fault *fault) {
    while (*position < size) {
        ol_header header;
        ol_status status = ol_header_read(&header, base, size, *position, false, fault);
        if (status != OL_OK) return status;
        int64_t reached = by_timestamp ? header.max_timestamp : ol_last_offset(&header);
        if (reached >= target) return OL_OK;
        *position += (size_t)header.size;
    }
    return OL_OK;
}

void ol_header_write(uint8_t *at, const ol_header *header) {
    ol_store64(at, (uint64_t)header->base_offset);
    ol_store32(at + 8, (uint32_t)(header->size - OL_LENGTH_END));
    ol_store32(at + 12, (uint32_t)header->partition_leader_epoch);
    at[16] = 2;
    ol_store32(at + OL_CRC_AT, header->crc);
    ol_store16(at + 21, (uint16_t)header->attributes);
    ol_store32(at + 23, (uint32_t)header->last_offset_delta);
    ol_store64(at + 27, (uint64_t)header->base_timestamp);
    ol_store64(at + 35, (uint64_t)header->max_timestamp);
    ol_store64(at + 43, (uint64_t)header->producer_id);
    ol_store16(at + 51, (uint16_t)header->producer_epoch);
    ol_store32(at + 53, (uint32_t)header->base_sequence);
    ol_store32(at + 57, (uint32_t)header->record_count);
}

void ol_header_restamp(uint8_t *at, ol_header *header) {
    size_t covered = OL_HEADER_BYTES - OL_CRC_FROM;
    uint32_t old_crc = ol_load32(at + OL_CRC_AT);
    uint32_t before = ol_crc32c(0, at + OL_CRC_FROM, covered);
    ol_header_write(at, header);
    uint32_t after = ol_crc32c(0, at + OL_CRC_FROM, covered);
    /* A CRC is linear: the change in the covered prefix, moved past the payload, is the change of all. */
    header->crc =
        old_crc ^ ol_crc32c_shift(before ^ after, (uint64_t)header->size - OL_HEADER_BYTES);
    ol_store32(at + OL_CRC_AT, header->crc);
}

void ol_batches_stamp(uint8_t *base, ol_header *rows, int64_t row_count, int64_t next_offset,
                      int32_t leader_epoch) {
    for (int64_t index = 0; index < row_count; index++) {
        ol_header *row = rows + index;
        row->base_offset = next_offset;
        row->partition_leader_epoch = leader_epoch;
        ol_store64(base + row->position, (uint64_t)next_offset);
        ol_store32(base + row->position + 12, (uint32_t)leader_epoch);
        next_offset += (int64_t)row->last_offset_delta + 1;
    }
}
