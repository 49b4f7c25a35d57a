/* How far are encode and decode from the plain C floor, without Python in between?
 * Times    whole batches of records between Arrow's buffers and Kafka's bytes, checksum included; ours
 *          allocates its output and frees it, the floor writes into buffers that it was given.
 * Anchor   benches/bench_encode.py and bench_decode.py time the same from Python, beside the peers.
 *
 *   bench_batch [--only NAME] [--rounds N] [--records N] [--key-bytes N] [--value-bytes N]
 */
#define _POSIX_C_SOURCE 200809L
#include "contest.h"
#include "floor.c" /* a benchmark is one file and the library: CMake knows no more of them */
#include "oncelog.h"

enum { BLOCK = 512 }; /* as in pyext/batch.pyx */

static int64_t record_count = 1000, key_bytes = 16, value_bytes = 100;
static const int64_t first_timestamp = 1794787200000;

/* ---------------------------------------------------------------- what is encoded and decoded */

static floor_columns records;         /* the input of encode */
static floor_columns columns, viewed; /* the outputs of the floor's decode */
static uint8_t *floor_out;
static uint8_t *batch; /* the input of decode */
static int64_t batch_size;

static struct ArrowSchema schema, fields[3], *field_list[3] = {fields, fields + 1, fields + 2};
static struct ArrowArray array, children[3],
    *child_list[3] = {children, children + 1, children + 2};
static const void *buffers[4][3];

static floor_binary binary_column(int64_t width) {
    floor_binary column = {.offsets = room((size_t)(record_count + 1) * 4),
                           .data = room((size_t)(record_count * width) + 1),
                           .validity = room((size_t)record_count / 8 + 1)};
    uint32_t state = 2463534242u;
    for (int64_t i = 0; i < record_count * width; i++) {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        column.data[i] = (uint8_t)state;
    }
    for (int64_t i = 0; i <= record_count; i++) column.offsets[i] = (int32_t)(i * width);
    return column;
}

static floor_columns empty_columns(bool views) {
    floor_columns made = {
        .offsets = room((size_t)record_count * 8),
        .timestamps = room((size_t)record_count * 8),
        .timestamp_types = room((size_t)record_count),
        .key = binary_column(key_bytes),
        .value = binary_column(value_bytes),
        .header_starts = room((size_t)(record_count + 1) * 4),
        .header_key = {.offsets = room(4)},
        .header_value = {.offsets = room(4)},
    };
    if (views) {
        made.key.views = room((size_t)record_count * 16);
        made.value.views = room((size_t)record_count * 16);
    }
    return made;
}

static void bind_field(int index, const char *format, const char *name, const void *first,
                       const void *second) {
    fields[index] = (struct ArrowSchema){.format = format, .name = name};
    buffers[index][1] = first;
    buffers[index][2] = second;
    children[index] = (struct ArrowArray){
        .length = record_count, .n_buffers = second ? 3 : 2, .buffers = buffers[index]};
}

static void prepare(void) {
    records = (floor_columns){.timestamps = room((size_t)record_count * 8),
                              .key = binary_column(key_bytes),
                              .value = binary_column(value_bytes)};
    for (int64_t i = 0; i < record_count; i++) records.timestamps[i] = first_timestamp + i;
    bind_field(0, "z", "key", records.key.offsets, records.key.data);
    bind_field(1, "z", "value", records.value.offsets, records.value.data);
    bind_field(2, "tsm:", "timestamp", records.timestamps, NULL);
    schema = (struct ArrowSchema){.format = "+s", .n_children = 3, .children = field_list};
    array = (struct ArrowArray){.length = record_count,
                                .n_buffers = 1,
                                .buffers = buffers[3],
                                .n_children = 3,
                                .children = child_list};
    columns = empty_columns(false);
    viewed = empty_columns(true);
    size_t size = (size_t)floor_room(1, record_count, 0, record_count * (key_bytes + value_bytes));
    floor_out = room(size);
    batch = room(size);
    batch_size = floor_encode(batch, &records, record_count, record_count);
}

/* ---------------------------------------------------------------- contestants */

static void encode(ol_encoder *encoder) {
    static ol_slice keys[BLOCK], values[BLOCK];
    static int64_t timestamps[BLOCK];
    ol_arrow_records bound;
    ol_fault fault;
    const char *column;
    ol_encoder_init(encoder);
    if (ol_arrow_bind(&bound, &schema, &array, &column, &fault) != OL_OK) fail(fault.what);
    size_t hint = (size_t)(ol_column_bytes_hint(&bound.key) + ol_column_bytes_hint(&bound.value) +
                           24 * bound.length + OL_HEADER_BYTES);
    if (ol_bytes_reserve(&encoder->out, hint) != OL_OK) fail("out of memory");
    for (int64_t start = 0; start < bound.length; start += BLOCK) {
        int64_t count = bound.length - start < BLOCK ? bound.length - start : BLOCK, done = 0;
        ol_block block = {.count = count, .keys = keys, .values = values, .timestamps = timestamps};
        if (ol_column_slices(&bound.value, start, count, values) != OL_OK ||
            ol_column_slices(&bound.key, start, count, keys) != OL_OK ||
            ol_arrow_timestamps(&bound, start, count, -1, timestamps) != OL_OK)
            fail("Arrow columns cannot be read");
        if (ol_encode(encoder, &block, &done, &fault) != OL_OK) fail(fault.what);
    }
    if (ol_encode_close(encoder, NULL, 0, &fault) != OL_OK) fail(fault.what);
}

