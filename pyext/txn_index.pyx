# cython: language_level=3, boundscheck=False, wraparound=False
"""The transaction index of one segment: which transactions were aborted.
Room    wraps csrc/txn_index.c: no files; the caller hands in the mapped entries.
Borrow  a TxnIndex pins the mapping it was given until it gets a longer one.
GIL     released while entries are checked; held while they are added, since readers may be looking.
Fails   with CorruptRecordError and its kin, which name file and position.
Layout  engine/segment/txn_index.py
"""
cimport cython
from libc.stdint cimport int64_t, uint8_t
from oncelog_c cimport (
    OL_OK, OL_TXN_ENTRY_BYTES, c_bool, check, ol_aborted, ol_fault, ol_status, ol_txn_entry_read, ol_txn_index_check,
    ol_txn_index_collect, ol_txn_summary, ol_txn_summary_extend, ol_txn_summary_free, pin, pinned_data, pinned_size,
)

import numpy as np

from oncelog.base.rows import ABORTED_DTYPE

# One entry as it lies in the file.
ENTRY_DTYPE = np.dtype([("version", ">i2"), ("producer_id", ">i8"), ("first_offset", ">i8"), ("last_offset", ">i8"),
                        ("last_stable_offset", ">i8")])
assert ABORTED_DTYPE.itemsize == sizeof(ol_aborted)
assert ENTRY_DTYPE.itemsize == OL_TXN_ENTRY_BYTES

cdef enum:
    HITS = 64  # found at a time, on the stack


@cython.final
cdef class TxnIndex:
    """Entries over a mapped .txnindex, and what makes lookups in them logarithmic.

    The entries are checked when they are taken in: versions, order, whole entries.
    """
    cdef object _held
    cdef ol_txn_summary _summary
    cdef readonly int64_t base_offset
    cdef readonly str file

    def __cinit__(self, entries=b"", int64_t base_offset=0, str file=""):
        self.base_offset = base_offset
        self.file = file
        self._held = pin(b"")
        self.extend(entries)

    def __dealloc__(self):
        ol_txn_summary_free(&self._summary)

    def __len__(self):
        return <Py_ssize_t>self._summary.entries

    def extend(self, entries):
        """Takes a longer mapping of the same file: what was known stays, new entries are added."""
        cdef object held = pin(entries)
        cdef const uint8_t *data = pinned_data(held)
        cdef size_t size = pinned_size(held)
        cdef int64_t known = self._summary.entries
        cdef ol_fault fault
        cdef ol_status status
        if size < <size_t>(known * OL_TXN_ENTRY_BYTES):
            raise ValueError("the mapping is shorter than what is known: make a new index after a truncation")
        with nogil:
            status = ol_txn_index_check(data, size, self.base_offset, known, &fault)
        check(status, &fault, self.file)
        status = ol_txn_summary_extend(&self._summary, data, <int64_t>(size // OL_TXN_ENTRY_BYTES))
        if status != OL_OK:
            raise MemoryError()
        self._held = held

    def entries(self):
        """All entries as they lie in the file: a numpy array over the mapping."""
        return np.frombuffer(self._held, ENTRY_DTYPE, count=self._summary.entries)

    def collect_aborted_txns(self, int64_t fetch_offset, int64_t upper_bound):
        """(transactions, indices, is_complete) of [fetch_offset, upper_bound): those that end at or after the one
        and begin before the other, in the order of the file (ABORTED_DTYPE), and which entries they are.
        Not complete means that the next segment's index may hold more.
        """
        cdef object held
        cdef const uint8_t *data
        cdef int64_t hits[HITS]
        cdef int64_t found = 0, start = 0, row
        cdef c_bool complete = False
        cdef ol_aborted[::1] rows
        cdef int64_t[::1] numbers
        cdef ol_fault fault
        parts = []
        while True:
            # Taken anew each time: while the arrays below are made, another thread may have extended the index.
            held = self._held
            data = pinned_data(held)
            ol_txn_index_collect(&self._summary, data, fetch_offset, upper_bound, hits, HITS, &found, &start, &complete)
            if not found and parts:
                break
            transactions = np.empty(found, ABORTED_DTYPE)
            indices = np.empty(found, np.int64)
            if found:
                rows = transactions
                numbers = indices
                for row in range(found):
                    numbers[row] = hits[row]
                    check(ol_txn_entry_read(&rows[row], data, pinned_size(held), hits[row], &fault), &fault, self.file)
            parts.append((transactions, indices))
            if found < HITS:
                break
        if len(parts) == 1:
            return transactions, indices, complete
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]), complete
