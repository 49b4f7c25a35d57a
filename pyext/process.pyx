# cython: language_level=3
"""What every append asks of the process: the time of day, and whether it is a forked child.
Room    wraps a system call, and a count.
Borrow  nothing.
GIL     held: both take less than a switch.
Fails   never.
Layout  none: no bytes.

Compiled for what a Python frame costs: a commit asks fifteen times, eight for the time and seven for the count.
"""
import os

from libc.stdint cimport int64_t

cdef extern from "time.h" nogil:
    int CLOCK_REALTIME
    ctypedef struct timespec "struct timespec":
        int64_t tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)

cdef long FORKS = 0


def now_ms():
    """Milliseconds since 1970: the clock of oncelog.base.clock."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000


def forks():
    """How often this process was forked off since the module was loaded: a child counts one more."""
    return FORKS


def _note_fork():
    global FORKS
    FORKS += 1


os.register_at_fork(after_in_child=_note_fork)
