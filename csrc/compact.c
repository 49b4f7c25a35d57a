/* Compaction: where each key was last written, and what of a batch outlives that.
 *
 * Keys are known by a keyed 128-bit hash (SipHash-2-4 under a key that the caller draws anew for every
 * map), so that neither chance nor a clever writer makes two keys meet. Records that stay are copied as
 * they are: base offset and base timestamp of their batch do not change, and so neither do their deltas.
 * Only a delete horizon, which takes the place of the base timestamp, makes them be written anew. */
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "endian.h"
#include "oncelog.h"
#include "varint.h"

/* ---------------------------------------------------------------- hash */

#define ROTATE(x, b) (uint64_t)(((x) << (b)) | ((x) >> (64 - (b))))
#define ROUND                                                         \
    do {                                                              \
        v0 += v1, v1 = ROTATE(v1, 13), v1 ^= v0;                      \
        v0 = ROTATE(v0, 32), v2 += v3, v3 = ROTATE(v3, 16);           \
        v3 ^= v2, v0 += v3, v3 = ROTATE(v3, 21), v3 ^= v0;            \
        v2 += v1, v1 = ROTATE(v1, 17), v1 ^= v2, v2 = ROTATE(v2, 32); \
    } while (0)

static uint64_t load_little(const uint8_t *at) {
    uint64_t value = ol_load64(at);
    return __builtin_bswap64(value);
}

void ol_key_hash(uint64_t hash[2], const uint64_t secret[2], const uint8_t *key, size_t size) {
    uint64_t v0 = 0x736f6d6570736575ull ^ secret[0], v1 = 0x646f72616e646f6dull ^ secret[1] ^ 0xee;
    uint64_t v2 = 0x6c7967656e657261ull ^ secret[0], v3 = 0x7465646279746573ull ^ secret[1];
    size_t whole = size & ~(size_t)7;
    for (size_t at = 0; at < whole; at += 8) {
        uint64_t word = load_little(key + at);
        v3 ^= word;
        ROUND;
        ROUND;
        v0 ^= word;
    }
    uint64_t last = (uint64_t)size << 56;
    for (size_t at = whole; at < size; at++) last |= (uint64_t)key[at] << (8 * (at - whole));
    v3 ^= last;
    ROUND;
    ROUND;
    v0 ^= last;
    v2 ^= 0xee;
    for (int round = 0; round < 4; round++) ROUND;
    hash[0] = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int round = 0; round < 4; round++) ROUND;
    hash[1] = v0 ^ v1 ^ v2 ^ v3;
}

/* ---------------------------------------------------------------- map */

/* A slot is empty while `place` is 0; it holds the offset plus one, so that fresh zero pages, which the
 * system hands out lazily, are an empty map. */
typedef struct slot {
    uint64_t hash[2];
    uint64_t place;
} slot;

struct ol_offset_map {
    slot *slots;
    uint64_t slot_count;
    uint64_t count;
    uint64_t count_max;
    uint64_t secret[2];
};

ol_offset_map *ol_offset_map_new(uint64_t slot_count, uint64_t count_max,
                                 const uint64_t secret[2]) {
    /* At least one slot stays empty, or a search for a key that is not there would not end. */
    if (slot_count < 2 || count_max >= slot_count) return NULL;
    ol_offset_map *map = calloc(1, sizeof *map);
    if (!map) return NULL;
    map->slots = calloc(slot_count, sizeof *map->slots);
    if (!map->slots) {
        free(map);
        return NULL;
    }
    map->slot_count = slot_count;
    map->count_max = count_max;
    map->secret[0] = secret[0];
    map->secret[1] = secret[1];
    return map;
}

void ol_offset_map_free(ol_offset_map *map) {
    if (map) free(map->slots);
    free(map);
}

uint64_t ol_offset_map_count(const ol_offset_map *map) { return map->count; }

static slot *home_of(const ol_offset_map *map, const uint64_t hash[2]) {
    return map->slots + (uint64_t)((unsigned __int128)hash[0] * map->slot_count >> 64);
}

