/* CRC-32C: each kernel computes what the definition says, bit by bit, at any size and alignment. */
#include <pthread.h>

#include "check.h"
#include "oncelog.h"

static uint32_t bit_by_bit(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
    }
    return ~crc;
}

static uint32_t with(const char *kernel, uint32_t crc, const void *data, size_t size) {
    uint32_t out = 0xdeadbeef;
    CHECK(ol_crc32c_with(kernel, crc, data, size, &out));
    return out;
}

/* Runs first: several threads find the kernel not chosen yet. */
static void *first_use(void *result) {
    *(uint32_t *)result = ol_crc32c(0, "123456789", 9);
    return NULL;
}

static void threads_may_race_for_the_first_call(void) {
    pthread_t threads[8];
    uint32_t results[8] = {0};
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, first_use, &results[i]);
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(results[i], 0xE3069283u);
    }
}

static void every_size_and_alignment(const char *kernel) {
    enum { LARGEST = 7000 };
    uint8_t *data = malloc(LARGEST + 64);
    if (!data) abort();
    for (int i = 0; i < LARGEST + 64; i++) data[i] = (uint8_t)check_random();
    for (size_t start = 0; start < 64; start += start < 9 ? 1 : 11) {
        uint32_t expected = 0;
        for (size_t size = 0; size <= LARGEST; size++) {
            /* All sizes where loops begin and end, then every seventh. */
            if (size < 1200 || size % 7 == 0 || size % 384 < 9 || size % 1024 < 9)
                CHECK_INT(with(kernel, 0, data + start, size), expected);
            if (size < LARGEST) expected = bit_by_bit(expected, data + start + size, 1);
        }
    }
    for (size_t size = 0; size < 600; size++) {
        uint8_t *exact = exact_copy(data, size); /* nothing behind the end is looked at */
        uint32_t before = (uint32_t)check_random();
        CHECK_INT(with(kernel, before, exact, size), bit_by_bit(before, exact, size));
        free(exact);
    }
    free(data);
}

static void combine_is_concatenation(void) {
    uint8_t data[300];
    for (int i = 0; i < 300; i++) data[i] = (uint8_t)check_random();
    for (size_t cut = 0; cut <= 300; cut++) {
        uint32_t a = ol_crc32c(0, data, cut), b = ol_crc32c(0, data + cut, 300 - cut);
        CHECK_INT(ol_crc32c_combine(a, b, 300 - cut), ol_crc32c(0, data, 300));
    }
    /* A shift is a move past zeros, and adds up. */
    uint32_t crc = 0x12345678;
    CHECK_INT(ol_crc32c_shift(crc, 0), crc);
    CHECK_INT(ol_crc32c_shift(0, UINT64_MAX), 0);
    for (int k = 0; k < 62; k++) {
        uint64_t size = (uint64_t)1 << k;
        CHECK_INT(ol_crc32c_shift(ol_crc32c_shift(crc, size), size),
                  ol_crc32c_shift(crc, 2 * size));
        CHECK_INT(ol_crc32c_shift(ol_crc32c_shift(crc, size), 1), ol_crc32c_shift(crc, size + 1));
    }
}

int main(void) {
    threads_may_race_for_the_first_call();
    CHECK_INT(bit_by_bit(0, (const uint8_t *)"123456789", 9), 0xE3069283u);
    int count = 0;
    for (const char *kernel; (kernel = ol_crc32c_kernel(count)); count++) {
        CHECK_INT(with(kernel, 0, "123456789", 9), 0xE3069283u);
        every_size_and_alignment(kernel);
    }
    CHECK(count >= 1);
    CHECK(strcmp(ol_crc32c_kernel(count - 1), "portable") == 0);
    CHECK(ol_crc32c_kernel(-1) == NULL);
    CHECK(ol_crc32c_kernel(count + 1) == NULL);
    uint32_t untouched = 7;
    CHECK(!ol_crc32c_with("no such kernel", 0, "", 0, &untouched));
    CHECK_INT(untouched, 7);
    combine_is_concatenation();
    return check_result();
}
