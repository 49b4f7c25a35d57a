/* The records of one payload: proof that all are sound, and a walk over those that were proven. */
#include "record.h"

/* How many of the next `most` records are a step behind each other; `record` has the known shape and ends where they begin.
 * One vain try costs little, and is the last: one for every record would cost more than it saves. */
ALWAYS_INLINE int64_t follow_in_step(bool *in_step, const shape *known, const fields *record,
                                     const uint8_t *end, int64_t most) {
    int64_t more = steps_left(record->offset_delta);
    if (more > most) more = most;
    if (!*in_step || more < STEPS_MIN) return 0;
    int64_t whole = (end - record->end - SHAPE_HEAD_MAX) / known->size;
    more = read_in_step(known, record->end - known->size, more < whole ? more : whole, 0);
    *in_step = more > 0;
    return more;
}

ol_status ol_records_check(const ol_header *header, const uint8_t *payload, size_t size,
                           ol_fault *fault) {
    fault->position = header->position;
    fault->base_offset = header->base_offset;
    fault->record = -1;
    ol_status status = check_counts(header, size, fault);
    if (status != OL_OK) return status;
    const uint8_t *at = payload, *end = payload + size;
    const char *what = NULL;
    int64_t last_delta = -1, last_size = -1;
    shape known = {.size = 0};
    bool in_step = true;
    for (int32_t index = 0; index < header->record_count; index++) {
        fields record;
        bool alike = read_alike(&record, &known, at, end);
        at = alike ? record.end : read_anew(&record, &known, &last_size, at, end, &what);
        if (!at) return bad_record(fault, index, what);
        for (int32_t i = 0; i < record.header_count; i++) {
            ol_slice key, value;
            if (!(at = read_header(&key, &value, at, record.end, &what)))
                return bad_record(fault, index, what);
        }
        if (at != record.end) return bad_record(fault, index, longer_than_fields);
        if (!offset_in_order(header, last_delta, &record))
            return bad_record(fault, index, out_of_order);
        last_delta = record.offset_delta;
        at = next_record(&record);
        if (!alike) continue;
        int64_t most = header->record_count - index - 1;
        int64_t room = header->last_offset_delta - last_delta;
        int64_t more = follow_in_step(&in_step, &known, &record, end, most < room ? most : room);
        last_delta += more;
        index += (int32_t)more;
        at += more * known.size;
    }
    if (at != end) return ol_fail(fault, OL_E_RECORD, bytes_left);
    return OL_OK;
}

ALWAYS_INLINE void show_record(ol_record *out, const ol_header *header, const fields *record,
                               const uint8_t *start) {
    out->offset = header->base_offset + record->offset_delta;
    out->timestamp = record_timestamp(header, record->timestamp_delta);
    out->key = (ol_slice){record->key, record->key_size};
    out->value = (ol_slice){record->value, record->value_size};
    out->header_count = record->header_count;
    out->headers = record->headers;
    out->end = record->end;
    out->size = (int32_t)(record->end - start);
}

ol_status ol_record_next(ol_record *out, const ol_header *header, const uint8_t *payload,
                         size_t size, size_t *position) {
    const uint8_t *start = payload + *position;
    const char *what;
    fields record;
    if (*position >= size || !read_fields(&record, start, payload + size, &what))
        return OL_E_RECORD;
    show_record(out, header, &record, start);
    *position = (size_t)(record.end - payload);
    return OL_OK;
}

int64_t ol_records_next(ol_record *records, int64_t capacity, const ol_header *header,
                        const uint8_t *payload, size_t size, size_t *position) {
    const uint8_t *at = payload + *position, *end = payload + size;
    const char *what;
    fields record;
    int64_t count = 0, last_size = -1;
    shape known = {.size = 0};
    bool in_step = true;
    while (count < capacity && at < end) {
        bool alike = read_alike(&record, &known, at, end);
        if (!alike && !read_anew(&record, &known, &last_size, at, end, &what)) break;
        show_record(&records[count++], header, &record, at);
        at = next_record(&record);
        if (!alike) continue;
        int64_t more = follow_in_step(&in_step, &known, &record, end, capacity - count);
        ol_record next = records[count - 1];
        for (int64_t i = 0; i < more; i++) {
            next.offset++;
            next.key.data += known.size;
            next.value.data += known.size;
            next.headers = next.end += known.size;
            records[count++] = next;
        }
        at += more * known.size;
    }
    *position = (size_t)(at - payload);
    return count;
}

int64_t ol_records_refused(const ol_header *header, const uint8_t *payload, size_t size,
                           bool key_needed, int64_t timestamp_min, int64_t timestamp_max,
                           int32_t *bad, int64_t capacity) {
    int64_t count = 0;
    size_t position = 0;
    ol_record record;
    for (int32_t index = 0; index < header->record_count; index++) {
        if (ol_record_next(&record, header, payload, size, &position) != OL_OK) break;
        if ((key_needed && record.key.size < 0) || record.timestamp < timestamp_min ||
            record.timestamp > timestamp_max) {
            if (count < capacity) bad[count] = index;
            count++;
        }
    }
    return count;
}

ol_status ol_record_header_next(ol_record *record, ol_slice *key, ol_slice *value) {
    const char *what;
    const uint8_t *at = read_header(key, value, record->headers, record->end, &what);
    if (!at) return OL_E_RECORD;
    record->headers = at;
    return OL_OK;
}
