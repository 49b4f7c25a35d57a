/* The Arrow C data interface, both ways: decoded columns out, record columns in. No Arrow library is
 * linked; the structs are the interface. */
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oncelog.h"

/* ---------------------------------------------------------------- out: schema */

static void schema_release(struct ArrowSchema *schema) {
    for (int64_t i = 0; i < schema->n_children; i++) {
        if (schema->children[i]->release) schema->children[i]->release(schema->children[i]);
        free(schema->children[i]);
    }
    free(schema->children);
    schema->release = NULL;
}

/* Formats and names are literals, so a node owns only its children. */
static bool schema_node(struct ArrowSchema *schema, const char *format, const char *name,
                        int64_t flags, int64_t children) {
    *schema = (struct ArrowSchema){
        .format = format, .name = name, .flags = flags, .release = schema_release};
    if (!children) return true;
    if (!(schema->children = calloc((size_t)children, sizeof *schema->children))) return false;
    for (; schema->n_children < children; schema->n_children++) {
        struct ArrowSchema *child = calloc(1, sizeof *child);
        if (!child) return false;
        schema->children[schema->n_children] = child;
    }
    return true;
}

ol_status ol_arrow_schema(struct ArrowSchema *schema, bool views) {
    const char *binary = views ? "vz" : "z";
    bool made = schema_node(schema, "+s", "", 0, 6);
    if (made) {
        struct ArrowSchema **fields = schema->children;
        made =
            schema_node(fields[0], "l", "offset", 0, 0) &&
            schema_node(fields[1], "tsm:UTC", "timestamp", 0, 0) &&
            schema_node(fields[2], "c", "timestamp_type", 0, 0) &&
            schema_node(fields[3], binary, "key", ARROW_FLAG_NULLABLE, 0) &&
            schema_node(fields[4], binary, "value", ARROW_FLAG_NULLABLE, 0) &&
            schema_node(fields[5], "+l", "headers", 0, 1) &&
            schema_node(fields[5]->children[0], "+s", "item", 0, 2) &&
            schema_node(fields[5]->children[0]->children[0], "u", "key", 0, 0) &&
            schema_node(fields[5]->children[0]->children[1], "z", "value", ARROW_FLAG_NULLABLE, 0);
    }
    if (made) return OL_OK;
    schema->release(schema);
    return OL_E_MEMORY;
}

/* ---------------------------------------------------------------- out: arrays */

static const int64_t nothing[2]; /* stands for the data of a column without bytes */

static void array_release(struct ArrowArray *array) {
    for (int64_t i = 0; i < array->n_children; i++) {
        if (array->children[i]->release) array->children[i]->release(array->children[i]);
        free(array->children[i]);
    }
    free(array->children);
    free((void *)array->buffers);
    ol_columns_release(array->private_data);
    array->release = NULL;
}

static bool array_node(struct ArrowArray *array, ol_columns *columns, int64_t length,
                       int64_t buffers, int64_t children) {
    *array = (struct ArrowArray){
        .length = length, .n_buffers = buffers, .release = array_release, .private_data = columns};
    ol_columns_retain(columns);
    if (!(array->buffers = calloc((size_t)buffers, sizeof *array->buffers))) return false;
    if (!children) return true;
    if (!(array->children = calloc((size_t)children, sizeof *array->children))) return false;
    for (; array->n_children < children; array->n_children++) {
        struct ArrowArray *child = calloc(1, sizeof *child);
        if (!child) return false;
        array->children[array->n_children] = child;
    }
    return true;
}

static bool fixed_array(struct ArrowArray *array, ol_columns *columns, const void *values) {
    if (!array_node(array, columns, columns->count, 2, 0)) return false;
    array->buffers[1] = values;
    return true;
}

static const void *bytes_or_nothing(const ol_bytes *bytes) {
    return bytes->data ? (const void *)bytes->data : nothing;
}

static bool binary_array(struct ArrowArray *array, ol_columns *columns, const ol_binary *binary,
                         int64_t length) {
    if (!array_node(array, columns, length, 3, 0)) return false;
    array->null_count = binary->null_count;
    array->buffers[0] = binary->null_count ? binary->validity : NULL;
    array->buffers[1] = binary->offsets;
    array->buffers[2] = bytes_or_nothing(&binary->data);
    return true;
}

