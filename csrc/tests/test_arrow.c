/* Arrow: what goes out obeys the C data interface, what comes in is read through every offset. */
#include "batches.h"

/* ---------------------------------------------------------------- out */

static int unpinned;
static void count_unpin(void *pin) {
    (void)pin;
    unpinned++;
}

static ol_columns *sample_columns(const ol_bytes *data, bool views) {
    static const int64_t position = 0;
    ol_decoder decoder = {.base = data->data,
                          .size = data->size,
                          .positions = &position,
                          .batch_count = 1,
                          .end_offset = INT64_MAX,
                          .bytes_max = INT64_MAX,
                          .check_crc = true};
    ol_columns *columns = ol_columns_new(views);
    ol_fault fault;
    CHECK_INT(ol_decode(&decoder, columns, &fault), OL_OK);
    CHECK(ol_columns_finish(columns));
    columns->pin = &unpinned;
    columns->unpin = count_unpin;
    return columns;
}

static void schemas_say_what_is_promised(void) {
    for (int views = 0; views < 2; views++) {
        struct ArrowSchema schema;
        CHECK_INT(ol_arrow_schema(&schema, views), OL_OK);
        static const char *const names[] = {"offset", "timestamp", "timestamp_type",
                                            "key",    "value",     "headers"};
        const char *const formats[] = {"l", "tsm:UTC", "c", views ? "vz" : "z", views ? "vz" : "z",
                                       "+l"};
        CHECK(strcmp(schema.format, "+s") == 0);
        CHECK_INT(schema.n_children, 6);
        for (int i = 0; i < 6; i++) {
            CHECK(strcmp(schema.children[i]->name, names[i]) == 0);
            CHECK(strcmp(schema.children[i]->format, formats[i]) == 0);
            CHECK_INT(schema.children[i]->flags, i == 3 || i == 4 ? ARROW_FLAG_NULLABLE : 0);
        }
        const struct ArrowSchema *pair = schema.children[5]->children[0];
        CHECK(strcmp(pair->format, "+s") == 0 && pair->flags == 0);
        CHECK(strcmp(pair->children[0]->format, "u") == 0 && pair->children[0]->flags == 0);
        CHECK(strcmp(pair->children[1]->format, "z") == 0 &&
              pair->children[1]->flags == ARROW_FLAG_NULLABLE);
        /* A consumer may take one child and release it later by itself. */
        struct ArrowSchema moved = *schema.children[5];
        schema.children[5]->release = NULL;
        schema.release(&schema);
        CHECK(schema.release == NULL);
        CHECK(strcmp(moved.children[0]->format, "+s") == 0);
        moved.release(&moved);
        CHECK(moved.release == NULL);
    }
}

static void arrays_live_as_long_as_anyone_looks(void) {
    sample sample;
    sample_init(&sample, 30);
    ol_bytes data = encode_sample(&sample, 0, INT32_MAX);
    for (int views = 0; views < 2; views++)
        for (int kept = 0; kept < 6; kept++) {
            unpinned = 0;
            ol_columns *columns = sample_columns(&data, views);
            struct ArrowArray first, second;
            CHECK_INT(ol_arrow_array(&first, columns), OL_OK);
            CHECK_INT(ol_arrow_array(&second, columns), OL_OK);
            ol_columns_release(columns);
            CHECK_INT(first.length, 30);
            CHECK_INT(first.n_children, 6);
            CHECK_INT(first.n_buffers, 1);
            struct ArrowArray moved = *first.children[kept];
            first.children[kept]->release = NULL;
            first.release(&first);
            CHECK(first.release == NULL);
            second.release(&second);
            CHECK_INT(unpinned, 0);
            CHECK_INT(moved.length, 30);
            CHECK_INT(moved.offset, 0);
            if (kept == 0)
                for (int64_t i = 0; i < 30; i++)
                    CHECK_INT(((const int64_t *)moved.buffers[1])[i], i);
            if (kept == 3 || kept == 4) {
                CHECK_INT(moved.null_count, 5);
                CHECK_INT(moved.n_buffers, views ? 5 : 3);
                CHECK(moved.buffers[0] != NULL);
            }
            if (kept == 5) {
                CHECK_INT(moved.n_children, 1);
                CHECK_INT(moved.children[0]->length, 20);
                CHECK_INT(((const int32_t *)moved.buffers[1])[30], 20);
            }
            moved.release(&moved);
            CHECK_INT(unpinned, 1);
        }
    free(data.data);
}

