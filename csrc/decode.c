/* Batches into columns: one pass that proves each record and fills offset, timestamp, key, value and
 * headers of all records at once; keys and values copied, or as 16-byte views of where they lie. */
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "record.h"

enum { VIEW_BYTES = 16, VIEW_INLINE_MAX = 12 };
/* Marks a view into the column's own data; its number is known only when all windows are. */
enum { OWN_DATA = -1 };

/* ---------------------------------------------------------------- columns */

static ol_status no_memory(ol_fault *fault) { return ol_fail(fault, OL_E_MEMORY, "out of memory"); }

static bool grow(void *pointer, int64_t count, size_t width) {
    void **array = pointer;
    void *moved = realloc(*array, (size_t)count * width);
    if (!moved) return false;
    *array = moved;
    return true;
}

/* Columns that nobody uses any more wait here for the next decode, contiguous ones and views apart: memory that the
 * allocator has given back costs more to get again, page by page, than to fill. */
enum { SPARES = 2, SPARE_BYTES_MAX = 8 << 20 };
static _Atomic(ol_columns *) spares[2][SPARES];

static ol_columns *spare(bool views) {
    for (int i = 0; i < SPARES; i++) {
        ol_columns *found = atomic_exchange_explicit(&spares[views][i], NULL, memory_order_acquire);
        if (found) return found;
    }
    return NULL;
}

ol_columns *ol_columns_new(bool views) {
    ol_columns *columns = spare(views);
    if (!columns) {
        if (!(columns = calloc(1, sizeof *columns))) return NULL;
        columns->views = views;
    }
    atomic_init(&columns->references, 1);
    return columns;
}

void ol_columns_retain(ol_columns *columns) {
    atomic_fetch_add_explicit(&columns->references, 1, memory_order_relaxed);
}

static void binary_free(ol_binary *binary) {
    free(binary->offsets);
    free(binary->data.data);
    free(binary->views);
    free(binary->validity);
    free(binary->variadic_sizes);
}

static void binary_clear(ol_binary *binary) {
    free(binary->validity); /* made by the first null */
    binary->validity = NULL;
    binary->null_count = 0;
    binary->data.size = 0;
}

static void columns_free(ol_columns *columns) {
    binary_free(&columns->key);
    binary_free(&columns->value);
    binary_free(&columns->header_key);
    binary_free(&columns->header_value);
    free(columns->offsets);
    free(columns->timestamps);
    free(columns->timestamp_types);
    free(columns->header_starts);
    free((void *)columns->windows);
    free(columns->window_sizes);
    free(columns);
}

/* Empties columns and puts them aside; false where there is no room for them. */
static bool keep(ol_columns *columns) {
    size_t bytes = (size_t)columns->capacity * 64 + (size_t)columns->header_capacity * 8 +
                   columns->key.data.capacity + columns->value.data.capacity +
                   columns->header_key.data.capacity + columns->header_value.data.capacity;
    if (bytes > SPARE_BYTES_MAX) return false;
    binary_clear(&columns->key);
    binary_clear(&columns->value);
    binary_clear(&columns->header_key);
    binary_clear(&columns->header_value);
    columns->count = columns->header_count = 0;
    columns->window_count = 0;
    columns->pin = NULL;
    columns->unpin = NULL;
    columns->reused = true;
    for (int i = 0; i < SPARES; i++) {
        ol_columns *none = NULL;
        if (atomic_compare_exchange_strong_explicit(&spares[columns->views][i], &none, columns,
                                                    memory_order_release, memory_order_relaxed))
            return true;
    }
    return false;
}

void ol_columns_release(ol_columns *columns) {
    if (!columns || atomic_fetch_sub_explicit(&columns->references, 1, memory_order_acq_rel) != 1)
        return;
    if (columns->unpin) columns->unpin(columns->pin);
    if (!keep(columns)) columns_free(columns);
}

static bool grow_validity(ol_binary *binary, int64_t from, int64_t to) {
    if (!binary->validity) return true;
    if (!grow(&binary->validity, (to + 7) / 8, 1)) return false;
    memset(binary->validity + (from + 7) / 8, 0xff, (size_t)((to + 7) / 8 - (from + 7) / 8));
    return true;
}

static bool grow_offsets(ol_binary *binary, int64_t from, int64_t to) {
    bool fresh = !binary->offsets;
    if (!grow(&binary->offsets, to + 1, sizeof *binary->offsets)) return false;
    if (fresh) binary->offsets[0] = 0;
    return grow_validity(binary, from, to);
}

