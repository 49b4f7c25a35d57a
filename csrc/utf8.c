/* UTF-8 for header keys: Arrow strings must be valid, Kafka's bytes need not be. */
#include <string.h>

#include "oncelog.h"

/* Size of the well-formed sequence at `text`, or minus the size of the malformed part to replace (the
 * longest prefix of a sequence that could have become valid, as Unicode recommends). */
static int sequence_at(const uint8_t *text, size_t size) {
    uint8_t lead = text[0];
    if (lead < 0x80) return 1;
    int needed = lead >= 0xC2 && lead <= 0xDF   ? 2
                 : (lead & 0xF0) == 0xE0        ? 3
                 : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                : 0;
    if (!needed) return -1;
    uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    for (int index = 1; index < needed; index++) {
        if ((size_t)index >= size || text[index] < low || text[index] > high) return -index;
        low = 0x80;
        high = 0xBF;
    }
    return needed;
}

bool ol_utf8_valid(const uint8_t *text, size_t size) {
    size_t at = 0;
    for (uint64_t word; at + 8 <= size; at += 8) {
        memcpy(&word, text + at, 8);
        if (word & 0x8080808080808080ull) break;
    }
    while (at < size) {
        int step = sequence_at(text + at, size - at);
        if (step < 0) return false;
        at += (size_t)step;
    }
    return true;
}

size_t ol_utf8_repair(uint8_t *out, const uint8_t *text, size_t size) {
    uint8_t *to = out;
    for (size_t at = 0; at < size;) {
        int step = sequence_at(text + at, size - at);
        if (step > 0) {
            memcpy(to, text + at, (size_t)step);
            to += step;
            at += (size_t)step;
        } else {
            memcpy(to, "\xEF\xBF\xBD", 3);
            to += 3;
            at += (size_t)-step;
        }
    }
    return (size_t)(to - out);
}