static bool view_array(struct ArrowArray *array, ol_columns *columns, const ol_binary *binary) {
    /* validity, views, the windows, the column's own data, and the sizes of those */
    int32_t windows = columns->window_count;
    if (!array_node(array, columns, columns->count, windows + 4, 0)) return false;
    array->null_count = binary->null_count;
    array->buffers[0] = binary->null_count ? binary->validity : NULL;
    array->buffers[1] = binary->views;
    for (int32_t i = 0; i < windows; i++) array->buffers[2 + i] = columns->windows[i];
    array->buffers[2 + windows] = bytes_or_nothing(&binary->data);
    array->buffers[3 + windows] = binary->variadic_sizes;
    return true;
}

/* The columns of the records, in an array whose first `before` children are somebody else's. */
static bool record_arrays(struct ArrowArray *array, ol_columns *columns, int64_t before) {
    bool made = array_node(array, columns, columns->count, 1, before + 6);
    if (made) {
        struct ArrowArray **fields = array->children + before;
        made =
            fixed_array(fields[0], columns, columns->offsets) &&
            fixed_array(fields[1], columns, columns->timestamps) &&
            fixed_array(fields[2], columns, columns->timestamp_types) &&
            (columns->views ? view_array(fields[3], columns, &columns->key)
                            : binary_array(fields[3], columns, &columns->key, columns->count)) &&
            (columns->views ? view_array(fields[4], columns, &columns->value)
                            : binary_array(fields[4], columns, &columns->value, columns->count)) &&
            array_node(fields[5], columns, columns->count, 2, 1);
        if (made) {
            fields[5]->buffers[1] = columns->header_starts;
            struct ArrowArray *items = fields[5]->children[0];
            made = array_node(items, columns, columns->header_count, 1, 2) &&
                   binary_array(items->children[0], columns, &columns->header_key,
                                columns->header_count) &&
                   binary_array(items->children[1], columns, &columns->header_value,
                                columns->header_count);
        }
    }
    return made;
}

ol_status ol_arrow_array(struct ArrowArray *array, ol_columns *columns) {
    if (record_arrays(array, columns, 0)) return OL_OK;
    array->release(array);
    return OL_E_MEMORY;
}

/* ---------------------------------------------------------------- out: topic and partition */

struct ol_place {
    atomic_int references;
    int64_t room;
    int32_t *numbers;     /* the partition, and behind it as many zeros: the topic's index */
    int32_t name_ends[2]; /* offsets of the dictionary's only entry */
    char name[];
};

ol_place *ol_place_new(const char *topic, size_t size, int32_t partition, int64_t room) {
    if (size > INT32_MAX || room < 0 || room > INT32_MAX) return NULL;
    ol_place *place = calloc(1, sizeof *place + size);
    if (!place) return NULL;
    place->numbers = calloc((size_t)room * 2 + 1, sizeof *place->numbers);
    if (!place->numbers) {
        free(place);
        return NULL;
    }
    atomic_init(&place->references, 1);
    place->room = room;
    for (int64_t i = 0; i < room; i++) place->numbers[i] = partition;
    place->name_ends[1] = (int32_t)size;
    memcpy(place->name, topic, size);
    return place;
}

void ol_place_release(ol_place *place) {
    if (!place || atomic_fetch_sub(&place->references, 1) > 1) return;
    free(place->numbers);
    free(place);
}

int64_t ol_place_room(const ol_place *place) { return place->room; }

static void place_array_release(struct ArrowArray *array) {
    if (array->dictionary) {
        if (array->dictionary->release) array->dictionary->release(array->dictionary);
        free(array->dictionary);
    }
    free((void *)array->buffers);
    ol_place_release(array->private_data);
    array->release = NULL;
}

static bool place_array(struct ArrowArray *array, ol_place *place, int64_t length, int64_t buffers,
                        const void *content) {
    *array = (struct ArrowArray){.length = length,
                                 .n_buffers = buffers,
                                 .release = place_array_release,
                                 .private_data = place};
    atomic_fetch_add(&place->references, 1);
    if (!(array->buffers = calloc((size_t)buffers, sizeof *array->buffers))) return false;
    array->buffers[1] = content;
    return true;
}

