# cython: language_level=3, boundscheck=False, wraparound=False
"""CRC-32C.
Room    wraps csrc/crc32c.c and nothing else.
Borrow  the buffer is pinned for the call.
GIL     released from NOGIL_BYTES on; below, the switch costs more than the sum.
Fails   with TypeError for what is no buffer, ValueError for a kernel this CPU lacks.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t
from oncelog_c cimport ol_crc32c, ol_crc32c_combine, ol_crc32c_kernel, ol_crc32c_with

cdef enum:
    NOGIL_BYTES = 1 << 16


def crc32c(data, uint32_t crc=0):
    """CRC-32C of ``data``, going on from ``crc`` (0 for a fresh start)."""
    cdef Py_buffer pin
    if PyBytes_CheckExact(data) and PyBytes_GET_SIZE(data) < NOGIL_BYTES:
        return ol_crc32c(crc, PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data))
    PyObject_GetBuffer(data, &pin, PyBUF_SIMPLE)
    try:
        if pin.len < NOGIL_BYTES:
            crc = ol_crc32c(crc, pin.buf, <size_t>pin.len)
        else:
            with nogil:
                crc = ol_crc32c(crc, pin.buf, <size_t>pin.len)
    finally:
        PyBuffer_Release(&pin)
    return crc


def crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b):
    """CRC-32C of A followed by B, from their checksums and the size of B; the data is not read."""
    return ol_crc32c_combine(crc_a, crc_b, size_b)


def crc32c_kernels():
    """Names of the kernels this CPU can run, the one in use first."""
    names = []
    while ol_crc32c_kernel(<int>len(names)) is not NULL:
        names.append(ol_crc32c_kernel(<int>len(names)).decode())
    return tuple(names)


def crc32c_with(str kernel, data, uint32_t crc=0):
    """CRC-32C computed by one kernel, for tests and benchmarks."""
    cdef Py_buffer pin
    cdef uint32_t out = 0
    cdef bytes name = kernel.encode()
    PyObject_GetBuffer(data, &pin, PyBUF_SIMPLE)
    try:
        if not ol_crc32c_with(name, crc, pin.buf, <size_t>pin.len, &out):
            raise ValueError(f"this CPU has no kernel {kernel!r}, only {', '.join(crc32c_kernels())}")
    finally:
        PyBuffer_Release(&pin)
    return out
