# cython: language_level=3
"""Files and partitions brought to the device together: it serves many in little more than the time of one.
Room    wraps csrc/sync.c.
Borrow  descriptors that are given to sync_together() are closed by it.
GIL     released until all files are through.
Fails   never for a file: what the device answered is returned, file by file. With whatever interrupts a partition's own
        code; no turn to sync is left taken then.
Layout  none: no bytes.

Compiled, because a person may interrupt between any two lines of Python: whoever waits for a partition whose turn was taken
and not given back would wait for ever.
"""
from libc.stdlib cimport free, malloc

from oncelog_c cimport close, ol_sync_together

from oncelog.base.errors import OncelogError


def sync_together(list descriptors not None):
    """Calls fdatasync for all of these at the same time, and closes them; returns 0 or the errno of each."""
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
            for index in range(count):
                close(files[index])
        return [errors[index] for index in range(count)]
    finally:
        free(files)


def sync_partitions(dict ends not None):
    """Brings each partition to the device up to an offset, all at the same time as far as that goes.

    A promise rests on each partition's own ``sync_to()`` alone, which after this returns at once, or says what went wrong. A
    partition that another thread is syncing already, or that cannot be synced, is left to it.
    """
    cdef list begun = [], descriptors = [], errors
    cdef Py_ssize_t at = 0, count
    cdef int descriptor
    cdef bint is_given = False
    interrupt = None
    try:
        for partition, offset in ends.items():
            try:
                unsynced = partition.begin_sync(offset)
            except OncelogError:  # whose business it is asks sync_to()
                continue
            if unsynced is not None:
                begun.append((partition, unsynced))
                descriptors += unsynced[1]
        is_given = True
        errors = sync_together(descriptors)
        for partition, (end, files, needs_names) in begun:
            count = len(files)
            error = next(filter(None, errors[at:at + count]), 0)
            at += count
            try:
                partition.end_sync(end, error, needs_names)
            except BaseException as failure:  # the others are to hear of theirs
                interrupt = failure
    finally:
        if not is_given:
            for descriptor in descriptors:
                close(descriptor)
        for partition in ends:
            partition.give_up_sync()
    if interrupt is not None:
        raise interrupt