static slot *find(const ol_offset_map *map, const uint64_t hash[2]) {
    slot *at = home_of(map, hash), *end = map->slots + map->slot_count;
    while (at->place && (at->hash[0] != hash[0] || at->hash[1] != hash[1]))
        if (++at == end) at = map->slots;
    return at;
}

int64_t ol_offset_map_find(const ol_offset_map *map, const uint8_t *key, size_t size) {
    uint64_t hash[2];
    ol_key_hash(hash, map->secret, key, size);
    return (int64_t)find(map, hash)->place - 1;
}

static bool put(ol_offset_map *map, const uint64_t hash[2], int64_t offset) {
    slot *at = find(map, hash);
    if (!at->place) {
        if (map->count >= map->count_max) return false;
        map->count++;
        at->hash[0] = hash[0];
        at->hash[1] = hash[1];
    }
    at->place = (uint64_t)offset + 1;
    return true;
}

/* Records are taken in blocks: the slots of a whole block are on their way from memory before the first
 * of them is looked at. */
enum { BLOCK = 32 };

typedef struct pending {
    uint64_t hash[2];
    int64_t offset;
    int64_t timestamp;
    uint32_t start;
    bool keyed;
    bool tombstone;
} pending;

/* ---------------------------------------------------------------- walking a payload */

static ol_status bad(ol_fault *fault, const ol_header *header, int32_t record, const char *what) {
    fault->position = header->position;
    fault->base_offset = header->base_offset;
    fault->record = record;
    return ol_fail(fault, OL_E_RECORD, what);
}

/* The next record, with an offset that follows the last one's inside the batch. */
static ol_status next_record(ol_record *record, const ol_header *header, const uint8_t *payload,
                             size_t size, size_t *position, int64_t *next_offset, int32_t index,
                             ol_fault *fault) {
    if (header->base_offset < 0 || ol_record_next(record, header, payload, size, position) != OL_OK)
        return bad(fault, header, index, "the record does not fit its batch");
    if (record->offset < *next_offset ||
        record->offset - header->base_offset > header->last_offset_delta)
        return bad(fault, header, index, "the record's offset does not follow the one before it");
    *next_offset = record->offset + 1;
    return OL_OK;
}

/* Reads up to BLOCK records; with a map their keys are hashed and their slots asked for. */
static ol_status read_block(pending *block, int32_t count, const ol_offset_map *map,
                            const ol_header *header, const uint8_t *payload, size_t size,
                            size_t *position, int64_t *next_offset, int32_t index,
                            ol_fault *fault) {
    for (int32_t i = 0; i < count; i++) {
        ol_record record;
        size_t start = *position;
        ol_status status =
            next_record(&record, header, payload, size, position, next_offset, index + i, fault);
        if (status != OL_OK) return status;
        block[i] = (pending){.offset = record.offset,
                             .timestamp = record.timestamp,
                             .start = (uint32_t)start,
                             .keyed = record.key.size >= 0,
                             .tombstone = record.value.size < 0};
        if (map && record.key.size >= 0) {
            ol_key_hash(block[i].hash, map->secret, record.key.data, (size_t)record.key.size);
            __builtin_prefetch(home_of(map, block[i].hash), 1);
        }
    }
    return OL_OK;
}

static int32_t block_size(const ol_header *header, int32_t index) {
    int32_t left = header->record_count - index;
    return left < BLOCK ? left : BLOCK;
}

ol_status ol_offset_map_add(ol_offset_map *map, const ol_header *header, const uint8_t *payload,
                            size_t size, int64_t start_offset, bool *full, ol_fault *fault) {
    size_t position = 0;
    int64_t next_offset = header->base_offset;
    pending block[BLOCK];
    *full = false;
    for (int32_t index = 0, count; index < header->record_count; index += count) {
        count = block_size(header, index);
        ol_status status = read_block(block, count, map, header, payload, size, &position,
                                      &next_offset, index, fault);
        if (status != OL_OK) return status;
        for (int32_t i = 0; i < count; i++) {
            if (!block[i].keyed || block[i].offset < start_offset) continue;
            if (!put(map, block[i].hash, block[i].offset)) {
                *full = true;
                return OL_OK;
            }
        }
    }
    if (position != size) return bad(fault, header, -1, "bytes are left after the last record");
    return OL_OK;
}

