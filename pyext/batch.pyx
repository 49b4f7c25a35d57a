# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Record batches (magic 2): encode with attribute flags, scan headers, decode.
Room    wraps csrc/{header,encode,decode,arrow}.c: no files, no clock, no codecs, no policy.
Borrow  inputs are pinned for the call; columns of views keep the pin.
GIL     released over scans, decodes, and encodes of NOGIL_BYTES or more; taken back for a codec call, once a batch.
Fails   with oncelog.base.errors types that name file, position, offset and record; never yields half a record.
Layout  engine/segment/batch.py
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from oncelog_c cimport (
    OL_ATTR_CODEC, OL_BATCH_FULL, OL_COMPRESSED, OL_E_RECORD, OL_HEADER_BYTES, OL_OK, PyBUF_READ, Py_IsInitialized, ArrowArray,
    ArrowArrayStream, ArrowSchema, check, decompressed, fault_error, hold_rows, ol_arrow_array, ol_arrow_bind,
    ol_arrow_header_range, ol_arrow_placed_array, ol_arrow_records, ol_arrow_schema, ol_arrow_timestamps, ol_block, ol_bytes,
    ol_bytes_reserve, ol_column_bytes_hint, ol_column_slices, ol_columns, ol_columns_finish, ol_columns_new,
    ol_columns_release, ol_decode, ol_decode_payload, ol_decoder, ol_encode, ol_encode_close, ol_encoder,
    ol_encoder_free, ol_encoder_init, ol_fault, ol_header, ol_header_read, ol_header_restamp, ol_last_offset,
    ol_place, ol_place_new, ol_place_release, ol_place_room, ol_proof, ol_scan, ol_slice, ol_status, pin, pinned_data,
    pinned_size, proof_capsule,
)

import numpy as np

from oncelog.base.rows import HEADER_DTYPE

cdef enum:
    BLOCK = 512          # records whose slices are gathered at a time: they stay in the first-level cache
    FEW_ROWS = 64        # found without an allocation
    FEW_RECORDS = 16
    NOGIL_BYTES = 4096   # encoded in about the time that another thread takes to get the GIL

assert HEADER_DTYPE.itemsize == sizeof(ol_header)


cdef void _unpin(void *pin) noexcept nogil:
    # Arrow may drop the last reference on any thread, and after the interpreter has gone.
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object>pin)


# ---------------------------------------------------------------- scan