static bool grow_values(ol_columns *columns, ol_binary *binary, int64_t to) {
    if (!columns->views) return grow_offsets(binary, columns->capacity, to);
    return grow(&binary->views, to, VIEW_BYTES) && grow_validity(binary, columns->capacity, to);
}

static bool reserve_records(ol_columns *columns, int64_t extra) {
    int64_t needed = columns->count + extra;
    if (needed <= columns->capacity && columns->offsets) return true;
    int64_t to = columns->capacity + columns->capacity / 2;
    if (to < needed) to = needed;
    if (to < 1) to = 1;
    bool fresh = !columns->header_starts;
    if (!grow(&columns->offsets, to, 8) || !grow(&columns->timestamps, to, 8) ||
        !grow(&columns->timestamp_types, to, 1) || !grow(&columns->header_starts, to + 1, 4) ||
        !grow_values(columns, &columns->key, to) || !grow_values(columns, &columns->value, to))
        return false;
    if (fresh) columns->header_starts[0] = 0;
    columns->capacity = to;
    return true;
}

static bool reserve_headers(ol_columns *columns, int64_t extra) {
    int64_t needed = columns->header_count + extra;
    if (needed <= columns->header_capacity) return true;
    int64_t to = columns->header_capacity + columns->header_capacity / 2;
    if (to < needed) to = needed;
    if (!grow_offsets(&columns->header_key, columns->header_capacity, to) ||
        !grow_offsets(&columns->header_value, columns->header_capacity, to))
        return false;
    columns->header_capacity = to;
    return true;
}

/* Bits exist only once there is a null: most columns have none. */
static bool mark_null(ol_binary *binary, int64_t index, int64_t capacity) {
    if (!binary->validity) {
        if (!grow(&binary->validity, (capacity + 7) / 8, 1)) return false;
        memset(binary->validity, 0xff, (size_t)((capacity + 7) / 8));
    }
    binary->validity[index / 8] &= (uint8_t)~(1u << (index % 8));
    binary->null_count++;
    return true;
}

/* The same for all from `first` to before `end`. */
static bool mark_nulls(ol_binary *binary, int64_t first, int64_t end, int64_t capacity) {
    for (; first < end && (first % 8 || end - first < 8); first++)
        if (!mark_null(binary, first, capacity)) return false;
    if (first == end) return true;
    int64_t whole = (end - first) / 8;
    if (!mark_null(binary, first, capacity)) return false; /* sees to the bits */
    memset(binary->validity + first / 8, 0, (size_t)whole);
    binary->null_count += 8 * whole - 1;
    return mark_nulls(binary, first + 8 * whole, end, capacity);
}

static bool finish_views(ol_columns *columns, ol_binary *binary) {
    int32_t number = columns->window_count;
    if (!grow(&binary->variadic_sizes, number + 1, sizeof *binary->variadic_sizes)) return false;
    for (int32_t i = 0; i < number; i++) binary->variadic_sizes[i] = columns->window_sizes[i];
    binary->variadic_sizes[number] = (int64_t)binary->data.size;
    for (int64_t index = 0; index < columns->count && binary->data.size; index++) {
        uint8_t *view = binary->views + VIEW_BYTES * index;
        int32_t size, window;
        memcpy(&size, view, 4);
        memcpy(&window, view + 8, 4);
        if (size > VIEW_INLINE_MAX && window == OWN_DATA) memcpy(view + 8, &number, 4);
    }
    return true;
}

static void trim(ol_bytes *bytes) {
    if (bytes->capacity - bytes->size < 4096) return;
    uint8_t *data = realloc(bytes->data, bytes->size ? bytes->size : 1);
    if (!data) return;
    bytes->data = data;
    bytes->capacity = bytes->size ? bytes->size : 1;
}

bool ol_columns_finish(ol_columns *columns) {
    if (!reserve_records(columns, 0)) return false; /* Arrow wants offsets even for no rows */
    if (!columns->header_key.offsets && !reserve_headers(columns, 1)) return false;
    if (!columns->reused) {
        trim(&columns->key.data);
        trim(&columns->value.data);
    }
    if (!columns->views) return true;
    return finish_views(columns, &columns->key) && finish_views(columns, &columns->value);
}

/* ---------------------------------------------------------------- one payload into columns */

/* Two numbers of 32 bits, the first one first in memory. */
ALWAYS_INLINE uint64_t pair(uint32_t first, uint32_t second) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (uint64_t)first << 32 | second;
#else
    return first | (uint64_t)second << 32;
