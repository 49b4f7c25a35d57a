/* Kafka's zigzag varints: at most 5 bytes for 32 bits, 10 for 64.
 *
 * Each reader takes the position and the end and returns the position after the value, or NULL when
 * the value does not end in time. Where at least OL_VARINT_SLACK bytes are known to follow, the
 * `_near` forms skip the end checks: a varint stops by itself after its longest form. */
#ifndef ONCELOG_VARINT_H
#define ONCELOG_VARINT_H

#include <stddef.h>
#include <stdint.h>

/* Each is a handful of instructions in the middle of a hot loop, which only looks large to a compiler. */
#define OL_VARINT_INLINE static inline __attribute__((always_inline))

enum { OL_VARINT_MAX = 5, OL_VARLONG_MAX = 10 };

OL_VARINT_INLINE int32_t ol_unzigzag32(uint32_t value) {
    return (int32_t)((value >> 1) ^ (0u - (value & 1)));
}
OL_VARINT_INLINE int64_t ol_unzigzag64(uint64_t value) {
    return (int64_t)((value >> 1) ^ (0ull - (value & 1)));
}
static inline uint32_t ol_zigzag32(int32_t value) {
    return ((uint32_t)value << 1) ^ (uint32_t)(value >> 31);
}
static inline uint64_t ol_zigzag64(int64_t value) {
    return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}

OL_VARINT_INLINE const uint8_t *ol_varint_near(const uint8_t *at, int32_t *out) {
    uint32_t value = at[0];
    if (value < 0x80) {
        *out = ol_unzigzag32(value);
        return at + 1;
    }
    value = (value & 0x7f) | (uint32_t)at[1] << 7;
    if (at[1] < 0x80) {
        *out = ol_unzigzag32(value);
        return at + 2;
    }
    value &= 0x3fff;
    for (int index = 2; index < OL_VARINT_MAX; index++) {
        value |= (uint32_t)(at[index] & 0x7f) << (7 * index);
        if (at[index] < 0x80) {
            *out = ol_unzigzag32(value);
            return at + index + 1;
        }
    }
    return NULL;
}

OL_VARINT_INLINE const uint8_t *ol_varlong_near(const uint8_t *at, int64_t *out) {
    uint64_t value = at[0];
    if (value < 0x80) {
        *out = ol_unzigzag64(value);
        return at + 1;
    }
    value &= 0x7f;
    for (int index = 1; index < OL_VARLONG_MAX; index++) {
        value |= (uint64_t)(at[index] & 0x7f) << (7 * index);
        if (at[index] < 0x80) {
            *out = ol_unzigzag64(value);
            return at + index + 1;
        }
    }
    return NULL;
}

static inline const uint8_t *ol_varlong_read(const uint8_t *at, const uint8_t *end, int64_t *out) {
    uint64_t value = 0;
    for (int index = 0; index < OL_VARLONG_MAX && at + index < end; index++) {
        value |= (uint64_t)(at[index] & 0x7f) << (7 * index);
        if (at[index] < 0x80) {
            *out = ol_unzigzag64(value);
            return at + index + 1;
        }
    }
    return NULL;
}

static inline const uint8_t *ol_varint_read(const uint8_t *at, const uint8_t *end, int32_t *out) {
    if (end - at >= OL_VARINT_MAX) return ol_varint_near(at, out);
    uint32_t value = 0;
    for (int index = 0; at + index < end; index++) {
        value |= (uint32_t)(at[index] & 0x7f) << (7 * index);
        if (at[index] < 0x80) {
            *out = ol_unzigzag32(value);
            return at + index + 1;
        }
    }
    return NULL;
}

static inline int ol_varlong_size(int64_t value) {
    uint64_t bits = ol_zigzag64(value);
    if (bits < 0x80) return 1;
    if (bits < 0x4000) return 2;
    return (63 - __builtin_clzll(bits)) / 7 + 1;
}
static inline int ol_varint_size(int32_t value) {
    uint32_t bits = ol_zigzag32(value);
    return bits < 0x80 ? 1 : bits < 0x4000 ? 2 : bits < 0x200000 ? 3 : bits < 0x10000000 ? 4 : 5;
}

/* The short forms without a loop: lengths and deltas are nearly always one or two bytes. */
static inline uint8_t *ol_varlong_write(uint8_t *at, int64_t value) {
    uint64_t bits = ol_zigzag64(value);
    if (bits < 0x80) {
        *at = (uint8_t)bits;
        return at + 1;
    }
    if (bits < 0x4000) {
        at[0] = (uint8_t)(bits | 0x80);
        at[1] = (uint8_t)(bits >> 7);
        return at + 2;
    }
    while (bits >= 0x80) {
        *at++ = (uint8_t)(bits | 0x80);
        bits >>= 7;
    }
    *at++ = (uint8_t)bits;
    return at;
}
/* A varint is the varlong of the same value. */
static inline uint8_t *ol_varint_write(uint8_t *at, int32_t value) {
    return ol_varlong_write(at, value);
}

#endif