static void no_rows_have_buffers_all_the_same(void) {
    for (int views = 0; views < 2; views++) {
        ol_columns *columns = ol_columns_new(views);
        CHECK(ol_columns_finish(columns));
        struct ArrowArray array;
        CHECK_INT(ol_arrow_array(&array, columns), OL_OK);
        CHECK_INT(array.length, 0);
        for (int i = 0; i < 6; i++) {
            CHECK_INT(array.children[i]->length, 0);
            CHECK(array.children[i]->buffers[1] != NULL);
        }
        CHECK_INT(((const int32_t *)array.children[5]->buffers[1])[0], 0);
        array.release(&array);
        ol_columns_release(columns);
    }
}

static void a_place_lives_as_long_as_any_array_that_shows_it(void) {
    sample sample;
    sample_init(&sample, 30);
    ol_bytes data = encode_sample(&sample, 0, INT32_MAX);
    ol_columns *columns = sample_columns(&data, false);
    ol_place *place = ol_place_new("events", 6, 7, 30), *narrow = ol_place_new("events", 6, 7, 29);
    struct ArrowArray array;
    CHECK_INT(ol_arrow_placed_array(&array, columns, narrow), OL_E_ARGUMENT);
    CHECK_INT(ol_arrow_placed_array(&array, columns, place), OL_OK);
    ol_place_release(narrow);
    ol_place_release(place);
    ol_columns_release(columns);
    CHECK_INT(array.n_children, 8);
    CHECK_INT(((const int64_t *)array.children[2]->buffers[1])[29], 29);
    struct ArrowArray topic = *array.children[0], partition = *array.children[1];
    array.children[0]->release = array.children[1]->release = NULL;
    array.release(&array);
    for (int64_t i = 0; i < 30; i++) {
        CHECK_INT(((const int32_t *)topic.buffers[1])[i], 0);
        CHECK_INT(((const int32_t *)partition.buffers[1])[i], 7);
    }
    partition.release(&partition);
    CHECK_INT(topic.dictionary->length, 1);
    CHECK_INT(((const int32_t *)topic.dictionary->buffers[1])[1], 6);
    CHECK(memcmp(topic.dictionary->buffers[2], "events", 6) == 0);
    topic.release(&topic);
    CHECK(topic.release == NULL);
    free(data.data);
}

/* ---------------------------------------------------------------- in */

static struct ArrowSchema schema_of(const char *format, const char *name) {
    return (struct ArrowSchema){.format = format, .name = name, .flags = ARROW_FLAG_NULLABLE};
}

static void offsets_apply_at_every_level(void) {
    /* Five rows of which the struct shows three from the second on; the child starts one row later. */
    static const int32_t offsets[] = {0, 1, 3, 6, 10, 15, 21, 28};
    static const char text[] = "abbcccddddeeeeeffffffggggggg";
    static const uint8_t validity[] = {0x7f & ~(1 << 4)}; /* "eeeee" is null */
    const void *buffers[] = {validity, offsets, text};
    struct ArrowArray child = {
        .length = 6, .null_count = -1, .offset = 1, .n_buffers = 3, .buffers = buffers};
    struct ArrowArray *children[] = {&child};
    const void *none[] = {NULL};
    struct ArrowArray array = {.length = 3,
                               .offset = 2,
                               .n_buffers = 1,
                               .n_children = 1,
                               .buffers = none,
                               .children = children};
    struct ArrowSchema field = schema_of("z", "value");
    struct ArrowSchema *fields[] = {&field};
    struct ArrowSchema schema = {.format = "+s", .name = "", .n_children = 1, .children = fields};
    ol_arrow_records records;
    const char *column;
    ol_fault fault;
    CHECK_INT(ol_arrow_bind(&records, &schema, &array, &column, &fault), OL_OK);
    CHECK_INT(records.length, 3);
    ol_slice slices[3];
    CHECK_INT(ol_column_slices(&records.value, 0, 3, slices), OL_OK);
    CHECK(slice_is(slices[0], "dddd"));
    CHECK(slice_is(slices[1], NULL));
    CHECK(slice_is(slices[2], "ffffff"));
    CHECK_INT(ol_column_slices(&records.value, 2, 1, slices), OL_OK);
    CHECK(slice_is(slices[0], "ffffff"));
    CHECK_INT(ol_column_bytes_hint(&records.value), 15);
    array.length = 0;
    CHECK_INT(ol_arrow_bind(&records, &schema, &array, &column, &fault), OL_OK);
    CHECK_INT(ol_column_bytes_hint(&records.value), 0);
}

