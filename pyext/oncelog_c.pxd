# The only extern block: C as Cython sees it, and what every module needs around a call: check() turns a
# fault into an exception, pin() holds a caller's buffer, decompressed() asks the caller's codec, proof_of() tells what
# another module vouches for.
from cpython.buffer cimport PyBuffer_IsContiguous, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory, PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.pycapsule cimport (
    PyCapsule_GetContext, PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetContext,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "Python.h":
    int Py_IsInitialized() nogil
    int PyBUF_READ

cdef extern from "pythread.h" nogil:
    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_INTR
    unsigned long PyThread_get_thread_ident()
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    bint PyThread_acquire_lock(PyThread_type_lock lock, int waits)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int is_interruptible)
    void PyThread_release_lock(PyThread_type_lock lock)

cdef extern from "unistd.h" nogil:
    int close(int descriptor)

cdef extern from "oncelog.h" nogil:
    ctypedef bint c_bool "bool"

    ctypedef enum ol_status:
        OL_OK
        OL_COMPRESSED
        OL_BATCH_FULL
        OL_SKIPPED
        OL_E_TRUNCATED
        OL_E_SIZE
        OL_E_OLD_MAGIC
        OL_E_MAGIC
        OL_E_CRC
        OL_E_HEADER
        OL_E_CODEC
        OL_E_RECORD
        OL_E_TOO_LARGE
        OL_E_TIMESTAMP
        OL_E_ARGUMENT
        OL_E_MEMORY

    ctypedef struct ol_fault:
        ol_status status
        int32_t record
        int64_t position
        int64_t base_offset
        const char *what

    uint32_t ol_crc32c(uint32_t crc, const void *data, size_t size)
    uint32_t ol_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
    const char *ol_crc32c_kernel(int index)
    c_bool ol_crc32c_with(const char *kernel, uint32_t crc, const void *data, size_t size, uint32_t *out)

    enum:
        OL_HEADER_BYTES
        OL_ATTR_CODEC
        OL_ATTR_LOG_APPEND_TIME
        OL_ATTR_TRANSACTIONAL
        OL_ATTR_CONTROL
        OL_ATTR_DELETE_HORIZON
        OL_CONTROL_ABORT
        OL_CONTROL_COMMIT
        OL_CONTROL_NONE

    ctypedef struct ol_header:
        int64_t position
        int64_t size
        int64_t base_offset
        int64_t base_timestamp
        int64_t max_timestamp
        int64_t producer_id
        int32_t last_offset_delta
        int32_t record_count
        int32_t base_sequence
        int32_t partition_leader_epoch
        uint32_t crc
        int32_t coordinator_epoch
        int16_t attributes
        int16_t producer_epoch
        int16_t control_type
        int8_t magic
        int8_t crc_ok

    int64_t ol_last_offset(const ol_header *header)
    ol_status ol_header_read(ol_header *header, const uint8_t *base, size_t size, size_t position,
                             c_bool check_crc, ol_fault *fault)
    ol_status ol_scan(ol_header *rows, size_t capacity, size_t *count, const uint8_t *base, size_t size,
                      size_t stop, size_t *position, c_bool check_crc, c_bool stop_at_bad_crc, ol_fault *fault)
    ol_status ol_seek(const uint8_t *base, size_t size, size_t *position, int64_t target, c_bool by_timestamp,
                      ol_fault *fault)
    void ol_header_restamp(uint8_t *at, ol_header *header)

    ctypedef struct ol_slice:
        const uint8_t *data
        int64_t size

    ctypedef struct ol_block:
        int64_t count
        const ol_slice *keys
        const ol_slice *values
        const int64_t *timestamps
        const int64_t *offsets
        const int64_t *header_starts
        const int64_t *header_ends
        const ol_slice *header_keys
        const ol_slice *header_values

    ctypedef struct ol_bytes:
        uint8_t *data
        size_t size
        size_t capacity

    ctypedef struct ol_encoder:
        ol_header next
        int64_t default_timestamp
        int64_t batch_bytes_max
        c_bool one_batch
        c_bool fix_base_timestamp
        c_bool fix_max_timestamp
        c_bool fix_last_offset_delta
        c_bool compress
        ol_bytes out
        int64_t batch_count
        int64_t record_count
        size_t open_at
        int64_t open_count

    void ol_encoder_init(ol_encoder *encoder)
    void ol_encoder_free(ol_encoder *encoder)
    ol_status ol_bytes_reserve(ol_bytes *bytes, size_t extra)

    ctypedef struct ol_proof:
        const uint8_t *data
        size_t size
        c_bool stands
        const ol_proof *whole
    bint ol_is_proven(const ol_proof *proof, const uint8_t *data, size_t size)
    ol_status ol_encode(ol_encoder *encoder, const ol_block *block, int64_t *done, ol_fault *fault)
    ol_status ol_encode_close(ol_encoder *encoder, const uint8_t *payload, size_t payload_size, ol_fault *fault)
    enum:
        OL_ONE_BYTES_MAX
    size_t ol_encode_one(uint8_t *at, ol_header *header, ol_slice key, ol_slice value)

    ctypedef struct ol_binary:
        ol_bytes data

    ctypedef struct ol_columns:
        int64_t count
        int64_t *offsets
        int64_t *timestamps
        int8_t *timestamp_types
        ol_binary key
        ol_binary value
        ol_binary header_key
        ol_binary header_value
        void *pin
        void (*unpin)(void *)

    ol_columns *ol_columns_new(c_bool views)
    c_bool ol_columns_finish(ol_columns *columns)
    void ol_columns_release(ol_columns *columns)

    ol_status ol_batch_prove(ol_header *header, const uint8_t *base, size_t size, int64_t position,
                             int64_t start_offset, int64_t end_offset, c_bool check_crc, ol_fault *fault)
    ol_status ol_batch_open(ol_header *header, const uint8_t *base, size_t size, int64_t position,
                            int64_t start_offset, int64_t end_offset, c_bool check_crc, c_bool include_control,
                            ol_fault *fault)

    ctypedef struct ol_decoder:
        const uint8_t *base
        size_t size
        const int64_t *positions
        const uint8_t *visible
        int64_t batch_count
        int64_t start_offset
        int64_t end_offset
        int64_t bytes_max
        c_bool check_crc
        c_bool include_control
        c_bool create_time
        int64_t next
        ol_header header
        int64_t bytes

    ol_status ol_decode(ol_decoder *decoder, ol_columns *columns, ol_fault *fault)
    ol_status ol_decode_payload(ol_decoder *decoder, ol_columns *columns, const uint8_t *payload, size_t size,
                                ol_fault *fault)

    ctypedef struct ol_record:
        int64_t offset
        int64_t timestamp
        ol_slice key
        ol_slice value
        int32_t header_count
        int32_t size

    ol_status ol_records_check(const ol_header *header, const uint8_t *payload, size_t size, ol_fault *fault)
    int64_t ol_records_refused(const ol_header *header, const uint8_t *payload, size_t size, c_bool key_needed,
                               int64_t timestamp_min, int64_t timestamp_max, int32_t *bad, int64_t capacity)
    ol_status ol_record_next(ol_record *record, const ol_header *header, const uint8_t *payload, size_t size,
                             size_t *position)
    int64_t ol_records_next(ol_record *records, int64_t capacity, const ol_header *header, const uint8_t *payload,
                            size_t size, size_t *position)
    ol_status ol_record_header_next(ol_record *record, ol_slice *key, ol_slice *value)

    void *ol_grow_zeroed(void *memory, size_t had, size_t size)

    enum:
        OL_OFFSET_ENTRY_BYTES
        OL_TIME_ENTRY_BYTES

    int64_t ol_offset_index_find(const uint8_t *entries, int64_t count, int64_t target)
    int64_t ol_offset_index_find_position(const uint8_t *entries, int64_t count, int64_t target)
    int64_t ol_time_index_find(const uint8_t *entries, int64_t count, int64_t target)

    ctypedef struct ol_index_state:
        int64_t interval_bytes
        int64_t bytes_since_entry
        int64_t max_timestamp
        int64_t max_timestamp_offset
        int64_t indexed_timestamp

    int64_t ol_index_rows(ol_index_state *state, const ol_header *rows, int64_t row_count, int64_t base_offset,
                          uint8_t *offset_entries, uint8_t *time_entries, int64_t *time_count)
    void ol_batches_stamp(uint8_t *base, ol_header *rows, int64_t row_count, int64_t next_offset,
                          int32_t leader_epoch)

    enum:
        OL_TXN_ENTRY_BYTES
        OL_PRODUCER_BATCHES

    ctypedef struct ol_aborted:
        int64_t producer_id
        int64_t first_offset
        int64_t last_offset
        int64_t last_stable_offset

    ctypedef struct ol_txn_summary:
        int64_t entries

    ol_status ol_txn_entry_read(ol_aborted *out, const uint8_t *entries, size_t size, int64_t index, ol_fault *fault)
    ol_status ol_txn_index_check(const uint8_t *entries, size_t size, int64_t base_offset, int64_t start,
                                 ol_fault *fault)
    void ol_txn_summary_free(ol_txn_summary *summary)
    ol_status ol_txn_summary_extend(ol_txn_summary *summary, const uint8_t *entries, int64_t count)
    ol_status ol_txn_index_collect(const ol_txn_summary *summary, const uint8_t *entries, int64_t fetch_offset,
                                   int64_t upper_bound, int64_t *hits, int64_t capacity, int64_t *found,
                                   int64_t *start, c_bool *complete)
    ol_status ol_abort_filter(uint8_t *visible, const ol_header *rows, int64_t row_count, const ol_aborted *aborted,
                              int64_t aborted_count)

    ctypedef struct ol_producer_batch:
        int64_t last_offset
        int64_t timestamp
        int32_t last_sequence
        int32_t offset_delta

    ctypedef struct ol_producer:
        int64_t producer_id
        int64_t txn_first_offset
        int64_t last_timestamp
        int32_t coordinator_epoch
        int16_t epoch
        uint8_t batch_count
        uint8_t batch_newest
        ol_producer_batch *batches

    ctypedef struct ol_producers:
        pass

    ctypedef enum ol_verdict:
        OL_ACCEPT
        OL_DUPLICATE
        OL_OUT_OF_ORDER
        OL_FENCED
        OL_OLD_COORDINATOR
        OL_OPEN_TRANSACTION

    ol_producers *ol_producers_new()
    void ol_producers_free(ol_producers *table)
    int64_t ol_producers_count(const ol_producers *table)
    const ol_producer *ol_producers_at(const ol_producers *table, int64_t index)
    ol_producer *ol_producers_find(const ol_producers *table, int64_t producer_id)
    ol_producer *ol_producers_put(ol_producers *table, int64_t producer_id)
    void ol_producers_remove(ol_producers *table, int64_t producer_id)
    const ol_producer_batch *ol_producer_last(const ol_producer *entry)
    void ol_producer_note(ol_producer *entry, int16_t epoch, const ol_producer_batch *batch)
    c_bool ol_producers_open_txn(ol_producers *table, ol_producer *entry, int64_t first_offset)
    int64_t ol_producers_first_open(ol_producers *table)
    int64_t ol_producers_first_open_beside(const ol_producers *table, int64_t producer_id)
    ol_verdict ol_sequence_check(const ol_producers *table, int64_t producer_id, int16_t epoch, int32_t base_sequence,
                                 int32_t record_count, c_bool known_from_start, int64_t *duplicate_of)
    ol_verdict ol_producers_judge(const ol_producers *table, const ol_header *row, c_bool is_client,
                                  c_bool bumps_epoch, int64_t *duplicate_of)
    ol_status ol_producers_replay(ol_producers *table, const ol_header *rows, int64_t row_count, ol_aborted *aborted,
                                  int64_t *aborted_count)

    enum:
        OL_OFFSET_SLOT_BYTES
        OL_SEEN_COMMITTED
        OL_SEEN_ABORTED

    ctypedef struct ol_offset_map:
        pass

    ctypedef struct ol_compacted:
        int64_t count
        int64_t tombstones
        int64_t max_timestamp
        ol_bytes marks

    ctypedef struct ol_txn_watch:
        pass

    void ol_key_hash(uint64_t *hash, const uint64_t *secret, const uint8_t *key, size_t size)
    ol_offset_map *ol_offset_map_new(uint64_t slot_count, uint64_t count_max, const uint64_t *secret)
    void ol_offset_map_free(ol_offset_map *map)
    uint64_t ol_offset_map_count(const ol_offset_map *map)
    int64_t ol_offset_map_find(const ol_offset_map *map, const uint8_t *key, size_t size)
    ol_status ol_offset_map_add(ol_offset_map *map, const ol_header *header, const uint8_t *payload, size_t size,
                                int64_t start_offset, c_bool *full, ol_fault *fault)
    ol_status ol_compact_judge(ol_compacted *kept, const ol_offset_map *map, const ol_header *header,
                               const uint8_t *payload, size_t size, c_bool drops_tombstones, ol_fault *fault)
    ol_status ol_compact_records(ol_bytes *out, const ol_compacted *kept, const ol_header *header,
                                 const uint8_t *payload, int64_t base_timestamp)
    ol_status ol_compact_close(ol_bytes *out, size_t start, ol_header *header)
    ol_status ol_compact_empty(ol_bytes *out, const ol_header *header, c_bool anonymous)
    ol_txn_watch *ol_txn_watch_new()
    void ol_txn_watch_free(ol_txn_watch *watch)
    c_bool ol_txn_watch_see(ol_txn_watch *watch, int64_t producer_id, uint32_t flag)
    uint32_t ol_txn_watch_end(ol_txn_watch *watch, int64_t producer_id)

    enum:
        OL_PLACE_UNKNOWN
        OL_PLACE_NULL

    ctypedef struct ol_integers:
        const void *values
        const uint8_t *validity
        int64_t offset
        int64_t length
        int32_t width

    ctypedef struct ol_aborted_index:
        const ol_slice *topics
        const int32_t *numbers
        const int64_t *stable
        const int64_t *starts
        const ol_aborted *aborted
        int64_t place_count

    void ol_places(int32_t *places, const ol_aborted_index *index, const ol_slice *topics,
                   const ol_integers *partitions, int64_t start, int64_t count)
    int64_t ol_visible(uint8_t *visible, uint8_t *null, const ol_aborted_index *index, const int32_t *places,
                       const ol_integers *offsets, const ol_integers *producer_ids, const ol_integers *attributes,
                       int64_t count)

    struct ArrowSchema:
        const char *format
        void (*release)(ArrowSchema *)

    struct ArrowArray:
        int64_t length
        void (*release)(ArrowArray *)

    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream *, ArrowSchema *)
        int (*get_next)(ArrowArrayStream *, ArrowArray *)
        const char *(*get_last_error)(ArrowArrayStream *)
        void (*release)(ArrowArrayStream *)

    ol_status ol_arrow_schema(ArrowSchema *schema, c_bool views)
    ol_status ol_arrow_array(ArrowArray *array, ol_columns *columns)
    ctypedef struct ol_place:
        pass
    ol_place *ol_place_new(const char *topic, size_t size, int32_t partition, int64_t room)
    void ol_place_release(ol_place *place)
    int64_t ol_place_room(const ol_place *place)
    ol_status ol_arrow_placed_array(ArrowArray *array, ol_columns *columns, ol_place *place)

    ctypedef enum ol_column_kind:
        OL_COLUMN_NULL
        OL_COLUMN_BINARY
        OL_COLUMN_LARGE_BINARY

    ctypedef struct ol_column:
        ol_column_kind kind
        int64_t length
        const uint8_t *data

    ctypedef struct ol_arrow_records:
        int64_t length
        c_bool has_key
        c_bool has_timestamp
        c_bool has_headers
        ol_column key
        ol_column value
        ol_column header_key
        ol_column header_value

    ol_status ol_arrow_bind(ol_arrow_records *records, const ArrowSchema *schema, const ArrowArray *array,
                            const char **column, ol_fault *fault)
    c_bool ol_arrow_binary(ol_column *column, const ArrowSchema *schema, const ArrowArray *array)
    c_bool ol_arrow_integers(ol_integers *column, const ArrowSchema *schema, const ArrowArray *array)
    ol_status ol_column_slices(const ol_column *column, int64_t start, int64_t count, ol_slice *out)
    ol_status ol_arrow_timestamps(const ol_arrow_records *records, int64_t start, int64_t count,
                                  int64_t default_timestamp, int64_t *out)
    ol_status ol_arrow_header_range(const ol_arrow_records *records, int64_t start, int64_t count, int64_t *first,
                                    int64_t *items, int64_t *starts, int64_t *ends)
    int64_t ol_column_bytes_hint(const ol_column *column)

    void ol_sync_together(const int *files, int *errors, size_t count)
    int32_t ol_murmur2(const uint8_t *data, size_t size)
    int32_t ol_key_partition(const uint8_t *key, size_t size, int32_t partition_count)
    void ol_key_partitions(const ol_slice *keys, int64_t count, int32_t partition_count, int32_t null_partition,
                           int32_t *out)

    void ol_shared_store(int64_t *place, int64_t value)
    int64_t ol_shared_load(const int64_t *place)


