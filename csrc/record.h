/* One record of a payload, read with every field doubted, for the loops of records.c and decode.c. Inlined:
 * a call for every record would cost as much as reading it. */
#ifndef ONCELOG_RECORD_H
#define ONCELOG_RECORD_H

#include <string.h>

#include "oncelog.h"
#include "varint.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Length, attributes, timestamp delta, offset delta, key length: with this many bytes ahead the
 * start of a record is read without looking at the end. */
enum { RECORD_START_MAX = 5 + 1 + 10 + 5 + 5 };

typedef struct fields {
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_size;
    int32_t value_size;
    int32_t header_count;
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers;
    const uint8_t *end;
} fields;

#define BAD(sentence)     \
    do {                  \
        *what = sentence; \
        return NULL;      \
    } while (0)

/* Reads one record up to its headers. Returns the place of its first header, NULL with *what else. */
ALWAYS_INLINE const uint8_t *read_fields(fields *record, const uint8_t *at, const uint8_t *end,
                                         const char **what) {
    int32_t body;
    if (__builtin_expect(end - at >= RECORD_START_MAX, 1)) {
        if (!(at = ol_varint_near(at, &body))) BAD("record length is a varint longer than 5 bytes");
        if (body < 0 || body > end - at) BAD("record length reaches past the batch");
        record->end = at + body;
        at++;
        if (!(at = ol_varlong_near(at, &record->timestamp_delta)))
            BAD("timestamp delta is longer than 10 bytes");
        if (!(at = ol_varint_near(at, &record->offset_delta)))
            BAD("offset delta is longer than 5 bytes");
        if (!(at = ol_varint_near(at, &record->key_size))) BAD("key length is longer than 5 bytes");
        if (at > record->end) BAD("record is shorter than its fields");
    } else {
        if (!(at = ol_varint_read(at, end, &body))) BAD("record length is cut off or too long");
        if (body < 1 || body > end - at) BAD("record length reaches past the batch");
        record->end = at + body;
        at++;
        if (!(at = ol_varlong_read(at, record->end, &record->timestamp_delta)))
            BAD("timestamp delta is cut off or too long");
        if (!(at = ol_varint_read(at, record->end, &record->offset_delta)))
            BAD("offset delta is cut off or too long");
        if (!(at = ol_varint_read(at, record->end, &record->key_size)))
            BAD("key length is cut off or too long");
    }
    record->key = at;
    if (record->key_size >= 0) {
        if (record->key_size > record->end - at) BAD("key reaches past the record");
        at += record->key_size;
    } else if (record->key_size != -1) {
        BAD("key length is negative");
    }
    if (!(at = ol_varint_read(at, record->end, &record->value_size)))
        BAD("value length is cut off or too long");
    record->value = at;
    if (record->value_size >= 0) {
        if (record->value_size > record->end - at) BAD("value reaches past the record");
        at += record->value_size;
    } else if (record->value_size != -1) {
        BAD("value length is negative");
    }
    if (record->end - at == 1 &&
        *at == 0) { /* nearly always: the last byte says that there are none */
        record->header_count = 0;
        return record->headers = at + 1;
    }
    if (!(at = ol_varint_read(at, record->end, &record->header_count)))
        BAD("header count is cut off or too long");
    if (record->header_count < 0) BAD("header count is negative");
    if (record->header_count > (record->end - at) / 2) BAD("more headers than the record can hold");
    record->headers = at;
    return at;
}

static inline const uint8_t *read_header(ol_slice *key, ol_slice *value, const uint8_t *at,
                                         const uint8_t *end, const char **what) {
    int32_t size;
    if (!(at = ol_varint_read(at, end, &size))) BAD("header key length is cut off or too long");
    if (size < 0) BAD("header key is null");
    if (size > end - at) BAD("header key reaches past the record");
    *key = (ol_slice){at, size};
    at += size;
    if (!(at = ol_varint_read(at, end, &size))) BAD("header value length is cut off or too long");
    if (size < -1) BAD("header value length is negative");
    *value = (ol_slice){at, size};
    if (size > 0) {
        if (size > end - at) BAD("header value reaches past the record");
        at += size;
    }
    return at;
}

/* ---------------------------------------------------------------- records of one shape */

/* Many batches hold records of one size after another. Such a record is proven by comparison with the one
 * before: lengths and the places of all fields are the same bytes, and only timestamp, offset, key and
 * value differ. That is a few instructions instead of five varints, and none waits for another. */
enum { SHAPE_HEAD_MAX = 16, SHAPE_VARINT_MAX = 4 };

/* Two lines of what lies so far behind. */
ALWAYS_INLINE void prefetch(const uint8_t *at, size_t ahead) {
    uintptr_t there = (uintptr_t)at + ahead; /* a number: the second line may lie past the buffer */
    __builtin_prefetch((const void *)there);
    __builtin_prefetch((const void *)(there + 64));
}

/* Two words that a compiler may keep in one register. */
typedef uint64_t words2 __attribute__((vector_size(16)));