/* ---------------------------------------------------------------- what stays of a batch */

ol_status ol_compact_judge(ol_compacted *kept, const ol_offset_map *map, const ol_header *header,
                           const uint8_t *payload, size_t size, bool drops_tombstones,
                           ol_fault *fault) {
    size_t position = 0;
    int64_t next_offset = header->base_offset;
    pending block[BLOCK];
    kept->count = 0;
    kept->tombstones = 0;
    kept->max_timestamp = -1;
    kept->marks.size = 0;
    if (header->record_count < 0 || (size_t)header->record_count > size || size > INT32_MAX)
        return bad(fault, header, -1,
                   "more records than bytes, or more bytes than a batch can have");
    size_t room = ((size_t)header->record_count + 1) * sizeof(uint32_t);
    if (ol_bytes_reserve(&kept->marks, room) != OL_OK)
        return ol_fail(fault, OL_E_MEMORY, "no memory for the records of a batch");
    uint32_t *marks = (uint32_t *)(void *)kept->marks.data;
    for (int32_t index = 0, count; index < header->record_count; index += count) {
        count = block_size(header, index);
        ol_status status = read_block(block, count, map, header, payload, size, &position,
                                      &next_offset, index, fault);
        if (status != OL_OK) return status;
        for (int32_t i = 0; i < count; i++) {
            const pending *record = block + i;
            bool stays = !map || (record->keyed && !(record->tombstone && drops_tombstones) &&
                                  (uint64_t)record->offset + 1 >= find(map, record->hash)->place);
            marks[index + i] = record->start << 1 | stays;
            if (!stays) continue;
            kept->count++;
            kept->tombstones += record->tombstone;
            if (record->timestamp > kept->max_timestamp) kept->max_timestamp = record->timestamp;
        }
    }
    if (position != size) return bad(fault, header, -1, "bytes are left after the last record");
    marks[header->record_count] = (uint32_t)size << 1;
    return OL_OK;
}

/* Writes one record whose timestamp counts from another base. */
static uint8_t *write_restamped(uint8_t *to, const uint8_t *at, const uint8_t *end, int64_t shift) {
    int32_t length;
    int64_t delta = 0;
    at = ol_varint_read(at, end, &length);
    uint8_t attributes = *at++;
    const uint8_t *rest = ol_varlong_read(at, end, &delta);
    delta = (int64_t)((uint64_t)delta + (uint64_t)shift);
    size_t left = (size_t)(end - rest);
    to = ol_varint_write(to, (int32_t)(1 + (size_t)ol_varlong_size(delta) + left));
    *to++ = attributes;
    to = ol_varlong_write(to, delta);
    memcpy(to, rest, left);
    return to + left;
}

ol_status ol_compact_records(ol_bytes *out, const ol_compacted *kept, const ol_header *header,
                             const uint8_t *payload, int64_t base_timestamp) {
    const uint32_t *marks = (const uint32_t *)(const void *)kept->marks.data;
    bool restamps = base_timestamp != header->base_timestamp;
    size_t most = (size_t)(marks[header->record_count] >> 1);
    if (restamps) most += (size_t)header->record_count * (OL_VARLONG_MAX + OL_VARINT_MAX);
    if (ol_bytes_reserve(out, most) != OL_OK) return OL_E_MEMORY;
    int64_t shift = (int64_t)((uint64_t)header->base_timestamp - (uint64_t)base_timestamp);
    uint8_t *to = out->data + out->size;
    for (int32_t index = 0; index < header->record_count; index++) {
        if (!(marks[index] & 1)) continue;
        size_t start = marks[index] >> 1;
        if (restamps) {
            to = write_restamped(to, payload + start, payload + (marks[index + 1] >> 1), shift);
            continue;
        }
        while (index + 1 < header->record_count && marks[index + 1] & 1) index++;
        size_t length = (marks[index + 1] >> 1) - start;
        memcpy(to, payload + start, length);
        to += length;
    }
    out->size = (size_t)(to - out->data);
    return OL_OK;
}