cdef inline object fault_error(const ol_fault *fault, str file):
    """The exception for a fault, with its place."""
    from oncelog.base import errors
    cdef dict place = {"file": file, "position": fault.position, "base_offset": fault.base_offset,
                       "record": fault.record}
    cdef str what = fault.what.decode()
    if fault.status == OL_E_MEMORY:
        return MemoryError(what)
    if fault.status == OL_E_ARGUMENT:
        return ValueError(what)
    if fault.status == OL_E_TIMESTAMP:
        return errors.InvalidTimestampError(what, **place)
    if fault.status == OL_E_TRUNCATED:
        return errors.TruncatedBatchError(what, **place)
    if fault.status == OL_E_OLD_MAGIC:
        return errors.UnsupportedForMessageFormatError(what, **place)
    if fault.status == OL_E_CODEC:
        return errors.UnsupportedCompressionTypeError(what, **place)
    if fault.status == OL_E_RECORD:
        return errors.InvalidRecordError(what, **place)
    if fault.status == OL_E_TOO_LARGE:
        if fault.record >= 0:
            return errors.RecordTooLargeError(what, **place)
        return errors.RecordBatchTooLargeError(what, **place)
    return errors.CorruptRecordError(what, **place)


cdef inline int check(ol_status status, const ol_fault *fault, str file) except -1:
    if status != OL_OK:
        raise fault_error(fault, file)
    return 0


