/* oncelog: record batches of Apache Kafka (magic 2) as plain C11.
 *
 * Promises
 *   - No function reads outside [base, base + size), whatever the bytes say, and none allocates more
 *     than a small multiple of what it was handed.
 *   - Nothing here knows Python, files, clocks or codecs; compressed payloads are handed back to the
 *     caller, who returns them decompressed.
 *   - Everything is reentrant. The only global is the CRC kernel, chosen once for the CPU.
 * Caveats
 *   - Memory that shrinks while it is read (a mapping of a truncated file) is the caller's to prevent.
 *   - Arrow input is trusted to have the buffers that its schema promises: the C data interface
 *     carries no sizes.
 */
#ifndef ONCELOG_H
#define ONCELOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---------------------------------------------------------------- status */

typedef enum ol_status {
    OL_OK = 0,
    OL_COMPRESSED,  /* not an error: the payload at hand must be decompressed by the caller */
    OL_BATCH_FULL,  /* not an error: the open batch must be closed before the next record */
    OL_SKIPPED,     /* not an error: nothing in this batch was asked for */
    OL_E_TRUNCATED, /* the bytes end inside the batch */
    OL_E_SIZE,      /* the size field cannot be true */
    OL_E_OLD_MAGIC, /* magic 0 or 1: the message format before record batches */
    OL_E_MAGIC,     /* no magic that exists */
    OL_E_CRC,       /* the checksum does not match */
    OL_E_HEADER,    /* a header field that no writer produces */
    OL_E_CODEC,     /* a codec number that does not exist */
    OL_E_RECORD,    /* a record that breaks its own or its batch's promises */
    OL_E_TOO_LARGE, /* more than the format or an Arrow array can address */
    OL_E_TIMESTAMP, /* a timestamp that cannot be written */
    OL_E_ARGUMENT,  /* the caller's values cannot be written */
    OL_E_MEMORY,
} ol_status;

/* Where and why something went wrong. `what` is a static sentence without the place. */
typedef struct ol_fault {
    ol_status status;
    int32_t record;      /* index within the batch, -1: the batch itself */
    int64_t position;    /* of the batch in the buffer that was handed in */
    int64_t base_offset; /* of the batch, -1: not known */
    const char *what;
} ol_fault;

ol_status ol_fail(ol_fault *fault, ol_status status, const char *what);

/* ---------------------------------------------------------------- CRC-32C */

/* `crc` is 0 for a fresh start, else the value so far. */
uint32_t ol_crc32c(uint32_t crc, const void *data, size_t size);
/* CRC of A followed by B, from their CRCs and B's size. Does not touch the data. */
uint32_t ol_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);
/* What a difference in the CRC of a prefix becomes after `size` further bytes. */
uint32_t ol_crc32c_shift(uint32_t crc, uint64_t size);
/* Kernels this CPU can run, best first: "avx512", "sse42", "armv8", "portable". NULL past the last. */
const char *ol_crc32c_kernel(int index);
/* Runs one kernel by name, for tests and benchmarks; false when this CPU cannot. */
bool ol_crc32c_with(const char *kernel, uint32_t crc, const void *data, size_t size, uint32_t *out);

/* ---------------------------------------------------------------- batch headers */

enum {
    OL_HEADER_BYTES = 61,
    OL_LENGTH_END =
        12, /* base offset and length: what stands before the bytes that length counts */
    OL_CRC_AT = 17,
    OL_CRC_FROM = 21, /* the checksum covers attributes to the end */
    OL_RECORD_BYTES_MIN = 7,

    OL_ATTR_CODEC = 0x07,
    OL_ATTR_LOG_APPEND_TIME = 0x08,
    OL_ATTR_TRANSACTIONAL = 0x10,
    OL_ATTR_CONTROL = 0x20,
    OL_ATTR_DELETE_HORIZON = 0x40,

    OL_CONTROL_ABORT = 0,
    OL_CONTROL_COMMIT = 1,
    OL_CONTROL_NONE = -1,       /* a data batch */
    OL_CONTROL_UNREADABLE = -2, /* a control batch whose key cannot be read */
};

/* One row of a scan; the numpy dtype of the same fields lies over it, so order and padding are part
 * of the interface. */