#endif
}

ALWAYS_INLINE void put_view(uint8_t *view, const uint8_t *data, int32_t size, int32_t window,
                            int64_t offset) {
    uint64_t words[2] = {0, 0};
    if (__builtin_expect(size <= VIEW_INLINE_MAX, 0)) {
        memcpy(view, words, VIEW_BYTES);
        memcpy(view, &size, 4);
        ol_copy(view + 4, data, (size_t)size);
        return;
    }
    uint32_t start;
    memcpy(&start, data, 4);
    words[0] = pair((uint32_t)size, start);
    words[1] = pair((uint32_t)window, (uint32_t)offset);
    memcpy(view, words, 8);
    memcpy(view + 8, words + 1, 8);
}

typedef struct target {
    const uint8_t *window; /* views: where the payload's window starts; NULL: copy into data */
    int32_t window_index;
} target;

/* Where the values of one column go while a batch is decoded. Locals of the loop: what it stores are
 * bytes, which for all that a compiler knows may lie in the columns themselves. */
typedef struct sink {
    ol_binary *binary;
    uint8_t *views;
    int32_t *offsets;
    uint8_t *data;
    size_t size;           /* of data so far */
    const uint8_t *window; /* views: where the payload's window starts; NULL: copy into data */
    int32_t window_index;
} sink;

ALWAYS_INLINE sink sink_of(ol_binary *binary, const target *into) {
    return (sink){
        binary,       binary->views,     binary->offsets, binary->data.data, binary->data.size,
        into->window, into->window_index};
}

ALWAYS_INLINE void put_value(sink *to, int64_t slot, const uint8_t *data, int32_t size, bool views,
                             bool in_place) {
    if (views && in_place) {
        put_view(to->views + VIEW_BYTES * slot, data, size, to->window_index, data - to->window);
        return;
    }
    ol_copy(to->data + to->size, data, (size_t)size);
    if (views) put_view(to->views + VIEW_BYTES * slot, data, size, OWN_DATA, (int64_t)to->size);
    to->size += (size_t)size;
    if (!views) to->offsets[slot + 1] = (int32_t)to->size;
}

static ol_status put_headers(ol_columns *columns, int32_t count, const uint8_t **place,
                             const uint8_t *end, int32_t index, ol_fault *fault) {
    const char *what = NULL;
    const uint8_t *at = *place;
    ol_binary *keys = &columns->header_key, *values = &columns->header_value;
    if (!reserve_headers(columns, count)) return no_memory(fault);
    if (columns->header_count + count > INT32_MAX)
        return ol_fail(fault, OL_E_TOO_LARGE, "more headers than an Arrow list can address");
    for (int32_t i = 0; i < count; i++) {
        ol_slice key, value;
        if (!(at = read_header(&key, &value, at, end, &what)))
            return bad_record(fault, index, what);
        int64_t slot = columns->header_count;
        /* One byte more: an empty first name needs an address, too. */
        if (ol_bytes_reserve(&keys->data, (size_t)key.size * 3 + 1) != OL_OK ||
            ol_bytes_reserve(&values->data, value.size < 0 ? 1 : (size_t)value.size + 1) != OL_OK)
            return no_memory(fault);
        if (ol_utf8_valid(key.data, (size_t)key.size)) {
            ol_copy(keys->data.data + keys->data.size, key.data, (size_t)key.size);
            keys->data.size += (size_t)key.size;
        } else {
            keys->data.size +=
                ol_utf8_repair(keys->data.data + keys->data.size, key.data, (size_t)key.size);
        }
        if (value.size < 0) {
            if (!mark_null(values, slot, columns->header_capacity)) return no_memory(fault);
        } else {
            ol_copy(values->data.data + values->data.size, value.data, (size_t)value.size);
            values->data.size += (size_t)value.size;
        }
        if (keys->data.size > INT32_MAX || values->data.size > INT32_MAX)
            return ol_fail(fault, OL_E_TOO_LARGE,
                           "more header bytes than an Arrow array can address");
        keys->offsets[slot + 1] = (int32_t)keys->data.size;
        values->offsets[slot + 1] = (int32_t)values->data.size;
        columns->header_count++;
    }
    *place = at;
    return OL_OK;
}