cdef inline void _let_go(object capsule) noexcept:
    Py_DECREF(<object>PyCapsule_GetContext(capsule))


cdef inline object proof_capsule(ol_proof *proof, object owner):
    """A proof on its way to another module: these share nothing but C. It keeps what it speaks of alive."""
    cdef object capsule = PyCapsule_New(proof, "oncelog.proof", _let_go)
    PyCapsule_SetContext(capsule, <void *>owner)
    Py_INCREF(owner)
    return capsule


cdef inline const ol_proof *proof_of(object capsule) noexcept:
    """What such a capsule holds; NULL for anything else."""
    if not PyCapsule_IsValid(capsule, "oncelog.proof"):
        return NULL
    return <const ol_proof *>PyCapsule_GetPointer(capsule, "oncelog.proof")


cdef inline object pin(object buffer):
    """Holds a buffer open for as long as the result lives."""
    cdef object held = PyMemoryView_FromObject(buffer)
    if not PyBuffer_IsContiguous(PyMemoryView_GET_BUFFER(held), b"C"):
        raise ValueError("the buffer is not contiguous")
    return held


cdef inline const uint8_t *pinned_data(object held) noexcept:
    return <const uint8_t *>PyMemoryView_GET_BUFFER(held).buf


cdef inline size_t pinned_size(object held) noexcept:
    return <size_t>PyMemoryView_GET_BUFFER(held).len


cdef inline object decompressed(object decompress, const ol_header *header, const uint8_t *base, str file):
    """The records of a compressed batch, pinned."""
    from oncelog.base.errors import BatchError
    if decompress is None:
        raise ValueError("the batch is compressed: pass a decompress function")
    payload = PyMemoryView_FromMemory(<char *>base + header.position + OL_HEADER_BYTES,
                                      <Py_ssize_t>(header.size - OL_HEADER_BYTES), PyBUF_READ)
    try:
        return pin(decompress(header.attributes & OL_ATTR_CODEC, payload))
    except BatchError as error:
        error.file, error.position, error.base_offset = file, header.position, header.base_offset
        raise


cdef inline int hold_rows(object rows, object dtype, Py_buffer *view, int flags) except -1:
    """Pins an array of rows of one type, to be given back with PyBuffer_Release.

    A typed memoryview would do the same, but spells out and parses the type of every field each time, which
    costs more than a batch.
    """
    if rows.dtype is not dtype and rows.dtype != dtype:
        raise TypeError(f"rows of type {dtype} are needed, not {rows.dtype}")
    PyObject_GetBuffer(rows, view, flags)
    return 0