typedef struct ol_header {
    int64_t position; /* in the scanned buffer */
    int64_t size;     /* whole batch, header included */
    int64_t base_offset;
    int64_t base_timestamp; /* the delete horizon where that bit is set */
    int64_t max_timestamp;
    int64_t producer_id;
    int32_t last_offset_delta;
    int32_t record_count;
    int32_t base_sequence;
    int32_t partition_leader_epoch;
    uint32_t crc;
    int32_t coordinator_epoch; /* of a COMMIT or ABORT marker, else -1 */
    int16_t attributes;
    int16_t producer_epoch;
    int16_t control_type; /* OL_CONTROL_NONE, or the type in the first record's key */
    int8_t magic;
    int8_t crc_ok; /* 1 yes, 0 no, -1 not checked */
} ol_header;

/* Offset of the batch's last record. Added as unsigned: a batch that lies about its offsets must not be
 * more than a wrong number. */
static inline int64_t ol_last_offset(const ol_header *header) {
    return (int64_t)((uint64_t)header->base_offset + (uint64_t)(int64_t)header->last_offset_delta);
}

/* Reads and checks the header at `position`; the batch lies wholly inside the buffer on OL_OK.
 * A wrong checksum is reported in crc_ok, not as a status. */
ol_status ol_header_read(ol_header *header, const uint8_t *base, size_t size, size_t position,
                         bool check_crc, ol_fault *fault);

/* Reads up to `capacity` consecutive headers of batches that start before `stop`. `*position` moves past
 * each good batch; the status tells why the scan ended (OL_OK: stop or capacity was reached). With
 * stop_at_bad_crc a batch that fails its checksum ends the scan as OL_E_CRC. */
ol_status ol_scan(ol_header *rows, size_t capacity, size_t *count, const uint8_t *base, size_t size,
                  size_t stop, size_t *position, bool check_crc, bool stop_at_bad_crc,
                  ol_fault *fault);

/* Moves *position from batch to batch to the first whose last offset is at least `offset` (with
 * by_timestamp: whose largest timestamp is); to the end of the buffer where there is none. */
ol_status ol_seek(const uint8_t *base, size_t size, size_t *position, int64_t target,
                  bool by_timestamp, ol_fault *fault);

/* Writes the 61 bytes of a header, the checksum as it stands in the row. */
void ol_header_write(uint8_t *at, const ol_header *header);

/* Replaces the header of a batch in place by one of the same size and payload, and derives the new
 * checksum from the old one: the payload is not read, and damage in it stays detectable. */
void ol_header_restamp(uint8_t *at, ol_header *header);

/* ---------------------------------------------------------------- encode */

typedef struct ol_slice {
    const uint8_t *data;
    int64_t size; /* -1: null */
} ol_slice;

/* A block of records. NULL columns: keys/values all null, no headers, default timestamp,
 * consecutive offsets. Record r has the headers [header_starts[r], header_ends[r]). */
typedef struct ol_block {
    int64_t count;
    const ol_slice *keys;
    const ol_slice *values;
    const int64_t *timestamps;
    const int64_t *offsets;
    const int64_t *header_starts;
    const int64_t *header_ends;
    const ol_slice *header_keys;
    const ol_slice *header_values;
} ol_block;

typedef struct ol_bytes {
    uint8_t *data;
    size_t size;
    size_t capacity;
} ol_bytes;

typedef struct ol_encoder {
    /* set by the caller after ol_encoder_init */
    ol_header next; /* fields of the next batch; offset and sequence move on as batches close */
    int64_t default_timestamp;
    int64_t
        batch_bytes_max; /* a batch with more than one record never exceeds this before compression */
    bool
        one_batch; /* do not split; last offset delta, base and max timestamp taken from `next` if fixed */
    bool fix_base_timestamp; /* next.base_timestamp is given, not the first record's */
    bool fix_max_timestamp;  /* next.max_timestamp is given, not the largest */
    bool fix_last_offset_delta;
    bool compress; /* stop with OL_BATCH_FULL instead of closing a batch */
    /* results */
    ol_bytes out; /* whole batches, then the open one */
    int64_t batch_count;
    int64_t record_count;
    /* the open batch */
    size_t open_at;
    int64_t open_count;
    int64_t open_base_timestamp;
    int64_t open_max_timestamp;
    int64_t open_last_delta;
} ol_encoder;