static ol_status skip_headers(int32_t count, const uint8_t **place, const uint8_t *end,
                              int32_t index, ol_fault *fault) {
    const char *what = NULL;
    ol_slice key, value;
    for (int32_t i = 0; i < count; i++)
        if (!(*place = read_header(&key, &value, *place, end, &what)))
            return bad_record(fault, index, what);
    return OL_OK;
}

/* So many records of one shape are looked at before they are copied: what is copied is still in the nearest cache. */
enum { RUN_BYTES = 8 << 10 };

/* While a batch of small records is decoded, which takes time but little memory, the one behind it is
 * fetched, or the next run of a large one, two lines for every record: its checksum needs all of it at once. Large records
 * leave the CPU time to fetch by itself, and gaps between what is asked for would only confuse it. */
enum { PREFETCH_BATCH_MAX = 64 << 10, PREFETCH_RECORD_MAX = 128 };

static size_t prefetch_distance(const ol_decoder *decoder) {
    const ol_header *header = &decoder->header;
    int64_t row = decoder->next + 1,
            left = (int64_t)decoder->size - header->position - header->size;
    if (header->size > (int64_t)header->record_count * PREFETCH_RECORD_MAX) return 0;
    if (header->size > PREFETCH_BATCH_MAX) return RUN_BYTES;
    if (row >= decoder->batch_count || (decoder->visible && !decoder->visible[row])) return 0;
    return header->size > left ? 0 : (size_t)header->size;
}

static const char sum_differs[] = "checksum does not match the batch";

/* How far a batch is proven while it is decoded, NULL: it was before. */
typedef struct proof {
    const uint8_t *at;
    uint32_t crc; /* of what lies before */
} proof;

ALWAYS_INLINE void prove_to(proof *done, const uint8_t *end) {
    if (end <= done->at) return;
    done->crc = ol_crc32c(done->crc, done->at, (size_t)(end - done->at));
    done->at = end;
}

/* How far a batch is decoded. */
typedef struct progress {
    const uint8_t *at;
    int64_t slot; /* of the next record in the columns */
    int64_t last_delta;
    int32_t index; /* of the next record in the batch */
} progress;

/* The values of a run of records of one shape. That 15 bytes more are written does no harm: each record takes more bytes of
 * the payload than its values take here, there is room for all of the payload, and it goes on behind the run. */
ALWAYS_INLINE void put_alike(sink *to, int64_t slot, const uint8_t *from, int32_t size,
                             int64_t stride, int64_t count) {
    int32_t end = (int32_t)to->size;
    int32_t *ends = to->offsets + slot + 1;
    if (size) ol_copy_alike(to->data + to->size, from, (size_t)size, (size_t)stride, count);
    for (int64_t i = 0; i < count; i++) ends[i] = end += size;
    to->size += (size_t)(count * size);
}

/* The same as views of where they lie. */
ALWAYS_INLINE void put_alike_views(const sink *to, int64_t slot, const uint8_t *from, int32_t size,
                                   int64_t stride, int64_t count) {
    uint8_t *views = to->views + VIEW_BYTES * slot;
    if (!size) {
        memset(views, 0, (size_t)(VIEW_BYTES * count));
        return;
    }
    for (int64_t i = 0; i < count; i++, from += stride)
        put_view(views + VIEW_BYTES * i, from, size, to->window_index, from - to->window);
}

/* Decodes records for as long as they have the known shape and are in order: no sizes to look at, no
 * headers, no nulls to mark one by one. What ends the run is left to the loop that tells what is wrong.
 * Returns false without memory. */
