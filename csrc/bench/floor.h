/* The floor of the benchmarks: the least that plain C does for the same bytes and the same columns.
 *
 * No bounds are checked, no errors are named, nothing is allocated: input is trusted, output has room,
 * varints are loops and copies are memcpy. What oncelog needs beyond this is the price of its promises.
 *
 * Beside it the limits of the machine: a memcpy, a CRC function called in a loop of C, a sum over bytes,
 * a loop of write(); and the linear scan that a transaction index is made to avoid. */
#ifndef ONCELOG_BENCH_FLOOR_H
#define ONCELOG_BENCH_FLOOR_H

#include <stddef.h>
#include <stdint.h>

#include "oncelog.h"

/* A binary column as Arrow lays it out: offsets and contiguous data, or 16-byte views. */
typedef struct floor_binary {
    int32_t *offsets;  /* count + 1 */
    uint8_t *data;     /* unused with views */
    uint8_t *views;    /* NULL: contiguous */
    uint8_t *validity; /* all ones at the start; cleared where a value is null */
} floor_binary;

/* Columns of records, read by encode and filled by decode. */
typedef struct floor_columns {
    int64_t *offsets; /* decode only */
    int64_t *timestamps;
    int8_t *timestamp_types; /* decode only */
    floor_binary key;
    floor_binary value;
    int32_t *header_starts; /* count + 1; encode takes NULL for no headers */
    floor_binary header_key;
    floor_binary header_value;
} floor_columns;

/* Encodes rows [0, count) into batches of `batch_records` records each, checksums included; returns
 * the bytes written. Keys and values are contiguous and not null. */
int64_t floor_encode(uint8_t *out, const floor_columns *columns, int64_t count,
                     int64_t batch_records);

/* Decodes consecutive uncompressed batches, checksums verified; returns the record count, or -1 where
 * a checksum does not match. */
int64_t floor_decode(floor_columns *columns, const uint8_t *batches, int64_t size);

/* Room that one batch of these sizes cannot exceed. */
int64_t floor_room(int64_t batches, int64_t records, int64_t headers, int64_t data_bytes);

typedef uint32_t floor_crc_function(uint32_t crc, const void *data, size_t size);
uint32_t floor_crc_times(floor_crc_function *function, const void *data, size_t size,
                         int64_t times);
void floor_memcpy_times(void *to, const void *from, size_t size, int64_t times);

/* The sum of all 8-byte words: every cache line is loaded, and nothing else is done. */
uint64_t floor_sum(const void *data, size_t size);

/* write() for each part [starts[i], starts[i + 1]) of the data; returns the bytes written, -1 on error. */
int64_t floor_write(int descriptor, const uint8_t *data, const int64_t *starts, int64_t parts);

/* Kafka's own lookup in a transaction index: entry after entry, until one says that no later transaction
 * can matter. Writes the numbers of the hits, as many as fit, and returns how many there are. */
int64_t floor_collect_aborted(const uint8_t *entries, int64_t count, int64_t fetch_offset,
                              int64_t upper_bound, int64_t *hits, int64_t capacity);

/* The rule of read_committed at its plainest: aborted transactions come in the order of their first
 * offsets, every marker is among the batches, and `open`, a byte for each producer id, is all zero before
 * and after. */
void floor_abort_filter(uint8_t *visible, const ol_header *rows, int64_t row_count,
                        const ol_aborted *aborted, int64_t aborted_count, uint8_t *open);

#endif
