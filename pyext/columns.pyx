# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Columns whose values are record batches, and rows of many partitions that are judged by column.
Room    wraps csrc/visible.c, and csrc/header.c for the values of an Arrow column.
Borrow  columns are held for the call; nothing of them is copied.
GIL     released over the rows, and taken back only to look at Python strings.
Fails   with TypeError for a column of another type; what is wrong with a value is returned, so that the caller, who
        knows where it came from, can say so.
"""
cimport cython
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, realloc
from oncelog_c cimport (
    OL_COLUMN_BINARY, OL_COLUMN_LARGE_BINARY, OL_COLUMN_NULL, OL_E_ARGUMENT, OL_E_MEMORY, OL_OK,
    ArrowArray, ArrowSchema, fault_error, ol_aborted, ol_aborted_index, ol_arrow_binary, ol_arrow_integers,
    ol_column, ol_column_slices, ol_fault, ol_header, ol_integers, ol_places, ol_scan, ol_slice, ol_status, ol_visible,
)

import numpy as np

from oncelog.base.rows import ABORTED_DTYPE, HEADER_DTYPE

assert ABORTED_DTYPE.itemsize == sizeof(ol_aborted)
assert HEADER_DTYPE.itemsize == sizeof(ol_header)

cdef enum:
    BLOCK = 512  # slices that are looked at together, and stay in the first-level cache
    FEW_ROWS = 16

cdef struct Headers:
    # Growing rows, and of each the value that it lies in and where that one starts.
    ol_header *rows
    int64_t *values
    int64_t *starts
    size_t count
    size_t capacity


# ---------------------------------------------------------------- values that are batches

cdef object _bind_binary(object values, ol_column *column):
    """Binds an Arrow array of binary values; the result keeps it alive."""
    schema, array = values.__arrow_c_array__()
    if not ol_arrow_binary(column, <ArrowSchema *>PyCapsule_GetPointer(schema, "arrow_schema"),
                           <ArrowArray *>PyCapsule_GetPointer(array, "arrow_array")) or column.kind not in (
            OL_COLUMN_BINARY, OL_COLUMN_LARGE_BINARY, OL_COLUMN_NULL):
        raise TypeError(f"a column of record batches is binary or large_binary, not {values.type}")
    return schema, array


cdef ol_status _grow(Headers *headers) noexcept nogil:
    cdef size_t capacity = max(headers.capacity * 2, <size_t>FEW_ROWS)
    cdef void *moved = realloc(headers.rows, capacity * sizeof(ol_header))
    if moved is NULL:
        return OL_E_MEMORY
    headers.rows = <ol_header *>moved
    moved = realloc(headers.values, capacity * sizeof(int64_t))
    if moved is NULL:
        return OL_E_MEMORY
    headers.values = <int64_t *>moved
    moved = realloc(headers.starts, capacity * sizeof(int64_t))
    if moved is NULL:
        return OL_E_MEMORY
    headers.starts = <int64_t *>moved
    headers.capacity = capacity
    return OL_OK


cdef ol_status _scan_value(Headers *headers, const ol_slice *value, int64_t index, int64_t start, bint check_crc,
                           ol_fault *fault) noexcept nogil:
    """Adds the headers of all batches of one value."""
    cdef size_t position = 0, found = 0, row
    cdef ol_status status = OL_OK
    while status == OL_OK and position < <size_t>value.size:
        if headers.count == headers.capacity:
            status = _grow(headers)
            if status != OL_OK:
                return status
        status = ol_scan(headers.rows + headers.count, headers.capacity - headers.count, &found, value.data,
                         <size_t>value.size, <size_t>value.size, &position, check_crc, False, fault)
        for row in range(headers.count, headers.count + found):
            headers.values[row] = index
            headers.starts[row] = start
        headers.count += found
    return status


def scan_column(values, *, bint check_crc=True):
    """(rows, values, starts, (error, value) or None): headers of all batches of a column of binary values.

    ``rows`` (HEADER_DTYPE) have positions in their values; ``values`` tells in which row of the column each lies and
    ``starts`` where that value begins in the column's data. Null values have no batches. A scan ends at the first
    value that is not made of whole batches, with the error and the number of that value.
    """
    cdef ol_column column
    cdef ol_slice slices[BLOCK]
    cdef ol_fault fault
    cdef ol_status status = OL_OK
    cdef Headers headers
    cdef int64_t start = 0, count, index = 0
    held = _bind_binary(values, &column)
    headers.rows = NULL
    headers.values = headers.starts = NULL
    headers.count = headers.capacity = 0
    try:
        with nogil:
            while start < column.length and status == OL_OK:
                count = min(column.length - start, <int64_t>BLOCK)
                fault.what = b"the Arrow offsets do not rise"
                fault.status = status = ol_column_slices(&column, start, count, slices)
                index = 0
                while index < count and status == OL_OK:
                    if slices[index].size > 0:
                        status = _scan_value(&headers, slices + index, start + index, slices[index].data - column.data,
                                             check_crc, &fault)
                    index += 1
                start += count
        if status == OL_E_MEMORY:
            raise MemoryError()
        if status == OL_E_ARGUMENT:
            raise ValueError("the Arrow offsets of the column do not rise")
        error = None if status == OL_OK else (fault_error(&fault, ""), start - count + index - 1)
        return (_copied(headers.rows, headers.count, HEADER_DTYPE), _copied(headers.values, headers.count, np.int64),
                _copied(headers.starts, headers.count, np.int64), error)
    finally:
        free(headers.rows)
        free(headers.values)
        free(headers.starts)


cdef object _copied(void *rows, size_t count, object dtype):
    # A bytearray is copied at once, where numpy would go field by field.
    if not count:
        return np.empty(0, dtype)
    size = <Py_ssize_t>(count * <size_t>np.dtype(dtype).itemsize)
    return np.frombuffer(PyByteArray_FromStringAndSize(<char *>rows, size), dtype)


def crc_ok_column(values):
    """(mask, nulls): which values are whole batches with right checksums, and which are null."""
    cdef ol_column column
    cdef ol_slice slices[BLOCK]
    cdef int64_t start = 0, count, index
    cdef ol_status status = OL_OK
    cdef uint8_t[::1] sound, null
    held = _bind_binary(values, &column)
    mask, nulls = np.zeros(column.length, np.bool_), np.zeros(column.length, np.bool_)
    sound, null = mask.view(np.uint8), nulls.view(np.uint8)
    with nogil:
        while start < column.length and status == OL_OK:
            count = min(column.length - start, <int64_t>BLOCK)
            status = ol_column_slices(&column, start, count, slices)
            if status == OL_OK:
                for index in range(count):
                    null[start + index] = slices[index].size < 0
                    sound[start + index] = slices[index].size >= 0 and _is_sound(slices + index)
            start += count
    if status != OL_OK:
        raise ValueError("the Arrow offsets of the column do not rise")
    return mask, nulls


cdef bint _is_sound(const ol_slice *value) noexcept nogil:
    cdef ol_header rows[FEW_ROWS]
    cdef ol_fault fault
    cdef size_t position = 0, found = 0
    while position < <size_t>value.size:
        if ol_scan(rows, FEW_ROWS, &found, value.data, <size_t>value.size, <size_t>value.size, &position, True, True,
                   &fault) != OL_OK:
            return False
    return True


# ---------------------------------------------------------------- rows of many partitions

cdef object _bind_integers(object values, int64_t count, str name, ol_integers *column):
    """Binds an Arrow array or a numpy array of integers; the result keeps it alive."""
    if hasattr(values, "__arrow_c_array__"):
        held = values.__arrow_c_array__()
        if not ol_arrow_integers(column, <ArrowSchema *>PyCapsule_GetPointer(held[0], "arrow_schema"),
                                 <ArrowArray *>PyCapsule_GetPointer(held[1], "arrow_array")):
            raise TypeError(f"{name}: signed integers are needed, not {values.type}")
    else:
        held = _numpy_integers(np.asarray(values), name, column)
    if column.length != count:
        raise ValueError(f"{name}: {column.length} rows, where others have {count}")
    return held


cdef object _numpy_integers(object values, str name, ol_integers *column):
    cdef const uint8_t[::1] seen
    bits = None
    column.validity = NULL
    if values.dtype.kind == "f":  # pandas has no null integer, and makes them floats
        valid = ~np.isnan(values)
        values = np.where(valid, values, 0).astype(np.int64)
        bits = np.append(np.packbits(valid, bitorder="little"), np.uint8(0))
        seen = bits
        column.validity = &seen[0]
    if values.dtype.kind != "i" or values.ndim != 1:
        raise TypeError(f"{name}: signed integers are needed, not {values.dtype}")
    values = np.ascontiguousarray(values)
    column.values = <const void *><size_t>values.ctypes.data
    column.offset = 0
    column.length = values.shape[0]
    column.width = <int32_t>values.dtype.itemsize
    return values, bits


@cython.final
cdef class AbortedIndex:
    """Aborted transactions of many partitions, and how far each partition is stable; small to pickle.

    ``partitions`` are (topic, partition) in any order, ``stable`` their last stable offsets (None: not known, and
    partitions that are not named have no aborted transactions), ``places`` and ``aborted`` (ABORTED_DTYPE) the
    transactions and which of the partitions they belong to.
    """
    cdef readonly tuple partitions  # sorted by the bytes of their topics
    cdef object _stable
    cdef object _aborted
    cdef object _starts
    cdef object _numbers
    cdef readonly bint is_complete  # it speaks of every partition there is
    cdef list _names
    cdef ol_slice *_topics
    cdef ol_aborted_index _index

    def __cinit__(self, partitions, stable, places, aborted):
        cdef Py_ssize_t place, size = 0
        keyed = [((<str>topic).encode(), int(number)) for topic, number in partitions]
        order = sorted(range(len(keyed)), key=keyed.__getitem__)
        if len(set(keyed)) != len(keyed):
            raise ValueError("a partition is named twice")
        self._names = [keyed[place][0] for place in order]
        self.partitions = tuple((name.decode(), keyed[old][1]) for name, old in zip(self._names, order))
        self._numbers = np.array([keyed[place][1] for place in order], np.int32)
        self.is_complete = stable is not None
        given = np.full(len(order), INT64_MAX, np.int64) if stable is None else np.asarray(stable, np.int64)
        self._stable = np.ascontiguousarray(given[order]) if len(order) else np.empty(0, np.int64)
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        moved, self._aborted = _sorted(ranks[np.asarray(places, np.int64)], aborted)
        self._starts = np.searchsorted(moved, np.arange(len(order) + 1)).astype(np.int64)
        self._topics = <ol_slice *>calloc(max(len(order), 1), sizeof(ol_slice))
        if self._topics is NULL:
            raise MemoryError()
        for place in range(len(order)):
            self._topics[place].data = self._names[place]
            self._topics[place].size = len(self._names[place])
        self._point()

    cdef int _point(self) except -1:
        self._index.topics = self._topics
        self._index.numbers = <const int32_t *><size_t>self._numbers.ctypes.data
        self._index.stable = <const int64_t *><size_t>self._stable.ctypes.data
        self._index.starts = <const int64_t *><size_t>self._starts.ctypes.data
        self._index.aborted = <const ol_aborted *><size_t>self._aborted.ctypes.data
        self._index.place_count = len(self._names)
        return 0

    def __dealloc__(self):
        free(self._topics)

    def __len__(self):
        return len(self._aborted)

    def __repr__(self):
        return f"AbortedIndex({len(self.partitions)} partitions, {len(self)} aborted transactions)"

    def __reduce__(self):
        places = np.repeat(np.arange(len(self.partitions)), np.diff(self._starts))
        return AbortedIndex, (self.partitions, self._stable if self.is_complete else None, places, self._aborted)

    def last_stable_offset(self, str topic, int partition):
        """Where a partition's stable part ends; None where that is not known."""
        if not self.is_complete:
            return None
        return int(self._stable[self.partitions.index((topic, partition))])

    def places(self, topics, partitions):
        """Which partition each row belongs to (int32): its number in ``partitions``, -1 unknown, -2 null.

        Topics are an Arrow array of strings or a numpy array of str and None.
        """
        cdef ol_integers numbers
        cdef ol_column column
        cdef ol_slice slices[BLOCK]
        cdef int64_t total = len(topics), start = 0, count
        cdef ol_status status = OL_OK
        cdef object[:] objects
        cdef int32_t[::1] found
        is_arrow = hasattr(topics, "__arrow_c_array__")
        held = _bind_integers(partitions, total, "partition", &numbers)
        result = np.empty(total, np.int32)
        found = result
        if is_arrow:
            schema, array = topics.__arrow_c_array__()
            if not ol_arrow_binary(&column, <ArrowSchema *>PyCapsule_GetPointer(schema, "arrow_schema"),
                                   <ArrowArray *>PyCapsule_GetPointer(array, "arrow_array")):
                raise TypeError(f"topic: strings are needed, not {topics.type}")
            with nogil:
                while start < total and status == OL_OK:
                    count = min(total - start, <int64_t>BLOCK)
                    status = ol_column_slices(&column, start, count, slices)
                    if status == OL_OK:
                        ol_places(&found[start], &self._index, slices, &numbers, start, count)
                    start += count
            if status != OL_OK:
                raise ValueError("the Arrow offsets of column 'topic' do not rise")
            return result
        objects = np.asarray(topics, object)
        while start < total:
            count = min(total - start, <int64_t>BLOCK)
            _text_slices(objects, start, count, slices)
            ol_places(&found[start], &self._index, slices, &numbers, start, count)
            start += count
        return result

    def visible(self, places, offsets, producer_ids, attributes):
        """(mask, nulls or None): which rows a read_committed reader may see.

        Not those of control batches, of aborted transactions, and from a partition's last stable offset on. Where
        place, offset or attributes are null, so is the answer; a null producer id is none. Columns are Arrow or
        numpy integers; in floats of pandas a NaN is null.
        """
        cdef ol_integers offset_column, producer_column, attribute_column
        cdef const int32_t[::1] where = np.ascontiguousarray(places, np.int32)
        cdef int64_t count = where.shape[0], missing = 0
        cdef uint8_t[::1] seen, null
        held = (
            _bind_integers(offsets, count, "offset", &offset_column),
            _bind_integers(producer_ids, count, "producerId", &producer_column),
            _bind_integers(attributes, count, "attributes", &attribute_column),
        )
        mask, nulls = np.empty(count, np.bool_), np.empty(count, np.bool_)
        if not count:
            return mask, None
        seen, null = mask.view(np.uint8), nulls.view(np.uint8)
        with nogil:
            missing = ol_visible(&seen[0], &null[0], &self._index, &where[0], &offset_column, &producer_column,
                                 &attribute_column, count)
        return mask, nulls if missing else None


