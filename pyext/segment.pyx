# cython: language_level=3, boundscheck=False, wraparound=False
"""What a segment does with bytes: index search and growth, validation and stamping of appends.
Room    wraps csrc/index.c and the append side of csrc/{header,decode}.c: mappings come in as buffers; of files it knows
        the descriptor that one append goes to and is synced, on the real disk alone. The tails hold what an append changes.
Borrow  buffers are pinned for the call.
GIL     released over batches of NOGIL_BYTES or more; less, and a search, is shorter than the switch.
Fails   with oncelog.base.errors types that name position, offset and record.
Layout  engine/segment/offset_index.py, engine/segment/time_index.py
"""
cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM
from libc.errno cimport EINTR, errno
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strerror
from oncelog_c cimport (
    OL_ACCEPT, OL_ATTR_CODEC, OL_ATTR_CONTROL, OL_ATTR_TRANSACTIONAL, OL_CONTROL_ABORT, OL_CONTROL_COMMIT, OL_CONTROL_NONE,
    OL_HEADER_BYTES, OL_OFFSET_ENTRY_BYTES, OL_OK, OL_ONE_BYTES_MAX, OL_TIME_ENTRY_BYTES, PY_LOCK_INTR, PyLockStatus,
    PyThread_acquire_lock, PyThread_acquire_lock_timed, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident,
    PyThread_release_lock, PyThread_type_lock, check, close, decompressed, hold_rows, ol_aborted, ol_batches_stamp,
    ol_encode_one, ol_fault, ol_header, ol_header_read, ol_index_rows, ol_index_state, ol_last_offset, ol_offset_index_find,
    ol_offset_index_find_position, ol_producers, ol_producers_first_open, ol_producers_judge, ol_producers_replay,
    ol_is_proven, ol_proof, ol_records_check, ol_records_refused, ol_seek, ol_slice, ol_status, ol_time_index_find, pin, pinned_data,
    pinned_size, proof_of,
)

from oncelog.base.disk import Disk
from oncelog.base.errors import KafkaStorageError
from oncelog.base.rows import HEADER_DTYPE

cdef extern from "Python.h":
    bint PyMethod_Check(object)
    PyObject *PyMethod_GET_FUNCTION(object)
    int PyErr_CheckSignals() except -1
    ctypedef struct PyTypeObject:
        object (*tp_new)(type kind, tuple arguments, PyObject *keywords)
    PyTypeObject PyTuple_Type

cdef extern from "unistd.h" nogil:
    ssize_t pwrite(int descriptor, const void *data, size_t size, int64_t position)
    int fdatasync(int descriptor)

cdef extern from "fcntl.h":
    enum: F_DUPFD_CLOEXEC
    int fcntl(int descriptor, int command, int least)

assert HEADER_DTYPE.itemsize == sizeof(ol_header)

cdef enum:
    REFUSED_MAX = 4096  # indices that one error lists; Kafka lists all, a person reads the first
    NOGIL_BYTES = 4096  # checked in about the time that another thread takes to get the GIL
    ONE_RECORD_BYTES = 1024  # of a coordinator's record that is encoded on the stack; nearly all are smaller


cdef int _within(object held, int64_t count, int64_t width) except -1:
    if count < 0 or <size_t>count > pinned_size(held) // <size_t>width:
        raise ValueError(f"{count} entries do not fit into {pinned_size(held)} bytes")
    return 0


def find_offset(entries, int64_t count, int64_t relative_offset):
    """Slot of the last of ``count`` .index entries whose relative offset is at most this; -1: none."""
    cdef object held = pin(entries)
    _within(held, count, OL_OFFSET_ENTRY_BYTES)
    return ol_offset_index_find(pinned_data(held), count, relative_offset)


def find_position(entries, int64_t count, int64_t position):
    """Slot of the last of ``count`` .index entries whose position is at most this; -1: none."""
    cdef object held = pin(entries)
    _within(held, count, OL_OFFSET_ENTRY_BYTES)
    return ol_offset_index_find_position(pinned_data(held), count, position)


def find_timestamp(entries, int64_t count, int64_t timestamp):
    """Slot of the last of ``count`` .timeindex entries whose timestamp is at most this; -1: none."""
    cdef object held = pin(entries)
    _within(held, count, OL_TIME_ENTRY_BYTES)
    return ol_time_index_find(pinned_data(held), count, timestamp)


def seek(buffer, int64_t position, int64_t target, *, bint by_timestamp=False, str file=""):
    """Position, from a batch boundary on, of the first batch whose last offset (or largest timestamp) is at least
    ``target``; the buffer's size if there is none.
    """
    cdef object held = pin(buffer)
    cdef const uint8_t *base = pinned_data(held)
    cdef size_t size = pinned_size(held), at = <size_t>position
    cdef ol_fault fault
    cdef ol_status status
    if position < 0 or at > size:
        raise ValueError(f"position {position} lies outside the {size} bytes")
    with nogil:
        status = ol_seek(base, size, &at, target, by_timestamp, &fault)
    check(status, &fault, file)
    return at