void ol_encoder_init(ol_encoder *encoder);
void ol_encoder_free(ol_encoder *encoder);
/* Makes room for `extra` bytes more. */
ol_status ol_bytes_reserve(ol_bytes *bytes, size_t extra);
/* Appends records block[*done ...]; advances *done. OL_BATCH_FULL: close the batch and call again. */
ol_status ol_encode(ol_encoder *encoder, const ol_block *block, int64_t *done, ol_fault *fault);
/* Closes the open batch, if it has records or one_batch is set. `payload` replaces the records
 * (their compressed form), NULL keeps them. */
ol_status ol_encode_close(ol_encoder *encoder, const uint8_t *payload, size_t payload_size,
                          ol_fault *fault);

/* Writes a batch of one record without headers, and the rest of its header's row: what the row says of offset, epochs,
 * producer, attributes and largest timestamp is what the batch gets. `at` has room for OL_ONE_BYTES_MAX beside key and
 * value, which are small; returns the size. */
enum { OL_ONE_BYTES_MAX = 80 }; /* of everything but key and value */
size_t ol_encode_one(uint8_t *at, ol_header *header, ol_slice key, ol_slice value);

/* Whole batches that our own encoder has made, in memory that nobody else was ever given to write to: their checksums and
 * records need not be proven again. Whoever hands the memory out for writing takes `stands` back for good. */
typedef struct ol_proof {
    const uint8_t *data;
    size_t size;
    bool stands;
    const struct ol_proof *whole; /* what these bytes are a part of; NULL: they are all there is */
} ol_proof;

static inline bool ol_is_proven(const ol_proof *proof, const uint8_t *data, size_t size) {
    if (proof->data != data || proof->size != size) return false;
    for (const ol_proof *whole = proof->whole; whole; whole = whole->whole)
        if (!whole->stands || (uintptr_t)data < (uintptr_t)whole->data ||
            (uintptr_t)data - (uintptr_t)whole->data > whole->size ||
            size > whole->size - ((uintptr_t)data - (uintptr_t)whole->data))
            return false;
    return proof->stands;
}

/* ---------------------------------------------------------------- decode */

/* Binary values of one column: offsets and contiguous data, or 16-byte views. */
typedef struct ol_binary {
    int32_t *offsets; /* count + 1 */
    ol_bytes data;    /* contiguous bytes; with views: bytes that do not lie in a window */
    uint8_t *views;   /* 16 bytes each */
    uint8_t *validity;
    int64_t *variadic_sizes; /* with views: sizes of the windows and of data */
    int64_t null_count;
} ol_binary;

/* Growing columns of decoded records; reference counted, because Arrow arrays made from it may outlive
 * each other. */
typedef struct ol_columns {
    int64_t count;
    int64_t capacity;
    bool views;
    bool reused; /* has served before, and its memory will again */
    int64_t *offsets;
    int64_t *timestamps;
    int8_t *timestamp_types;
    ol_binary key;
    ol_binary value;
    int32_t *header_starts; /* count + 1 */
    int64_t header_count;
    int64_t header_capacity;
    ol_binary header_key;
    ol_binary header_value;
    /* Views address their bytes as (window, 32-bit offset); windows lie over the caller's buffer. */
    const uint8_t **windows;
    int64_t *window_sizes;
    int32_t window_count;
    void *pin; /* what keeps the caller's buffer alive; given back through unpin */
    void (*unpin)(void *);
    _Atomic int32_t references;
} ol_columns;

ol_columns *ol_columns_new(bool views);
/* After the last decode and before the first use: no column is NULL, views know their buffers. */
bool ol_columns_finish(ol_columns *columns);
void ol_columns_retain(ol_columns *columns);
void ol_columns_release(ol_columns *columns);

/* Reads the header of the batch at a position and proves its checksum; OL_SKIPPED where it lies outside
 * [start_offset, end_offset). For batches that a reader passes by: markers, and what was aborted. */
ol_status ol_batch_prove(ol_header *header, const uint8_t *base, size_t size, int64_t position,
                         int64_t start_offset, int64_t end_offset, bool check_crc, ol_fault *fault);

