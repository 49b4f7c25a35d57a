/* Batches for the tests below: made by the encoder, read by the decoder, damaged in between. */
#ifndef ONCELOG_TEST_BATCHES_H
#define ONCELOG_TEST_BATCHES_H

#include "check.h"
#include "endian.h"
#include "oncelog.h"

static inline ol_slice slice(const char *text) {
    return text ? (ol_slice){(const uint8_t *)text, (int64_t)strlen(text)} : (ol_slice){NULL, -1};
}

static inline bool slice_is(ol_slice found, const char *text) {
    ol_slice expected = slice(text);
    return found.size == expected.size &&
           (found.size <= 0 || memcmp(found.data, expected.data, (size_t)found.size) == 0);
}

/* `count` records: keys and values of several sizes and nulls, two headers on every third. */
typedef struct sample {
    int64_t count;
    ol_slice keys[64], values[64], header_keys[128], header_values[128];
    int64_t timestamps[64], header_starts[64], header_ends[64];
    ol_block block;
} sample;

static inline void sample_init(sample *sample, int64_t count) {
    static const char *const texts[] = {"",
                                        "k",
                                        NULL,
                                        "twelve bytes",
                                        "thirteen byte",
                                        "a text that lies outside of every view, always"};
    int64_t used = 0;
    sample->count = count;
    for (int64_t i = 0; i < count; i++) {
        sample->keys[i] = slice(texts[i % 6]);
        sample->values[i] = slice(texts[(i + 3) % 6]);
        sample->timestamps[i] = 1000 + (i * 37) % 11 * 100000;
        sample->header_starts[i] = used;
        if (i % 3 == 0) {
            sample->header_keys[used] = slice("name");
            sample->header_values[used++] = slice("value");
            sample->header_keys[used] = slice("");
            sample->header_values[used++] = slice(NULL);
        }
        sample->header_ends[i] = used;
    }
    sample->block = (ol_block){count,
                               sample->keys,
                               sample->values,
                               sample->timestamps,
                               NULL,
                               sample->header_starts,
                               sample->header_ends,
                               sample->header_keys,
                               sample->header_values};
}

/* The sample as batches of at most `batch_bytes`; the caller frees data. */
static inline ol_bytes encode_sample(const sample *sample, int64_t base_offset,
                                     int64_t batch_bytes) {
    ol_encoder encoder;
    ol_fault fault;
    ol_encoder_init(&encoder);
    encoder.next.base_offset = base_offset;
    encoder.next.producer_id = 77;
    encoder.next.producer_epoch = 5;
    encoder.next.base_sequence = 11;
    encoder.batch_bytes_max = batch_bytes;
    int64_t done = 0;
    CHECK_INT(ol_encode(&encoder, &sample->block, &done, &fault), OL_OK);
    CHECK_INT(done, sample->count);
    CHECK_INT(ol_encode_close(&encoder, NULL, 0, &fault), OL_OK);
    CHECK_INT(encoder.record_count, sample->count);
    return encoder.out;
}

/* Makes the checksum of one batch right again after a change. */
static inline void fix_crc(uint8_t *batch, size_t size) {
    ol_store32(batch + OL_CRC_AT, ol_crc32c(0, batch + OL_CRC_FROM, size - OL_CRC_FROM));
}

#endif