@cython.final
cdef class IndexState:
    """How far the indexes of one segment have come, the entries that further batches add, and how much may follow.

    An append is prepared before its bytes are written, and taken after: an error in between changes nothing.
    """
    cdef ol_index_state _state
    cdef ol_index_state _prepared
    cdef bint _has_entries
    cdef int64_t _size_max
    cdef int64_t _last_offset_max
    cdef int64_t _timestamp_max

    def __cinit__(self, int64_t interval_bytes=4096):
        self._size_max = -1
        self._state.interval_bytes = interval_bytes
        self._state.max_timestamp = -1
        self._state.max_timestamp_offset = -1
        self._state.indexed_timestamp = -1

    @property
    def max_timestamp(self):
        return self._state.max_timestamp

    @property
    def max_timestamp_offset(self):
        return self._state.max_timestamp_offset

    @property
    def indexed_timestamp(self):
        return self._state.indexed_timestamp

    def resume(self, int64_t max_timestamp, int64_t max_timestamp_offset, int64_t indexed_timestamp,
               int64_t bytes_since_entry):
        """Goes on where files that were read at open have ended."""
        self._state.max_timestamp = max_timestamp
        self._state.max_timestamp_offset = max_timestamp_offset
        self._state.indexed_timestamp = indexed_timestamp
        self._state.bytes_since_entry = bytes_since_entry

    def copy(self):
        """The same state again, for a caller that may have to take a step back."""
        cdef IndexState twin = IndexState()
        twin._state = self._state
        return twin

    def last_time_entry(self):
        """The entry that closes a time index, if its largest timestamp is not in it yet: (timestamp, offset)."""
        if self._state.max_timestamp <= self._state.indexed_timestamp:
            return None
        self._state.indexed_timestamp = self._state.max_timestamp
        return self._state.max_timestamp, self._state.max_timestamp_offset

    def add(self, rows, int64_t base_offset):
        """(offset index entries, time index entries) that batches at these positions of the file add."""
        cdef Py_buffer view
        hold_rows(rows, HEADER_DTYPE, &view, PyBUF_SIMPLE)
        try:
            return _entries(&self._state, <const ol_header *>view.buf, len(rows), base_offset)
        finally:
            PyBuffer_Release(&view)

    def prepare(self, Batches batches not None, int64_t base_offset, int64_t position):
        """The entries that batches add once they are written at this position of the file; None if there are none.
        The batches' own positions, until here those in a buffer, become those in the file.
        """
        cdef tuple entries
        batches._move(position)
        self._prepared = self._state
        entries = _entries(&self._prepared, batches._rows, batches._count, base_offset)
        self._has_entries = bool(entries[0])
        return entries if self._has_entries else None

    def take(self):
        """What was prepared has been written."""
        self._state = self._prepared
        if self._has_entries:
            self._size_max = -1  # whether the index has room for another one has to be asked

    def allow(self, int64_t size_max, int64_t last_offset_max, int64_t timestamp_max):
        """Up to where the segment may grow before somebody has to be asked again; -1 bytes: at once."""
        self._size_max = size_max
        self._last_offset_max = last_offset_max
        self._timestamp_max = timestamp_max

    def has_room(self, Batches batches not None, int64_t size):
        """Whether batches may follow ``size`` bytes, for all that was allowed."""
        return self._has_room(batches, size, batches._rows.base_offset)

    cdef bint _has_room(self, Batches batches, int64_t size, int64_t base_offset) noexcept:
        """The same for batches that will be given offsets from this one on."""
        cdef int64_t moved = <int64_t>(<uint64_t>base_offset - <uint64_t>batches._rows.base_offset)
        return (self._size_max >= size and batches._bytes() <= <uint64_t>(self._size_max - size)
                and <int64_t>(<uint64_t>batches._next_offset() + <uint64_t>moved) - 1 <= self._last_offset_max
                and batches._max_timestamp() <= self._timestamp_max)

    cpdef int64_t append_one(self, data, Batches batch, producers, int64_t next_offset, int32_t leader_epoch,
                             bint is_client, bint bumps_epoch, write, int descriptor, int64_t size,
                             IndexTail offsets=None, IndexTail times=None, int64_t base_offset=0) except? -1:
        """Judges a batch, stamps it, has it written behind ``size`` bytes of the file, with the index entries that are
        due, and takes it into account, in one call; returns the last stable offset. -1, and nothing is changed, for
        all that is more than that: several batches, a marker that aborts, one that is refused or a repetition, no
        permission, an entry that an index has no room for. Then the same steps are taken one by one, by those who
        know what else to do.

        ``producers`` is the handle of a ProducerTable, ``write(descriptor, data, position)`` the disk's. Where it
        raises, nothing counts, and nothing more is allowed.
        """
        cdef Py_buffer view
        if batch is None:
            raise TypeError("there is no batch to append")
        PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
        try:
            return self._append(<uint8_t *>view.buf, view.len, data, batch, producers, next_offset, leader_epoch, is_client,
                                bumps_epoch, write, descriptor, size, offsets, times, base_offset)
        finally:
            PyBuffer_Release(&view)

    cdef int64_t _append(self, uint8_t *base, Py_ssize_t count, data, Batches batch, producers, int64_t next_offset,
                         int32_t leader_epoch, bint is_client, bint bumps_epoch, write, int descriptor, int64_t size,
                         IndexTail offsets, IndexTail times, int64_t base_offset) except? -1:
        """The same for bytes in memory; ``data`` is the object that they belong to, if there is one."""
        cdef ol_producers *table
        cdef int64_t made, timed = 0, found = 0, duplicate_of = -1
        cdef uint8_t offset_entry[OL_OFFSET_ENTRY_BYTES]
        cdef uint8_t time_entry[OL_TIME_ENTRY_BYTES]
        cdef ol_aborted none
        table = <ol_producers *>PyCapsule_GetPointer(producers, "oncelog.producers")
        if (batch._count != 1
                or (batch._one.attributes & OL_ATTR_CONTROL
                    and (is_client or batch._one.control_type != OL_CONTROL_COMMIT))
                or (self._state.bytes_since_entry > self._state.interval_bytes
                    and not _takes_entries(offsets, times, next_offset - base_offset))
                or not self._has_room(batch, size, next_offset)
                or ol_producers_judge(table, &batch._one, is_client, bumps_epoch, &duplicate_of) != OL_ACCEPT):
            return -1
        _stamp_bytes(base, count, batch, next_offset, leader_epoch)
        batch._move(size)
        self._prepared = self._state
        self._has_entries = False
        made = ol_index_rows(&self._prepared, &batch._one, 1, base_offset, offset_entry, time_entry, &timed)
        try:
            _write_all(write, descriptor, base, count, data, size)
            if made:
                _write_entry(write, offsets, offset_entry, OL_OFFSET_ENTRY_BYTES)
            if timed:
                _write_entry(write, times, time_entry, OL_TIME_ENTRY_BYTES)
            if ol_producers_replay(table, &batch._one, 1, &none, &found) != OL_OK:
                raise MemoryError()
        except BaseException:
            self._size_max = -1
            raise
        self._state = self._prepared
        if made:
            offsets.count += made
            times.count += timed
            if offsets.count >= offsets.count_max or times.count >= times.count_max:
                self._size_max = -1
        found = ol_producers_first_open(table)
        return batch._next_offset() if found < 0 else found


