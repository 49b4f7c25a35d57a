# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Records as Python values, one by one or many at a time.
Room    wraps the record readers of csrc/decode.c: no files, no codecs, no policy.
Borrow  an iterator pins its buffer; records are copies and outlive it.
GIL     released while a batch is proven sound; held while its records become objects.
Fails   with oncelog.base.errors types; a batch is proven whole before its first record is given out.
Layout  engine/segment/batch.py
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy
from oncelog_c cimport (
    OL_ATTR_LOG_APPEND_TIME, OL_COMPRESSED, OL_HEADER_BYTES, OL_OK, OL_SKIPPED, check, decompressed, ol_batch_open,
    ol_batch_prove, ol_fault, ol_header, ol_record, ol_record_header_next, ol_record_next, ol_records_check, ol_slice,
    ol_status, pin, pinned_data, pinned_size,
)

import numpy as np

cdef enum:
    VIEW_BYTES = 16


@cython.final
@cython.no_gc  # it refers to bytes and text alone, so that no cycle can pass through it, and a list of many is no
@cython.freelist(512)  # work for the collector
cdef class Record:
    """One record as Python values; headers are (str, bytes or None) pairs."""
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly int timestamp_type
    cdef readonly bytes key
    cdef readonly bytes value
    cdef readonly tuple headers

    def __init__(self, int64_t offset, int64_t timestamp, bytes key, bytes value, headers=(), *, int timestamp_type=0,
                 str topic=None, int32_t partition=-1):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = tuple(headers)

    cdef tuple _fields(self):
        return (self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type, self.key, self.value,
                self.headers)

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self._fields() == (<Record>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __reduce__(self):
        return _record_from, self._fields()

    def __repr__(self):
        place = "" if self.topic is None else f"topic={self.topic!r}, partition={self.partition}, "
        return (f"Record({place}offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, "
                f"value={self.value!r}, headers={self.headers!r})")


def _record_from(topic, partition, offset, timestamp, timestamp_type, key, value, headers):
    return Record(offset, timestamp, key, value, headers, timestamp_type=timestamp_type, topic=topic,
                  partition=partition)


def content_bytes(list records not None):
    """How many bytes of keys and values some records have."""
    cdef int64_t total = 0
    cdef Record record
    for one in records:
        record = <Record?>one
        if record.key is not None:
            total += len(record.key)
        if record.value is not None:
            total += len(record.value)
    return total


def viewed_bytes(views, int64_t start, int64_t count):
    """How many bytes so many of Arrow's binary views speak of, from one on: each begins with its length, 0 for a null."""
    cdef object held = pin(views)
    cdef const uint8_t *data = pinned_data(held)
    cdef int64_t whole = <int64_t>(pinned_size(held) // VIEW_BYTES), row, total = 0
    cdef int32_t size
    if not (0 <= start <= whole and 0 <= count <= whole - start):
        raise ValueError(f"{count} views from {start} on, where there are {whole}")
    with nogil:
        for row in range(start, start + count):
            memcpy(&size, data + VIEW_BYTES * row, sizeof(size))
            total += size
    return total


cdef inline object _bytes_or_none(const ol_slice *slice):
    if slice.size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char *>slice.data, <Py_ssize_t>slice.size)


cdef tuple _headers_of(ol_record *record):
    cdef list pairs = []
    cdef ol_slice key, value
    cdef int32_t index
    for index in range(record.header_count):
        if ol_record_header_next(record, &key, &value) != OL_OK:
            raise AssertionError("a checked record has unreadable headers")
        pairs.append((PyUnicode_DecodeUTF8(<const char *>key.data, <Py_ssize_t>key.size, "replace"),
                      _bytes_or_none(&value)))
    return tuple(pairs)


@cython.final
cdef class RecordIterator:
    """Records of batches one by one, each batch opened and proven sound when it is reached."""
    cdef object _held           # pins the buffer
    cdef object _payload        # pins the decompressed records; None: they lie in the buffer
    cdef const int64_t[::1] _positions
    cdef const uint8_t[::1] _visible
    cdef bint _masked
    cdef bint _check_crc
    cdef bint _include_control
    cdef int64_t _start_offset
    cdef int64_t _end_offset
    cdef object _decompress
    cdef str _file
    cdef str _topic
    cdef int32_t _partition
    cdef Py_ssize_t _next       # row of positions that is opened next
    cdef ol_header _header
    cdef const uint8_t *_records
    cdef size_t _size
    cdef size_t _at
    cdef bint _busy             # a batch is being opened, perhaps without the GIL

    def __init__(self, buffer, positions, *, visible=None, int64_t start_offset=0, int64_t end_offset=INT64_MAX,
                 bint check_crc=True, bint include_control=False, decompress=None, str file="", str topic=None,
                 int32_t partition=-1):
        self._positions = np.ascontiguousarray(positions, dtype=np.int64)
        self._masked = visible is not None
        if visible is not None:
            self._visible = np.ascontiguousarray(visible, dtype=np.bool_).view(np.uint8)
            if self._visible.shape[0] != self._positions.shape[0]:
                raise ValueError(f"{self._positions.shape[0]} batches but a mask of {self._visible.shape[0]}")
        self._held = pin(buffer)
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._check_crc = check_crc
        self._include_control = include_control
        self._decompress = decompress
        self._file = file
        self._topic = topic
        self._partition = partition

    def __iter__(self):
        return self

    def __next__(self):
        cdef Record record = self._next_record()
        if record is None:
            raise StopIteration
        return record

    def take(self, Py_ssize_t count):
        """The next records, ``count`` at most; none at all once they have come to their end.

        Records before a batch that cannot be read are given out first. The next call raises, and so does every one
        after it.
        """
        cdef list taken = []
        cdef Record record
        try:
            while count > 0:
                record = self._next_record()
                if record is None:
                    break
                taken.append(record)
                count -= 1
        except Exception:
            if not taken:
                raise
        return taken

    @property
    def is_done(self):
        """Nothing is left to be given out; batches that are masked do not count."""
        cdef ol_fault fault
        while (self._at >= self._size and self._masked and self._next < self._positions.shape[0]
               and not self._visible[self._next]):
            if self._pass_by(&fault) != OL_OK:
                return False  # the next record that is asked for is the error
        return self._at >= self._size and self._next >= self._positions.shape[0]

    cdef Record _next_record(self):
        """The next record, or None."""
        cdef ol_record fields
        cdef Record record
        cdef object payload
        while True:
            while self._at >= self._size:
                if self._busy:
                    raise RuntimeError("the iterator is in use by another thread")
                if self._next >= self._positions.shape[0]:
                    return None
                self._busy = True
                try:
                    self._open_next()
                finally:
                    self._busy = False
            if ol_record_next(&fields, &self._header, self._records, self._size, &self._at) != OL_OK:
                raise AssertionError("a checked batch has an unreadable record")
            if self._start_offset <= fields.offset < self._end_offset:
                break
        # The collector may run foreign code at any allocation below: the bytes stay until they are copied.
        payload = self._payload
        record = Record.__new__(Record)
        record.topic = self._topic
        record.partition = self._partition
        record.offset = fields.offset
        record.timestamp = fields.timestamp
        record.timestamp_type = 1 if self._header.attributes & OL_ATTR_LOG_APPEND_TIME else 0
        record.key = _bytes_or_none(&fields.key)
        record.value = _bytes_or_none(&fields.value)
        record.headers = _headers_of(&fields) if fields.header_count else ()
        return record

    cdef ol_status _pass_by(self, ol_fault *fault):
        """Goes past a batch that is masked. It is proven all the same: its own header is what hides it."""
        cdef ol_header header
        cdef ol_status status = OL_OK
        if self._check_crc:
            status = ol_batch_prove(&header, pinned_data(self._held), pinned_size(self._held),
                                    self._positions[self._next], self._start_offset, self._end_offset, True, fault)
        if status == OL_OK or status == OL_SKIPPED:
            self._next += 1
            return OL_OK
        return status

    cdef int _open_next(self) except -1:
        """Opens the next batch, or passes by it where it is not wanted."""
        cdef ol_fault fault
        cdef ol_status status
        cdef const uint8_t *base = pinned_data(self._held)
        cdef const uint8_t *records
        cdef size_t size = pinned_size(self._held)
        self._payload = None
        self._size = self._at = 0
        if self._masked and not self._visible[self._next]:
            check(self._pass_by(&fault), &fault, self._file)
            return 0
        with nogil:
            status = ol_batch_open(&self._header, base, size, self._positions[self._next],
                                   self._start_offset, self._end_offset, self._check_crc, self._include_control,
                                   &fault)
        if status == OL_SKIPPED:
            self._next += 1
            return 0
        records = base + self._header.position + OL_HEADER_BYTES
        size = <size_t>self._header.size - OL_HEADER_BYTES
        if status == OL_COMPRESSED:
            self._payload = decompressed(self._decompress, &self._header, base, self._file)
            records, size = pinned_data(self._payload), pinned_size(self._payload)
        else:
            check(status, &fault, self._file)
        with nogil:
            status = ol_records_check(&self._header, records, size, &fault)
        check(status, &fault, self._file)
        self._records, self._size = records, size
        self._next += 1
        return 0
