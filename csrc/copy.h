/* Exact copies of short, unpredictable sizes, inlined.
 *
 * A call into libc costs more than a hundred bytes of copying, and on some CPUs its `rep movsb` path
 * drops to a few GB/s when source and destination are a small distance apart modulo 4 KiB, which
 * neighbouring allocations are. Neither side is touched outside its `size` bytes. */
#ifndef ONCELOG_COPY_H
#define ONCELOG_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline __attribute__((always_inline)) void
ol_copy(uint8_t *restrict to, const uint8_t *restrict from, size_t size) {
    if (size >= 16) {
        size_t last = size - 16;
        size_t at = 0;
        for (; at + 64 <= size;
             at += 64) { /* as one copy of 64 some compilers make it `rep movs` */
            memcpy(to + at, from + at, 16);
            memcpy(to + at + 16, from + at + 16, 16);
            memcpy(to + at + 32, from + at + 32, 16);
            memcpy(to + at + 48, from + at + 48, 16);
            __asm__("" : "+r"(at)); /* or they see a memmove, and call it */
        }
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

#endif
