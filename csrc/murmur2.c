/* murmur2 as Java's client computes it: which partition a key belongs to. */
#include "oncelog.h"

/* Seed and constants are part of the promise: a key keeps its partition across clients. */
#define SEED 0x9747b28cu
#define MULTIPLIER 0x5bd1e995u

static inline uint32_t little_endian(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

int32_t ol_murmur2(const uint8_t *data, size_t size) {
    /* Java's length is an int; a key is never longer. */
    uint32_t hash = SEED ^ (uint32_t)size;
    const uint8_t *at = data;
    for (size_t left = size / 4; left; left--, at += 4) {
        uint32_t word = little_endian(at) * MULTIPLIER;
        word = (word ^ word >> 24) * MULTIPLIER;
        hash = hash * MULTIPLIER ^ word;
    }
    switch (size % 4) {
    case 3:
        hash ^= (uint32_t)at[2] << 16;
        /* fall through */
    case 2:
        hash ^= (uint32_t)at[1] << 8;
        /* fall through */
    case 1:
        hash = (hash ^ at[0]) * MULTIPLIER;
    }
    hash = (hash ^ hash >> 13) * MULTIPLIER;
    return (int32_t)(hash ^ hash >> 15);
}

int32_t ol_key_partition(const uint8_t *key, size_t size, int32_t partition_count) {
    /* Java clears the sign instead of taking the absolute value, which the smallest int has not. */
    return (ol_murmur2(key, size) & INT32_MAX) % partition_count;
}

void ol_key_partitions(const ol_slice *keys, int64_t count, int32_t partition_count,
                       int32_t null_partition, int32_t *out) {
    for (int64_t i = 0; i < count; i++)
        out[i] = keys[i].size < 0
                     ? null_partition
                     : ol_key_partition(keys[i].data, (size_t)keys[i].size, partition_count);
}