ol_status ol_arrow_placed_array(struct ArrowArray *array, ol_columns *columns, ol_place *place) {
    if (place->room < columns->count) return OL_E_ARGUMENT;
    bool made = record_arrays(array, columns, 2);
    if (made) {
        struct ArrowArray *topic = array->children[0];
        int64_t count = columns->count;
        made = place_array(topic, place, count, 2, place->numbers + place->room) &&
               (topic->dictionary = calloc(1, sizeof *topic->dictionary)) != NULL &&
               place_array(topic->dictionary, place, 1, 3, place->name_ends) &&
               place_array(array->children[1], place, count, 2, place->numbers);
        if (made) topic->dictionary->buffers[2] = place->name;
    }
    if (made) return OL_OK;
    array->release(array);
    return OL_E_MEMORY;
}

/* ---------------------------------------------------------------- in */

static inline bool is_valid(const uint8_t *validity, int64_t index) {
    return !validity || (validity[index >> 3] >> (index & 7) & 1);
}

/* Names are optional in the interface. */
static bool is_named(const struct ArrowSchema *schema, const char *name) {
    return schema->name && strcmp(schema->name, name) == 0;
}

static bool is_format(const struct ArrowSchema *schema, const char *format) {
    return strcmp(schema->format, format) == 0;
}

static bool bind_binary(ol_column *column, const struct ArrowSchema *schema,
                        const struct ArrowArray *array) {
    *column = (ol_column){.offset = array->offset, .length = array->length};
    if (schema->dictionary) return false;
    if (is_format(schema, "n")) {
        column->kind = OL_COLUMN_NULL;
        return true;
    }
    if (is_format(schema, "z") || is_format(schema, "u"))
        column->kind = OL_COLUMN_BINARY;
    else if (is_format(schema, "Z") || is_format(schema, "U"))
        column->kind = OL_COLUMN_LARGE_BINARY;
    else if (is_format(schema, "vz") || is_format(schema, "vu"))
        column->kind = OL_COLUMN_BINARY_VIEW;
    else if (sscanf(schema->format, "w:%ld", &column->width) == 1 && column->width >= 0)
        column->kind = OL_COLUMN_FIXED;
    else
        return false;
    column->validity = array->null_count == 0 ? NULL : array->buffers[0];
    column->offsets = array->buffers[1];
    if (column->kind == OL_COLUMN_BINARY_VIEW)
        column->variadic = (const uint8_t *const *)(array->buffers + 2);
    else
        column->data = column->kind == OL_COLUMN_FIXED ? array->buffers[1] : array->buffers[2];
    return true;
}

bool ol_arrow_binary(ol_column *column, const struct ArrowSchema *schema,
                     const struct ArrowArray *array) {
    return bind_binary(column, schema, array);
}

bool ol_arrow_integers(ol_integers *column, const struct ArrowSchema *schema,
                       const struct ArrowArray *array) {
    static const char formats[] = {'c', 's', 'i', 'l'}; /* of 1, 2, 4 and 8 bytes */
    if (schema->dictionary || strlen(schema->format) != 1) return false;
    const char *found = memchr(formats, schema->format[0], sizeof formats);
    if (!found) return false;
    *column = (ol_integers){.values = array->buffers[1],
                            .validity = array->null_count == 0 ? NULL : array->buffers[0],
                            .offset = array->offset,
                            .length = array->length,
                            .width = 1 << (found - formats)};
    return true;
}

static bool bind_timestamp(ol_arrow_records *records, const struct ArrowSchema *schema,
                           const struct ArrowArray *array) {
    records->timestamp_multiply = records->timestamp_divide = 1;
    if (strncmp(schema->format, "tss:", 4) == 0)
        records->timestamp_multiply = 1000;
    else if (strncmp(schema->format, "tsu:", 4) == 0)
        records->timestamp_divide = 1000;
    else if (strncmp(schema->format, "tsn:", 4) == 0)
        records->timestamp_divide = 1000000;
    else if (strncmp(schema->format, "tsm:", 4) != 0 && !is_format(schema, "l"))
        return false;
    records->timestamp_offset = array->offset;
    records->timestamp_validity = array->null_count == 0 ? NULL : array->buffers[0];
    records->timestamps = array->buffers[1];
    return true;
}

