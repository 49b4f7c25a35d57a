# cython: language_level=3
"""Files brought to the device together.
Room    wraps csrc/sync.c.
Borrow  the descriptors are the caller's, who keeps them open during the call.
GIL     released until all files are through; held to close them, which takes less than a switch.
Fails   never: what the device answered is returned, file by file.
Layout  none: no bytes.
"""
from libc.stdlib cimport free, malloc

from oncelog_c cimport ol_sync_together

cdef extern from "unistd.h":
    int close(int descriptor)


def sync_together(list descriptors not None):
    """Calls fdatasync for all of these at the same time; returns 0 or the errno of each."""
    cdef Py_ssize_t count = len(descriptors), index
    cdef int *files = <int *>malloc(<size_t>(2 * count + 1) * sizeof(int))
    cdef int *errors
    if files == NULL:
        raise MemoryError()
    try:
        errors = files + count
        for index in range(count):
            files[index] = descriptors[index]
        with nogil:
            ol_sync_together(files, errors, <size_t>count)
        return [errors[index] for index in range(count)]
    finally:
        free(files)


def close_all(list descriptors not None):
    """Closes files that were synced, and have nothing left to say."""
    cdef int descriptor
    for descriptor in descriptors:
        close(descriptor)