/* Reads the header at `position` and readies the batch for decoding: OL_SKIPPED where it holds nothing
 * of [start_offset, end_offset), OL_COMPRESSED where its payload must be decompressed first. */
ol_status ol_batch_open(ol_header *header, const uint8_t *base, size_t size, int64_t position,
                        int64_t start_offset, int64_t end_offset, bool check_crc,
                        bool include_control, ol_fault *fault);

/* Which records of which batches. Rows of `positions` are visited in order. */
typedef struct ol_decoder {
    const uint8_t *base;
    size_t size;
    const int64_t *positions;
    const uint8_t *visible; /* one byte a batch, NULL: all */
    int64_t batch_count;
    int64_t start_offset; /* first offset wanted */
    int64_t end_offset;   /* first offset not wanted */
    int64_t bytes_max;    /* stop after the batch that takes the columns to this many bytes */
    bool check_crc;
    bool include_control;
    bool create_time; /* the producer's timestamps, also where the log stamped its own */
    int64_t next;     /* row that is visited next: the place to go on after a stop */
    ol_header header; /* the batch at hand */
    int64_t bytes;    /* payload bytes decoded so far */
    bool reserved;    /* room for the rows has been made */
} ol_decoder;

/* Decodes until the rows or bytes_max end (OL_OK, see `next`), or a compressed batch comes up
 * (OL_COMPRESSED): decompress base[header.position + 61 .. + header.size) and pass it to
 * ol_decode_payload, then call again. */
ol_status ol_decode(ol_decoder *decoder, ol_columns *columns, ol_fault *fault);
ol_status ol_decode_payload(ol_decoder *decoder, ol_columns *columns, const uint8_t *payload,
                            size_t size, ol_fault *fault);

/* Walks all records of one payload and proves that they are sound. */
ol_status ol_records_check(const ol_header *header, const uint8_t *payload, size_t size,
                           ol_fault *fault);

/* Indices of the records that a leader refuses: without a key where one is needed, or stamped outside
 * [timestamp_min, timestamp_max]. For a payload that ol_records_check has passed; `bad` has room for
 * `capacity`, the return value is how many there are. */
int64_t ol_records_refused(const ol_header *header, const uint8_t *payload, size_t size,
                           bool key_needed, int64_t timestamp_min, int64_t timestamp_max,
                           int32_t *bad, int64_t capacity);

/* Stamps offsets and leader epoch into a run of batches, outside their checksums; rows follow. */
void ol_batches_stamp(uint8_t *base, ol_header *rows, int64_t row_count, int64_t next_offset,
                      int32_t leader_epoch);

/* One record of a payload that ol_records_check has passed; headers are read with ol_record_header_next. */
typedef struct ol_record {
    int64_t offset;
    int64_t timestamp;
    ol_slice key;
    ol_slice value;
    int32_t header_count;
    int32_t size;           /* in the payload, length prefix included */
    const uint8_t *headers; /* the first one */
    const uint8_t *end;
} ol_record;
ol_status ol_record_next(ol_record *record, const ol_header *header, const uint8_t *payload,
                         size_t size, size_t *position);
/* The same for as many as there is room for; returns how many. Records alike cost little then. */
int64_t ol_records_next(ol_record *records, int64_t capacity, const ol_header *header,
                        const uint8_t *payload, size_t size, size_t *position);
/* Reads one record header at record->headers and steps past it. */
ol_status ol_record_header_next(ol_record *record, ol_slice *key, ol_slice *value);

/* ---------------------------------------------------------------- memory */

/* A block of malloc that grows from `had` to `size` bytes, with zeros behind what it had; NULL: there is no memory, and the
 * block is as it was. */
void *ol_grow_zeroed(void *memory, size_t had, size_t size);

/* ---------------------------------------------------------------- offset and time index */

enum { OL_OFFSET_ENTRY_BYTES = 8, OL_TIME_ENTRY_BYTES = 12 };

/* Slot of the greatest entry whose relative offset, position or timestamp is at most the target; -1: none. */
int64_t ol_offset_index_find(const uint8_t *entries, int64_t count, int64_t target);
int64_t ol_offset_index_find_position(const uint8_t *entries, int64_t count, int64_t target);
int64_t ol_time_index_find(const uint8_t *entries, int64_t count, int64_t target);