static bool bind_headers(ol_arrow_records *records, const struct ArrowSchema *schema,
                         const struct ArrowArray *array) {
    bool small = is_format(schema, "+l") || is_format(schema, "+m");
    if ((!small && !is_format(schema, "+L")) || schema->n_children != 1) return false;
    const struct ArrowSchema *item = schema->children[0];
    const struct ArrowArray *items = array->children[0];
    if (!is_format(item, "+s") || item->n_children != 2) return false;
    int key = -1, value = -1;
    for (int i = 0; i < 2; i++) {
        if (is_named(item->children[i], "key")) key = i;
        if (is_named(item->children[i], "value")) value = i;
    }
    if (key < 0 || value < 0) return false;
    if (!bind_binary(&records->header_key, item->children[key], items->children[key]) ||
        !bind_binary(&records->header_value, item->children[value], items->children[value]))
        return false;
    /* A struct array's own offset applies to its children. */
    records->header_key.offset += items->offset;
    records->header_value.offset += items->offset;
    records->pair_validity = items->null_count == 0 ? NULL : items->buffers[0];
    records->pair_offset = items->offset;
    records->list_offset = array->offset;
    records->list_validity = array->null_count == 0 ? NULL : array->buffers[0];
    if (small)
        records->list_offsets = array->buffers[1];
    else
        records->large_list_offsets = array->buffers[1];
    return true;
}

ol_status ol_arrow_bind(ol_arrow_records *records, const struct ArrowSchema *schema,
                        const struct ArrowArray *array, const char **column, ol_fault *fault) {
    memset(records, 0, sizeof *records);
    *column = "";
    if (!is_format(schema, "+s"))
        return ol_fail(fault, OL_E_ARGUMENT, "not a struct array: pass a record batch or table");
    records->length = array->length;
    for (int64_t i = 0; i < schema->n_children; i++) {
        const struct ArrowSchema *field = schema->children[i];
        const struct ArrowArray *child = array->children[i];
        *column = field->name ? field->name : "";
        if (is_named(field, "key")) {
            if (!bind_binary(&records->key, field, child))
                return ol_fail(fault, OL_E_ARGUMENT,
                               "must be binary, large_binary, binary_view, fixed_size_binary or a "
                               "string type");
            records->has_key = records->key.kind != OL_COLUMN_NULL;
        } else if (is_named(field, "value")) {
            if (!bind_binary(&records->value, field, child))
                return ol_fail(fault, OL_E_ARGUMENT,
                               "must be binary, large_binary, binary_view, fixed_size_binary or a "
                               "string type");
            records->has_value = true;
        } else if (is_named(field, "timestamp")) {
            if (is_format(field, "n")) continue;
            if (!bind_timestamp(records, field, child))
                return ol_fail(fault, OL_E_ARGUMENT, "must be a timestamp or int64 milliseconds");
            records->has_timestamp = true;
        } else if (is_named(field, "headers")) {
            if (is_format(field, "n")) continue;
            if (!bind_headers(records, field, child))
                return ol_fail(
                    fault, OL_E_ARGUMENT,
                    "must be list<struct<key: string, value: binary>> or a map of those");
            records->has_headers = true;
        }
    }
    *column = "";
    const uint8_t *validity = array->null_count == 0 ? NULL : array->buffers[0];
    for (int64_t i = array->offset; validity && i < array->offset + array->length; i++)
        if (!is_valid(validity, i)) return ol_fail(fault, OL_E_ARGUMENT, "a row is null");
    /* An offset on the struct itself applies to every child, and a child may be longer. */
    records->key.offset += array->offset;
    records->value.offset += array->offset;
    records->key.length = records->value.length = array->length;
    records->timestamp_offset += array->offset;
    records->list_offset += array->offset;
    *column = "value";
    if (!records->has_value) return ol_fail(fault, OL_E_ARGUMENT, "column is missing");
    *column = "";
    return OL_OK;
}

#define SLICES_OF_OFFSETS(type)                                      \
    do {                                                             \
        const type *offsets = (const type *)column->offsets + start; \
        const uint8_t *data = column->data;                          \
        int64_t from = offsets[0];                                   \
        for (int64_t i = 0; i < count; i++) {                        \
            int64_t to = offsets[i + 1];                             \
            out[i].data = data + from;                               \
            out[i].size = to - from;                                 \
            bad |= to - from;                                        \
            from = to;                                               \
        }                                                            \
    } while (0)