ALWAYS_INLINE bool fill_alike(progress *done, const shape *known, const ol_header *header,
                              const uint8_t *end, const ol_columns *columns, sink *keys,
                              sink *values, int32_t headers, size_t ahead, proof *proven,
                              bool views) {
    const shape alike =
        *known; /* a copy: for all a compiler knows, what is stored may be the shape */
    const int32_t key_size = alike.key_size < 0 ? 0 : alike.key_size;
    const int32_t value_size = alike.value_size < 0 ? 0 : alike.value_size;
    const int64_t run_max = alike.size > RUN_BYTES ? 1 : RUN_BYTES / alike.size;
    int64_t *offsets = columns->offsets, *timestamps = columns->timestamps;
    int32_t *header_starts = columns->header_starts;
    const uint8_t *at = done->at;
    int64_t slot = done->slot, last_delta = done->last_delta;
    const int64_t first = slot, whole = (end - at - SHAPE_HEAD_MAX) / alike.size;
    const int64_t left = header->record_count - done->index,
                  stop = slot + (whole < left ? whole : left);
    fields record = {.offset_delta = 0};
    while (slot < stop) {
        const uint8_t *start = at;
        const int64_t run = slot, run_end = stop - slot < run_max ? stop : slot + run_max;
        bool in_step = true; /* one vain try costs little; one for every record would */
        if (proven) prove_to(proven, start + (run_end - run) * alike.size);
        while (slot < run_end) {
            const int64_t pause = in_step ? slot + 1 : run_end;
            while (slot < pause && read_alike_near(&record, &alike, at) &&
                   offset_in_order(header, last_delta, &record)) {
                if (ahead) prefetch(at, ahead);
                last_delta = record.offset_delta;
                offsets[slot] = header->base_offset + record.offset_delta;
                timestamps[slot] = record_timestamp(header, record.timestamp_delta);
                at += alike.size;
                slot++;
            }
            if (slot < pause || slot == run_end) break;
            int64_t more = steps_left(record.offset_delta);
            if (more > run_end - slot) more = run_end - slot;
            if (more < STEPS_MIN || more > header->last_offset_delta - last_delta) continue;
            more = read_in_step(&alike, at - alike.size, more, ahead);
            in_step = more > 0;
            const int64_t next = offsets[slot - 1] + 1, timestamp = timestamps[slot - 1];
            for (int64_t i = 0; i < more; i++) offsets[slot + i] = next + i;
            for (int64_t i = 0; i < more; i++) timestamps[slot + i] = timestamp;
            last_delta += more;
            at += more * alike.size;
            slot += more;
        }
        for (int64_t i = run; i < slot; i++) header_starts[i + 1] = headers;
        const uint8_t *key = start + alike.key_at, *value = start + alike.value_at;
        if (views) {
            put_alike_views(keys, run, key, key_size, alike.size, slot - run);
            put_alike_views(values, run, value, value_size, alike.size, slot - run);
        } else {
            put_alike(keys, run, key, key_size, alike.size, slot - run);
            put_alike(values, run, value, value_size, alike.size, slot - run);
        }
        if (slot < run_end) break;
    }
    *done = (progress){at, slot, last_delta, done->index + (int32_t)(slot - first)};
    return (alike.key_size >= 0 || mark_nulls(keys->binary, first, slot, columns->capacity)) &&
           (alike.value_size >= 0 || mark_nulls(values->binary, first, slot, columns->capacity));
}

ALWAYS_INLINE ol_status fill(const ol_decoder *decoder, ol_columns *columns, const uint8_t *payload,
                             size_t size, const target *into, proof *proven, bool views,
                             bool in_place, bool ranged, ol_fault *fault) {
    const ol_header header = decoder->header;
    const uint8_t *at = payload, *end = payload + size;
    const char *what = NULL;
    sink keys = sink_of(&columns->key, into), values = sink_of(&columns->value, into);
    int64_t *offsets = columns->offsets, *timestamps = columns->timestamps;
    int32_t *header_starts = columns->header_starts;
    int32_t headers = (int32_t)columns->header_count;
    int64_t last_delta = -1, last_size = -1, slot = columns->count;
    bool in_buffer = payload == decoder->base + header.position + OL_HEADER_BYTES;
    size_t ahead = in_buffer ? prefetch_distance(decoder) : 0;
    shape known = {.size = 0};
    for (int32_t index = 0; index < header.record_count; index++) {
        fields record;
        if (!ranged && known.size) {
            progress done = {at, slot, last_delta, index};
            if (!fill_alike(&done, &known, &header, end, columns, &keys, &values, headers, ahead,
                            proven, views))
                return no_memory(fault);
            at = done.at, slot = done.slot, last_delta = done.last_delta, index = done.index;
            if (index == header.record_count) break;
            known.size = 0; /* another try for every record would cost more than it finds */
        }
        if (proven && at >= proven->at)
            prove_to(proven, end - at > RUN_BYTES ? at + RUN_BYTES : end);
        if (ahead) prefetch(at, ahead);
        if (!(at = read_next(&record, &known, &last_size, at, end, &what)))
            return bad_record(fault, index, what);
        if (!offset_in_order(&header, last_delta, &record))
            return bad_record(fault, index, out_of_order);
        last_delta = record.offset_delta;
        int64_t offset = header.base_offset + record.offset_delta;
        bool wanted = !ranged || (offset >= decoder->start_offset && offset < decoder->end_offset);
        if (__builtin_expect(record.header_count != 0, 0)) {
            const uint8_t *place = at; /* a copy, so that the loop's own stays in a register */
            ol_status status =
                wanted ? put_headers(columns, record.header_count, &place, record.end, index, fault)
                       : skip_headers(record.header_count, &place, record.end, index, fault);
            if (status != OL_OK) return status;
            at = place;
            headers = (int32_t)columns->header_count;
        }
        if (at != record.end) return bad_record(fault, index, longer_than_fields);
        at = next_record(&record);
        if (!wanted) continue;
        offsets[slot] = offset;
        timestamps[slot] = record_timestamp(&header, record.timestamp_delta);
        if (__builtin_expect((record.key_size | record.value_size) < 0, 0)) {
            if ((record.key_size < 0 && !mark_null(keys.binary, slot, columns->capacity)) ||
                (record.value_size < 0 && !mark_null(values.binary, slot, columns->capacity)))
                return no_memory(fault);
            record.key_size &= ~(record.key_size >> 31); /* null is empty, with a mark */
            record.value_size &= ~(record.value_size >> 31);
        }
        put_value(&keys, slot, record.key, record.key_size, views, in_place);
        put_value(&values, slot, record.value, record.value_size, views, in_place);
        header_starts[++slot] = headers;
    }
    if (at != end) return ol_fail(fault, OL_E_RECORD, bytes_left);
    if (proven) {
        prove_to(proven, end);
        if (proven->crc != header.crc) return ol_fail(fault, OL_E_CRC, sum_differs);
    }
    memset(columns->timestamp_types + columns->count,
           (header.attributes & OL_ATTR_LOG_APPEND_TIME) != 0, (size_t)(slot - columns->count));
    columns->count = slot;
    columns->key.data.size = keys.size;
    columns->value.data.size = values.size;
    return OL_OK;
}

