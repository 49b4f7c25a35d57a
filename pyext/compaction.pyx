# cython: language_level=3, boundscheck=False, wraparound=False
"""What compaction keeps: the last offset of each key, and the batches that outlive it.
Room    wraps csrc/compact.c: no files, no clock, no policy; codecs are the caller's functions.
Borrow  nothing outlives a call.
GIL     released over runs of batches that are not compressed, and over the records of those that are.
Fails   with oncelog.base.errors types, with the place; a batch is written whole or not at all.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from oncelog_c cimport (
    OL_ATTR_CODEC, OL_ATTR_CONTROL, OL_ATTR_DELETE_HORIZON, OL_ATTR_LOG_APPEND_TIME, OL_ATTR_TRANSACTIONAL,
    OL_E_MEMORY, OL_E_RECORD, OL_HEADER_BYTES, OL_OFFSET_SLOT_BYTES, OL_OK, OL_SEEN_ABORTED, OL_SEEN_COMMITTED,
    PyBUF_READ, c_bool, check, decompressed, hold_rows, ol_bytes, ol_bytes_reserve, ol_compact_close,
    ol_compact_empty, ol_compact_judge, ol_compact_records, ol_compacted, ol_fault, ol_header, ol_key_hash,
    ol_offset_map, ol_offset_map_add, ol_offset_map_count, ol_offset_map_find, ol_offset_map_free,
    ol_offset_map_new, ol_status, ol_txn_watch, ol_txn_watch_end, ol_txn_watch_free, ol_txn_watch_new,
    ol_txn_watch_see, pin, pinned_data, pinned_size,
)

import numpy as np

from oncelog.base.rows import HEADER_DTYPE, PRODUCER_DTYPE

assert HEADER_DTYPE.itemsize == sizeof(ol_header)

SLOT_BYTES = OL_OFFSET_SLOT_BYTES

cdef enum:
    ABORT = 0
    COMMIT = 1

# What became of a batch.
cdef enum:
    DONE
    DECOMPRESS  # the caller opens it and goes on with _filter
    COMPRESS    # the records that stay are in _records, to be compressed and closed
    FAILED      # _fault says why


cdef int _secret(object seed, uint64_t *secret) except -1:
    cdef const uint8_t *data
    held = pin(seed)
    if pinned_size(held) != 16:
        raise ValueError("the seed has 16 bytes")
    data = pinned_data(held)
    memcpy(secret, data, 16)
    return 0


def key_hash(key, seed):
    """The 16 bytes by which a key is known: SipHash-2-4 under a seed of 16 bytes."""
    cdef uint64_t secret[2]
    cdef uint64_t hash[2]
    _secret(seed, secret)
    held = pin(key)
    ol_key_hash(hash, secret, pinned_data(held), pinned_size(held))
    return PyBytes_FromStringAndSize(<char *>hash, 16)


cdef int _check_row(const ol_header *header, size_t total) except -1:
    if (header.position < 0 or header.size < OL_HEADER_BYTES or <size_t>header.position > total
            or <size_t>header.size > total - <size_t>header.position):
        raise ValueError("a row lies outside the buffer")
    return 0


@cython.final
cdef class OffsetMap:
    """Where each key was last written, in fixed memory. Not for two threads at once."""
    cdef ol_offset_map *_map
    cdef readonly int64_t slots
    cdef readonly int64_t capacity

    def __cinit__(self, int64_t slots, int64_t capacity, seed):
        cdef uint64_t secret[2]
        _secret(seed, secret)
        if slots < 2 or not 0 < capacity < slots:
            raise ValueError(f"{capacity} keys do not fit {slots} slots of which one stays empty")
        self.slots = slots
        self.capacity = capacity
        self._map = ol_offset_map_new(<uint64_t>slots, <uint64_t>capacity, secret)
        if self._map is NULL:
            raise MemoryError()

    def __dealloc__(self):
        ol_offset_map_free(self._map)

    def __len__(self):
        return <Py_ssize_t>ol_offset_map_count(self._map)

    def find(self, key):
        """The offset of a key's last record, -1 for a key that was not seen."""
        held = pin(key)
        return ol_offset_map_find(self._map, pinned_data(held), pinned_size(held))

    def add(self, buffer, rows, visible, *, int64_t start_offset=0, decompress=None, str file=""):
        """Notes the keys of the visible batches; returns how many rows were taken whole before the map was full."""
        cdef object held = pin(buffer)
        cdef const uint8_t *base = pinned_data(held)
        cdef size_t total = pinned_size(held)
        cdef Py_buffer row_view, mask_view
        cdef Py_ssize_t row = 0, count = len(rows)
        cdef const ol_header *headers
        cdef const ol_header *header
        cdef const uint8_t *mask
        cdef const uint8_t *payload
        cdef size_t size
        cdef ol_fault fault
        cdef ol_status status = OL_OK
        cdef c_bool full = False
        cdef bint packed = False
        if len(visible) != count:
            raise ValueError("the mask has another length than the rows")
        hold_rows(rows, HEADER_DTYPE, &row_view, PyBUF_SIMPLE)
        try:
            hold_rows(visible, _BOOL, &mask_view, PyBUF_SIMPLE)
            try:
                headers, mask = <const ol_header *>row_view.buf, <const uint8_t *>mask_view.buf
                for row in range(count):
                    _check_row(headers + row, total)
                row = 0
                while row < count:
                    with nogil:
                        while row < count:
                            header = headers + row
                            if mask[row] and header.record_count:
                                packed = (header.attributes & OL_ATTR_CODEC) != 0
                                if packed:
                                    break
                                status = ol_offset_map_add(
                                    self._map, header, base + header.position + OL_HEADER_BYTES,
                                    <size_t>header.size - OL_HEADER_BYTES, start_offset, &full, &fault)
                                if status != OL_OK or full:
                                    break
                            row += 1
                    if row < count and packed and status == OL_OK and not full:
                        opened = decompressed(decompress, headers + row, base, file)
                        payload, size = pinned_data(opened), pinned_size(opened)
                        with nogil:
                            status = ol_offset_map_add(self._map, headers + row, payload, size, start_offset, &full,
                                                       &fault)
                        if status == OL_OK and not full:
                            row += 1
                            packed = False
                    check(status, &fault, file)
                    if full:
                        break
            finally:
                PyBuffer_Release(&mask_view)
        finally:
            PyBuffer_Release(&row_view)
        return row