typedef struct shape {
    int64_t size;                         /* of a record with its length prefix, 0: none is known */
    uint64_t mask[2], bits[2];            /* what stays the same of its first 16 bytes */
    words2 step_mask, step;               /* and of those of a record one step on */
    uint32_t value_mask, value_bits;      /* and of the value's length */
    uint32_t timestamp_mask, offset_mask; /* bytes of the varint, of four that are read */
    int32_t timestamp_at, offset_at, key_at, value_length_at, value_at;
    int32_t key_size, value_size;
} shape;

static inline int32_t varint_width(const uint8_t *at) {
    int32_t width = 1;
    while (at[width - 1] >= 0x80) width++;
    return width;
}

ALWAYS_INLINE uint32_t load_little32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

static inline uint32_t bytes_mask(int32_t width) { return UINT32_MAX >> (8 * (4 - width)); }

/* Takes the shape of a sound record without headers that starts at `start`. */
static __attribute__((noinline)) void shape_of(shape *known, const uint8_t *start, ol_slice key,
                                               ol_slice value, const uint8_t *end) {
    uint8_t mask[SHAPE_HEAD_MAX] = {0}, bits[SHAPE_HEAD_MAX] = {0};
    int32_t length_width = varint_width(start);
    known->size = 0;
    known->timestamp_at = length_width + 1;
    int32_t timestamp_width = varint_width(start + known->timestamp_at);
    known->offset_at = known->timestamp_at + timestamp_width;
    int32_t offset_width = varint_width(start + known->offset_at);
    int32_t key_length_at = known->offset_at + offset_width;
    known->key_at = (int32_t)(key.data - start);
    known->key_size = (int32_t)key.size;
    known->value_size = (int32_t)value.size;
    known->value_at = (int32_t)(value.data - start);
    known->value_length_at = known->key_at + (key.size > 0 ? (int32_t)key.size : 0);
    int32_t value_width = known->value_at - known->value_length_at;
    int64_t size = end - start;
    if (known->key_at > SHAPE_HEAD_MAX || timestamp_width > SHAPE_VARINT_MAX ||
        offset_width > SHAPE_VARINT_MAX || value_width > SHAPE_VARINT_MAX ||
        known->value_at + (value.size > 0 ? (int32_t)value.size : 0) + 1 != size)
        return;
    memset(mask, 0xff, (size_t)length_width);
    memset(mask + known->timestamp_at, 0x80, (size_t)(key_length_at - known->timestamp_at));
    memset(mask + key_length_at, 0xff, (size_t)(known->key_at - key_length_at));
    for (int32_t i = 0; i < known->key_at; i++) bits[i] = start[i] & mask[i];
    memcpy(known->mask, mask, sizeof mask);
    memcpy(known->bits, bits, sizeof bits);
    uint8_t step[SHAPE_HEAD_MAX] = {0};
    memset(mask + known->timestamp_at, 0xff, (size_t)(key_length_at - known->timestamp_at));
    step[known->offset_at] = 2; /* zigzag: twice the number */
    memcpy(&known->step_mask, mask, sizeof mask);
    memcpy(&known->step, step, sizeof step);
    known->timestamp_mask = bytes_mask(timestamp_width);
    known->offset_mask = bytes_mask(offset_width);
    known->value_mask = bytes_mask(value_width);
    uint8_t length[4] = {0};
    memcpy(length, start + known->value_length_at, (size_t)value_width);
    known->value_bits = load_little32(length);
    known->size = size;
}

/* A varint of at most four bytes; what lies behind it is masked away. */
ALWAYS_INLINE int32_t short_varint(uint32_t bytes) {
    bytes &= 0x7f7f7f7f;
    bytes = (bytes & 0x007f007f) | (bytes & 0x7f007f00) >> 1;
    return ol_unzigzag32((bytes & 0x3fff) | (bytes & 0x3fff0000) >> 2);
}

/* Reads the record at `at` if it has the known shape; 16 bytes behind it no load reaches past the end. */
ALWAYS_INLINE bool read_alike_near(fields *record, const shape *known, const uint8_t *at) {
    uint64_t head[2];
    memcpy(head, at, sizeof head);
    if (((head[0] & known->mask[0]) ^ known->bits[0]) |
        ((head[1] & known->mask[1]) ^ known->bits[1]))
        return false;
    if ((load_little32(at + known->value_length_at) & known->value_mask) != known->value_bits ||
        at[known->size - 1] != 0)
        return false;
    record->timestamp_delta =
        short_varint(load_little32(at + known->timestamp_at) & known->timestamp_mask);
    record->offset_delta = short_varint(load_little32(at + known->offset_at) & known->offset_mask);
    record->key_size = known->key_size;
    record->value_size = known->value_size;
    record->header_count = 0;
    record->key = at + known->key_at;
    record->value = at + known->value_at;
    record->headers = record->end = at + known->size;
    return true;
}

/* Records that were sent together have one timestamp and offsets one after another. So all of their first bytes are known
 * before they are read, and nothing has to be taken apart: a step changes the low seven bits of the offset delta alone. */
enum { STEPS_MIN = 8, STEPS_MAX = 63 };