cdef class IndexTail:
    """The end of an index that is written. Single writer, many readers below ``count``."""
    cdef public int64_t count
    cdef public int64_t count_max      # below the capacity, where slots are kept
    cdef public int _descriptor
    cdef public object _entries        # the mapping of the file


cdef bint _takes_entries(IndexTail offsets, IndexTail times, int64_t next_relative_offset) except -1:
    """Whether there is room for an entry in both indexes, and it would rise above the last one."""
    cdef Py_buffer view
    cdef bint rises = False
    cdef int64_t last
    if (offsets is None or times is None or offsets._descriptor < 0 or times._descriptor < 0
            or offsets.count >= offsets.count_max or times.count >= times.count_max):
        return False
    PyObject_GetBuffer(offsets._entries, &view, PyBUF_SIMPLE)
    last = offsets.count - 1
    if 0 <= last < view.len // OL_OFFSET_ENTRY_BYTES:
        # A search in the last entry alone: slot 0 where it lies below, -1 where it does not.
        rises = ol_offset_index_find(<const uint8_t *>view.buf + OL_OFFSET_ENTRY_BYTES * last, 1,
                                     next_relative_offset - 1) == 0
    PyBuffer_Release(&view)
    return rises or last < 0


cdef object PLAIN_WRITE = Disk.write


cdef inline bint _is_plain(write) noexcept:
    """Whether this is the real disk's, and no other's, so that a system call does what it does, without its frames."""
    return PyMethod_Check(write) and PyMethod_GET_FUNCTION(write) == <PyObject *>PLAIN_WRITE


cdef int _write_all(write, int descriptor, const uint8_t *base, Py_ssize_t count, data, int64_t position) except -1:
    """What is anything but success is left to the disk: it knows what to do and what to raise."""
    cdef ssize_t written = -1
    if _is_plain(write):
        if count < NOGIL_BYTES:
            written = pwrite(descriptor, base, <size_t>count, position)
        else:
            with nogil:
                written = pwrite(descriptor, base, <size_t>count, position)
    if written != count:
        write(descriptor, (<const char *>base)[:count] if data is None else data, position)
    return 0


cdef int _write_entry(write, IndexTail index, const uint8_t *entry, int size) except -1:
    """Behind the last one; it counts when the count says so."""
    cdef int64_t position = index.count * size
    if not (_is_plain(write) and pwrite(index._descriptor, entry, <size_t>size, position) == size):
        write(index._descriptor, (<const char *>entry)[:size], position)
    return 0


cdef tuple NO_ENTRIES = (b"", b"")


cdef tuple _entries(ol_index_state *state, const ol_header *rows, Py_ssize_t count, int64_t base_offset):
    """(offset index entries, time index entries) of batches, which the state takes into account."""
    cdef int64_t made = 0, timed = 0
    cdef uint8_t offset_entry[OL_OFFSET_ENTRY_BYTES]
    cdef uint8_t time_entry[OL_TIME_ENTRY_BYTES]
    cdef bytes offsets, times
    cdef uint8_t *offset_data
    cdef uint8_t *time_data
    if count == 1:
        made = ol_index_rows(state, rows, 1, base_offset, offset_entry, time_entry, &timed)
        if not made:
            return NO_ENTRIES
        return ((<char *>offset_entry)[:made * OL_OFFSET_ENTRY_BYTES],
                (<char *>time_entry)[:timed * OL_TIME_ENTRY_BYTES])
    offsets = PyBytes_FromStringAndSize(NULL, OL_OFFSET_ENTRY_BYTES * count)
    times = PyBytes_FromStringAndSize(NULL, OL_TIME_ENTRY_BYTES * count)
    offset_data = <uint8_t *>PyBytes_AS_STRING(offsets)
    time_data = <uint8_t *>PyBytes_AS_STRING(times)
    with nogil:
        made = ol_index_rows(state, rows, count, base_offset, offset_data, time_data, &timed)
    return offsets[:made * OL_OFFSET_ENTRY_BYTES], times[:timed * OL_TIME_ENTRY_BYTES]


cdef object BLANK = object()


cdef Batches _blank(int64_t timestamp_ms):
    """The row of a batch of one record from nobody in particular, to be encoded."""
    cdef Batches batch = Batches.__new__(Batches, BLANK)
    batch._one.max_timestamp = timestamp_ms
    batch._one.producer_id = -1
    batch._one.producer_epoch = -1
    batch._one.base_sequence = -1
    batch._one.coordinator_epoch = -1
    batch._one.control_type = OL_CONTROL_NONE
    return batch


