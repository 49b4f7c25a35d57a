# cython: language_level=3
"""Threads whose calls wait for the device: one of them works for all, the others sleep until they are answered.
Room    wraps locks of the interpreter and nothing else.
Borrow  keeps a call from when it is made until it is answered.
GIL     held, but for waits.
Fails   with what the caller's own code raises, and with whatever interrupts a wait; then the group has ended, and the
        others have an answer or somebody who works for them.
Layout  none: no bytes.

Every system call gives the interpreter away, and sixteen threads that fight for it after each of a commit's calls spend
more time on switching than on the work; and a device that gets sixteen files at once takes little more time than for
one. So one thread answers all calls that wait, its own among them. A thread sleeps once for each call that others answer,
and is woken once: with the answer, or to lead the next group.

Compiled, because a person may interrupt between any two lines of Python: a group that is begun and not ended, or a
call that was taken and is not answered, would be waited for forever.
"""
from queue import SimpleQueue

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t
from oncelog_c cimport (
    PY_LOCK_INTR, PyLockStatus, PyThread_acquire_lock, PyThread_acquire_lock_timed, PyThread_allocate_lock, PyThread_free_lock,
    PyThread_get_thread_ident, PyThread_release_lock, PyThread_type_lock,
)

# How many groups may be under way at a time; one more gathers meanwhile. With more of them the groups become small, and
# everybody waits alone again.
cdef enum:
    GROUPS_MAX = 2


@cython.final
cdef class _Waiting:
    """A call, and the bell of the thread that made it: a lock that is held until somebody rings."""
    cdef object call
    cdef PyThread_type_lock _bell
    cdef bint _is_rung

    def __cinit__(self, object call):
        self.call = call
        self._bell = PyThread_allocate_lock()
        if self._bell is NULL:
            raise MemoryError()
        PyThread_acquire_lock(self._bell, 0)

    def __dealloc__(self):
        if self._bell is not NULL:
            if not self._is_rung:
                PyThread_release_lock(self._bell)
            PyThread_free_lock(self._bell)

    cdef void ring(self) noexcept:
        if not self._is_rung:
            self._is_rung = True
            PyThread_release_lock(self._bell)

    cdef bint wait(self) noexcept:
        """True when somebody has rung; False where a signal came, whose handler is still to be called."""
        cdef PyLockStatus status
        with nogil:
            status = PyThread_acquire_lock_timed(self._bell, -1, 1)
        if status == PY_LOCK_INTR:
            return False
        self._is_rung = False
        return True

    cdef void silence(self) noexcept:
        """Forgets a ring that nobody has waited for."""
        if self._is_rung:
            PyThread_acquire_lock(self._bell, 0)
            self._is_rung = False


@cython.final
cdef class Crew:
    """The calls that wait, and how many groups of them are being answered."""
    cdef list _calls
    cdef int _groups           # with the one that is to be led next
    cdef _Waiting _leader      # who was woken to lead it, until it does; nobody else takes calls meanwhile

    def __cinit__(self):
        self._calls = []

    def __len__(self):
        """How many calls nobody has taken yet."""
        return len(self._calls)

    def call(self, call not None, answer not None):
        """Returns when ``call.is_answered``: ``answer`` is called with all that wait, by this thread or by another."""
        cdef _Waiting waiting = _Waiting(call)
        # Made here: a collection that an allocation begins may give the interpreter away, and between what follows it may
        # not change hands.
        cdef list empty = []
        while True:
            self._calls.append(waiting)
            if self._groups < GROUPS_MAX and self._leader is None:
                self._groups += 1
                self._lead(answer, empty)
                return
            while not waiting.wait():
                # The handler may call here as well, or take its time: nobody is to wait for this thread meanwhile.
                if self._is_taken_back(waiting):
                    PyErr_CheckSignals()
                    break
                PyErr_CheckSignals()  # it is being answered
            else:
                if self._leader is waiting:
                    self._leader = None
                    self._lead(answer, empty)
                return

    cdef bint _is_taken_back(self, _Waiting waiting):
        """Whether nothing was done for a call: then it is as if it had not been made."""
        if waiting not in self._calls:
            return False
        self._calls.remove(waiting)
        if self._leader is waiting:
            self._leader = None
            waiting.silence()
            self._pass_on()
        return True

    cdef int _lead(self, object answer, list empty) except -1:
        """Answers all that wait, as one of the groups."""
        cdef list taken = self._calls
        self._calls = empty
        try:
            answer([(<_Waiting>one).call for one in taken])
        finally:
            self._pass_on()
            self._settle(taken)
        return 0

    cdef void _pass_on(self) noexcept:
        """A group has ended: whoever has waited longest leads the next, if anybody waits."""
        if self._calls and self._leader is None:
            self._leader = self._calls[0]
            self._leader.ring()
        else:
            self._groups -= 1

    cdef int _settle(self, list taken) except -1:
        """Wakes those who were worked for; what has no answer is given up."""
        interrupt = None
        for one in taken:
            try:
                if not (<_Waiting>one).call.is_answered:
                    (<_Waiting>one).call.give_up()
            except BaseException as error:
                interrupt = error
            (<_Waiting>one).ring()
        if interrupt is not None:
            raise interrupt
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
        cdef list bells, empty
        if self._bells:
            empty = []  # first: to make it may take the interpreter away
            bells = self._bells
            self._bells = empty
            for bell in bells:
                bell.put(None)
        return 0
