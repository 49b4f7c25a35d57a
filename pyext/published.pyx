# cython: language_level=3, boundscheck=False, wraparound=False
"""The numbers by which a writer tells readers in other processes how far they may see.
Room    eight aligned numbers in a mapping; oncelog.partition.published knows where they lie.
Borrow  the mapping is pinned as long as the slot lives.
GIL     held: a call is a few stores.
Fails   with ValueError where the mapping is too short or not aligned.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uintptr_t
from oncelog_c cimport ol_shared_load, ol_shared_store

SLOT_NUMBERS = 8

cdef enum:
    CHANGES = 0  # rises where more than an append changes, of offsets or of files; odd meanwhile
    OWNER = 1    # which taking of the slot this is; 0: nobody's
    START = 2
    END = 3
    STABLE = 4
    WRITTEN = 5
    TRIES = 1000


@cython.final
cdef class Slot:
    """One partition's offsets: log start, end, last stable offset, and how far the files are written.

    One thread at a time writes, any number read, in any process. An append stores its end before its last stable
    offset, and a reader takes them the other way round: what it finds below the stable offset is always there.
    Where offsets may go back, CHANGES is odd meanwhile, and readers look again.
    """
    cdef Py_buffer _pin
    cdef int64_t *_numbers

    def __cinit__(self, memory, Py_ssize_t position, bint is_written=False):
        PyObject_GetBuffer(memory, &self._pin, PyBUF_WRITABLE if is_written else PyBUF_SIMPLE)
        self._numbers = <int64_t *>(<char *>self._pin.buf + position)
        if position < 0 or position + 8 * sizeof(int64_t) > self._pin.len or <uintptr_t>self._numbers % 8:
            raise ValueError(f"no slot at {position} of {self._pin.len} bytes")

    def __dealloc__(self):
        PyBuffer_Release(&self._pin)

    def show(self, int64_t end, int64_t stable):
        """After an append."""
        if self._pin.readonly:
            raise ValueError("the slot belongs to another process")
        ol_shared_store(self._numbers + END, end)
        ol_shared_store(self._numbers + STABLE, stable)

    def show_durable(self, int64_t end, int64_t stable, int64_t written):
        """After an append or a sync, where readers may see less than was written."""
        if self._pin.readonly:
            raise ValueError("the slot belongs to another process")
        ol_shared_store(self._numbers + WRITTEN, written)
        ol_shared_store(self._numbers + END, end)
        ol_shared_store(self._numbers + STABLE, stable if stable < end else end)

    def reset(self, int64_t start, int64_t end, int64_t stable, int64_t written, int64_t owner=-1):
        """Any change of the offsets; with an owner, the slot is another one's from here on."""
        cdef int64_t changes
        if self._pin.readonly:
            raise ValueError("the slot belongs to another process")
        changes = self._numbers[CHANGES] | 1
        ol_shared_store(self._numbers + CHANGES, changes)
        if owner >= 0:
            ol_shared_store(self._numbers + OWNER, owner)
        ol_shared_store(self._numbers + START, start)
        ol_shared_store(self._numbers + WRITTEN, written)
        ol_shared_store(self._numbers + END, end)
        ol_shared_store(self._numbers + STABLE, stable if stable < end else end)
        ol_shared_store(self._numbers + CHANGES, changes + 1)

    @property
    def owner(self):
        return ol_shared_load(self._numbers + OWNER)

    def read(self, int64_t owner):
        """(start, end, stable, written, changes) at one moment; None where the slot is no longer the owner's."""
        cdef int64_t changes, start, end, stable, written
        for _ in range(TRIES):
            changes = ol_shared_load(self._numbers + CHANGES)
            if ol_shared_load(self._numbers + OWNER) != owner:
                return None
            stable = ol_shared_load(self._numbers + STABLE)
            end = ol_shared_load(self._numbers + END)
            written = ol_shared_load(self._numbers + WRITTEN)
            start = ol_shared_load(self._numbers + START)
            if not changes & 1 and changes == ol_shared_load(self._numbers + CHANGES):
                return start, end, stable, written if written > end else end, changes
        return None