@cython.final
cdef class Batches:
    """Batches on their way into a log: their header rows in memory of their own, and the span that they cover.

    Stands for an array of rows wherever native code asks for one. An append of one small batch is mostly the cost
    of its bookkeeping, and a field of a numpy row takes longer than the batch's checksum.
    """
    cdef ol_header _one
    cdef ol_header *_rows
    cdef Py_ssize_t _count

    def __cinit__(self, rows):
        cdef Py_buffer view
        self._rows = &self._one
        self._count = 1
        if rows is BLANK:  # check_one fills in the row
            return
        if rows is None:
            raise TypeError("Batches are made of header rows")
        hold_rows(rows, HEADER_DTYPE, &view, PyBUF_SIMPLE)
        try:
            self._count = view.len // <Py_ssize_t>sizeof(ol_header)
            if not self._count:
                raise ValueError("there is no batch among the rows")
            if self._count > 1:
                self._rows = <ol_header *>malloc(<size_t>view.len)
                if self._rows is NULL:
                    raise MemoryError()
            memcpy(self._rows, view.buf, <size_t>view.len)
        finally:
            PyBuffer_Release(&view)

    def __dealloc__(self):
        if self._rows is not &self._one:
            free(self._rows)

    def __len__(self):
        return self._count

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._rows, self._count * <Py_ssize_t>sizeof(ol_header), 0, flags)

    @property
    def dtype(self):
        return HEADER_DTYPE

    cdef uint64_t _bytes(self) noexcept:
        cdef Py_ssize_t row
        cdef uint64_t total = 0
        for row in range(self._count):
            total += <uint64_t>self._rows[row].size
        return total

    cdef int64_t _next_offset(self) noexcept:
        return <int64_t>(<uint64_t>ol_last_offset(self._rows + self._count - 1) + 1)

    cdef int64_t _max_timestamp(self) noexcept:
        cdef Py_ssize_t row
        cdef int64_t found = self._rows.max_timestamp
        for row in range(1, self._count):
            found = max(found, self._rows[row].max_timestamp)
        return found

    cdef void _move(self, int64_t distance) noexcept:
        """Adds to the positions: from those in a buffer to those in the file."""
        cdef Py_ssize_t row
        for row in range(self._count):
            self._rows[row].position = <int64_t>(<uint64_t>self._rows[row].position + <uint64_t>distance)

    @property
    def nbytes(self):
        """Of all batches together; they lie one after another."""
        return self._bytes()

    @property
    def base_offset(self):
        """Of the first batch."""
        return self._rows.base_offset

    @property
    def next_offset(self):
        """After the last batch."""
        return self._next_offset()

    @property
    def first_timestamp(self):
        """The largest of the first batch."""
        return self._rows.max_timestamp

    @property
    def max_timestamp(self):
        """The largest of all."""
        return self._max_timestamp()

    @property
    def has_abort(self):
        """Whether an ABORT marker is among them."""
        cdef Py_ssize_t row
        for row in range(self._count):
            if self._rows[row].control_type == OL_CONTROL_ABORT:
                return True
        return False

    @property
    def are_markers(self):
        """Whether all are control batches."""
        cdef Py_ssize_t row
        for row in range(self._count):
            if not self._rows[row].attributes & OL_ATTR_CONTROL:
                return False
        return True

    # Of the first batch, by the names of the rows' fields.

    @property
    def last_offset_delta(self):
        return self._rows.last_offset_delta

    @property
    def producer_id(self):
        return self._rows.producer_id


def attributes_of(buffer):
    """The attributes of the first batch of a buffer, not proven; 0 where it is too short for a batch."""
    return _attributes_of(buffer)


cdef int16_t _attributes_of(buffer) except? -1:
    cdef Py_buffer view
    cdef int16_t attributes = 0
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    if view.len >= OL_HEADER_BYTES:
        attributes = <int16_t>((<const uint8_t *>view.buf)[21] << 8 | (<const uint8_t *>view.buf)[22])
    PyBuffer_Release(&view)
    return attributes


def check_one(buffer, int64_t size_max, bint is_client, bint key_needed, int64_t timestamp_min,
              int64_t timestamp_max):
    """The batch of a buffer that holds exactly one, not too large and not compressed, with a right checksum, whose
    records are sound and none of which a leader refuses; of a client, one that a client may write. None for all
    else: scan and check_records tell what there is.
    """
    return _check_one(buffer, size_max, is_client, key_needed, timestamp_min, timestamp_max)


@cython.final
cdef class Rules:
    """What a topic that keeps its producers' codec and times asks of a client's batch, or of its coordinator's."""
    cdef int64_t _size_max
    cdef bint _is_client
    cdef bint _key_needed
    cdef int64_t _before_max_ms
    cdef int64_t _after_max_ms

    def __cinit__(self, int64_t size_max, bint is_client, bint key_needed, int64_t before_max_ms, int64_t after_max_ms):
        self._size_max = size_max
        self._is_client = is_client
        self._key_needed = key_needed
        self._before_max_ms = before_max_ms
        self._after_max_ms = after_max_ms

    def check(self, buffer, int64_t now_ms):
        """check_one() of a batch that arrives now."""
        return self._check(buffer, now_ms, self._size_max)

    cdef Batches _check(self, buffer, int64_t now_ms, int64_t size_max):
        cdef int64_t earliest = -INT64_MAX - 1, latest = INT64_MAX
        if self._before_max_ms < now_ms:
            earliest = now_ms - self._before_max_ms
        if self._after_max_ms < INT64_MAX - now_ms:
            latest = now_ms + self._after_max_ms
        return _check_one(buffer, min(size_max, self._size_max), self._is_client, self._key_needed, earliest, latest)


cdef Batches _check_one(buffer, int64_t size_max, bint is_client, bint key_needed, int64_t timestamp_min,
                        int64_t timestamp_max):
    cdef Py_buffer view
    cdef Batches result = Batches.__new__(Batches, BLANK)
    cdef bint sound = False, proven
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    if view.len < NOGIL_BYTES and view.len <= size_max:
        sound = _is_sound(&result._one, <const uint8_t *>view.buf, <size_t>view.len, False, key_needed, timestamp_min,
                          timestamp_max)
    elif view.len <= size_max:
        proven = _is_proven(buffer, &view)
        with nogil:
            sound = _is_sound(&result._one, <const uint8_t *>view.buf, <size_t>view.len, proven, key_needed,
                              timestamp_min, timestamp_max)
    PyBuffer_Release(&view)
    return result if sound and (not is_client or _is_a_clients(&result._one)) else None


