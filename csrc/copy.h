/* Copies of short sizes, inlined: exact ones, and of many slices of one size.
 *
 * A call into libc costs more than a hundred bytes of copying, and on some CPUs its `rep movsb` path
 * drops to a few GB/s when source and destination are a small distance apart modulo 4 KiB, which
 * neighbouring allocations are. */
#ifndef ONCELOG_COPY_H
#define ONCELOG_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* As many blocks of 64 bytes as there are; returns how far that is. */
static inline __attribute__((always_inline)) size_t copy_blocks(uint8_t *restrict to,
                                                                const uint8_t *restrict from,
                                                                size_t size) {
    size_t at = 0;
    for (; at + 64 <= size; at += 64) { /* as one copy of 64 some compilers make it `rep movs` */
        memcpy(to + at, from + at, 16);
        memcpy(to + at + 16, from + at + 16, 16);
        memcpy(to + at + 32, from + at + 32, 16);
        memcpy(to + at + 48, from + at + 48, 16);
        __asm__("" : "+r"(at)); /* or they see a memmove, and call it */
    }
    return at;
}

/* Neither side is touched outside its `size` bytes. */
static inline __attribute__((always_inline)) void
ol_copy(uint8_t *restrict to, const uint8_t *restrict from, size_t size) {
    if (size >= 16) {
        size_t last = size - 16;
        size_t at = copy_blocks(to, from, size);
        for (; at < last; at += 16) memcpy(to + at, from + at, 16);
        memcpy(to + last, from + last, 16);
    } else if (size >= 8) {
        memcpy(to, from, 8);
        memcpy(to + size - 8, from + size - 8, 8);
    } else if (size >= 4) {
        memcpy(to, from, 4);
        memcpy(to + size - 4, from + size - 4, 4);
    } else if (size) {
        to[0] = from[0];
        to[size / 2] = from[size / 2];
        to[size - 1] = from[size - 1];
    }
}

/* `count` slices of `size` bytes, `stride` apart, one behind the other. Whole words of 16 bytes are copied, so both sides have
 * 15 more bytes behind the last one. */
static inline __attribute__((always_inline)) void ol_copy_alike(uint8_t *restrict to,
                                                                const uint8_t *restrict from,
                                                                size_t size, size_t stride,
                                                                int64_t count) {
    for (int64_t i = 0; i < count; i++, to += size, from += stride) {
        for (size_t at = copy_blocks(to, from, size); at < size; at += 16) {
            memcpy(to + at, from + at, 16);
            __asm__("" : "+r"(at));
        }
    }
}

#endif
