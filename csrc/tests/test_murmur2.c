/* murmur2: the values of Java's own test, and partitions of keys. */
#include "check.h"
#include "oncelog.h"

static void known_values(void) {
    static const struct {
        const char *text;
        int32_t hash;
    } known[] = {
        {"21", -973932308},
        {"foobar", -790332482},
        {"a-little-bit-long-string", -985981536},
        {"a-little-bit-longer-string", -1486304829},
        {"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971},
        {"abc", 479470107},
        {"1", -1993445489},
        {"12", 126087238},
        {"123", -267702483},
        {"1234", -1614185708},
        {"12345", -1188365604},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t size = strlen(known[i].text);
        uint8_t *exact = exact_copy(known[i].text, size);
        CHECK_INT(ol_murmur2(exact, size), known[i].hash);
        CHECK_INT(ol_key_partition(exact, size, 7), (known[i].hash & INT32_MAX) % 7);
        free(exact);
    }
}

static void many_keys(void) {
    uint8_t bytes[64];
    ol_slice keys[65];
    int32_t found[65];
    for (int i = 0; i < 64; i++) bytes[i] = (uint8_t)(200 + i);
    for (int i = 0; i < 64; i++) keys[i] = (ol_slice){bytes, i};
    keys[64] = (ol_slice){NULL, -1};
    ol_key_partitions(keys, 65, 12, 5, found);
    for (int i = 0; i < 64; i++) CHECK_INT(found[i], ol_key_partition(bytes, (size_t)i, 12));
    CHECK_INT(found[64], 5);
}

int main(void) {
    known_values();
    many_keys();
    return check_result();
}