cdef bint _is_proven(buffer, const Py_buffer *view):
    """Whether our own encoder has made these very bytes, and nobody else could write to them since (ADR 15)."""
    cdef object proof = getattr(buffer, "proof", None)
    cdef object capsule = proof() if callable(proof) else None
    cdef const ol_proof *found = proof_of(capsule)
    return found is not NULL and ol_is_proven(found, <const uint8_t *>view.buf, <size_t>view.len)


cdef bint _is_sound(ol_header *header, const uint8_t *base, size_t size, bint proven, bint key_needed,
                    int64_t timestamp_min, int64_t timestamp_max) noexcept nogil:
    cdef ol_fault fault
    cdef const uint8_t *payload
    if ol_header_read(header, base, size, 0, not proven, &fault) != OL_OK:
        return False
    if <size_t>header.size != size or not header.crc_ok or header.attributes & OL_ATTR_CODEC:
        return False
    header.crc_ok = 1
    payload, size = base + OL_HEADER_BYTES, size - OL_HEADER_BYTES
    if not proven and ol_records_check(header, payload, size, &fault) != OL_OK:
        return False
    return (_needs_no_look(header, key_needed, timestamp_min, timestamp_max)
            or not ol_records_refused(header, payload, size, key_needed, timestamp_min, timestamp_max, NULL, 0))


cdef inline bint _is_a_clients(const ol_header *header) noexcept:
    """No control records, offsets without gaps, and numbers that go together; admission names what is wrong."""
    if header.attributes & OL_ATTR_CONTROL or header.record_count < 1:
        return False
    if <int64_t>header.record_count != <int64_t>header.last_offset_delta + 1:
        return False
    if header.producer_id < 0:
        return not header.attributes & OL_ATTR_TRANSACTIONAL
    return header.base_sequence >= 0


cdef inline bint _needs_no_look(const ol_header *header, bint key_needed, int64_t timestamp_min,
                                int64_t timestamp_max) noexcept nogil:
    """The batch's own maximum spares the walk where nothing can be refused."""
    return not key_needed and timestamp_min == -INT64_MAX - 1 and header.max_timestamp <= timestamp_max


def check_records(buffer, rows, *, bint key_needed=False, int64_t timestamp_min=-INT64_MAX - 1,
                  int64_t timestamp_max=INT64_MAX, decompress=None, str file=""):
    """Proves every record of the batches; returns [(row, refused record indices)] for what a leader refuses:
    no key where one is needed, a timestamp outside the limits. Raises for what is not sound.
    """
    cdef object held = pin(buffer)
    cdef Py_buffer view
    cdef Py_ssize_t row
    result = []
    hold_rows(rows, HEADER_DTYPE, &view, PyBUF_SIMPLE)
    try:
        for row in range(len(rows)):
            refused = _refused(held, <const ol_header *>view.buf + row, key_needed, timestamp_min, timestamp_max,
                               decompress, file)
            if refused:
                result.append((row, refused))
    finally:
        PyBuffer_Release(&view)
    return result


cdef list _refused(object held, const ol_header *header, bint key_needed, int64_t timestamp_min,
                   int64_t timestamp_max, object decompress, str file):
    """Indices of the records of one batch that a leader refuses."""
    cdef const uint8_t *base = pinned_data(held)
    cdef const uint8_t *payload
    cdef size_t total = pinned_size(held), size
    cdef ol_fault fault
    cdef ol_status status
    cdef int64_t refused
    cdef int32_t bad[REFUSED_MAX]
    if (header.position < 0 or header.size < OL_HEADER_BYTES or <size_t>header.position > total
            or <size_t>header.size > total - <size_t>header.position):
        raise ValueError("a row lies outside the buffer")
    payload, size = base + header.position + OL_HEADER_BYTES, <size_t>header.size - OL_HEADER_BYTES
    opened = None
    if header.attributes & OL_ATTR_CODEC and size:
        opened = decompressed(decompress, header, base, file)
        payload, size = pinned_data(opened), pinned_size(opened)
    with nogil:
        status = ol_records_check(header, payload, size, &fault)
    check(status, &fault, file)
    if _needs_no_look(header, key_needed, timestamp_min, timestamp_max):
        return []
    with nogil:
        refused = ol_records_refused(header, payload, size, key_needed, timestamp_min, timestamp_max, bad, REFUSED_MAX)
    return [bad[index] for index in range(min(refused, <int64_t>REFUSED_MAX))]


def stamp(buffer, Batches batches not None, int64_t next_offset, int32_t leader_epoch):
    """Writes base offsets from ``next_offset`` on and the leader epoch into the batches, in place, and into the rows."""
    _stamp(buffer, batches, next_offset, leader_epoch)


cdef int _stamp(buffer, Batches batches, int64_t next_offset, int32_t leader_epoch) except -1:
    cdef Py_buffer target
    PyObject_GetBuffer(buffer, &target, PyBUF_WRITABLE)
    try:
        return _stamp_bytes(<uint8_t *>target.buf, target.len, batches, next_offset, leader_epoch)
    finally:
        PyBuffer_Release(&target)


cdef int _stamp_bytes(uint8_t *base, Py_ssize_t count, Batches batches, int64_t next_offset,
                      int32_t leader_epoch) except -1:
    cdef Py_ssize_t row
    for row in range(batches._count):
        if batches._rows[row].position < 0 or batches._rows[row].position > count - OL_HEADER_BYTES:
            raise ValueError(f"row {row} lies outside the buffer")
    ol_batches_stamp(base, batches._rows, batches._count, next_offset, leader_epoch)
    return 0