/* How far a segment's indexes have come. */
typedef struct ol_index_state {
    int64_t interval_bytes; /* of log between two entries */
    int64_t bytes_since_entry;
    int64_t max_timestamp; /* -1: none yet */
    int64_t max_timestamp_offset;
    int64_t indexed_timestamp; /* of the last time index entry, -1: none */
} ol_index_state;

/* The entries that batches add, each at most one a row; returns the count of offset entries. */
int64_t ol_index_rows(ol_index_state *state, const ol_header *rows, int64_t row_count,
                      int64_t base_offset, uint8_t *offset_entries, uint8_t *time_entries,
                      int64_t *time_count);

/* ---------------------------------------------------------------- transaction index */

enum { OL_TXN_ENTRY_BYTES = 34, OL_TXN_INDEX_FAN = 16, OL_TXN_INDEX_LEVELS = 12 };

/* One aborted transaction; last_offset is its marker's, -1 where only the first offset is known. */
typedef struct ol_aborted {
    int64_t producer_id;
    int64_t first_offset;
    int64_t last_offset;
    int64_t last_stable_offset;
} ol_aborted;

/* What makes lookups logarithmic; extended as entries are appended. Zero is a valid empty one. */
typedef struct ol_txn_summary {
    int64_t entries;
    int levels;
    int64_t *minima[OL_TXN_INDEX_LEVELS]; /* of first offsets */
    int64_t count[OL_TXN_INDEX_LEVELS];
    int64_t capacity[OL_TXN_INDEX_LEVELS];
    int64_t *stable; /* running maximum of last stable offsets, one a block */
    int64_t stable_capacity;
} ol_txn_summary;

ol_status ol_txn_entry_read(ol_aborted *out, const uint8_t *entries, size_t size, int64_t index,
                            ol_fault *fault);
/* Checks the entries from index `from` on: version, order, stable offsets, whole entries. */
ol_status ol_txn_index_check(const uint8_t *entries, size_t size, int64_t base_offset, int64_t from,
                             ol_fault *fault);
void ol_txn_summary_free(ol_txn_summary *summary);
ol_status ol_txn_summary_extend(ol_txn_summary *summary, const uint8_t *entries, int64_t count);
/* Indices of the entries with last offset >= fetch_offset and first offset < upper_bound, up to the
 * first whose last stable offset has reached upper_bound (then *complete). *from is 0 at first, and
 * where to go on when `capacity` was not enough. */
ol_status ol_txn_index_collect(const ol_txn_summary *summary, const uint8_t *entries,
                               int64_t fetch_offset, int64_t upper_bound, int64_t *hits,
                               int64_t capacity, int64_t *found, int64_t *from, bool *complete);

/* ---------------------------------------------------------------- abort filter */

/* visible[i] = whether a read_committed reader sees batch i. The list may come in any order. */
ol_status ol_abort_filter(uint8_t *visible, const ol_header *rows, int64_t row_count,
                          const ol_aborted *aborted, int64_t aborted_count);

/* ---------------------------------------------------------------- rows of many partitions */

/* Whole numbers of a column, 1, 2, 4 or 8 bytes wide. */
typedef struct ol_integers {
    const void *values;
    const uint8_t *validity; /* NULL: no nulls */
    int64_t offset;          /* of the first row, in values and in validity */
    int64_t length;
    int32_t width;
} ol_integers;

enum {
    OL_PLACE_UNKNOWN = -1, /* a partition that the index does not speak of */
    OL_PLACE_NULL = -2,
};

/* Aborted transactions of many partitions. A place is a partition's number in the order of topics (by
 * their bytes) and partitions. */
typedef struct ol_aborted_index {
    const ol_slice *topics;
    const int32_t *numbers;
    const int64_t *stable;     /* offsets from here on are not stable yet; INT64_MAX: not known */
    const int64_t *starts;     /* place_count + 1: whose rows begin where */
    const ol_aborted *aborted; /* by place, producer, first offset; a producer's do not overlap */
    int64_t place_count;
} ol_aborted_index;