cdef int _text_slices(object[:] texts, int64_t start, int64_t count, ol_slice *out) except -1:
    """Slices of Python strings; equal ones are mostly the same object, and looked at once."""
    cdef object last = None, text
    cdef ol_slice known
    cdef Py_ssize_t size = 0
    cdef int64_t index
    known.data = NULL
    known.size = -1
    for index in range(count):
        text = texts[start + index]
        if text is not last:
            last = text
            known.size = -1
            if isinstance(text, str):
                known.data = <const uint8_t *>PyUnicode_AsUTF8AndSize(text, &size)
                known.size = size
            elif text is not None and text == text:  # a NaN is pandas' null
                raise TypeError(f"topic: strings are needed, not {type(text).__name__}")
        out[index] = known
    return 0


@cython.wraparound(True)
cdef object _sorted(object places, object aborted):
    """Places and rows by place, producer and first offset; what overlaps is made one."""
    if aborted.dtype != ABORTED_DTYPE:
        raise TypeError(f"rows of type {ABORTED_DTYPE} are needed, not {aborted.dtype}")
    if len(places) != len(aborted):
        raise ValueError(f"{len(aborted)} transactions but {len(places)} places")
    order = np.lexsort((aborted["first_offset"], aborted["producer_id"], places))
    places, rows = places[order], np.ascontiguousarray(aborted[order])
    same = (places[1:] == places[:-1]) & (rows["producer_id"][1:] == rows["producer_id"][:-1])
    overlaps = same & (rows["first_offset"][1:] <= rows["last_offset"][:-1])
    if not overlaps.any():
        return places, rows
    kept, last = [0], 0  # only where an index was given twice, or is damaged
    for row in range(1, len(rows)):
        if same[row - 1] and rows["first_offset"][row] <= rows["last_offset"][last]:
            rows["last_offset"][last] = max(rows["last_offset"][last], rows["last_offset"][row])
        else:
            kept.append(row)
            last = row
    return places[kept], np.ascontiguousarray(rows[kept])