# What an append changes lies in these, so that one native step sees to all of it; who inherits from them does the rest.

@cython.final
cdef class TailLock:
    """threading.RLock without the parsing of arguments, which takes longer than all else of an uncontended lock."""
    cdef PyThread_type_lock _lock
    cdef unsigned long _owner          # the thread that has it; it counts only while somebody does
    cdef long _depth                   # how often its thread has taken it

    def __cinit__(self):
        self._lock = PyThread_allocate_lock()
        if self._lock is NULL:
            raise MemoryError()

    def __dealloc__(self):
        if self._lock is not NULL:
            if self._depth:
                PyThread_release_lock(self._lock)
            PyThread_free_lock(self._lock)

    cdef int _take(self) except -1:
        """Where a person interrupts the wait, it was not taken."""
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef PyLockStatus status
        if self._depth and self._owner == me:
            self._depth += 1
            return 0
        if not PyThread_acquire_lock(self._lock, 0):
            status = PY_LOCK_INTR
            while status == PY_LOCK_INTR:
                with nogil:
                    status = PyThread_acquire_lock_timed(self._lock, -1, 1)
                if status == PY_LOCK_INTR:
                    PyErr_CheckSignals()
        self._owner = me
        self._depth = 1
        return 0

    cdef int _give(self) except -1:
        if not self._depth or self._owner != PyThread_get_thread_ident():
            raise RuntimeError("the lock is not this thread's")
        self._depth -= 1
        if not self._depth:
            PyThread_release_lock(self._lock)
        return 0

    def __enter__(self):
        self._take()

    def __exit__(self, kind, error, trace):
        self._give()


cdef class SegmentTail:
    """The end of a segment that is written."""
    cdef public int64_t base_offset
    cdef public int64_t size
    cdef public IndexTail offset_index
    cdef public IndexTail time_index
    cdef public object disk            # None: this process may change nothing
    cdef public object state           # IndexState; None: it is not written
    cdef public int _descriptor
    cdef public int64_t _torn_end      # how far a failed append may have written past the size
    cdef public bint _is_synced

    cdef int64_t _append(self, uint8_t *base, Py_ssize_t count, data, Batches batch, producers, int64_t next_offset,
                         int32_t leader_epoch, bint is_client, bint bumps_epoch) except? -1:
        """IndexState.append_one() to this file. After an error it is as before, and says what may lie behind."""
        cdef int64_t size = self.size, stable
        if type(self.state) is not IndexState or self.disk is None or self._torn_end or self._descriptor < 0:
            return -1
        try:
            stable = (<IndexState>self.state)._append(base, count, data, batch, producers, next_offset, leader_epoch,
                                                      is_client, bumps_epoch, self.disk.write, self._descriptor, size,
                                                      self.offset_index, self.time_index, self.base_offset)
        except BaseException:
            self._is_synced = False
            self._torn_end = size + <int64_t>batch._bytes()
            raise
        if stable >= 0:
            self._is_synced = False
            self.size = size + <int64_t>batch._bytes()
        return stable


cdef class LogTail:
    """The segments of a log, of which the last one grows, and its end."""
    cdef public tuple segments
    cdef public object known_end       # the offset after the last batch; None: the last segment has to be asked


cdef class ProducersTail:
    """The producers of a log up to an offset, which is its end once all of it was replayed."""
    cdef public object table
    cdef public int64_t next_offset