/* Places of the rows [start, start + count), whose topics are given. */
void ol_places(int32_t *places, const ol_aborted_index *index, const ol_slice *topics,
               const ol_integers *partitions, int64_t start, int64_t count);
/* visible[i] = whether a read_committed reader sees row i; null[i] = whether that cannot be told, because its
 * place, offset or attributes are null. A null producer is none. Returns how many are null. */
int64_t ol_visible(uint8_t *visible, uint8_t *null, const ol_aborted_index *index,
                   const int32_t *places, const ol_integers *offsets,
                   const ol_integers *producer_ids, const ol_integers *attributes, int64_t count);

/* ---------------------------------------------------------------- producers of a partition */

enum { OL_PRODUCER_BATCHES = 5, OL_NO_EPOCH = -1 };

typedef struct ol_producer_batch {
    int64_t last_offset;
    int64_t timestamp;
    int32_t last_sequence;
    int32_t offset_delta; /* last offset - first offset, and so the span of sequences */
} ol_producer_batch;

typedef struct ol_producer {
    int64_t producer_id;
    int64_t txn_first_offset; /* of the open transaction, -1: none */
    int64_t last_timestamp;
    int32_t coordinator_epoch; /* of the last marker, -1: none */
    int16_t epoch;             /* OL_NO_EPOCH: nothing known */
    uint8_t batch_count;
    uint8_t batch_newest;
    ol_producer_batch batches[OL_PRODUCER_BATCHES]; /* the last ones, for duplicates */
} ol_producer;

typedef struct ol_producers ol_producers;

typedef enum ol_verdict {
    OL_ACCEPT,
    OL_DUPLICATE,    /* of one of the last five batches */
    OL_OUT_OF_ORDER, /* a gap, older than those five, or a new epoch that does not start at zero */
    OL_FENCED,       /* an epoch older than the one known */
    OL_OLD_COORDINATOR,  /* a marker of a coordinator that was replaced */
    OL_OPEN_TRANSACTION, /* a plain batch of a producer that has a transaction open */
} ol_verdict;

ol_producers *ol_producers_new(void);
void ol_producers_free(ol_producers *table);
int64_t ol_producers_count(const ol_producers *table);
const ol_producer *ol_producers_at(const ol_producers *table, int64_t index);
/* NULL if unknown; a pointer holds until the next put or remove. */
ol_producer *ol_producers_find(const ol_producers *table, int64_t producer_id);
/* The entry, made if needed; NULL without memory. */
ol_producer *ol_producers_put(ol_producers *table, int64_t producer_id);
void ol_producers_remove(ol_producers *table, int64_t producer_id);
const ol_producer_batch *ol_producer_last(const ol_producer *entry);
/* Takes a batch into account: a new epoch forgets the batches of the old. */
void ol_producer_note(ol_producer *entry, int16_t epoch, const ol_producer_batch *batch);
bool ol_producers_open_txn(ol_producers *table, ol_producer *entry, int64_t first_offset);
/* First offset of the oldest open transaction, -1: none is open. */
int64_t ol_producers_first_open(ol_producers *table);
/* The same as if one producer's transaction were closed. */
int64_t ol_producers_first_open_beside(const ol_producers *table, int64_t producer_id);
/* What a leader answers to a data batch. known_from_start: the producer bumps its epoch with every
 * transaction, so that state which is not there means sequence zero. */
ol_verdict ol_sequence_check(const ol_producers *table, int64_t producer_id, int16_t epoch,
                             int32_t base_sequence, int32_t record_count, bool known_from_start,
                             int64_t *duplicate_of);
/* What a leader answers to any batch: of a client (is_client) the sequence is judged, of a coordinator
 * the epoch alone. bumps_epoch: producers bump their epoch with every transaction. */
ol_verdict ol_producers_judge(const ol_producers *table, const ol_header *row, bool is_client,
                              bool bumps_epoch, int64_t *duplicate_of);
/* Takes batches that are in the log into account, without judging them. `aborted` has room for one
 * entry a row and gets the transactions that end in an ABORT. */
ol_status ol_producers_replay(ol_producers *table, const ol_header *rows, int64_t row_count,
                              ol_aborted *aborted, int64_t *aborted_count);

/* ---------------------------------------------------------------- compaction */

