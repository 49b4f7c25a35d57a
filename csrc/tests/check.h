/* Checks without a framework: a failed one is printed and counted, and the program goes on.
 *
 * Bytes under test lie in blocks of exactly their size, so that under AddressSanitizer one byte too
 * far is a failure, too. */
#ifndef ONCELOG_CHECK_H
#define ONCELOG_CHECK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_failures;

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            check_failures++;                                               \
        }                                                                   \
    } while (0)

#define CHECK_INT(found, expected)                                                             \
    do {                                                                                       \
        int64_t found_ = (int64_t)(found), expected_ = (int64_t)(expected);                    \
        if (found_ != expected_) {                                                             \
            fprintf(stderr, "%s:%d: %s is %" PRId64 ", not %" PRId64 "\n", __FILE__, __LINE__, \
                    #found, found_, expected_);                                                \
            check_failures++;                                                                  \
        }                                                                                      \
    } while (0)

#define CHECK_BYTES(found, expected, size)                                              \
    do {                                                                                \
        if (memcmp((found), (expected), (size)) != 0) {                                 \
            fprintf(stderr, "%s:%d: %s has other bytes\n", __FILE__, __LINE__, #found); \
            check_failures++;                                                           \
        }                                                                               \
    } while (0)

/* Exit status of the program. */
static inline int check_result(void) {
    if (check_failures) fprintf(stderr, "%d checks failed\n", check_failures);
    return check_failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* A copy in a block of exactly its size, the caller's to free. */
static inline uint8_t *exact_copy(const void *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) abort();
    if (size) memcpy(copy, data, size);
    return copy;
}

/* Numbers that are the same in each run (xorshift). */
static uint64_t check_seed = 88172645463325252ull;
static inline uint64_t check_random(void) {
    check_seed ^= check_seed << 13;
    check_seed ^= check_seed >> 7;
    check_seed ^= check_seed << 17;
    return check_seed;
}

#endif