cdef class PartitionTail:
    """The end of a partition that is written, and what its readers are told of it. A subclass has ``epochs`` and, where
    it is synced, ``_commits``; ``_doubt()`` is called where a write was interrupted anywhere, ``_sync()`` where enough was
    written without one."""
    cdef readonly TailLock lock        # of all that follows
    cdef public LogTail log
    cdef public ProducersTail producers
    cdef public int64_t recovery_point
    cdef public int64_t _flush_messages
    cdef public object _client_rules   # Rules; None: batches have to be looked at one by one
    cdef public object _coordinator_rules
    cdef public object _forks          # counts how often this process was forked off
    cdef public long _writable_in      # at which count one may write; -1: never
    cdef public bint _state_loaded     # the producers are known up to the log's end
    cdef public bint _is_durable       # readers see what is on the device
    cdef public int64_t _stable        # published after each write, once the state is loaded
    cdef public int64_t _marked_end    # markers right behind what is on the device reach up to here
    cdef public object _slot           # where readers in other processes look
    cdef public tuple watchers         # called under the lock after every change of an offset that readers wait for

    def __cinit__(self, *args, **options):
        self.lock = TailLock()

    cdef object _append_small(self, data, int32_t leader_epoch, int64_t now_ms, bint in_transaction, bint bumps_epoch,
                              type answer, pending):
        """Admits a client's batch that is small, where nothing stands before it. None where nothing was done:
        append_as_leader() knows what else to do."""
        cdef Batches batch = None
        cdef int64_t base_offset, end
        if type(self._client_rules) is Rules:
            # What is larger should not be proven twice, should there be more to do.
            batch = (<Rules>self._client_rules)._check(data, now_ms, NOGIL_BYTES - 1)
        if batch is None or bool(batch._one.attributes & OL_ATTR_TRANSACTIONAL) != in_transaction:
            return None
        base_offset = self._append_data(data, batch, leader_epoch, True, bumps_epoch)
        if base_offset < 0:
            return None
        end = batch._next_offset()
        # Past the constructor of a named tuple, which takes longer than the batch's checks.
        return PyTuple_Type.tp_new(answer, ((base_offset, end - 1, -1, False,
                                             None if pending is None else pending(self, end)),), NULL)

    def append_in_transaction(self, data, int32_t leader_epoch, int64_t now_ms, bint bumps_epoch, type answer not None):
        """The same for a batch of an open transaction, whose answer waits for nothing."""
        return self._append_small(data, leader_epoch, now_ms, True, bumps_epoch, answer, None)

    def append_small(self, data, int32_t leader_epoch, int64_t now_ms, bint bumps_epoch):
        """Writes a small batch of a coordinator, where nothing stands before it, as nearly always; returns its base offset.
        -1 where nothing was done: append_as_leader() takes a batch of any kind."""
        cdef Batches batch = None
        if type(self._coordinator_rules) is Rules:
            # What is larger should not be proven twice, should there be more to do.
            batch = (<Rules>self._coordinator_rules)._check(data, now_ms, NOGIL_BYTES - 1)
        return -1 if batch is None else self._append_data(data, batch, leader_epoch, False, bumps_epoch)

    def append_record(self, key, value, int32_t leader_epoch, int64_t now_ms):
        """Writes one small record of a coordinator as a plain batch, where that is all there is to do, as nearly always;
        returns the offset after it. -1 where nothing was done: append_as_leader() takes a batch of any kind."""
        cdef Batches batch
        cdef ol_slice key_bytes, value_bytes
        if type(key) is not bytes or type(value) is not bytes:
            return -1
        key_bytes.data, key_bytes.size = <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        value_bytes.data, value_bytes.size = <const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        batch = _blank(now_ms)
        if self._append_one_record(batch, key_bytes, value_bytes, leader_epoch, True) < 0:
            return -1
        return batch._next_offset()

    def append_commit(self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, int32_t leader_epoch,
                      int64_t now_ms, bint bumps_epoch):
        """The same for the marker that commits a producer's transaction here; returns its offset, or -1."""
        cdef Batches batch = _blank(now_ms)
        cdef uint8_t[4] key = [0, 0, 0, OL_CONTROL_COMMIT]
        cdef uint8_t[6] value
        cdef ol_slice key_bytes, value_bytes
        cdef int at
        value[0] = value[1] = 0  # versions are 0
        for at in range(4):
            value[2 + at] = <uint8_t>(<uint32_t>coordinator_epoch >> (24 - 8 * at) & 255)
        key_bytes.data, key_bytes.size = key, 4
        value_bytes.data, value_bytes.size = value, 6
        batch._one.attributes = OL_ATTR_TRANSACTIONAL | OL_ATTR_CONTROL
        batch._one.producer_id = producer_id
        batch._one.producer_epoch = producer_epoch
        batch._one.control_type = OL_CONTROL_COMMIT
        batch._one.coordinator_epoch = coordinator_epoch
        return self._append_one_record(batch, key_bytes, value_bytes, leader_epoch, bumps_epoch)

    cdef int64_t _append_one_record(self, Batches batch, ol_slice key, ol_slice value, int32_t leader_epoch,
                                    bint bumps_epoch) except? -1:
        cdef uint8_t[ONE_RECORD_BYTES] space
        if (type(self._coordinator_rules) is not Rules or key.size > ONE_RECORD_BYTES
                or value.size > ONE_RECORD_BYTES - OL_ONE_BYTES_MAX - key.size):
            return -1
        ol_encode_one(space, &batch._one, key, value)
        if batch._one.size > (<Rules>self._coordinator_rules)._size_max:
            return -1
        return self._append(space, <Py_ssize_t>batch._one.size, None, batch, leader_epoch, False, bumps_epoch)

    def _append_one(self, data, Batches batch not None, int32_t leader_epoch, bint is_client, bint bumps_epoch):
        """Judges, stamps and writes a batch where that is all there is to do, as nearly always; returns its base offset.
        -1 where nothing was done: then it takes the same steps one by one."""
        return self._append_data(data, batch, leader_epoch, is_client, bumps_epoch)

    cdef int64_t _append_data(self, data, Batches batch, int32_t leader_epoch, bint is_client,
                              bint bumps_epoch) except? -1:
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
        try:
            return self._append(<uint8_t *>view.buf, view.len, data, batch, leader_epoch, is_client, bumps_epoch)
        finally:
            PyBuffer_Release(&view)

    cdef int64_t _append(self, uint8_t *base, Py_ssize_t count, data, Batches batch, int32_t leader_epoch, bint is_client,
                         bint bumps_epoch) except? -1:
        cdef SegmentTail segment
        cdef int64_t base_offset, stable, end
        self.lock._take()
        try:
            segment = self._growing()
            if segment is None or self._slot is None or leader_epoch != (<object>self).epochs.latest:
                return -1
            base_offset = self.producers.next_offset  # the log's end, as the state is loaded
            try:
                stable = segment._append(base, count, data, batch, self.producers.table.handle, base_offset, leader_epoch,
                                         is_client, bumps_epoch)
                if stable < 0:
                    return -1
                end = batch._next_offset()
                self.producers.next_offset = end
                self.log.known_end = end
                self._publish(batch, stable)
            except OSError as error:  # nothing was counted
                raise KafkaStorageError(f"{(<object>self).directory}: {error}") from error
            except BaseException:
                (<object>self)._doubt()
                raise
            if end - self.recovery_point >= self._flush_messages:
                (<object>self)._sync()
            return base_offset
        finally:
            self.lock._give()

    cdef SegmentTail _growing(self):
        """The last segment, where this process may write and knows the state; under the lock."""
        if (self._writable_in != <long>self._forks() or not self._state_loaded or self.log is None
                or self.producers is None or not self.log.segments):
            return None
        return self.log.segments[len(self.log.segments) - 1]

    cdef int _borrowed(self, int64_t offset, int64_t *end) except -2:
        """A descriptor of one's own for the last segment, where nothing else has to go to the device, and the end of the
        log; the segment may be rolled, cut or removed meanwhile. -1 where there is more to do."""
        cdef SegmentTail segment
        self.lock._take()
        try:
            segment = self._growing()
            if segment is None:
                return -1
            end[0] = self.producers.next_offset
            if (end[0] < offset or type(segment.disk) is not Disk or segment._is_synced or segment._descriptor < 0
                    or segment.base_offset >= <int64_t>(<object>self)._commits.end):
                return -1
            return fcntl(segment._descriptor, F_DUPFD_CLOEXEC, 0)
        finally:
            self.lock._give()

    def begin_sync(self, int64_t offset):
        """Takes the turn to sync, for who brings several partitions to the device together; ``end_sync`` and
        ``give_up_sync`` follow. Returns the log's end, descriptors that are the caller's to close, and whether names have
        to reach the device, too. None where ``sync_to`` alone knows what to do: all is there, or another thread is about
        it."""
        cdef int64_t end = 0
        cdef int descriptor
        if type((<object>self)._disk) is not Disk or not (<object>self)._commits.begin(offset):
            return None
        descriptor = self._borrowed(offset, &end)
        return (<object>self)._unsynced(offset) if descriptor < 0 else (end, [descriptor], False)

    def give_up_sync(self):
        """Gives the turn back, if this thread has it."""
        (<object>self)._commits.give_up()

    def _sync_alone(self, int64_t offset):
        """Brings a log to the device that nobody else is syncing, where the last segment is all that has to go there;
        False where nothing was done."""
        cdef int64_t end
        if (type((<object>self)._disk) is not Disk or self._writable_in != <long>self._forks()
                or not (<object>self)._commits.begin(offset)):
            return False
        try:
            end = self._sync_last(offset)
            return end >= 0 and self._finish_sync(end)
        except OSError as error:
            (<object>self)._go_offline(error)  # before the turn is another's, who would not hear of it
            raise KafkaStorageError(f"{(<object>self).directory}: {error}") from error
        finally:
            (<object>self)._commits.give_up()

    cpdef bint _finish_sync(self, int64_t end) except -1:
        """Ends this thread's turn: up to an offset the log is on the device, and readers in other processes hear of it.
        False, and nothing is said, where the partition is offline: a device says once what it has lost, and perhaps has
        said it to somebody who synced under the lock meanwhile."""
        self.lock._take()
        try:
            if (<object>self)._offline is not None:
                return False
            (<object>self)._commits.finish(end)
            if self._slot is not None and self._is_durable:
                self._slot.show_durable(
                    max(<int64_t>(<object>self)._commits.end, self._marked_end), self._stable,
                    self.producers.next_offset if self._state_loaded else (<object>self).log_end_offset)
            return True
        finally:
            self.lock._give()

    cpdef int64_t _sync_last(self, int64_t offset) except? -1:
        """Brings the last segment to the device, where nothing else has to go there, as nearly always; returns up to where
        the log is there then. -1 where nothing was done: then it takes the same steps one by one."""
        cdef int64_t end = 0
        cdef int failed, descriptor = self._borrowed(offset, &end)
        if descriptor < 0:
            return -1
        with nogil:
            failed = _synced(descriptor)
            close(descriptor)
        if failed:
            raise OSError(failed, strerror(failed).decode())
        return end

    cpdef _publish(self, Batches batches, int64_t stable):
        """Batches were written: tells readers in this process and in others how far they may see."""
        cdef int64_t end, shown
        if batches is None:
            raise TypeError("there are no batches to publish")
        self._stable = stable
        if self._slot is not None:
            end = batches._next_offset()
            if self._is_durable:
                # What a power failure leaves. A marker need not be on the device itself: its coordinator's decision
                # is, and is carried out again.
                shown = max(<int64_t>(<object>self)._commits.end, self._marked_end)
                if batches._rows.base_offset <= shown and batches.are_markers:
                    self._marked_end = shown = end
                self._slot.show_durable(shown, stable, end)
            else:
                self._slot.show(end, stable)
        for watcher in self.watchers:
            watcher()