/* SipHash-2-4 with 128 bits, little-endian words. */
void ol_key_hash(uint64_t hash[2], const uint64_t secret[2], const uint8_t *key, size_t size);

/* Hash of a key → offset of its last record; 24 bytes a slot, of fixed size. */
typedef struct ol_offset_map ol_offset_map;

enum { OL_OFFSET_SLOT_BYTES = 24 };

/* NULL without memory, or when count_max would leave no slot empty. */
ol_offset_map *ol_offset_map_new(uint64_t slot_count, uint64_t count_max, const uint64_t secret[2]);
void ol_offset_map_free(ol_offset_map *map);
uint64_t ol_offset_map_count(const ol_offset_map *map);
/* -1 for a key that is not there. */
int64_t ol_offset_map_find(const ol_offset_map *map, const uint8_t *key, size_t size);
/* Notes the keys of a batch's records from start_offset on. *full: a new key found no room, and records
 * after it were not looked at. */
ol_status ol_offset_map_add(ol_offset_map *map, const ol_header *header, const uint8_t *payload,
                            size_t size, int64_t start_offset, bool *full, ol_fault *fault);

/* Which records of a batch stay. */
typedef struct ol_compacted {
    int64_t count;
    int64_t tombstones;    /* among those that stay */
    int64_t max_timestamp; /* of those that stay */
    ol_bytes marks;        /* uint32 each: where the record starts, shifted left; bit 0: it stays */
} ol_compacted;

/* A record stays that has a key, is not older than the key's last, and is no tombstone where those go.
 * Without a map all stay. */
ol_status ol_compact_judge(ol_compacted *kept, const ol_offset_map *map, const ol_header *header,
                           const uint8_t *payload, size_t size, bool drops_tombstones,
                           ol_fault *fault);
/* Appends the records that stay, their timestamps counted from another base where it differs. */
ol_status ol_compact_records(ol_bytes *out, const ol_compacted *kept, const ol_header *header,
                             const uint8_t *payload, int64_t base_timestamp);
/* Completes the batch that starts at `start` of out with 61 bytes of room, then records: header, checksum. */
ol_status ol_compact_close(ol_bytes *out, size_t start, ol_header *header);
/* Appends a batch with the same offsets and producer, or none, and without records. */
ol_status ol_compact_empty(ol_bytes *out, const ol_header *header, bool anonymous);

enum { OL_SEEN_COMMITTED = 1, OL_SEEN_ABORTED = 2 };

/* Producers whose transactions a pass has met batches of. */
typedef struct ol_txn_watch ol_txn_watch;
ol_txn_watch *ol_txn_watch_new(void);
void ol_txn_watch_free(ol_txn_watch *watch);
bool ol_txn_watch_see(ol_txn_watch *watch, int64_t producer_id, uint32_t flag);
/* Flags seen since the producer's last marker; this is the next one. */
uint32_t ol_txn_watch_end(ol_txn_watch *watch, int64_t producer_id);

/* ---------------------------------------------------------------- UTF-8 */

/* Copies text, each malformed part replaced by U+FFFD; out has room for 3 * size. Returns its size. */
size_t ol_utf8_repair(uint8_t *out, const uint8_t *text, size_t size);
bool ol_utf8_valid(const uint8_t *text, size_t size);

/* ---------------------------------------------------------------- Arrow C data interface */

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4
struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};
struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
#endif
#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};
#endif

/* Columns offset, timestamp, timestamp_type, key, value, headers. */
ol_status ol_arrow_schema(struct ArrowSchema *schema, bool views);
ol_status ol_arrow_array(struct ArrowArray *array, ol_columns *columns);

/* A topic and a partition as columns of up to `room` rows, all alike: made once, shared by all arrays that show
 * them, and counted, since the last of those may be released by any thread. */
typedef struct ol_place ol_place;
ol_place *ol_place_new(const char *topic, size_t size, int32_t partition, int64_t room);
void ol_place_release(ol_place *place);
int64_t ol_place_room(const ol_place *place);
/* Columns topic (int32 into a dictionary of one string) and partition, then those of ol_arrow_array.
 * OL_E_ARGUMENT: more rows than the place has room for. */