cdef object _scan(object buffer, Py_ssize_t position, int64_t bytes_max, bint check_crc, bint stop_at_bad_crc,
                  size_t *end, ol_status *status, ol_fault *fault):
    cdef object held = pin(buffer)
    cdef const uint8_t *base = pinned_data(held)
    cdef size_t size = pinned_size(held), at = <size_t>position, count = 0, found = 0, capacity = FEW_ROWS, stop
    cdef ol_header few[FEW_ROWS]
    cdef ol_header *rows = few
    cdef ol_header *grown = NULL
    cdef ol_header *moved
    if position < 0 or <size_t>position > size:
        raise ValueError(f"position {position} lies outside the {size} bytes")
    stop = size if bytes_max < 0 or <uint64_t>bytes_max > size - at else at + <size_t>bytes_max
    try:
        while True:
            with nogil:
                status[0] = ol_scan(rows + count, capacity - count, &found, base, size, stop, &at, check_crc,
                                    stop_at_bad_crc, fault)
            count += found
            if status[0] != OL_OK or at >= stop:
                break
            # What is left of the buffer foretells the rows to come.
            capacity = max(capacity * 2, count + count * (stop - at) // (at - <size_t>position) + 16)
            moved = <ol_header *>realloc(grown, capacity * sizeof(ol_header))
            if moved is NULL:
                raise MemoryError()
            if grown is NULL:
                memcpy(moved, few, count * sizeof(ol_header))
            rows = grown = moved
        end[0] = at
        # numpy copies structured rows field by field; a bytearray is copied at once and just as writable.
        return np.frombuffer(PyByteArray_FromStringAndSize(<char *>rows, <Py_ssize_t>(count * sizeof(ol_header))),
                             HEADER_DTYPE)
    finally:
        free(grown)


def scan(buffer, Py_ssize_t position=0, *, bint check_crc=True, str file=""):
    """Headers of all batches from ``position`` to the end of ``buffer``, one row each (HEADER_DTYPE).

    A wrong checksum shows in ``crc_ok`` (1 yes, 0 no, -1 not checked). Raises where a batch is cut off or its
    header cannot be one; scan_prefix returns what lies before that.
    """
    cdef size_t end = 0
    cdef ol_status status = OL_OK
    cdef ol_fault fault
    rows = _scan(buffer, position, -1, check_crc, False, &end, &status, &fault)
    check(status, &fault, file)
    return rows


def scan_prefix(buffer, Py_ssize_t position=0, *, int64_t bytes_max=-1, bint check_crc=True, str file=""):
    """(rows, end, error): the headers of all sound batches from ``position`` on, where they end, and the
    error that ended them (None: the end of the buffer). With ``check_crc`` a wrong checksum ends them, too; with
    ``bytes_max`` the first batch that starts so many bytes further on does, without an error.
    """
    cdef size_t end = 0
    cdef ol_status status = OL_OK
    cdef ol_fault fault
    rows = _scan(buffer, position, bytes_max, check_crc, check_crc, &end, &status, &fault)
    return rows, end, None if status == OL_OK else fault_error(&fault, file)


def span(rows, int64_t lowest, int64_t highest):
    """(first position, end position, first offset, next offset, attributes of all taken together, in order) of header
    rows: one look instead of many at single fields, each of which takes numpy longer than a small batch.

    They are in order if their offsets rise from ``lowest`` on and do not pass ``highest``.
    """
    cdef Py_buffer view
    cdef const ol_header *headers
    cdef Py_ssize_t row, count = len(rows)
    cdef int64_t expected = lowest
    cdef int16_t attributes = 0
    cdef bint in_order = True
    if not count:
        raise ValueError("no rows have no span")
    hold_rows(rows, HEADER_DTYPE, &view, PyBUF_SIMPLE)
    try:
        headers = <const ol_header *>view.buf
        for row in range(count):
            if (headers[row].base_offset < expected or headers[row].last_offset_delta < 0
                    or headers[row].base_offset > highest - headers[row].last_offset_delta):
                in_order = False
                break
            attributes |= headers[row].attributes
            expected = ol_last_offset(headers + row) + 1
        return (headers[0].position, headers[count - 1].position + headers[count - 1].size, headers[0].base_offset,
                expected, attributes, in_order)
    finally:
        PyBuffer_Release(&view)


def restamp(buffer, Py_ssize_t position=0, *, base_offset=None, partition_leader_epoch=None, attributes=None,
            max_timestamp=None, producer_id=None, producer_epoch=None, base_sequence=None, str file=""):
    """Changes header fields of the batch at ``position`` of a writable buffer, in place.

    The checksum is derived from the old one, so the records are not read and damage in them stays detectable.
    The codec bits say how the records are stored and cannot change.
    """
    cdef Py_buffer pin
    cdef ol_header header
    cdef ol_fault fault
    cdef int16_t codec
    PyObject_GetBuffer(buffer, &pin, PyBUF_WRITABLE)
    try:
        if position < 0:
            raise ValueError("position is negative")
        check(ol_header_read(&header, <const uint8_t *>pin.buf, <size_t>pin.len, <size_t>position, False, &fault),
              &fault, file)
        codec = header.attributes & OL_ATTR_CODEC
        if base_offset is not None:
            header.base_offset = base_offset
        if partition_leader_epoch is not None:
            header.partition_leader_epoch = partition_leader_epoch
        if attributes is not None:
            header.attributes = attributes
            if header.attributes & OL_ATTR_CODEC != codec:
                raise ValueError("restamp cannot change the codec: the records would have to be compressed anew")
        if max_timestamp is not None:
            header.max_timestamp = max_timestamp
        if producer_id is not None:
            header.producer_id = producer_id
        if producer_epoch is not None:
            header.producer_epoch = producer_epoch
        if base_sequence is not None:
            header.base_sequence = base_sequence
        ol_header_restamp(<uint8_t *>pin.buf + position, &header)
    finally:
        PyBuffer_Release(&pin)


# ---------------------------------------------------------------- encode

@cython.final
cdef class EncodedBatches:
    """Whole record batches, one after another: a writable buffer of its own memory."""
    cdef ol_bytes _bytes
    cdef ol_proof _proof
    cdef Py_ssize_t _exports
    cdef readonly int64_t batch_count
    cdef readonly int64_t record_count

    def __init__(self):
        raise TypeError("EncodedBatches come from encode()")

    def __dealloc__(self):
        free(self._bytes.data)

    def __len__(self):
        return <Py_ssize_t>self._bytes.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._bytes.data, <Py_ssize_t>self._bytes.size, 0, flags)
        if flags != PyBUF_SIMPLE:  # whoever asks for more than bytes to look at, a memoryview too, may write to them
            self._proof.stands = False
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._exports -= 1

    @property
    def is_shared(self):
        """Whether somebody looks at the bytes, who would see them change if their memory were reused."""
        return self._exports > 0

    def proof(self):
        """That these bytes are as they were encoded, for other native modules; it says so as long as it is true."""
        return proof_capsule(&self._proof, self)

    cdef int _give(self, ol_bytes *taker) except -1:
        """Hands its memory over, and is empty then."""
        if self._exports:
            raise BufferError("batches that somebody looks at cannot be reused")
        taker[0] = self._bytes
        taker.size = 0
        memset(&self._proof, 0, sizeof(ol_proof))
        memset(&self._bytes, 0, sizeof(ol_bytes))
        self._bytes.data = <uint8_t *>malloc(1)  # an empty buffer still has an address
        self.batch_count = self.record_count = 0
        return 0

    def __repr__(self):
        return f"EncodedBatches(batches={self.batch_count}, records={self.record_count}, bytes={self._bytes.size})"