static void wrong_types_are_named(void) {
    static const char *const wrong[] = {"i",    "l",   "g",      "+l",      "+s", "b",
                                        "w:-1", "w:x", "d:10,2", "tsm:UTC", ""};
    const void *buffers[] = {NULL, NULL, NULL};
    struct ArrowArray child = {.n_buffers = 3, .buffers = buffers};
    struct ArrowArray *children[] = {&child};
    struct ArrowArray array = {
        .n_buffers = 1, .n_children = 1, .buffers = buffers, .children = children};
    ol_arrow_records records;
    const char *column;
    ol_fault fault;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct ArrowSchema field = schema_of(wrong[i], "value");
        struct ArrowSchema *fields[] = {&field};
        struct ArrowSchema schema = {
            .format = "+s", .name = "", .n_children = 1, .children = fields};
        CHECK_INT(ol_arrow_bind(&records, &schema, &array, &column, &fault), OL_E_ARGUMENT);
        CHECK(strcmp(column, "value") == 0);
        field.format = "z";
        struct ArrowSchema dictionary = schema_of("z", "");
        field.dictionary = &dictionary;
        CHECK_INT(ol_arrow_bind(&records, &schema, &array, &column, &fault), OL_E_ARGUMENT);
        field.dictionary = NULL;
        CHECK_INT(ol_arrow_bind(&records, &schema, &array, &column, &fault), OL_OK);
        /* Names are optional; a column without one is not ours. */
        field.name = NULL;
        CHECK_INT(ol_arrow_bind(&records, &schema, &array, &column, &fault), OL_E_ARGUMENT);
        CHECK(strcmp(column, "value") == 0);
        schema.format = "z";
        CHECK_INT(ol_arrow_bind(&records, &schema, &array, &column, &fault), OL_E_ARGUMENT);
    }
}

static void offsets_that_fall_are_refused(void) {
    static const int32_t falling[] = {0, 5, 3};
    static const int64_t large[] = {0, 5, 3};
    ol_column column = {.kind = OL_COLUMN_BINARY,
                        .length = 2,
                        .offsets = falling,
                        .data = (const uint8_t *)"abcde"};
    ol_slice slices[2];
    CHECK_INT(ol_column_slices(&column, 0, 2, slices), OL_E_ARGUMENT);
    column.kind = OL_COLUMN_LARGE_BINARY;
    column.offsets = large;
    CHECK_INT(ol_column_slices(&column, 0, 2, slices), OL_E_ARGUMENT);
    CHECK_INT(ol_column_slices(&column, 0, 1, slices), OL_OK);
    ol_arrow_records records = {.list_offsets = falling};
    int64_t first, items, starts[2], ends[2];
    CHECK_INT(ol_arrow_header_range(&records, 0, 2, &first, &items, starts, ends), OL_E_ARGUMENT);
    records = (ol_arrow_records){.large_list_offsets = large};
    CHECK_INT(ol_arrow_header_range(&records, 0, 2, &first, &items, starts, ends), OL_E_ARGUMENT);
    CHECK_INT(ol_arrow_header_range(&records, 0, 1, &first, &items, starts, ends), OL_OK);
    CHECK_INT(items, 5);
}

static void timestamps_become_milliseconds(void) {
    static const struct {
        int64_t multiply, divide, value, milliseconds;
        ol_status status;
    } known[] = {
        {1, 1, 1234, 1234, OL_OK},
        {1000, 1, 7, 7000, OL_OK},
        {1000, 1, INT64_MAX / 1000, INT64_MAX / 1000 * 1000, OL_OK},
        {1000, 1, INT64_MAX / 1000 + 1, 0, OL_E_ARGUMENT},
        {1000, 1, INT64_MIN, 0, OL_E_ARGUMENT},
        {1, 1000, 1999, 1, OL_OK},
        {1, 1000, -1, -1, OL_OK},
        {1, 1000, -1000, -1, OL_OK},
        {1, 1000, -1001, -2, OL_OK},
        {1, 1000000, 1999999, 1, OL_OK},
        {1, 1000000, INT64_MAX, INT64_MAX / 1000000, OL_OK},
        {1, 1000000, INT64_MIN, INT64_MIN / 1000000 - 1, OL_OK},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int64_t values[] = {0, known[i].value, 0}, out[1] = {77};
        uint8_t validity = 0x07;
        ol_arrow_records records = {.timestamps = values,
                                    .timestamp_offset = 1,
                                    .timestamp_multiply = known[i].multiply,
                                    .timestamp_divide = known[i].divide,
                                    .timestamp_validity = &validity};
        CHECK_INT(ol_arrow_timestamps(&records, 0, 1, -1, out), known[i].status);
        if (known[i].status == OL_OK) CHECK_INT(out[0], known[i].milliseconds);
        validity = 0x05; /* the second is null, whatever it holds */
        CHECK_INT(ol_arrow_timestamps(&records, 0, 1, 4711, out), OL_OK);
        CHECK_INT(out[0], 4711);
    }
}

int main(void) {
    schemas_say_what_is_promised();
    arrays_live_as_long_as_anyone_looks();
    no_rows_have_buffers_all_the_same();
    a_place_lives_as_long_as_any_array_that_shows_it();
    offsets_apply_at_every_level();
    wrong_types_are_named();
    offsets_that_fall_are_refused();
    timestamps_become_milliseconds();
    return check_result();
}