ol_status ol_arrow_placed_array(struct ArrowArray *array, ol_columns *columns, ol_place *place);

typedef enum ol_column_kind {
    OL_COLUMN_NULL,
    OL_COLUMN_BINARY,       /* 32-bit offsets */
    OL_COLUMN_LARGE_BINARY, /* 64-bit offsets */
    OL_COLUMN_BINARY_VIEW,
    OL_COLUMN_FIXED,
} ol_column_kind;

/* A binary or string column of an Arrow array, offset already applied. */
typedef struct ol_column {
    ol_column_kind kind;
    int64_t width; /* OL_COLUMN_FIXED */
    int64_t offset;
    int64_t length;
    const uint8_t *validity;
    const void *offsets; /* or the views */
    const uint8_t *data;
    const uint8_t *const *variadic;
} ol_column;

/* Record columns found in one Arrow struct array by name: key, value, timestamp, headers. */
typedef struct ol_arrow_records {
    int64_t length;
    bool has_key, has_value, has_timestamp, has_headers;
    ol_column key, value, header_key, header_value;
    const int64_t *timestamps; /* offset applied */
    const uint8_t *timestamp_validity;
    int64_t timestamp_offset;
    int64_t timestamp_multiply, timestamp_divide; /* to milliseconds */
    const int32_t *list_offsets;                  /* one of these two, offset applied */
    const int64_t *large_list_offsets;
    const uint8_t *list_validity;
    int64_t list_offset;
    const uint8_t *pair_validity; /* of the structs in the lists */
    int64_t pair_offset;
} ol_arrow_records;

/* Binds a struct array and its schema; a type that cannot be encoded is named in `what` (static) and
 * `column`. */
ol_status ol_arrow_bind(ol_arrow_records *records, const struct ArrowSchema *schema,
                        const struct ArrowArray *array, const char **column, ol_fault *fault);
/* Binds one binary or string column, or one of integers; false for any other type. */
bool ol_arrow_binary(ol_column *column, const struct ArrowSchema *schema,
                     const struct ArrowArray *array);
bool ol_arrow_integers(ol_integers *column, const struct ArrowSchema *schema,
                       const struct ArrowArray *array);
/* Slices [start, start + count) of a column. */
ol_status ol_column_slices(const ol_column *column, int64_t start, int64_t count, ol_slice *out);
/* Timestamps in milliseconds; nulls become default_timestamp. */
ol_status ol_arrow_timestamps(const ol_arrow_records *records, int64_t start, int64_t count,
                              int64_t default_timestamp, int64_t *out);
/* The headers that a record range covers, as items [*first, *first + *items) of the header columns, and
 * those of each record relative to *first. OL_E_RECORD: one of them is null. */
ol_status ol_arrow_header_range(const ol_arrow_records *records, int64_t start, int64_t count,
                                int64_t *first, int64_t *items, int64_t *starts, int64_t *ends);
/* Bytes of all values, where that is known without visiting each; else 0. */
int64_t ol_column_bytes_hint(const ol_column *column);

/* ---------------------------------------------------------------- partitions of keys */

/* Java's hash of a key. */
int32_t ol_murmur2(const uint8_t *data, size_t size);
/* The partition of a key, as Java's and librdkafka's (murmur2_random) producers choose it. */
int32_t ol_key_partition(const uint8_t *key, size_t size, int32_t partition_count);
/* The same for many; a key of size -1 is null and belongs to null_partition. */
void ol_key_partitions(const ol_slice *keys, int64_t count, int32_t partition_count,
                       int32_t null_partition, int32_t *out);

/* ---------------------------------------------------------------- numbers shared between processes */

/* One aligned number in a mapping that others read. What was stored before is seen before it, on every CPU. */
static inline void ol_shared_store(int64_t *place, int64_t value) {
    __atomic_store_n(place, value, __ATOMIC_RELEASE);
}

static inline int64_t ol_shared_load(const int64_t *place) {
    return __atomic_load_n(place, __ATOMIC_ACQUIRE);
}

/* ---------------------------------------------------------------- the device */

/* Brings the data of files to the device, many at a time; returns when all were tried. errors[i] is 0, or the
 * errno of files[i]. */
void ol_sync_together(const int *files, int *errors, size_t count);

#endif