static ol_columns *decode(bool views) {
    int64_t position = 0;
    ol_decoder decoder = {.base = batch,
                          .size = (size_t)batch_size,
                          .positions = &position,
                          .batch_count = 1,
                          .end_offset = INT64_MAX,
                          .bytes_max = INT64_MAX,
                          .check_crc = true};
    ol_fault fault;
    ol_columns *made = ol_columns_new(views);
    if (!made) fail("out of memory");
    if (ol_decode(&decoder, made, &fault) != OL_OK) fail(fault.what);
    if (!ol_columns_finish(made)) fail("out of memory");
    return made;
}

CONTESTANT ours_encode(void) {
    ol_encoder encoder;
    encode(&encoder);
    ol_encoder_free(&encoder);
}
CONTESTANT ours_decode(void) { ol_columns_release(decode(false)); }
CONTESTANT ours_decode_views(void) { ol_columns_release(decode(true)); }
CONTESTANT floor_encode_batch(void) {
    floor_encode(floor_out, &records, record_count, record_count);
}
CONTESTANT floor_decode_batch(void) { floor_decode(&columns, batch, batch_size); }
CONTESTANT floor_decode_views(void) { floor_decode(&viewed, batch, batch_size); }
CONTESTANT limit_crc(void) { floor_crc_times(ol_crc32c, batch, (size_t)batch_size, 1); }
CONTESTANT limit_memcpy(void) { floor_memcpy_times(floor_out, batch, (size_t)batch_size, 1); }

/* ---------------------------------------------------------------- the run */

/* Nothing is timed before both have made the same bytes and the same columns. */
static void check(void) {
    ol_encoder encoder;
    encode(&encoder);
    if ((int64_t)encoder.out.size != batch_size ||
        memcmp(encoder.out.data, batch, (size_t)batch_size) != 0)
        fail("ours and the floor encode different bytes");
    ol_encoder_free(&encoder);
    ol_columns *made = decode(false);
    size_t words = (size_t)record_count * 8, offsets = (size_t)(record_count + 1) * 4;
    if (floor_decode(&columns, batch, batch_size) != made->count || made->count != record_count ||
        memcmp(made->offsets, columns.offsets, words) != 0 ||
        memcmp(made->timestamps, columns.timestamps, words) != 0 ||
        memcmp(made->timestamp_types, columns.timestamp_types, (size_t)record_count) != 0 ||
        memcmp(made->key.offsets, columns.key.offsets, offsets) != 0 ||
        memcmp(made->value.offsets, columns.value.offsets, offsets) != 0 ||
        memcmp(made->header_starts, columns.header_starts, offsets) != 0 ||
        memcmp(made->key.data.data, records.key.data, (size_t)(record_count * key_bytes)) != 0 ||
        memcmp(columns.key.data, records.key.data, (size_t)(record_count * key_bytes)) != 0 ||
        memcmp(made->value.data.data, records.value.data, (size_t)(record_count * value_bytes)) !=
            0 ||
        memcmp(columns.value.data, records.value.data, (size_t)(record_count * value_bytes)) != 0)
        fail("ours and the floor decode different columns");
    ol_columns_release(made);
}

int main(int count, char **words) {
    contest made = {.rounds = 2000};
    for (int i = 1; i < count; i++) {
        bool more = i + 1 < count;
        if (contest_option(&made, count, words, &i)) continue;
        if (more && strcmp(words[i], "--records") == 0)
            record_count = atoll(words[++i]);
        else if (more && strcmp(words[i], "--key-bytes") == 0)
            key_bytes = atoll(words[++i]);
        else if (more && strcmp(words[i], "--value-bytes") == 0)
            value_bytes = atoll(words[++i]);
        else
            fail("bench_batch: unknown option; see the head of bench_batch.c");
    }
    if (record_count < 1 || key_bytes < 0 || value_bytes < 0 ||
        record_count * (key_bytes + value_bytes + 32) > 1 << 30)
        fail("bench_batch: sizes must be positive and a batch below 1 GiB");
    prepare();
    check();
    contestant all[] = {
        {"floor_encode_batch", floor_encode_batch, record_count, -1, 0},
        {"ours_encode", ours_encode, record_count, 0, 0},
        {"floor_decode_batch", floor_decode_batch, record_count, -1, 0},
        {"ours_decode", ours_decode, record_count, 2, 0},
        {"floor_decode_views", floor_decode_views, record_count, -1, 0},
        {"ours_decode_views", ours_decode_views, record_count, 4, 0},
        {"limit_crc", limit_crc, record_count, -1, 0},
        {"limit_memcpy", limit_memcpy, record_count, -1, 0},
    };
    printf("%lld records, key %lld B, value %lld B, ", (long long)record_count,
           (long long)key_bytes, (long long)value_bytes);
    contest_run(&made, all, sizeof all / sizeof *all, batch_size);
    return 0;
}
