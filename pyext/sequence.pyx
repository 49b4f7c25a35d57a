# cython: language_level=3, boundscheck=False, wraparound=False
"""The producers of one partition: epoch fence, sequence check, duplicates, open transactions.
Room    wraps csrc/sequence.c: no files, no clock, no policy.
Borrow  nothing outlives a call.
GIL     held: readers ask for the first open offset while the writer replays, and a row costs nanoseconds.
Fails   never by itself: a verdict is a number, and the caller names the error.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport int16_t, int32_t, int64_t
from oncelog_c cimport (
    OL_ACCEPT, OL_CONTROL_ABORT, OL_DUPLICATE, OL_FENCED, OL_OK, OL_OLD_COORDINATOR, OL_OUT_OF_ORDER, hold_rows,
    ol_aborted, ol_header, ol_producer, ol_producer_batch, ol_producer_last, ol_producer_note, ol_producers,
    ol_producers_at, ol_producers_count, ol_producers_find, ol_producers_first_open, ol_producers_first_open_beside,
    ol_producers_free, ol_producers_judge, ol_producers_new, ol_producers_open_txn, ol_producers_put,
    ol_producers_remove, ol_producers_replay, ol_sequence_check, ol_status, ol_verdict,
)

import numpy as np

from oncelog.base.rows import ABORTED_DTYPE, HEADER_DTYPE, PRODUCER_DTYPE

# Verdicts of ProducerTable; a number >= 0 is the base offset of the batch that was a duplicate.
ACCEPT = -1
OUT_OF_ORDER = -2
FENCED = -3
OLD_COORDINATOR = -4
OPEN_TRANSACTION = -5

cdef packed struct _Row:
    int64_t producer_id
    int16_t producer_epoch
    int32_t last_sequence
    int64_t last_offset
    int32_t offset_delta
    int64_t timestamp
    int32_t coordinator_epoch
    int64_t current_txn_first_offset

assert PRODUCER_DTYPE.itemsize == sizeof(_Row)
assert ABORTED_DTYPE.itemsize == sizeof(ol_aborted)

cdef object NOTHING_ABORTED = np.empty(0, ABORTED_DTYPE)


cdef inline int64_t _number(ol_verdict verdict, int64_t duplicate_of) noexcept:
    if verdict == OL_ACCEPT:
        return -1
    if verdict == OL_DUPLICATE:
        return duplicate_of
    if verdict == OL_OUT_OF_ORDER:
        return -2
    if verdict == OL_FENCED:
        return -3
    return -4 if verdict == OL_OLD_COORDINATOR else -5


cdef void _free(object handle) noexcept:
    ol_producers_free(<ol_producers *>PyCapsule_GetPointer(handle, "oncelog.producers"))


@cython.final
cdef class ProducerTable:
    """What the log knows of its producers. One thread writes; any may ask, between two of its calls.

    ``handle`` is the same table for native code that appends; whoever has it keeps the table alive.
    """
    cdef ol_producers *_table
    cdef readonly object handle

    def __cinit__(self):
        self._table = ol_producers_new()
        if self._table is NULL:
            raise MemoryError()
        try:
            self.handle = PyCapsule_New(self._table, "oncelog.producers", _free)
        except BaseException:
            ol_producers_free(self._table)
            raise

    def __len__(self):
        return <Py_ssize_t>ol_producers_count(self._table)

    def __contains__(self, int64_t producer_id):
        return ol_producers_find(self._table, producer_id) is not NULL

    def check(self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count,
              bint known_from_start=False):
        """The leader's verdict on a data batch: ACCEPT, OUT_OF_ORDER, FENCED, or the base offset it already has."""
        cdef int64_t duplicate_of = -1
        cdef ol_verdict verdict = ol_sequence_check(self._table, producer_id, epoch, base_sequence, record_count,
                                                    known_from_start, &duplicate_of)
        return _number(verdict, duplicate_of)

    def judge(self, rows, bint is_client, bint bumps_epoch):
        """None: a leader takes all of these batches. Else its verdict on the first that it does not, and which it
        is: (verdict, row)."""
        cdef Py_buffer view
        cdef int64_t row, count = len(rows), duplicate_of = -1
        cdef ol_verdict verdict = OL_ACCEPT
        hold_rows(rows, HEADER_DTYPE, &view, PyBUF_SIMPLE)
        for row in range(count):
            verdict = ol_producers_judge(self._table, <const ol_header *>view.buf + row, is_client, bumps_epoch,
                                         &duplicate_of)
            if verdict != OL_ACCEPT:
                break
        PyBuffer_Release(&view)
        return None if verdict == OL_ACCEPT else (_number(verdict, duplicate_of), row)

    def replay(self, rows):
        """Takes header rows of the log into account; returns the transactions that ended in an ABORT."""
        return self._replay(rows)

    cdef object _replay(self, rows):
        cdef Py_buffer row_view, result_view
        cdef const ol_header *headers
        cdef int64_t row, count = len(rows), room = 0, found = 0
        cdef ol_aborted none
        cdef ol_status status
        hold_rows(rows, HEADER_DTYPE, &row_view, PyBUF_SIMPLE)
        headers = <const ol_header *>row_view.buf
        for row in range(count):
            room += headers[row].control_type == OL_CONTROL_ABORT
        if not room:  # nearly always: an array costs more than a row
            status = ol_producers_replay(self._table, headers, count, &none, &found)
            PyBuffer_Release(&row_view)
            if status != OL_OK:
                raise MemoryError()
            return NOTHING_ABORTED
        try:
            result = np.empty(room, ABORTED_DTYPE)
            hold_rows(result, ABORTED_DTYPE, &result_view, PyBUF_WRITABLE)
            status = ol_producers_replay(self._table, headers, count, <ol_aborted *>result_view.buf, &found)
            PyBuffer_Release(&result_view)
        finally:
            PyBuffer_Release(&row_view)
        if status != OL_OK:
            raise MemoryError()
        return result[:found].copy() if found < room else result

    def add(self, rows, int64_t end_offset):
        """Takes batches into account that were just written up to an offset; returns the last stable one."""
        cdef int64_t first
        self._replay(rows)
        first = ol_producers_first_open(self._table)
        return end_offset if first < 0 else first

    @property
    def first_open_offset(self):
        """First offset of the oldest open transaction, None if none is open."""
        cdef int64_t first = ol_producers_first_open(self._table)
        return None if first < 0 else first

    def transaction_of(self, int64_t producer_id):
        """(epoch, first offset) of the producer's open transaction, None if it has none."""
        cdef const ol_producer *entry = ol_producers_find(self._table, producer_id)
        if entry is NULL or entry.txn_first_offset < 0:
            return None
        return entry.epoch, entry.txn_first_offset

    def would_abort(self, int64_t producer_id, int64_t marker_offset):
        """The transactions (at most one) that an ABORT marker at this offset would end; nothing changes yet."""
        cdef const ol_producer *entry = ol_producers_find(self._table, producer_id)
        cdef ol_aborted ended
        cdef Py_buffer view
        if entry is NULL or entry.txn_first_offset < 0:
            return NOTHING_ABORTED
        ended.producer_id = producer_id
        ended.first_offset = entry.txn_first_offset
        ended.last_offset = marker_offset
        ended.last_stable_offset = ol_producers_first_open_beside(self._table, producer_id)
        if ended.last_stable_offset < 0:
            ended.last_stable_offset = marker_offset + 1
        result = np.empty(1, ABORTED_DTYPE)
        hold_rows(result, ABORTED_DTYPE, &view, PyBUF_WRITABLE)
        (<ol_aborted *>view.buf)[0] = ended
        PyBuffer_Release(&view)
        return result

    def get(self, int64_t producer_id):
        """The producer's row of snapshot(), or None."""
        cdef ol_producer *entry = ol_producers_find(self._table, producer_id)
        cdef _Row[::1] rows
        if entry is NULL:
            return None
        result = np.empty(1, PRODUCER_DTYPE)
        rows = result
        _fill(&rows[0], entry)
        return result[0]

    def remove(self, int64_t producer_id):
        """Forgets a producer: expired, or all its batches are gone."""
        ol_producers_remove(self._table, producer_id)

    def expire(self, int64_t older_than):
        """Forgets producers without an open transaction whose last timestamp is below; returns their ids."""
        cdef const ol_producer *entry
        cdef int64_t index
        gone = []
        for index in range(ol_producers_count(self._table)):
            entry = ol_producers_at(self._table, index)
            if entry.txn_first_offset < 0 and entry.last_timestamp < older_than:
                gone.append(entry.producer_id)
        for producer_id in gone:
            ol_producers_remove(self._table, producer_id)
        return gone

    def open_transactions(self):
        """(producer id, first offset) of every open transaction, oldest first."""
        cdef const ol_producer *entry
        cdef int64_t index
        found = []
        for index in range(ol_producers_count(self._table)):
            entry = ol_producers_at(self._table, index)
            if entry.txn_first_offset >= 0:
                found.append((entry.producer_id, entry.txn_first_offset))
        found.sort(key=lambda pair: pair[1])
        return found

    def snapshot(self):
        """All producers, one row each (PRODUCER_DTYPE), by producer id."""
        cdef int64_t count = ol_producers_count(self._table), index
        cdef _Row[::1] rows
        result = np.empty(count, PRODUCER_DTYPE)
        if count:
            rows = result
            for index in range(count):
                _fill(&rows[index], ol_producers_at(self._table, index))
            result.sort(order="producer_id")
        return result

    def load(self, rows):
        """Takes the rows of a snapshot into account."""
        cdef const _Row[::1] given = np.ascontiguousarray(rows, dtype=PRODUCER_DTYPE)
        cdef ol_producer *entry
        cdef ol_producer_batch batch
        cdef Py_ssize_t index
        for index in range(given.shape[0]):
            entry = ol_producers_put(self._table, given[index].producer_id)
            if entry is NULL:
                raise MemoryError()
            entry.epoch = given[index].producer_epoch
            entry.batch_count = 0
            entry.batch_newest = 0
            entry.txn_first_offset = -1
            if given[index].last_offset >= 0:
                batch.last_offset = given[index].last_offset
                batch.last_sequence = given[index].last_sequence
                batch.offset_delta = given[index].offset_delta
                batch.timestamp = given[index].timestamp
                ol_producer_note(entry, given[index].producer_epoch, &batch)
            entry.last_timestamp = given[index].timestamp
            entry.coordinator_epoch = given[index].coordinator_epoch
            if given[index].current_txn_first_offset >= 0:
                if not ol_producers_open_txn(self._table, entry, given[index].current_txn_first_offset):
                    raise MemoryError()


cdef void _fill(_Row *row, const ol_producer *entry) noexcept:
    cdef const ol_producer_batch *last = ol_producer_last(entry)
    row.producer_id = entry.producer_id
    row.producer_epoch = entry.epoch
    row.last_sequence = -1 if last is NULL else last.last_sequence
    row.last_offset = -1 if last is NULL else last.last_offset
    row.offset_delta = 0 if last is NULL else last.offset_delta
    row.timestamp = entry.last_timestamp
    row.coordinator_epoch = entry.coordinator_epoch
    row.current_txn_first_offset = entry.txn_first_offset
