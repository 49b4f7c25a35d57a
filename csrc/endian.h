/* Big-endian loads and stores at any alignment. */
#ifndef ONCELOG_ENDIAN_H
#define ONCELOG_ENDIAN_H

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define OL_BIG16(x) (x)
#define OL_BIG32(x) (x)
#define OL_BIG64(x) (x)
#else
#define OL_BIG16(x) __builtin_bswap16(x)
#define OL_BIG32(x) __builtin_bswap32(x)
#define OL_BIG64(x) __builtin_bswap64(x)
#endif

#define OL_DEFINE_BIG(bits)                                                \
    static inline uint##bits##_t ol_load##bits(const uint8_t *at) {        \
        uint##bits##_t value;                                              \
        memcpy(&value, at, sizeof value);                                  \
        return OL_BIG##bits(value);                                        \
    }                                                                      \
    static inline void ol_store##bits(uint8_t *at, uint##bits##_t value) { \
        value = OL_BIG##bits(value);                                       \
        memcpy(at, &value, sizeof value);                                  \
    }
OL_DEFINE_BIG(16)
OL_DEFINE_BIG(32)
OL_DEFINE_BIG(64)

#endif
