# cython: language_level=3
"""An attempt at a lock, for a ``with``: taken or not, and given back in any case.
Room    wraps a lock of the interpreter and nothing else.
Borrow  keeps the lock that it was given.
GIL     held, but for the wait of an attempt that may block.
Fails   with whatever interrupts such a wait: then the lock was not taken.
Layout  none: no bytes.

Between a call of ``acquire`` and the ``try`` after it a person may interrupt, and nobody would ever release. Entering a
``with`` is one step of the interpreter, if what is entered is compiled: an interrupt comes before or after all of it.
"""
cimport cython


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class Attempt:
    """``with Attempt(lock) as is_taken``: whether the lock was free. Each attempt is entered once."""
    cdef object _lock
    cdef bint _blocking
    cdef bint _is_taken

    def __init__(self, lock not None, *, bint blocking=False):
        self._lock = lock
        self._blocking = blocking

    def __enter__(self):
        self._is_taken = self._lock.acquire(self._blocking)
        return self._is_taken

    def __exit__(self, kind, error, trace):
        if self._is_taken:
            self._is_taken = False
            self._lock.release()