ALWAYS_INLINE int64_t steps_left(int32_t offset_delta) {
    return STEPS_MAX - (offset_delta & STEPS_MAX); /* then a carry would leave the seven bits */
}

ALWAYS_INLINE words2 step_differs(const shape *known, words2 expected, const uint8_t *at) {
    words2 head;
    memcpy(&head, at, sizeof head);
    return (head ^ expected) & known->step_mask;
}

/* How many records behind the one at `at`, which has the known shape, are a step behind each other: `count`, which
 * steps_left allows, or fewer, 0 where it is not worth another try. The last one is looked at first, as a timestamp that
 * changes on the way mostly stays changed. */
ALWAYS_INLINE int64_t read_in_step(const shape *known, const uint8_t *at, int64_t count,
                                   size_t ahead) {
    words2 first, expected, differ;
    uint32_t wrong = 0;
    memcpy(&first, at, sizeof first);
    for (;; count /= 2) {
        if (count < STEPS_MIN) return 0;
        expected = first + known->step * (uint64_t)count;
        differ = step_differs(known, expected, at + count * known->size);
        if (!(differ[0] | differ[1])) break;
    }
    expected = first;
    for (int64_t i = 0; i < count; i++) {
        at += known->size;
        if (ahead) prefetch(at, ahead);
        expected += known->step;
        differ |= step_differs(known, expected, at);
        wrong |=
            (load_little32(at + known->value_length_at) & known->value_mask) ^ known->value_bits;
        wrong |= at[known->size - 1];
    }
    return differ[0] | differ[1] | wrong ? 0 : count;
}

/* The same where that is not known; the last records of a batch are read the long way. */
ALWAYS_INLINE bool read_alike(fields *record, const shape *known, const uint8_t *at,
                              const uint8_t *end) {
    return known->size && end - at >= known->size + SHAPE_HEAD_MAX &&
           read_alike_near(record, known, at);
}

/* Reads a record the long way; two of the same size in a row are worth a look at their shape. */
ALWAYS_INLINE const uint8_t *read_anew(fields *record, shape *known, int64_t *last_size,
                                       const uint8_t *at, const uint8_t *end, const char **what) {
    const uint8_t *start = at;
    if (!(at = read_fields(record, at, end, what))) return NULL;
    int64_t size = record->end - start;
    if (size == *last_size && record->header_count == 0 && at == record->end) {
        shape_of(known, start, (ol_slice){record->key, record->key_size},
                 (ol_slice){record->value, record->value_size}, record->end);
    }
    *last_size = size;
    return at;
}

/* Reads the next record one way or the other. */
ALWAYS_INLINE const uint8_t *read_next(fields *record, shape *known, int64_t *last_size,
                                       const uint8_t *at, const uint8_t *end, const char **what) {
    if (read_alike(record, known, at, end)) return record->end;
    return read_anew(record, known, last_size, at, end, what);
}

/* Where the next record starts. Both the record's length and its fields lead there; they agree, but a CPU
 * that goes by the length knows the place after one load and reads several records at once, while the
 * fields are a chain of loads. The compiler, who knows that they agree, would be free to take the chain. */
ALWAYS_INLINE const uint8_t *next_record(const fields *record) {
    const uint8_t *next = record->end;
    __asm__("" : "+r"(next));
    return next;
}

/* Offsets inside a batch rise and do not pass its last one; compaction leaves gaps. */
ALWAYS_INLINE bool offset_in_order(const ol_header *header, int64_t last_delta,
                                   const fields *record) {
    return record->offset_delta > last_delta && record->offset_delta <= header->last_offset_delta;
}
static const char out_of_order[] = "offset deltas do not rise or pass the batch's last";
static const char bytes_left[] =
    "bytes are left over after the last record: the record count is too low";
static const char longer_than_fields[] = "record length disagrees with its fields";

static inline ol_status bad_record(ol_fault *fault, int32_t index, const char *what) {
    fault->record = index;
    return ol_fail(fault, OL_E_RECORD, what);
}

ALWAYS_INLINE int64_t record_timestamp(const ol_header *header, int64_t delta) {
    if (header->attributes & OL_ATTR_LOG_APPEND_TIME) return header->max_timestamp;
    return (int64_t)((uint64_t)header->base_timestamp + (uint64_t)delta);
}

/* A count that the bytes cannot hold is refused before anything is allocated for it. */
static inline ol_status check_counts(const ol_header *header, size_t size, ol_fault *fault) {
    if (header->base_offset < 0) return ol_fail(fault, OL_E_HEADER, "base offset is negative");
    if (header->last_offset_delta < 0)
        return ol_fail(fault, OL_E_HEADER, "last offset delta is negative");
    if (header->base_offset > INT64_MAX - header->last_offset_delta - 1)
        return ol_fail(fault, OL_E_HEADER, "offsets pass 2^63");
    if (header->record_count < 0) return ol_fail(fault, OL_E_HEADER, "record count is negative");
    if ((uint64_t)header->record_count * OL_RECORD_BYTES_MIN > size)
        return ol_fail(fault, OL_E_RECORD, "record count is more than the batch can hold");
    return OL_OK;
}

#endif