ctypedef struct _Block:
    ol_slice keys[BLOCK]
    ol_slice values[BLOCK]
    int64_t timestamps[BLOCK]
    int64_t header_starts[BLOCK]
    int64_t header_ends[BLOCK]


cdef bint _is_small(const ol_block *block) noexcept:
    """Whether it is encoded in less time than another thread takes to get the GIL: a coordinator's record, a marker."""
    cdef int64_t row, total = 0
    if block.count > FEW_RECORDS or block.header_starts is not NULL:
        return False
    for row in range(block.count):
        total += max(block.values[row].size, 0)
        if block.keys is not NULL:
            total += max(block.keys[row].size, 0)
    return total < NOGIL_BYTES


@cython.final
cdef class Encoder:
    """Builds record batches from Arrow data or Python sequences; splits them by size.

    ``reuse`` are batches that nobody needs any more: the new ones are built in their memory, which the kernel need not
    clear and map again. Not for two threads at once: the GIL is released while it works, so a second caller is refused.
    """
    cdef ol_encoder _state
    cdef object _compress
    cdef bint _busy
    cdef bint _finished
    cdef _Block *_block
    cdef ol_slice *_header_keys
    cdef ol_slice *_header_values
    cdef int64_t _header_capacity

    def __cinit__(self, *, int64_t base_offset=0, int32_t partition_leader_epoch=-1, int16_t attributes=0,
                  int64_t producer_id=-1, int16_t producer_epoch=-1, int32_t base_sequence=-1,
                  int64_t timestamp_ms=-1, int64_t batch_bytes=0x7FFFFFFF, bint one_batch=False,
                  base_timestamp=None, max_timestamp=None, last_offset_delta=None, compress=None,
                  EncodedBatches reuse=None):
        ol_encoder_init(&self._state)
        if base_offset < 0 or base_offset > INT64_MAX >> 1:
            raise ValueError(f"base offset {base_offset} is out of range")
        if batch_bytes < 1:
            raise ValueError(f"batch size {batch_bytes} is out of range")
        if bool(attributes & OL_ATTR_CODEC) != (compress is not None):
            raise ValueError("codec bits and a compress function go together")
        self._state.next.base_offset = base_offset
        self._state.next.partition_leader_epoch = partition_leader_epoch
        self._state.next.attributes = attributes
        self._state.next.producer_id = producer_id
        self._state.next.producer_epoch = producer_epoch
        self._state.next.base_sequence = base_sequence
        self._state.default_timestamp = timestamp_ms
        self._state.batch_bytes_max = min(batch_bytes, 0x7FFFFFFF)
        self._state.one_batch = one_batch
        self._state.compress = compress is not None
        self._compress = compress
        if base_timestamp is not None:
            self._state.next.base_timestamp = base_timestamp
            self._state.fix_base_timestamp = True
        elif one_batch:
            self._state.next.base_timestamp = timestamp_ms
        if max_timestamp is not None:
            self._state.next.max_timestamp = max_timestamp
            self._state.fix_max_timestamp = True
        if last_offset_delta is not None:
            if not one_batch:
                raise ValueError("a last offset delta is of one batch: pass one_batch=True")
            if last_offset_delta < 0:
                raise ValueError(f"last offset delta {last_offset_delta} is negative")
            self._state.next.last_offset_delta = last_offset_delta
            self._state.fix_last_offset_delta = True
        self._block = <_Block *>malloc(sizeof(_Block))
        if self._block is NULL:
            raise MemoryError()
        if reuse is not None:
            reuse._give(&self._state.out)

    def __dealloc__(self):
        ol_encoder_free(&self._state)
        free(self._block)
        free(self._header_keys)
        free(self._header_values)

    cdef int _enter(self) except -1:
        if self._finished:
            raise ValueError("the encoder is finished; make a new one")
        if self._busy:
            raise RuntimeError("the encoder is in use by another thread")
        self._busy = True
        return 0

    cdef int _reserve_headers(self, int64_t count) except -1:
        cdef int64_t capacity
        cdef ol_slice *keys
        cdef ol_slice *values
        if count <= self._header_capacity:
            return 0
        capacity = max(count, self._header_capacity * 2)
        keys = <ol_slice *>realloc(self._header_keys, capacity * sizeof(ol_slice))
        if keys is NULL:
            raise MemoryError()
        self._header_keys = keys
        values = <ol_slice *>realloc(self._header_values, capacity * sizeof(ol_slice))
        if values is NULL:
            raise MemoryError()
        self._header_values = values
        self._header_capacity = capacity
        return 0

    cdef int _close(self) except -1:
        """Closes the open batch, compressed where that is asked for."""
        cdef ol_fault fault
        cdef size_t start = self._state.open_at + OL_HEADER_BYTES, size
        cdef const uint8_t *data
        cdef ol_status status
        memset(&fault, 0, sizeof(fault))
        fault.record = -1
        if self._compress is not None and self._state.open_count:
            packed = self._compress(PyMemoryView_FromMemory(
                <char *>self._state.out.data + start, <Py_ssize_t>(self._state.out.size - start), PyBUF_READ))
            payload = pin(packed)
            data, size = pinned_data(payload), pinned_size(payload)
            with nogil:
                status = ol_encode_close(&self._state, data, size, &fault)
        elif self._state.out.size < NOGIL_BYTES:
            status = ol_encode_close(&self._state, NULL, 0, &fault)
        else:
            with nogil:
                status = ol_encode_close(&self._state, NULL, 0, &fault)
        return check(status, &fault, "")

    cdef int _put(self, ol_block *block, int64_t first) except -1:
        """Encodes one block; ``first`` is the index of its first record among those given."""
        cdef ol_fault fault
        cdef ol_status status
        cdef int64_t done = 0
        cdef bint is_small = _is_small(block)
        while True:
            if is_small:
                status = ol_encode(&self._state, block, &done, &fault)
            else:
                with nogil:
                    status = ol_encode(&self._state, block, &done, &fault)
            if status != OL_BATCH_FULL:
                break
            self._close()
        if status != OL_OK:
            # Nothing of this encoder has left it yet: the place is the record's, not a batch's.
            fault.position = fault.base_offset = -1
            fault.record += <int32_t>first
            check(status, &fault, "")
        return 0

    def add(self, keys, values, timestamps=None, headers=None, offsets=None):
        """Adds records from sequences: bytes or None each; headers are sequences of (str, bytes or None).

        ``keys``, ``timestamps`` (milliseconds), ``headers`` and ``offsets`` may be None.
        """
        # Tuples keep the objects alive while the GIL is released, whatever happens to the caller's lists.
        cdef tuple value_items = tuple(values)
        cdef tuple key_items = None if keys is None else tuple(keys)
        cdef tuple header_items = None if headers is None else tuple(headers)
        cdef Py_ssize_t total = len(value_items), start = 0, count, index
        cdef int64_t[::1] times
        cdef int64_t[::1] numbers
        cdef ol_block block
        cdef list kept
        if key_items is not None and len(key_items) != total:
            raise ValueError(f"{total} values but {len(key_items)} keys")
        if header_items is not None and len(header_items) != total:
            raise ValueError(f"{total} values but {len(header_items)} headers")
        if timestamps is not None:
            times = _int64_column(timestamps, total, "timestamps")
        if offsets is not None:
            numbers = _int64_column(offsets, total, "offsets")
        self._enter()
        try:
            while start < total:
                count = min(total - start, <Py_ssize_t>BLOCK)
                kept = []
                memset(&block, 0, sizeof(block))
                block.count = count
                block.values = self._block.values
                for index in range(count):
                    _slice_of(<object>PyTuple_GET_ITEM(value_items, start + index), &self._block.values[index], kept, "value")
                if key_items is not None:
                    block.keys = self._block.keys
                    for index in range(count):
                        _slice_of(<object>PyTuple_GET_ITEM(key_items, start + index), &self._block.keys[index], kept, "key")
                if timestamps is not None:
                    block.timestamps = &times[start]
                if offsets is not None:
                    block.offsets = &numbers[start]
                if header_items is not None:
                    self._gather_headers(header_items, start, count, kept)
                    block.header_starts = self._block.header_starts
                    block.header_ends = self._block.header_ends
                    block.header_keys = self._header_keys
                    block.header_values = self._header_values
                self._put(&block, start)
                start += count
        finally:
            self._busy = False

    cdef int _gather_headers(self, tuple items, Py_ssize_t start, Py_ssize_t count, list kept) except -1:
        cdef int64_t used = 0
        cdef Py_ssize_t index, size
        cdef const char *text
        for index in range(count):
            self._block.header_starts[index] = used
            pairs = items[start + index]
            if pairs is not None:
                pairs = tuple(pairs)
                kept.append(pairs)
                self._reserve_headers(used + len(pairs))
                for pair in pairs:
                    name, value = pair
                    if isinstance(name, str):
                        kept.append(name)
                        text = PyUnicode_AsUTF8AndSize(name, &size)
                        self._header_keys[used] = ol_slice(<const uint8_t *>text, size)
                    elif isinstance(name, bytes):
                        kept.append(name)
                        self._header_keys[used] = ol_slice(<const uint8_t *>PyBytes_AS_STRING(name),
                                                           PyBytes_GET_SIZE(name))
                    else:
                        raise TypeError(f"a header key is a str, not {type(name).__name__}")
                    kept.append(value)
                    _slice_of(value, &self._header_values[used], kept, "header value")
                    used += 1
            self._block.header_ends[index] = used
        return 0

    def add_chosen(self, data, const int64_t[::1] rows not None):
        """Adds some rows of anything with ``__arrow_c_array__``, in the order of their numbers in ``rows``.

        They are read where they lie, and never gathered in columns of their own. Columns by name: ``value`` and
        ``key``; with timestamps or headers it is refused.
        """
        cdef ArrowArray *array
        cdef ol_arrow_records records
        schema_capsule, array_capsule = data.__arrow_c_array__()
        array = <ArrowArray *>PyCapsule_GetPointer(array_capsule, "arrow_array")
        _bind(&records, <ArrowSchema *>PyCapsule_GetPointer(schema_capsule, "arrow_schema"), array)
        if records.has_timestamp or records.has_headers:
            raise TypeError("rows with timestamps or headers cannot be chosen by number: take them first")
        self._enter()
        try:
            self._add_chosen(&records, rows)
        finally:
            self._busy = False

    cdef int _add_chosen(self, ol_arrow_records *records, const int64_t[::1] rows) except -1:
        cdef ol_block block
        cdef int64_t start = 0, count, index, row, total = rows.shape[0]
        cdef ol_status status = OL_OK
        if not total:
            return 0
        self._reserve_rows(records, total)
        while start < total:
            count = min(total - start, <int64_t>BLOCK)
            memset(&block, 0, sizeof(block))
            block.count = count
            block.values = self._block.values
            if records.has_key:
                block.keys = self._block.keys
            with nogil:
                for index in range(count):
                    row = rows[start + index]
                    if row < 0 or row >= records.length:
                        status = OL_E_RECORD
                        break
                    status = ol_column_slices(&records.value, row, 1, &self._block.values[index])
                    if status == OL_OK and records.has_key:
                        status = ol_column_slices(&records.key, row, 1, &self._block.keys[index])
                    if status != OL_OK:
                        break
            if status == OL_E_RECORD:
                raise IndexError(f"row {row} was chosen of {records.length}")
            if status != OL_OK:
                raise ValueError("the Arrow offsets do not rise")
            self._put(&block, start)
            start += count
        return 0

    cdef int _reserve_rows(self, ol_arrow_records *records, int64_t rows) except -1:
        """Data, about two dozen bytes a record, and a header for every full batch, so that growth is rare."""
        cdef int64_t count = ol_column_bytes_hint(&records.key) + ol_column_bytes_hint(&records.value)
        if rows < records.length:
            count = <int64_t>(<double>count * rows / records.length)
        count += 24 * rows
        count += (count // self._state.batch_bytes_max + 1) * OL_HEADER_BYTES
        if ol_bytes_reserve(&self._state.out, <size_t>count) != OL_OK:
            raise MemoryError()
        return 0

    def add_arrow(self, data, offsets=None):
        """Adds the rows of anything with ``__arrow_c_array__`` or ``__arrow_c_stream__``.

        Columns by name: ``value``; optional ``key``, ``timestamp``, ``headers``. Others are not looked at.
        """
        cdef ArrowArrayStream *stream
        cdef ArrowSchema schema
        cdef ArrowArray array
        cdef int64_t first = 0
        cdef int64_t[::1] numbers = None
        if offsets is not None:
            numbers = _int64_column(offsets, len(offsets), "offsets")
        if hasattr(data, "__arrow_c_array__"):
            schema_capsule, array_capsule = data.__arrow_c_array__()
            self._enter()
            try:
                self._add_array(<ArrowSchema *>PyCapsule_GetPointer(schema_capsule, "arrow_schema"),
                                <ArrowArray *>PyCapsule_GetPointer(array_capsule, "arrow_array"), numbers, 0)
            finally:
                self._busy = False
            return
        if not hasattr(data, "__arrow_c_stream__"):
            raise TypeError(f"{type(data).__name__} offers no Arrow data (__arrow_c_array__ or __arrow_c_stream__)")
        capsule = data.__arrow_c_stream__()
        stream = <ArrowArrayStream *>PyCapsule_GetPointer(capsule, "arrow_array_stream")
        schema.release = NULL
        self._enter()
        try:
            if stream.get_schema(stream, &schema) != 0:
                raise ValueError(_stream_error(stream))
            while True:
                array.release = NULL
                if stream.get_next(stream, &array) != 0:
                    raise ValueError(_stream_error(stream))
                if array.release is NULL:
                    break
                try:
                    self._add_array(&schema, &array, numbers, first)
                    first += array.length
                finally:
                    array.release(&array)
        finally:
            self._busy = False
            if schema.release is not NULL:
                schema.release(&schema)

    cdef int _add_array(self, ArrowSchema *schema, ArrowArray *array, int64_t[::1] offsets, int64_t first) except -1:
        cdef ol_arrow_records records
        cdef ol_block block
        cdef int64_t start = 0, count, header_first = 0, header_items = 0
        cdef ol_status status
        _bind(&records, schema, array)
        if offsets is not None and offsets.shape[0] < first + records.length:
            raise ValueError(f"{first + records.length} rows but {offsets.shape[0]} offsets")
        self._reserve_rows(&records, records.length)
        while start < records.length:
            count = min(records.length - start, <int64_t>BLOCK)
            memset(&block, 0, sizeof(block))
            block.count = count
            block.values = self._block.values
            if records.has_headers:
                status = ol_arrow_header_range(&records, start, count, &header_first, &header_items,
                                               self._block.header_starts, self._block.header_ends)
                if status == OL_E_RECORD:
                    raise ValueError("headers: a header is null; one without a value has a null value")
                if status != OL_OK or header_items < 0:
                    raise ValueError("headers: the list offsets do not rise")
                self._reserve_headers(header_items)
                block.header_starts = self._block.header_starts
                block.header_ends = self._block.header_ends
                block.header_keys = self._header_keys
                block.header_values = self._header_values
            with nogil:
                status = ol_column_slices(&records.value, start, count, self._block.values)
                if status == OL_OK and records.has_key:
                    block.keys = self._block.keys
                    status = ol_column_slices(&records.key, start, count, self._block.keys)
                if status == OL_OK and records.has_timestamp:
                    block.timestamps = self._block.timestamps
                    status = ol_arrow_timestamps(&records, start, count, self._state.default_timestamp,
                                                 self._block.timestamps)
                if status == OL_OK and records.has_headers:
                    status = ol_column_slices(&records.header_key, header_first, header_items, self._header_keys)
                if status == OL_OK and records.has_headers:
                    status = ol_column_slices(&records.header_value, header_first, header_items,
                                              self._header_values)
            if status != OL_OK:
                raise ValueError("the Arrow offsets do not rise, or a timestamp does not fit milliseconds")
            if offsets is not None:
                block.offsets = &offsets[first + start]
            self._put(&block, first + start)
            start += count
        return 0

    @property
    def nbytes(self):
        """Bytes so far, the open batch before compression included."""
        return self._state.out.size

    def finish(self):
        """Closes the open batch and hands over all that was built."""
        cdef EncodedBatches result
        self._enter()
        try:
            self._close()
            result = EncodedBatches.__new__(EncodedBatches)
            result._bytes = self._state.out
            result.batch_count = self._state.batch_count
            result.record_count = self._state.record_count
            # What a codec made of the records is nobody's word but the codec's.
            result._proof.data = result._bytes.data
            result._proof.size = result._bytes.size
            result._proof.stands = self._compress is None
            memset(&self._state.out, 0, sizeof(ol_bytes))
            self._finished = True
        finally:
            self._busy = False
        if result._bytes.data is NULL:
            result._bytes.data = <uint8_t *>malloc(1)  # an empty buffer still has an address
        return result


cdef int _bind(ol_arrow_records *records, ArrowSchema *schema, ArrowArray *array) except -1:
    cdef ol_fault fault
    cdef const char *column = NULL
    if ol_arrow_bind(records, schema, array, &column, &fault) != OL_OK:
        raise TypeError(f"column {column.decode()!r}: {fault.what.decode()}" if column[0] else fault.what.decode())
    return 0


cdef inline int _slice_of(object item, ol_slice *out, list kept, str what) except -1:
    if PyBytes_CheckExact(item):
        out.data = <const uint8_t *>PyBytes_AS_STRING(item)
        out.size = PyBytes_GET_SIZE(item)
        return 0
    return _slice_of_other(item, out, kept, what)


cdef int _slice_of_other(object item, ol_slice *out, list kept, str what) except -1:
    if item is None:
        out.data = NULL
        out.size = -1
        return 0
    if isinstance(item, str):
        raise TypeError(f"a {what} is bytes, not str: encode it first, for example with .encode()")
    if isinstance(item, int):
        raise TypeError(f"a {what} is bytes, not int")
    try:
        copied = memoryview(item).tobytes()  # bytes() would take any sequence of small numbers
    except TypeError:
        raise TypeError(f"a {what} is bytes, not {type(item).__name__}") from None
    kept.append(copied)
    out.data = <const uint8_t *>PyBytes_AS_STRING(copied)
    out.size = PyBytes_GET_SIZE(copied)
    return 0


cdef object _int64_column(object items, Py_ssize_t count, str what):
    cdef int64_t[::1] numbers
    cdef Py_ssize_t index
    if isinstance(items, (list, tuple)):
        # numpy looks at each object three times to find a type; we know it.
        items = tuple(items)
        if len(items) == count:
            column = np.empty(count, np.int64)
            if count:
                numbers = column
                for index in range(count):
                    numbers[index] = <object>PyTuple_GET_ITEM(items, index)
            return column
    column = np.ascontiguousarray(items, dtype=np.int64)
    if column.ndim != 1 or column.shape[0] != count:
        raise ValueError(f"{count} values but {column.size} {what}")
    if not column.flags.writeable:  # typed views ask for writable memory
        column = column.copy()
    return column


cdef str _stream_error(ArrowArrayStream *stream):
    cdef const char *text = stream.get_last_error(stream)
    return "the Arrow stream failed" if text is NULL else text.decode(errors="replace")


# ---------------------------------------------------------------- decode to columns

cdef void _release_schema(object capsule) noexcept:
    cdef ArrowSchema *schema = <ArrowSchema *>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release is not NULL:
        schema.release(schema)
    free(schema)


cdef void _release_array(object capsule) noexcept:
    cdef ArrowArray *array = <ArrowArray *>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release is not NULL:
        array.release(array)
    free(array)


cdef object _schema_capsule(bint views):
    cdef ArrowSchema *schema = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
    if schema is NULL or ol_arrow_schema(schema, views) != OL_OK:
        free(schema)
        raise MemoryError()
    return PyCapsule_New(schema, "arrow_schema", _release_schema)


@cython.final
cdef class RecordColumns:
    """Decoded records as Arrow columns: offset, timestamp, timestamp_type, key, value, headers."""
    cdef ol_columns *_columns
    cdef ArrowArray _exported
    cdef readonly bint views
    cdef readonly int64_t next_batch  # batches visited: where to go on

    def __init__(self):
        raise TypeError("RecordColumns come from decode()")

    def __dealloc__(self):
        if self._exported.release is not NULL:
            self._exported.release(&self._exported)
        ol_columns_release(self._columns)

    def __len__(self):
        return <Py_ssize_t>self._columns.count

    @property
    def data_bytes(self):
        """Bytes of keys, values and headers that these columns hold themselves."""
        return (self._columns.key.data.size + self._columns.value.data.size + self._columns.header_key.data.size
                + self._columns.header_value.data.size)

    @property
    def offsets(self):
        return self._int64(self._columns.offsets)

    def offset_at(self, int64_t row):
        """The offset of one record: for who needs no array of them."""
        if not 0 <= row < self._columns.count:
            raise IndexError(f"row {row} of {self._columns.count}")
        return self._columns.offsets[row]

    @property
    def timestamps(self):
        return self._int64(self._columns.timestamps)

    cdef object _int64(self, int64_t *values):
        holder = _Int64Buffer()
        (<_Int64Buffer>holder).owner = self
        (<_Int64Buffer>holder).values = values
        (<_Int64Buffer>holder).count = self._columns.count
        return np.frombuffer(holder, dtype=np.int64)

    def __arrow_c_schema__(self):
        return _schema_capsule(self.views)

    def __arrow_c_array__(self, requested_schema=None):
        # Both forms are plain Arrow; a consumer that wants another type casts, as the protocol allows.
        cdef ArrowArray *array = <ArrowArray *>calloc(1, sizeof(ArrowArray))
        if array is NULL or ol_arrow_array(array, self._columns) != OL_OK:
            free(array)
            raise MemoryError()
        return _schema_capsule(self.views), PyCapsule_New(array, "arrow_array", _release_array)

    def _arrow_array_address(self, Place place=None):
        """Address of a fresh struct ArrowArray, for an importer that has the schema already; with a ``place``,
        its topic and partition are the first two columns.

        Valid until the next call; the importer moves its content out, as the C data interface says.
        """
        cdef ol_status status
        if self._exported.release is not NULL:
            self._exported.release(&self._exported)
        if place is None:
            status = ol_arrow_array(&self._exported, self._columns)
        else:
            status = ol_arrow_placed_array(&self._exported, self._columns, place._reach(self._columns.count))
        if status != OL_OK:
            raise MemoryError()
        return <size_t>&self._exported


@cython.final
cdef class Place:
    """A topic and a partition as the columns that stand before those of the records, all rows alike.

    They are made once, for as many rows as the longest columns had so far, and shared by all record batches.
    """
    cdef ol_place *_place
    cdef readonly bytes topic
    cdef readonly int32_t partition

    def __cinit__(self, str topic not None, int32_t partition):
        self.topic = topic.encode()
        self.partition = partition

    def __dealloc__(self):
        ol_place_release(self._place)

    cdef ol_place *_reach(self, int64_t count) except NULL:
        """Room for so many rows; arrays that share what there was before keep it."""
        cdef ol_place *longer
        if self._place is NULL or ol_place_room(self._place) < count:
            longer = ol_place_new(self.topic, <size_t>len(self.topic), self.partition, count + count // 2)
            if longer is NULL:
                raise MemoryError()
            ol_place_release(self._place)
            self._place = longer
        return self._place


@cython.final
cdef class _Int64Buffer:
    """A column of int64 as a read-only buffer that keeps its owner alive."""
    cdef object owner
    cdef int64_t *values
    cdef int64_t count

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.values, <Py_ssize_t>(self.count * sizeof(int64_t)), 1, flags)


def arrow_schema(bint views=False):
    """Capsule with the schema of RecordColumns."""
    return _schema_capsule(views)


def decode(buffer, positions, *, visible=None, int64_t start_offset=0, int64_t end_offset=INT64_MAX,
           bint views=False, bint check_crc=True, bint include_control=False, bint create_time=False,
           int64_t bytes_max=1 << 30, decompress=None, str file=""):
    """Records of the batches at ``positions`` as columns, in one pass.

    ``visible`` masks batches; records outside [start_offset, end_offset) are left out, control batches too
    unless included. Stops after the batch that takes the decoded bytes to ``bytes_max``; ``next_batch`` of the
    result tells how many positions were visited. ``views``: keys and values are views of ``buffer`` where the
    batch is not compressed. ``create_time`` shows the producer's timestamps also where the log stamped its own.
    ``decompress(codec, payload)`` returns the records of a compressed batch.
    """
    cdef object held = pin(buffer)
    cdef ol_decoder decoder
    cdef ol_fault fault
    cdef ol_status status
    cdef const uint8_t *data
    cdef size_t size
    cdef const int64_t[::1] places = np.ascontiguousarray(positions, dtype=np.int64)
    cdef const uint8_t[::1] mask
    cdef RecordColumns result = RecordColumns.__new__(RecordColumns)
    if bytes_max < 1:
        raise ValueError(f"bytes_max is {bytes_max}: no batch would ever be decoded")
    memset(&decoder, 0, sizeof(decoder))
    decoder.base = pinned_data(held)
    decoder.size = pinned_size(held)
    decoder.batch_count = places.shape[0]
    if decoder.batch_count:
        decoder.positions = &places[0]
    if visible is not None:
        mask = np.ascontiguousarray(visible, dtype=np.bool_).view(np.uint8)
        if mask.shape[0] != places.shape[0]:
            raise ValueError(f"{places.shape[0]} batches but a mask of {mask.shape[0]}")
        if decoder.batch_count:
            decoder.visible = &mask[0]
    decoder.start_offset = start_offset
    decoder.end_offset = end_offset
    decoder.bytes_max = bytes_max
    decoder.check_crc = check_crc
    decoder.include_control = include_control
    decoder.create_time = create_time
    result.views = views
    result._columns = ol_columns_new(views)
    if result._columns is NULL:
        raise MemoryError()
    while True:
        with nogil:
            status = ol_decode(&decoder, result._columns, &fault)
        if status != OL_COMPRESSED:
            break
        payload = decompressed(decompress, &decoder.header, decoder.base, file)
        data, size = pinned_data(payload), pinned_size(payload)
        with nogil:
            status = ol_decode_payload(&decoder, result._columns, data, size, &fault)
        payload = None
        if status != OL_OK:
            break
    check(status, &fault, file)
    if not ol_columns_finish(result._columns):
        raise MemoryError()
    if views:
        Py_INCREF(held)
        result._columns.pin = <void *>held
        result._columns.unpin = _unpin
    result.next_batch = decoder.next
    return result