cdef int _synced(int descriptor) noexcept nogil:
    """0 when what was written is on the device, else what the device says: a second try would not know of it."""
    while fdatasync(descriptor) != 0:
        if errno != EINTR:
            return errno
    return 0


cdef class BrokerTail:
    """Where a broker takes in batches. A subclass has ``_produce()``, which knows all that a batch may need, and
    ``_produce_in_transaction()``."""
    cdef public dict _open             # partitions by their keys
    cdef public object now_ms
    cdef public int32_t leader_epoch
    cdef public bint is_synced         # an answer waits for the device
    cdef public frozenset _own_topics  # topics that clients do not write
    cdef public type _answer           # a named tuple: base offset, last offset, log append time, is a repetition, pending
    cdef public object _pending        # of a partition and an offset: what an answer waits for

    def produce(self, key not None, batch, *, int acks=-1, transactional_id=None, int transaction_version=2):
        """Appends one batch, in a writable buffer that is stamped in place.

        A transactional batch joins its transaction by itself in version 2, and must belong to it already in version
        1. It is durable when the transaction is; any other is acknowledged after what ``pending`` stands for.
        """
        cdef PartitionTail partition = self._open.get(key)
        # A named tuple is asked without its slots, which go by way of Python.
        if (partition is not None and PyTuple_Check(key)
                and <object>PyTuple_GET_ITEM(key, 0) not in self._own_topics):
            if transactional_id is not None and _attributes_of(batch) & OL_ATTR_TRANSACTIONAL:
                return self._produce_in_transaction(partition, batch, transactional_id, transaction_version)
            produced = partition._append_small(
                batch, self.leader_epoch, self.now_ms(), False, True, self._answer,
                self._pending if self.is_synced and acks else None)
            if produced is not None:
                return produced
        return self._produce(key, batch, acks, transactional_id, transaction_version)
