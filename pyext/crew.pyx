# cython: language_level=3
"""Threads whose calls wait for the device: one of them works for all, the others sleep until they are answered.
Room    wraps locks of the interpreter and nothing else.
Borrow  keeps a call from when it is made until it is answered.
GIL     held, but for waits.
Fails   with what the caller's own code raises, and with whatever interrupts a wait; then the turn is free, and the
        others have an answer or somebody who works for them.
Layout  none: no bytes.

Every system call gives the interpreter away, and sixteen threads that fight for it after each of a commit's calls spend
more time on switching than on the work; and a device that gets sixteen files at once takes little more time than for
one. So whoever finds nobody at work answers all calls that wait, its own among them. While it rests, which is to wait
for the device, another may work on what has come since.

Compiled, because a person may interrupt between any two lines of Python: a turn that is taken and not given back, or a
call that was taken and is not answered, would be waited for forever.
"""
import threading
from collections import deque
from queue import SimpleQueue

cimport cython
from libc.stdint cimport int64_t

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()

# How many who work may wait for the device at a time: one more gathers the next group meanwhile. With more of them the
# groups become small, and everybody waits alone again.
cdef enum:
    RESTING_MAX = 2


@cython.final
cdef class _Waiting:
    cdef object call, bell

    def __cinit__(self, object call):
        self.call = call
        self.bell = SimpleQueue()


@cython.final
cdef class Crew:
    """The turn to work, and the calls that wait for it. The turn comes before all other locks."""
    cdef object _turn, _calls
    cdef int _resting

    def __cinit__(self):
        self._turn = threading.RLock()
        self._calls = deque()

    def __len__(self):
        """How many calls nobody has taken yet."""
        return len(self._calls)

    def call(self, call not None, answer not None):
        """Returns when ``call.is_answered``: ``answer`` is called with all that wait, by this thread or by another."""
        waiting = _Waiting(call)
        self._calls.append(waiting)
        try:
            while not call.is_answered:
                if not self._work(answer):
                    waiting.bell.get()
        finally:  # also where it is interrupted: it may have been the one to work next
            self._call_next()

    def rest(self, function not None, *arguments):
        """Calls a function that waits; others may have the turn meanwhile, if this thread has it."""
        if not self._turn._is_owned():
            return function(*arguments)
        self._resting += 1
        self._turn.release()
        try:
            self._call_next()
            return function(*arguments)
        finally:
            self._retake()
            self._resting -= 1

    cdef int _retake(self) except -1:
        """In any case: who gave the turn up gives it back once more."""
        interrupt = None
        while True:
            try:
                self._turn.acquire()
                break
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return 0

    cdef bint _work(self, object answer) except -1:
        """Answers all that wait; False if nothing does, or it is somebody else's turn."""
        if not self._turn.acquire(False):
            return False
        if self._resting >= RESTING_MAX or not self._calls:
            self._turn.release()
            return False
        taken = []
        try:
            while self._calls:
                taken.append(self._calls.popleft())
            answer([(<_Waiting>one).call for one in taken])
        finally:
            self._turn.release()
            self._settle(taken)
        return True

    cdef int _settle(self, list taken) except -1:
        """Wakes those who were worked for; what has no answer is given up."""
        interrupt = None
        for one in taken:
            try:
                if not (<_Waiting>one).call.is_answered:
                    (<_Waiting>one).call.give_up()
            except BaseException as error:
                interrupt = error
            (<_Waiting>one).bell.put(None)
        if interrupt is not None:
            raise interrupt
        return 0

    cdef int _call_next(self) except -1:
        """After a turn: who came too late for the last worker is the next, unless enough are at work already."""
        if self._calls and self._resting < RESTING_MAX and self._turn.acquire(False):
            waiting = self._calls[0] if self._calls else None
            self._turn.release()
            if waiting is not None:
                (<_Waiting>waiting).bell.put(None)
        return 0


@cython.final
cdef class GroupCommit:
    """How far a log is on the device, for threads that wait for it: whoever finds no sync under way does the next one, for
    all that was written by then; the others sleep, and find themselves covered, or one of them goes next.

    ``sync(offset)`` syncs what there is and returns how far; it raises where an offset cannot be reached. A failure
    is that of the thread that met it; the next in turn calls ``sync`` as well, which knows of it.
    """
    cdef readonly int64_t end
    cdef object _sync
    cdef list _bells           # of those who sleep
    cdef bint _is_taken
    cdef unsigned long _syncer # the thread whose turn it is; it counts only while the turn is taken
    cdef int64_t _cuts         # how often the end was taken back: a sync from before says nothing then
    cdef int64_t _cuts_before  # when the turn was taken

    def __cinit__(self, sync not None):
        self._sync = sync
        self._bells = []

    def reach(self, int64_t offset):
        """Returns when everything below an offset is on the device."""
        try:
            while self._is_next(offset):
                self.finish(self._sync(offset))
        finally:  # also where a person interrupts: the others would wait for ever
            self.give_up()

    cpdef bint begin(self, int64_t offset) noexcept:
        """Takes the turn, if nobody has it and the offset is not covered; ``finish`` or ``give_up`` ends it."""
        if self._is_taken or self.end >= offset:
            return False
        self._is_taken = True
        self._syncer = PyThread_get_thread_ident()
        self._cuts_before = self._cuts
        return True

    cpdef finish(self, int64_t end):
        """Ends this thread's turn: what was there when it began is on the device up to an offset."""
        if self._cuts_before == self._cuts:
            self.end = max(self.end, end)
        self._pass_on()

    cpdef give_up(self):
        """Ends this thread's turn, if it has it, with nothing to say."""
        if self._is_taken and self._syncer == PyThread_get_thread_ident():
            self._pass_on()

    def rise(self, int64_t end):
        """Somebody else has seen to it that all below an offset is on the device."""
        self.end = max(self.end, end)
        self._wake_all()

    def fall(self, int64_t end):
        """The log is cut at an offset."""
        self.end = min(self.end, end)
        self._cuts += 1

    cdef bint _is_next(self, int64_t offset) except -1:
        """Waits until the offset is covered, or it is this thread's turn to sync."""
        cdef object bell = None
        while self.end < offset:
            if self.begin(offset):
                return True
            if bell is None:
                bell = SimpleQueue()
                continue  # whatever has changed while it was made
            self._bells.append(bell)
            bell.get()
        return False

    cdef int _pass_on(self) except -1:
        self._is_taken = False
        return self._wake_all()

    cdef int _wake_all(self) except -1:
        cdef list bells
        if self._bells:
            bells, self._bells = self._bells, []
            for bell in bells:
                bell.put(None)
        return 0
