/* Compaction: the map of keys, what stays of a batch, and bytes that lie. */
#include "batches.h"

static const uint64_t secret[2] = {0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull};

static void test_hash(void) {
    /* The first vectors of the reference implementation. */
    static const uint8_t empty[16] = {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6,
                                      0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93};
    static const uint8_t zero[16] = {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44,
                                     0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45};
    uint64_t hash[2];
    ol_key_hash(hash, secret, NULL, 0);
    CHECK_BYTES(hash, empty, 16);
    uint8_t *key = exact_copy("\0", 1);
    ol_key_hash(hash, secret, key, 1);
    CHECK_BYTES(hash, zero, 16);
    free(key);
}

static void test_watch(void) {
    ol_txn_watch *watch = ol_txn_watch_new();
    for (int64_t producer = 0; producer < 5000; producer++) {
        CHECK(ol_txn_watch_see(watch, producer, OL_SEEN_COMMITTED));
        if (producer % 2) CHECK_INT(ol_txn_watch_end(watch, producer), OL_SEEN_COMMITTED);
    }
    for (int64_t producer = 0; producer < 5000; producer++) {
        CHECK_INT(ol_txn_watch_end(watch, producer), producer % 2 ? 0 : OL_SEEN_COMMITTED);
        CHECK_INT(ol_txn_watch_end(watch, producer), 0);
    }
    CHECK_INT(ol_txn_watch_end(watch, 99999), 0);
    ol_txn_watch_free(watch);
}

/* Maps and filters one batch; what is written is a batch that reads. */
static ol_status compact(const uint8_t *batch, size_t size, ol_compacted *kept, int64_t base) {
    ol_fault fault = {0};
    ol_header header;
    ol_status status = ol_header_read(&header, batch, size, 0, false, &fault);
    if (status != OL_OK) return status;
    bool full;
    ol_offset_map *map = ol_offset_map_new(256, 100, secret);
    const uint8_t *payload = batch + OL_HEADER_BYTES;
    size_t left = (size_t)header.size - OL_HEADER_BYTES;
    status = ol_offset_map_add(map, &header, payload, left, 0, &full, &fault);
    if (status == OL_OK)
        status = ol_compact_judge(kept, map, &header, payload, left, false, &fault);
    if (status == OL_OK) {
        ol_bytes out = {0};
        CHECK_INT(ol_bytes_reserve(&out, OL_HEADER_BYTES), OL_OK);
        out.size = OL_HEADER_BYTES;
        CHECK_INT(ol_compact_records(&out, kept, &header, payload, base), OL_OK);
        ol_header changed = header;
        changed.record_count = (int32_t)kept->count;
        changed.base_timestamp = base;
        CHECK_INT(ol_compact_close(&out, 0, &changed), OL_OK);
        CHECK_INT(ol_compact_empty(&out, &header, true), OL_OK);
        size_t position = 0;
        for (int turn = 0; turn < 2; turn++) {
            CHECK_INT(ol_header_read(&changed, out.data, out.size, position, true, &fault), OL_OK);
            CHECK_INT(changed.crc_ok, 1);
            CHECK_INT(changed.base_offset, header.base_offset);
            position += (size_t)changed.size;
        }
        CHECK_INT(position, out.size);
        free(out.data);
    }
    ol_offset_map_free(map);
    return status;
}

static void test_batches(void) {
    for (int64_t count = 1; count <= 64; count += 7) {
        sample sample;
        sample_init(&sample, count);
        ol_encoder encoder;
        ol_encoder_init(&encoder);
        encoder.batch_bytes_max = INT32_MAX;
        ol_fault fault;
        int64_t done = 0;
        CHECK_INT(ol_encode(&encoder, &sample.block, &done, &fault), OL_OK);
        CHECK_INT(ol_encode_close(&encoder, NULL, 0, &fault), OL_OK);
        uint8_t *batch = exact_copy(encoder.out.data, encoder.out.size);
        size_t size = encoder.out.size;
        ol_compacted kept = {0};
        for (int64_t base = -5; base < 1ll << 62; base = base < 0 ? 7 : base * 1000) {
            CHECK_INT(compact(batch, size, &kept, base), OL_OK);
            /* Five keys that are not null, each kept once. */
            int64_t keys = count < 6 ? count - (count > 2) : 5;
            CHECK_INT(kept.count, keys);
        }
        for (int turn = 0; turn < 3000; turn++) {
            size_t at = 57 + check_random() % (size - 57);
            uint8_t before = batch[at];
            batch[at] = (uint8_t)check_random();
            compact(batch, size, &kept, 7);
            if (turn % 4 == 3) {
                memcpy(batch, encoder.out.data, size);
            } else if (turn % 2) {
                batch[at] = before;
            }
        }
        free(kept.marks.data);
        free(batch);
        ol_encoder_free(&encoder);
    }
}

int main(void) {
    test_hash();
    test_watch();
    test_batches();
    CHECK(!ol_offset_map_new(1, 1, secret));
    CHECK(!ol_offset_map_new(4, 4, secret));
    return check_result();
}
