/* The records of one payload: proof that all are sound, and a walk over those that were proven. */
#include "record.h"

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
    for (int32_t index = 0; index < header->record_count; index++) {
        fields record;
        if (!(at = read_next(&record, &known, &last_size, at, end, &what)))
            return bad_record(fault, index, what);
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
    }
    if (at != end) return ol_fail(fault, OL_E_RECORD, bytes_left);
    return OL_OK;
}

ol_status ol_record_next(ol_record *out, const ol_header *header, const uint8_t *payload,
                         size_t size, size_t *position) {
    fields record;
    const char *what;
    if (*position >= size || !read_fields(&record, payload + *position, payload + size, &what))
        return OL_E_RECORD;
    out->offset = header->base_offset + record.offset_delta;
    out->timestamp = record_timestamp(header, record.timestamp_delta);
    out->key = (ol_slice){record.key, record.key_size};
    out->value = (ol_slice){record.value, record.value_size};
    out->header_count = record.header_count;
    out->headers = record.headers;
    out->end = record.end;
    out->size = (int32_t)(record.end - (payload + *position));
    *position = (size_t)(record.end - payload);
    return OL_OK;
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