ol_status ol_column_slices(const ol_column *column, int64_t start, int64_t count, ol_slice *out) {
    start += column->offset;
    int64_t bad = 0; /* negative once any size is */
    switch (column->kind) {
    case OL_COLUMN_NULL:
        for (int64_t i = 0; i < count; i++) out[i] = (ol_slice){NULL, -1};
        return OL_OK;
    case OL_COLUMN_BINARY:
        SLICES_OF_OFFSETS(int32_t);
        break;
    case OL_COLUMN_LARGE_BINARY:
        SLICES_OF_OFFSETS(int64_t);
        break;
    case OL_COLUMN_FIXED:
        for (int64_t i = 0; i < count; i++)
            out[i] = (ol_slice){column->data + (start + i) * column->width, column->width};
        break;
    case OL_COLUMN_BINARY_VIEW:
        for (int64_t i = 0; i < count; i++) {
            const uint8_t *view = (const uint8_t *)column->offsets + 16 * (start + i);
            int32_t size, window, offset;
            memcpy(&size, view, 4);
            memcpy(&window, view + 8, 4);
            memcpy(&offset, view + 12, 4);
            if (!is_valid(column->validity, start + i)) size = 0;
            out[i] = (ol_slice){size <= 12 ? view + 4 : column->variadic[window] + offset, size};
            bad |= size;
        }
        break;
    }
    if (bad < 0) return OL_E_ARGUMENT;
    if (column->validity)
        for (int64_t i = 0; i < count; i++)
            if (!is_valid(column->validity, start + i)) out[i].size = -1;
    return OL_OK;
}

ol_status ol_arrow_timestamps(const ol_arrow_records *records, int64_t start, int64_t count,
                              int64_t default_timestamp, int64_t *out) {
    start += records->timestamp_offset;
    const int64_t *from = records->timestamps + start;
    int64_t divide = records->timestamp_divide;
    bool overflow = false;
    for (int64_t i = 0; i < count; i++) {
        int64_t value = from[i];
        if (!is_valid(records->timestamp_validity, start + i)) {
            out[i] = default_timestamp;
            continue;
        }
        if (divide != 1)
            value = value / divide - (value % divide < 0);
        else
            overflow |= __builtin_mul_overflow(value, records->timestamp_multiply, &value);
        out[i] = value;
    }
    return overflow ? OL_E_ARGUMENT : OL_OK;
}

static int64_t list_at(const ol_arrow_records *records, int64_t index) {
    return records->list_offsets ? records->list_offsets[index]
                                 : records->large_list_offsets[index];
}

ol_status ol_arrow_header_range(const ol_arrow_records *records, int64_t start, int64_t count,
                                int64_t *first, int64_t *items, int64_t *starts, int64_t *ends) {
    start += records->list_offset;
    *first = list_at(records, start);
    *items = list_at(records, start + count) - *first;
    for (int64_t i = 0; i < count; i++) {
        starts[i] = list_at(records, start + i) - *first;
        /* A null list may still cover items; they belong to nobody. */
        ends[i] = is_valid(records->list_validity, start + i)
                      ? list_at(records, start + i + 1) - *first
                      : starts[i];
        if (starts[i] < 0 || ends[i] < starts[i] || ends[i] > *items) return OL_E_ARGUMENT;
        /* A null pair may still cover a key; it is nobody's header. */
        for (int64_t j = starts[i]; records->pair_validity && j < ends[i]; j++)
            if (!is_valid(records->pair_validity, records->pair_offset + *first + j))
                return OL_E_RECORD;
    }
    return OL_OK;
}

int64_t ol_column_bytes_hint(const ol_column *column) {
    if (!column->length) return 0;
    switch (column->kind) {
    case OL_COLUMN_BINARY: {
        const int32_t *offsets = (const int32_t *)column->offsets + column->offset;
        return offsets[column->length] - offsets[0];
    }
    case OL_COLUMN_LARGE_BINARY: {
        const int64_t *offsets = (const int64_t *)column->offsets + column->offset;
        return offsets[column->length] - offsets[0];
    }
    case OL_COLUMN_FIXED:
        return column->width * column->length;
    default:
        return 0;
    }
}