/* Each way on its own: a function that holds all of them is too large for a compiler to do any of them well. */
#define FILL(name, views, in_place, ranged)                                                  \
    static __attribute__((noinline)) ol_status name(                                         \
        const ol_decoder *decoder, ol_columns *columns, const uint8_t *payload, size_t size, \
        const target *into, proof *proven, ol_fault *fault) {                                \
        return fill(decoder, columns, payload, size, into, proven, views, in_place, ranged,  \
                    fault);                                                                  \
    }
FILL(fill_views, true, true, false)
FILL(fill_views_range, true, true, true)
FILL(fill_copied_views, true, false, true)
FILL(fill_copied, false, false, false)
FILL(fill_copied_range, false, false, true)

/* A window that reaches the batch, started anew where 31 bits would not. */
static bool window_for(ol_columns *columns, const uint8_t *from, const uint8_t *to, target *into) {
    int32_t last = columns->window_count - 1;
    if (last < 0 || from < columns->windows[last] || to - columns->windows[last] > INT32_MAX) {
        last = columns->window_count;
        if (!grow(&columns->windows, last + 1, sizeof *columns->windows) ||
            !grow(&columns->window_sizes, last + 1, sizeof *columns->window_sizes))
            return false;
        columns->windows[last] = from;
        columns->window_count = last + 1;
    }
    columns->window_sizes[last] = to - columns->windows[last];
    *into = (target){columns->windows[last], last};
    return true;
}

/* in_place: the payload lies in the caller's buffer, so views may point at it. */
static ol_status decode_payload(ol_decoder *decoder, ol_columns *columns, const uint8_t *payload,
                                size_t size, bool in_place, proof *proven, ol_fault *fault) {
    const ol_header *header = &decoder->header;
    ol_status status = check_counts(header, size, fault);
    if (status != OL_OK) return status;
    target into = {NULL, OWN_DATA};
    if (columns->count + header->record_count >= INT32_MAX ||
        columns->key.data.size + size > INT32_MAX || columns->value.data.size + size > INT32_MAX) {
        if (!columns->count)
            return ol_fail(fault, OL_E_TOO_LARGE, "more than an Arrow array can address");
        decoder->bytes_max = 0; /* full: these columns end before this batch */
        return OL_OK;
    }
    if (!reserve_records(columns, header->record_count)) return no_memory(fault);
    if (columns->views && in_place) {
        if (!window_for(columns, payload, payload + size, &into)) return no_memory(fault);
    } else {
        if (ol_bytes_reserve(&columns->key.data, size) != OL_OK ||
            ol_bytes_reserve(&columns->value.data, size) != OL_OK)
            return no_memory(fault);
    }
    bool ranged = header->base_offset < decoder->start_offset ||
                  header->base_offset + header->last_offset_delta >= decoder->end_offset;
    if (!columns->views)
        status = ranged ? fill_copied_range(decoder, columns, payload, size, &into, proven, fault)
                        : fill_copied(decoder, columns, payload, size, &into, proven, fault);
    else if (!in_place)
        status = fill_copied_views(decoder, columns, payload, size, &into, proven, fault);
    else
        status = ranged ? fill_views_range(decoder, columns, payload, size, &into, proven, fault)
                        : fill_views(decoder, columns, payload, size, &into, proven, fault);
    if (status == OL_OK) {
        decoder->bytes += (int64_t)size;
        decoder->next++;
    }
    return status;
}