ol_status ol_compact_close(ol_bytes *out, size_t start, ol_header *header) {
    header->size = (int64_t)(out->size - start);
    if (header->size - OL_LENGTH_END > INT32_MAX) return OL_E_TOO_LARGE;
    uint8_t *at = out->data + start;
    header->crc = 0;
    ol_header_write(at, header);
    header->crc = ol_crc32c(0, at + OL_CRC_FROM, (size_t)header->size - OL_CRC_FROM);
    ol_store32(at + OL_CRC_AT, header->crc);
    return OL_OK;
}

ol_status ol_compact_empty(ol_bytes *out, const ol_header *header, bool anonymous) {
    if (ol_bytes_reserve(out, OL_HEADER_BYTES) != OL_OK) return OL_E_MEMORY;
    ol_header empty = *header;
    size_t start = out->size;
    empty.attributes &= OL_ATTR_LOG_APPEND_TIME | OL_ATTR_TRANSACTIONAL | OL_ATTR_CONTROL;
    empty.base_timestamp = -1;
    empty.record_count = 0;
    if (anonymous) {
        empty.attributes &= OL_ATTR_LOG_APPEND_TIME;
        empty.producer_id = -1;
        empty.producer_epoch = -1;
        empty.base_sequence = -1;
    }
    out->size += OL_HEADER_BYTES;
    return ol_compact_close(out, start, &empty);
}

/* ---------------------------------------------------------------- transactions under way */

/* What a pass has seen of each producer's transaction since its last marker. */
typedef struct watched {
    int64_t producer_id;
    uint32_t seen; /* OL_SEEN_ flags; 0: none, the slot may be taken by another */
    bool used;
} watched;

struct ol_txn_watch {
    watched *slots;
    uint64_t mask;
    uint64_t used;
};

ol_txn_watch *ol_txn_watch_new(void) {
    ol_txn_watch *watch = calloc(1, sizeof *watch);
    if (!watch) return NULL;
    watch->mask = 63;
    watch->slots = calloc(watch->mask + 1, sizeof *watch->slots);
    if (!watch->slots) {
        free(watch);
        return NULL;
    }
    return watch;
}

void ol_txn_watch_free(ol_txn_watch *watch) {
    if (watch) free(watch->slots);
    free(watch);
}

static watched *watch_find(watched *slots, uint64_t mask, int64_t producer_id) {
    uint64_t at = (uint64_t)producer_id * 0x9E3779B97F4A7C15ull >> 20 & mask;
    while (slots[at].used && slots[at].producer_id != producer_id) at = (at + 1) & mask;
    return slots + at;
}

static bool watch_grow(ol_txn_watch *watch) {
    uint64_t mask = watch->mask * 2 + 1;
    watched *slots = calloc(mask + 1, sizeof *slots);
    if (!slots) return false;
    watch->used = 0;
    for (uint64_t at = 0; at <= watch->mask; at++) {
        if (!watch->slots[at].seen)
            continue; /* those without an open transaction are left behind */
        *watch_find(slots, mask, watch->slots[at].producer_id) = watch->slots[at];
        watch->used++;
    }
    free(watch->slots);
    watch->slots = slots;
    watch->mask = mask;
    return true;
}

bool ol_txn_watch_see(ol_txn_watch *watch, int64_t producer_id, uint32_t flag) {
    watched *at = watch_find(watch->slots, watch->mask, producer_id);
    if (!at->used) {
        if ((watch->used + 1) * 2 > watch->mask) {
            if (!watch_grow(watch)) return false;
            at = watch_find(watch->slots, watch->mask, producer_id);
        }
        watch->used++;
        at->used = true;
        at->producer_id = producer_id;
        at->seen = 0;
    }
    at->seen |= flag;
    return true;
}

uint32_t ol_txn_watch_end(ol_txn_watch *watch, int64_t producer_id) {
    watched *at = watch_find(watch->slots, watch->mask, producer_id);
    uint32_t seen = at->used ? at->seen : 0;
    at->seen = 0;
    return seen;
}