_BOOL = np.dtype(np.bool_)


@cython.final
cdef class LogFilter:
    """One pass over a log, from its start: which batches and records stay, and in which form.

    Keeps what spans segments: the transactions whose batches the pass has met. Not for two threads at once.
    """
    cdef OffsetMap _offsets
    cdef ol_txn_watch *_watch
    cdef ol_compacted _kept
    cdef ol_bytes _out
    cdef ol_bytes _records
    cdef ol_bytes _markers
    cdef ol_fault _fault
    cdef ol_header _last         # the last row passed
    cdef bint _last_written
    cdef bint _retain            # the batch at hand stays, if need be without records
    cdef int64_t _end_offset, _last_end_offset, _now_ms, _horizon_ms
    cdef const int64_t[::1] _producer_ids
    cdef const int64_t[::1] _producer_ends
    cdef const int16_t[::1] _producer_epochs
    cdef readonly int64_t records_read
    cdef readonly int64_t records_kept

    def __cinit__(self, OffsetMap offsets not None, producers, *, int64_t end_offset, int64_t last_end_offset,
                  int64_t now_ms, int64_t horizon_ms):
        """``producers``: PRODUCER_DTYPE rows of those still known. From ``end_offset`` on batches stay as they are; the
        batch that ends at ``last_end_offset`` stays, if need be without records. ``horizon_ms``: when tombstones and
        markers that this pass marks may go."""
        memset(&self._kept, 0, sizeof(self._kept))
        memset(&self._out, 0, sizeof(self._out))
        memset(&self._records, 0, sizeof(self._records))
        memset(&self._markers, 0, sizeof(self._markers))
        self._watch = ol_txn_watch_new()
        if self._watch is NULL:
            raise MemoryError()
        self._offsets = offsets
        self._end_offset = end_offset
        self._last_end_offset = last_end_offset
        self._now_ms = now_ms
        self._horizon_ms = horizon_ms
        self._last_written = True
        if producers.dtype != PRODUCER_DTYPE:
            raise TypeError(f"rows of type {PRODUCER_DTYPE} are needed, not {producers.dtype}")
        ordered = producers[np.argsort(producers["producer_id"])]
        self._producer_ids = ordered["producer_id"].copy()
        self._producer_ends = ordered["last_offset"].copy()
        self._producer_epochs = ordered["producer_epoch"].copy()

    def __dealloc__(self):
        ol_txn_watch_free(self._watch)
        free(self._kept.marks.data)
        free(self._out.data)
        free(self._records.data)
        free(self._markers.data)

    def clean(self, buffer, rows, visible, *, decompress=None, compress=None, str file=""):
        """The batches that stay of some rows, which follow those of the last call; ``visible`` as a reader sees them.

        ``compress(codec, records)`` and ``decompress(codec, payload)`` serve batches that have a codec.
        """
        cdef object held = pin(buffer)
        cdef const uint8_t *base = pinned_data(held)
        cdef size_t total = pinned_size(held)
        cdef Py_buffer row_view, mask_view
        cdef Py_ssize_t row, count = len(rows)
        cdef const ol_header *headers
        cdef const uint8_t *mask
        cdef int outcome = DONE
        if len(visible) != count:
            raise ValueError("the mask has another length than the rows")
        self._out.size = 0
        hold_rows(rows, HEADER_DTYPE, &row_view, PyBUF_SIMPLE)
        try:
            hold_rows(visible, _BOOL, &mask_view, PyBUF_SIMPLE)
            try:
                headers, mask = <const ol_header *>row_view.buf, <const uint8_t *>mask_view.buf
                for row in range(count):
                    _check_row(headers + row, total)
                row = 0
                while row < count:
                    with nogil:
                        while row < count:
                            outcome = self._take(headers + row, base, mask[row] != 0)
                            if outcome != DONE:
                                break
                            row += 1
                    if row < count:
                        if outcome == DECOMPRESS:
                            outcome = self._reopen(headers + row, base, decompress, compress, file)
                        if outcome != DONE:
                            check(self._fault.status, &self._fault, file)
                        row += 1
            finally:
                PyBuffer_Release(&mask_view)
        finally:
            PyBuffer_Release(&row_view)
        return PyBytes_FromStringAndSize(<char *>self._out.data, <Py_ssize_t>self._out.size)

    def anchor(self):
        """An empty batch without a producer in the place of the last row, if that was dropped; else nothing.

        At the end of a segment it keeps the offsets that the segment stands for.
        """
        if self._last_written:
            return b""
        self._out.size = 0
        if ol_compact_empty(&self._out, &self._last, True) != OL_OK:
            raise MemoryError()
        self._last_written = True
        return PyBytes_FromStringAndSize(<char *>self._out.data, <Py_ssize_t>self._out.size)

    def take_markers(self):
        """Offsets of the ABORT markers, since the last call, that end batches which the pass has met."""
        cdef Py_ssize_t size = <Py_ssize_t>self._markers.size
        found = np.frombuffer(PyBytes_FromStringAndSize(<char *>self._markers.data, size), np.int64)
        self._markers.size = 0
        return found

    cdef int _fail(self, const ol_header *header, ol_status status, const char *what) noexcept nogil:
        self._fault.status = status
        self._fault.record = -1
        self._fault.position = header.position
        self._fault.base_offset = header.base_offset
        self._fault.what = what
        return FAILED

    cdef bint _is_last_of_producer(self, const ol_header *header, int64_t last_offset) noexcept nogil:
        """Whether a producer that is still known has nothing newer: its sequence or its epoch must survive."""
        cdef Py_ssize_t low = 0, high = self._producer_ids.shape[0], middle
        if header.producer_id < 0:
            return False
        while low < high:
            middle = (low + high) // 2
            if self._producer_ids[middle] < header.producer_id:
                low = middle + 1
            else:
                high = middle
        if low == self._producer_ids.shape[0] or self._producer_ids[low] != header.producer_id:
            return False
        if self._producer_ends[low] >= 0:
            return self._producer_ends[low] == last_offset
        return (header.attributes & OL_ATTR_CONTROL) != 0 and self._producer_epochs[low] == header.producer_epoch

    cdef int _end_transaction(self, const ol_header *header, bint *is_empty) noexcept nogil:
        """A marker ends what the pass has met of its transaction; is_empty: no batch of it is left."""
        cdef uint32_t seen = ol_txn_watch_end(self._watch, header.producer_id)
        is_empty[0] = seen == 0
        if header.control_type == ABORT:
            if seen & OL_SEEN_COMMITTED:
                return self._fail(header, OL_E_RECORD,
                                  b"an ABORT marker ends batches that no transaction index names")
            if seen:
                if ol_bytes_reserve(&self._markers, sizeof(int64_t)) != OL_OK:
                    return self._fail(header, OL_E_MEMORY, b"no memory for a marker")
                memcpy(self._markers.data + self._markers.size, &header.base_offset, sizeof(int64_t))
                self._markers.size += sizeof(int64_t)
        elif seen & OL_SEEN_ABORTED:
            return self._fail(header, OL_E_RECORD, b"a COMMIT marker ends batches that are named as aborted")
        return DONE

    cdef int _take(self, const ol_header *header, const uint8_t *base, bint is_visible) noexcept nogil:
        """Decides about one batch and, unless it must be decompressed, writes what stays of it."""
        cdef int64_t last_offset = header.base_offset + header.last_offset_delta
        cdef bint is_control = (header.attributes & OL_ATTR_CONTROL) != 0
        cdef bint has_horizon = (header.attributes & OL_ATTR_DELETE_HORIZON) != 0
        cdef bint is_empty = header.record_count == 0
        cdef bint is_last
        cdef int outcome
        self._last = header[0]
        self._last_written = False
        if is_control:
            if not is_empty and (header.control_type == ABORT or header.control_type == COMMIT):
                outcome = self._end_transaction(header, &is_empty)
                if outcome != DONE:
                    return outcome
        elif header.attributes & OL_ATTR_TRANSACTIONAL:
            if not ol_txn_watch_see(self._watch, header.producer_id,
                                    OL_SEEN_COMMITTED if is_visible else OL_SEEN_ABORTED):
                return self._fail(header, OL_E_MEMORY, b"no memory for an open transaction")
        if header.base_offset >= self._end_offset:
            return self._copy(header, base)
        self.records_read += header.record_count
        is_last = self._is_last_of_producer(header, last_offset)
        self._retain = is_last or last_offset + 1 == self._last_end_offset
        if header.record_count == 0:
            return self._empty(header)
        if not is_control:
            if not is_visible:
                return self._empty(header)
            if header.attributes & OL_ATTR_CODEC:
                return DECOMPRESS
            return self._filter(header, base, base + header.position + OL_HEADER_BYTES,
                                <size_t>header.size - OL_HEADER_BYTES)
        if not is_empty:
            self.records_kept += header.record_count
            return self._copy(header, base)
        if has_horizon:
            # A marker that tells a living producer's epoch stays whole: an empty one tells replay nothing.
            if header.base_timestamp <= self._now_ms and not is_last:
                return self._empty(header)
            self.records_kept += header.record_count
            return self._copy(header, base)
        return self._filter(header, base, base + header.position + OL_HEADER_BYTES,
                            <size_t>header.size - OL_HEADER_BYTES)

    cdef int _copy(self, const ol_header *header, const uint8_t *base) noexcept nogil:
        if ol_bytes_reserve(&self._out, <size_t>header.size) != OL_OK:
            return self._fail(header, OL_E_MEMORY, b"no memory for a batch")
        memcpy(self._out.data + self._out.size, base + header.position, <size_t>header.size)
        self._out.size += <size_t>header.size
        self._last_written = True
        return DONE

    cdef int _empty(self, const ol_header *header) noexcept nogil:
        if not self._retain:
            return DONE
        if ol_compact_empty(&self._out, header, False) != OL_OK:
            return self._fail(header, OL_E_MEMORY, b"no memory for a batch")
        self._last_written = True
        return DONE

    cdef int _filter(self, const ol_header *header, const uint8_t *base, const uint8_t *payload,
                     size_t size) noexcept nogil:
        """Writes the records that stay of a data batch, or a marker that gets its delete horizon."""
        cdef bint has_horizon = (header.attributes & OL_ATTR_DELETE_HORIZON) != 0
        cdef bint is_control = (header.attributes & OL_ATTR_CONTROL) != 0
        cdef bint sets_horizon
        cdef ol_header changed = header[0]
        cdef ol_bytes *into = &self._out
        cdef size_t start = self._out.size
        cdef ol_status status = ol_compact_judge(
            &self._kept, NULL if is_control else self._offsets._map, header, payload, size,
            has_horizon and header.base_timestamp <= self._now_ms, &self._fault)
        if status != OL_OK:
            return FAILED
        if self._kept.count == 0:
            return self._empty(header)
        self.records_kept += self._kept.count
        sets_horizon = not has_horizon and (is_control or self._kept.tombstones > 0)
        if self._kept.count == header.record_count and not sets_horizon:
            return self._copy(header, base)
        if sets_horizon:
            changed.attributes |= OL_ATTR_DELETE_HORIZON
            changed.base_timestamp = self._horizon_ms
        if not header.attributes & OL_ATTR_LOG_APPEND_TIME:
            changed.max_timestamp = self._kept.max_timestamp
        changed.record_count = <int32_t>self._kept.count
        if header.attributes & OL_ATTR_CODEC:
            self._records.size = 0
            into = &self._records
        else:
            if ol_bytes_reserve(into, OL_HEADER_BYTES) != OL_OK:
                return self._fail(header, OL_E_MEMORY, b"no memory for a batch")
            into.size += OL_HEADER_BYTES
        if ol_compact_records(into, &self._kept, header, payload, changed.base_timestamp) != OL_OK:
            return self._fail(header, OL_E_MEMORY, b"no memory for a batch")
        if header.attributes & OL_ATTR_CODEC:
            self._last = changed
            return COMPRESS
        if ol_compact_close(into, start, &changed) != OL_OK:
            return self._fail(header, OL_E_RECORD, b"the batch grows larger than a batch may be")
        self._last_written = True
        return DONE

    cdef int _reopen(self, const ol_header *header, const uint8_t *base, object decompress, object compress,
                     str file) except -1:
        """The same for a compressed batch: opened, filtered and, if it has changed, compressed again."""
        cdef int outcome
        cdef const uint8_t *payload
        cdef size_t start = self._out.size, size
        opened = decompressed(decompress, header, base, file)
        payload, size = pinned_data(opened), pinned_size(opened)
        with nogil:
            outcome = self._filter(header, base, payload, size)
        if outcome != COMPRESS:
            return outcome
        packed = pin(compress(header.attributes & OL_ATTR_CODEC, PyMemoryView_FromMemory(
            <char *>self._records.data, <Py_ssize_t>self._records.size, PyBUF_READ)))
        size = pinned_size(packed)
        if ol_bytes_reserve(&self._out, OL_HEADER_BYTES + size) != OL_OK:
            return self._fail(header, OL_E_MEMORY, b"no memory for a batch")
        memcpy(self._out.data + start + OL_HEADER_BYTES, pinned_data(packed), size)
        self._out.size += OL_HEADER_BYTES + size
        if ol_compact_close(&self._out, start, &self._last) != OL_OK:
            return self._fail(header, OL_E_RECORD, b"the batch grows larger than a batch may be")
        self._last_written = True
        return DONE