ol_status ol_decode_payload(ol_decoder *decoder, ol_columns *columns, const uint8_t *payload,
                            size_t size, ol_fault *fault) {
    fault->position = decoder->header.position;
    fault->base_offset = decoder->header.base_offset;
    fault->record = -1;
    return decode_payload(decoder, columns, payload, size, false, NULL, fault);
}

static bool in_range(const ol_header *header, int64_t start_offset, int64_t end_offset) {
    int64_t next;
    /* Offsets that cannot be true are not skipped: whoever reads them is told. */
    if (header->base_offset < 0 || header->last_offset_delta < 0 ||
        __builtin_add_overflow(header->base_offset, (int64_t)header->last_offset_delta + 1, &next))
        return true;
    return next > start_offset && header->base_offset < end_offset;
}

/* OL_SKIPPED for a batch outside the range. */
static ol_status read_in_range(ol_header *header, const uint8_t *base, size_t size,
                               int64_t position, int64_t start_offset, int64_t end_offset,
                               ol_fault *fault) {
    fault->position = position;
    fault->base_offset = -1;
    fault->record = -1;
    if (position < 0) return ol_fail(fault, OL_E_ARGUMENT, "position is negative");
    ol_status status = ol_header_read(header, base, size, (size_t)position, false, fault);
    if (status != OL_OK) return status;
    return in_range(header, start_offset, end_offset) ? OL_OK : OL_SKIPPED;
}

static bool is_proven(const ol_header *header, const uint8_t *base) {
    return ol_crc32c(0, base + header->position + OL_CRC_FROM,
                     (size_t)header->size - OL_CRC_FROM) == header->crc;
}

static bool is_hidden(const ol_header *header, bool include_control) {
    return (header->attributes & OL_ATTR_CONTROL) && !include_control;
}

/* What has to be done with a batch that is proven. */
static ol_status kind_of(const ol_header *header, bool include_control, ol_fault *fault) {
    /* A flipped bit may have made this a control batch: it hides nothing until the checksum holds. */
    if (is_hidden(header, include_control)) return OL_SKIPPED;
    int codec = header->attributes & OL_ATTR_CODEC;
    if (codec > 4) return ol_fail(fault, OL_E_CODEC, "compression codec does not exist");
    /* An emptied batch has no payload to decompress, whatever its codec bits say. */
    return codec && header->size > OL_HEADER_BYTES ? OL_COMPRESSED : OL_OK;
}

ol_status ol_batch_prove(ol_header *header, const uint8_t *base, size_t size, int64_t position,
                         int64_t start_offset, int64_t end_offset, bool check_crc,
                         ol_fault *fault) {
    ol_status status = read_in_range(header, base, size, position, start_offset, end_offset, fault);
    if (status == OL_OK && check_crc && !is_proven(header, base))
        return ol_fail(fault, OL_E_CRC, sum_differs);
    return status;
}

ol_status ol_batch_open(ol_header *header, const uint8_t *base, size_t size, int64_t position,
                        int64_t start_offset, int64_t end_offset, bool check_crc,
                        bool include_control, ol_fault *fault) {
    ol_status status =
        ol_batch_prove(header, base, size, position, start_offset, end_offset, check_crc, fault);
    return status == OL_OK ? kind_of(header, include_control, fault) : status;
}

/* Makes room for what the headers promise, within bytes_max and what the bytes can hold, so that the
 * columns need not move while they grow. A hint: whatever it reads is checked again later. */
