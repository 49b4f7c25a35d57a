# cython: language_level=3, boundscheck=False, wraparound=False
"""What a read_committed reader may see.
Room    wraps csrc/abort_filter.c: header rows and aborted transactions in, a mask out.
Borrow  nothing outlives the call.
GIL     released over the rows.
Fails   with ValueError for arrays of another shape.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t
from oncelog_c cimport OL_OK, hold_rows, ol_abort_filter, ol_aborted, ol_header, ol_status

import numpy as np

from oncelog.base.rows import ABORTED_DTYPE, HEADER_DTYPE

assert ABORTED_DTYPE.itemsize == sizeof(ol_aborted)
assert HEADER_DTYPE.itemsize == sizeof(ol_header)


def visible_batches(rows, aborted):
    """Mask over ``rows`` (HEADER_DTYPE, in offset order): True where the batch's records are visible.

    ``aborted`` (ABORTED_DTYPE) may come in any order; a last offset of -1 means that only the marker tells the end.
    Control batches are never visible, and only transactional batches are ever hidden.
    """
    cdef Py_buffer row_view, aborted_view, mask_view
    cdef int64_t row_count = len(rows), aborted_count = len(aborted)
    cdef ol_status status
    result = np.empty(row_count, np.bool_)
    hold_rows(rows, HEADER_DTYPE, &row_view, PyBUF_SIMPLE)
    try:
        hold_rows(aborted, ABORTED_DTYPE, &aborted_view, PyBUF_SIMPLE)
        PyObject_GetBuffer(result, &mask_view, PyBUF_WRITABLE)
        with nogil:
            status = ol_abort_filter(<uint8_t *>mask_view.buf, <const ol_header *>row_view.buf, row_count,
                                     <const ol_aborted *>aborted_view.buf, aborted_count)
        PyBuffer_Release(&mask_view)
        PyBuffer_Release(&aborted_view)
    finally:
        PyBuffer_Release(&row_view)
    if status != OL_OK:
        raise MemoryError()
    return result