static bool reserve_all(const ol_decoder *decoder, ol_columns *columns) {
    int64_t bytes = 0, records = 0, seen = 0;
    for (int64_t row = decoder->next; row < decoder->batch_count && seen < decoder->bytes_max;
         row++) {
        ol_header header;
        ol_fault ignored;
        int64_t position = decoder->positions[row];
        if ((decoder->visible && !decoder->visible[row]) || position < 0) continue;
        if (ol_header_read(&header, decoder->base, decoder->size, (size_t)position, false,
                           &ignored) != OL_OK)
            break;
        int64_t payload = header.size - OL_HEADER_BYTES;
        seen += header.size;
        if (header.attributes & OL_ATTR_CODEC) continue;
        if (header.record_count < 0 || header.record_count > payload / OL_RECORD_BYTES_MIN) break;
        if (!in_range(&header, decoder->start_offset, decoder->end_offset) ||
            is_hidden(&header, decoder->include_control))
            continue;
        if (bytes + payload > INT32_MAX) break;
        bytes += payload;
        records += header.record_count;
    }
    if (!reserve_records(columns, records)) return false;
    return columns->views || (ol_bytes_reserve(&columns->key.data, (size_t)bytes) == OL_OK &&
                              ol_bytes_reserve(&columns->value.data, (size_t)bytes) == OL_OK);
}

/* A large batch is proven run by run, as it is decoded: after a checksum of all of it, the caches would have to be filled
 * again. Until the last byte has agreed, nobody sees what was decoded. Views of large records hardly touch a batch again,
 * and a checksum of all of it is faster than one of its parts. */
enum { PROVE_FIRST_MAX = PREFETCH_BATCH_MAX, PROVE_FIRST_RECORD_MIN = 400 };

static bool is_proven_along(const ol_header *header, bool views) {
    return header->size > PROVE_FIRST_MAX &&
           (!views || header->size < (int64_t)header->record_count * PROVE_FIRST_RECORD_MIN);
}

/* The batch at hand, which is not compressed. */
static ol_status decode_plain(ol_decoder *decoder, ol_columns *columns, proof *proven,
                              ol_fault *fault) {
    const ol_header *header = &decoder->header;
    return decode_payload(decoder, columns, decoder->base + header->position + OL_HEADER_BYTES,
                          (size_t)header->size - OL_HEADER_BYTES, true, proven, fault);
}

/* The same before its checksum was seen. Whatever seems to be wrong with it, a wrong checksum is why. */
static ol_status decode_unproven(ol_decoder *decoder, ol_columns *columns, ol_fault *fault) {
    ol_header *header = &decoder->header;
    proof proven = {decoder->base + header->position + OL_CRC_FROM, 0};
    ol_status status = decode_plain(decoder, columns, &proven, fault);
    if (status == OL_OK || is_proven(header, decoder->base)) return status;
    fault->record = -1;
    return ol_fail(fault, OL_E_CRC, sum_differs);
}

ol_status ol_decode(ol_decoder *decoder, ol_columns *columns, ol_fault *fault) {
    if (!decoder->reserved && !reserve_all(decoder, columns)) return no_memory(fault);
    decoder->reserved = true;
    while (decoder->next < decoder->batch_count && decoder->bytes < decoder->bytes_max) {
        ol_header *header = &decoder->header;
        ol_status status;
        if (decoder->visible && !decoder->visible[decoder->next]) {
            /* What hides it may be a bit of its own header that was flipped. */
            if (decoder->check_crc) {
                status = ol_batch_prove(header, decoder->base, decoder->size,
                                        decoder->positions[decoder->next], decoder->start_offset,
                                        decoder->end_offset, true, fault);
                if (status != OL_OK && status != OL_SKIPPED) return status;
            }
            decoder->next++;
            continue;
        }
        status =
            read_in_range(header, decoder->base, decoder->size, decoder->positions[decoder->next],
                          decoder->start_offset, decoder->end_offset, fault);
        if (status == OL_OK) {
            ol_status kind = kind_of(header, decoder->include_control, fault);
            if (decoder->create_time) header->attributes &= ~OL_ATTR_LOG_APPEND_TIME;
            /* Until it is proven, nothing but this follows from what it seems to be. */
            if (decoder->check_crc && kind == OL_OK && is_proven_along(header, columns->views)) {
                status = decode_unproven(decoder, columns, fault);
                if (status != OL_OK) return status;
                continue;
            }
            if (decoder->check_crc && !is_proven(header, decoder->base))
                return ol_fail(fault, OL_E_CRC, sum_differs);
            status = kind;
        }
        if (status == OL_SKIPPED) {
            decoder->next++;
            continue;
        }
        if (status == OL_OK) status = decode_plain(decoder, columns, NULL, fault);
        if (status != OL_OK) return status;
    }
    return OL_OK;
}
