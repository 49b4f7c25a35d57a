# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Records on their way into the log: batches that fill up, and what their senders wait for.
Room    wraps csrc/encode.c and csrc/murmur2.c: no files, no clock, no codecs, no policy.
Borrow  keys and values are copied into the batch before send() returns; a batch is its own memory.
GIL     held from the look at an open batch to the record in it, so it is their lock; released for large sums.
Fails   with oncelog.base.errors types; a record that is refused leaves its batch as it was.
Layout  engine/segment/batch.py
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.math cimport INFINITY
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from oncelog_c cimport (
    OL_ATTR_CODEC, OL_BATCH_FULL, OL_HEADER_BYTES, OL_OK, ArrowArray, ArrowSchema, PyBUF_READ, PyThread_acquire_lock,
    PyThread_acquire_lock_timed, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock, PyThread_type_lock, check, fault_error,
    ol_arrow_bind, ol_arrow_records, ol_block, ol_bytes_reserve, ol_column_slices, ol_encode, ol_encode_close,
    ol_encoder, ol_encoder_free, ol_encoder_init, ol_fault, ol_header, ol_header_read, ol_header_restamp,
    ol_key_partition, ol_key_partitions, ol_murmur2, ol_proof, ol_slice, ol_status, pin, pinned_data, pinned_size,
    proof_capsule, proof_of,
)

from collections import deque
from threading import Lock

import numpy as np

from oncelog.base.errors import InvalidTimestampError

cdef enum:
    NOGIL_BYTES = 1 << 16  # below, the switch costs more than the sum
    # What a record may cost beside its key, value and headers: batch header, five varints, one varlong, attributes.
    RECORD_BYTES_OVERHEAD = OL_HEADER_BYTES + 5 * 5 + 10 + 1
    HEADER_BYTES_OVERHEAD = 2 * 5
    SECONDS_MAX = 1000000  # a sleep that is longer has no end


# ---------------------------------------------------------------- partitions of keys

def murmur2(bytes key not None):
    """Java's 32-bit hash of a key."""
    return ol_murmur2(<const uint8_t *>PyBytes_AS_STRING(key), <size_t>PyBytes_GET_SIZE(key))


def key_partition(bytes key not None, int32_t partition_count):
    """The partition of a key, the same that Java's producer chooses."""
    if partition_count < 1:
        raise ValueError(f"a topic has at least one partition, not {partition_count}")
    return ol_key_partition(<const uint8_t *>PyBytes_AS_STRING(key), <size_t>PyBytes_GET_SIZE(key), partition_count)


def key_partitions(data, int32_t partition_count, int32_t null_partition):
    """Partitions (int32) of the rows of anything with ``__arrow_c_array__``, by their column ``key``."""
    cdef ol_arrow_records records
    cdef ol_fault fault
    cdef ol_slice keys[512]
    cdef const char *column = NULL
    cdef int64_t start = 0, count
    cdef int32_t[::1] found
    cdef ol_status status = OL_OK
    if partition_count < 1:
        raise ValueError(f"a topic has at least one partition, not {partition_count}")
    schema, array = data.__arrow_c_array__()
    if ol_arrow_bind(&records, <ArrowSchema *>PyCapsule_GetPointer(schema, "arrow_schema"),
                     <ArrowArray *>PyCapsule_GetPointer(array, "arrow_array"), &column, &fault) != OL_OK:
        raise TypeError(f"column {column.decode()!r}: {fault.what.decode()}" if column[0] else fault.what.decode())
    result = np.full(records.length, null_partition, np.int32)
    if not records.has_key or not records.length:
        return result
    found = result
    with nogil:
        while start < records.length and status == OL_OK:
            count = min(records.length - start, <int64_t>512)
            status = ol_column_slices(&records.key, start, count, keys)
            if status == OL_OK:
                ol_key_partitions(keys, count, partition_count, null_partition, &found[start])
            start += count
    if status != OL_OK:
        raise ValueError("the Arrow offsets of column 'key' do not rise")
    return result


# ---------------------------------------------------------------- batches

@cython.final
cdef class Batch:
    """Records of one partition, from the first that opens it to the answer of the broker.

    Open, senders add to it; closed, it waits its turn; sealed, it is one record batch in a writable buffer;
    done, it has an offset or an error, and its memory is given back. Only who drains the partition seals it.
    """
    cdef ol_encoder _encoder
    cdef Py_buffer _given
    cdef bint _is_given
    cdef object _whole                 # what vouches for the batches that this is one of
    cdef ol_proof _proof
    cdef bint _is_sealed
    cdef uint8_t *_data
    cdef size_t _size
    cdef Py_ssize_t _exports
    cdef list _callbacks
    cdef readonly PartitionIntake target
    cdef readonly int64_t record_count
    cdef readonly int64_t reserved_bytes
    cdef readonly int64_t opened_ms
    cdef readonly bint is_open
    cdef readonly bint is_done
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly int64_t base_offset
    cdef readonly int64_t log_append_time_ms
    cdef readonly object error
    cdef public int attempts

    def __cinit__(self, PartitionIntake target not None, int64_t bytes_max, int64_t reserved_bytes, int64_t opened_ms):
        ol_encoder_init(&self._encoder)
        self._encoder.compress = True  # a full batch is reported, not closed: its sender has to know
        self._encoder.batch_bytes_max = bytes_max
        self.target = target
        self.reserved_bytes = reserved_bytes
        self.opened_ms = opened_ms
        self.is_open = True
        self.producer_id = self.producer_epoch = self.base_sequence = -1
        self.base_offset = self.log_append_time_ms = -1

    def __dealloc__(self):
        self._free()

    cdef void _free(self) noexcept:
        ol_encoder_free(&self._encoder)
        if self._is_given:
            self._is_given = False
            PyBuffer_Release(&self._given)
        self._data = NULL
        self._size = 0
        self._proof.stands = False

    @staticmethod
    def encoded(PartitionIntake target not None, data, int64_t opened_ms):
        """Closed batches of records that are encoded already, one after another in a writable buffer that they keep."""
        cdef list batches = []
        cdef Batch batch
        cdef Py_buffer view
        cdef ol_fault fault
        cdef ol_header header
        cdef Py_ssize_t at = 0, size
        cdef object proof = getattr(data, "proof", None)
        # Asked for more than bytes to look at, it would vouch for nothing any more. That it can be written to is known.
        cdef object whole = proof() if proof is not None else None
        cdef int flags = PyBUF_WRITABLE if proof_of(whole) is NULL else PyBUF_SIMPLE
        PyObject_GetBuffer(data, &view, flags)
        size = view.len
        PyBuffer_Release(&view)
        while at < size:
            batch = Batch.__new__(Batch, target, 0, 0, opened_ms)
            PyObject_GetBuffer(data, &batch._given, flags)
            batch._is_given = batch._is_sealed = True
            if batch._given.readonly or batch._given.len != size:
                raise BufferError("batches are sent from a writable buffer that does not change its size")
            check(ol_header_read(&header, <const uint8_t *>batch._given.buf, <size_t>size, <size_t>at, False, &fault),
                  &fault, "")
            batch._data = <uint8_t *>batch._given.buf + at
            batch._size = <size_t>header.size
            batch.reserved_bytes = header.size
            batch.record_count = header.record_count
            batch.is_open = False
            batch._whole = whole
            batch._proof.data, batch._proof.size = batch._data, batch._size
            batch._proof.whole = proof_of(whole)
            batch._proof.stands = batch._proof.whole is not NULL
            batches.append(batch)
            at += header.size
        return batches

    def __len__(self):
        return <Py_ssize_t>(self._size if self._is_sealed else self._encoder.out.size)

    def __bool__(self):
        return True

    def __getbuffer__(self, Py_buffer *view, int flags):
        if not self._is_sealed or self._data is NULL:
            raise BufferError("the batch is not sealed, or done")
        PyBuffer_FillInfo(view, self, self._data, <Py_ssize_t>self._size, 0, flags)
        if flags != PyBUF_SIMPLE:  # whoever asks for more than bytes to look at may write to them
            self._proof.stands = False
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._exports -= 1
        if not self._exports and self.is_done:
            self._free()

    def proof(self):
        """That these bytes are as they were encoded, for other native modules; it says so as long as it is true."""
        return proof_capsule(&self._proof, self)

    def __repr__(self):
        state = "done" if self.is_done else "open" if self.is_open else "closed"
        return f"Batch({self.target.topic}-{self.target.partition}, {self.record_count} records, {state})"

    def seal(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence, int16_t attributes,
             compress=None):
        """Makes it one record batch; again, gives the same records another identity.

        ``attributes`` are the codec, which goes with ``compress``, and the transactional flag.
        """
        self._seal(producer_id, producer_epoch, base_sequence, attributes, compress)

    cdef int _seal(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence, int16_t attributes,
                   compress) except -1:
        cdef ol_fault fault
        cdef ol_header header
        memset(&fault, 0, sizeof(fault))
        fault.record = -1
        if self.is_open or self.is_done:
            raise ValueError("only a batch that is closed and waits can be sealed")
        if self._is_sealed:
            check(ol_header_read(&header, self._data, self._size, 0, False, &fault), &fault, "")
            header.producer_id = producer_id
            header.producer_epoch = producer_epoch
            header.base_sequence = base_sequence
            header.attributes = (header.attributes & OL_ATTR_CODEC) | (attributes & ~OL_ATTR_CODEC)
            ol_header_restamp(self._data, &header)
        else:
            self._encoder.next.producer_id = producer_id
            self._encoder.next.producer_epoch = producer_epoch
            self._encoder.next.base_sequence = base_sequence
            self._encoder.next.attributes = attributes
            self._close(compress, &fault)
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        return 0

    cdef int _close(self, compress, ol_fault *fault) except -1:
        cdef const uint8_t *payload = NULL
        cdef size_t start = OL_HEADER_BYTES, size = 0
        cdef ol_status status
        cdef object held
        if compress is not None:
            held = pin(compress(PyMemoryView_FromMemory(<char *>self._encoder.out.data + start,
                                                        <Py_ssize_t>(self._encoder.out.size - start), PyBUF_READ)))
            payload, size = pinned_data(held), pinned_size(held)
        if self._encoder.out.size < NOGIL_BYTES:
            status = ol_encode_close(&self._encoder, payload, size, fault)
        else:
            with nogil:
                status = ol_encode_close(&self._encoder, payload, size, fault)
        check(status, fault, "")
        self._data = self._encoder.out.data
        self._size = self._encoder.out.size
        # What a codec made of the records is nobody's word but the codec's.
        self._proof.data, self._proof.size, self._proof.stands = self._data, self._size, compress is None
        self._is_sealed = True
        return 0

    def complete(self, int64_t base_offset, int64_t log_append_time_ms, error=None):
        """The broker's answer, once; False if there was one before."""
        return self._complete(base_offset, log_append_time_ms, error)

    cdef bint _complete(self, int64_t base_offset, int64_t log_append_time_ms, error):
        if self.is_done:
            return False
        self.is_open = False
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.error = error
        self.is_done = True
        if not self._exports:
            self._free()
        return True

    def take_callbacks(self):
        """(delivery, callback) pairs to be called now that the batch is done, each given out once."""
        callbacks, self._callbacks = self._callbacks, None
        return callbacks or ()

    @property
    def has_callbacks(self):
        return self._callbacks is not None


@cython.final
cdef class RecordMetadata:
    """Where an acknowledged record lies. ``offset`` is -1 where only the fact is known, as for a repeated batch
    whose first answer was lost long ago; sizes are those of the bytes given, -1 for None."""
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly int64_t serialized_key_size
    cdef readonly int64_t serialized_value_size

    def __init__(self, str topic, int32_t partition, int64_t offset, int64_t timestamp,
                 int64_t serialized_key_size=-1, int64_t serialized_value_size=-1):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.serialized_key_size = serialized_key_size
        self.serialized_value_size = serialized_value_size

    cdef tuple _fields(self):
        return (self.topic, self.partition, self.offset, self.timestamp, self.serialized_key_size,
                self.serialized_value_size)

    def __eq__(self, other):
        if not isinstance(other, RecordMetadata):
            return NotImplemented
        return self._fields() == (<RecordMetadata>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __reduce__(self):
        return RecordMetadata, self._fields()

    def __repr__(self):
        return (f"RecordMetadata(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
                f"timestamp={self.timestamp})")


# Untracked by the garbage collector: one is made for each record, and a cycle through a callback ends with its batch.
@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Delivery:
    """What becomes of one record: an offset once it is acknowledged, or the reason why not."""
    cdef Batch _batch
    cdef int64_t _timestamp
    cdef int64_t _key_size
    cdef int64_t _value_size
    cdef int32_t _index

    def __init__(self, *args, **options):
        raise TypeError("a Delivery comes from send()")

    def done(self):
        """Whether it is known what became of the record."""
        return self._batch.is_done

    def result(self, timeout_ms=None):
        """The record's place in the log; waits for it, and raises what went wrong.

        A batch that still lingers is sent at once. ``timeout_ms`` bounds the wait (None: as long as it takes, which
        ``delivery.timeout.ms`` bounds).
        """
        self._wait(timeout_ms)
        if self._batch.error is not None:
            raise self._batch.error
        return self._metadata()

    def exception(self, timeout_ms=None):
        """What went wrong, or None; waits like result()."""
        self._wait(timeout_ms)
        return self._batch.error

    def add_callback(self, callback):
        """Calls ``callback(error, metadata)`` when the record is done, one of them None; at once if it is."""
        cdef Batch batch = self._batch
        # Making these may collect garbage, which may run other threads: the batch is looked at after it.
        cdef tuple pair = (self, callback)
        cdef list fresh = []
        if not batch.is_done:
            if batch._callbacks is None:
                batch._callbacks = fresh
            batch._callbacks.append(pair)
            return
        self.answer(callback)

    def answer(self, callback):
        """Tells a callback what is known of a record that is done."""
        error = self._batch.error
        callback(error, None if error is not None else self._metadata())

    cdef int _wait(self, timeout_ms) except -1:
        cdef Batch batch = self._batch
        if not batch.is_done and not _is_sent_directly(batch, True):
            batch.target.owner.wait_for(batch, timeout_ms)
        return 0

    cdef RecordMetadata _metadata(self):
        cdef RecordMetadata metadata = RecordMetadata.__new__(RecordMetadata)
        cdef Batch batch = self._batch
        metadata.topic = batch.target.topic
        metadata.partition = batch.target.partition
        metadata.offset = batch.base_offset + self._index if batch.base_offset >= 0 else -1
        metadata.timestamp = self._timestamp if batch.log_append_time_ms < 0 else batch.log_append_time_ms
        metadata.serialized_key_size = self._key_size
        metadata.serialized_value_size = self._value_size
        return metadata

    def __repr__(self):
        cdef Batch batch = self._batch
        place = f"{batch.target.topic}-{batch.target.partition}"
        if not batch.is_done:
            return f"Delivery({place}, waiting)"
        return f"Delivery({place}, {'failed' if batch.error is not None else 'done'})"


# ---------------------------------------------------------------- intake

cdef class PartitionIntake:
    """Where the records of one partition go in: the open batch, and the closed ones that wait behind it.

    ``owner`` answers ``wait_for(batch, timeout_ms)``. ``lock`` is held by who sends from the queue.
    """
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly object owner
    cdef readonly Batch open_batch
    cdef readonly object waiting
    cdef readonly object in_flight     # (batch, answer): in the log, not acknowledged
    cdef readonly object lock
    cdef object _acquire
    cdef object _release
    cdef public object key             # the broker's name for the partition
    cdef public object log             # the broker's partition, for what batches may hold
    cdef object _log_options           # for which batches may be opened like the last one, and how large they are
    cdef int64_t _batch_bytes
    cdef public object identity        # (producer id, epoch) of the batch that was sealed last
    cdef public int32_t next_sequence
    cdef public double retry_at        # not to be tried again before; 0.0: at any time
    cdef public bint is_uncertain      # an attempt at the first batch may have taken effect

    def __init__(self, str topic not None, int32_t partition, owner):
        self.topic = topic
        self.partition = partition
        self.owner = owner
        self.waiting = deque()
        self.in_flight = deque()
        self.lock = Lock()
        self._acquire = self.lock.acquire
        self._release = self.lock.release

    def open_alike(self, options, int64_t batch_bytes):
        """Further batches may be opened without asking, that large, while ``log`` is open and has these options."""
        self._log_options = options
        self._batch_bytes = batch_bytes


@cython.final
cdef class TopicIntake:
    """The partitions of a topic, and the one that records without a key stick to for now."""
    cdef readonly str topic
    cdef readonly list partitions
    cdef readonly int32_t sticky

    def __init__(self, str topic not None, partitions):
        self.topic = topic
        self.partitions = []
        self.grow(partitions)

    def grow(self, partitions):
        """Adds partitions; those known stay."""
        cdef list more = list(partitions)
        for partition in more:
            if not isinstance(partition, PartitionIntake):
                raise TypeError(f"not a partition: {partition!r}")
        self.partitions.extend(more)

    def stick_to(self, int32_t partition):
        if partition < 0 or partition >= len(self.partitions):
            raise ValueError(f"{self.topic} has no partition {partition}")
        self.sticky = partition


cdef struct sleeper:
    PyThread_type_lock guard           # of all numbers; nobody who holds it wants the GIL
    PyThread_type_lock signal          # held, unless the sleeper was signalled
    bint is_signalled
    bint is_rung
    bint is_told                       # by the watch, that a batch has lingered
    double now                         # as late as anybody has said
    double lingering                   # when the oldest open batch has lingered
    double look                        # when the latest of all would have: the sleeper looks by itself until then
    double until                       # when the sleeper will look next; -inf: it is awake


cdef int prepare(sleeper *who) except -1:
    who.guard = PyThread_allocate_lock()
    who.signal = PyThread_allocate_lock()
    if who.guard is NULL or who.signal is NULL:
        raise MemoryError()
    PyThread_acquire_lock(who.signal, 1)
    who.now = who.until = who.look = -INFINITY
    who.lingering = INFINITY
    return 0


cdef void dispose(sleeper *who) noexcept:
    if who.guard is not NULL:
        PyThread_free_lock(who.guard)
    if who.signal is not NULL:
        if not who.is_signalled:
            PyThread_release_lock(who.signal)
        PyThread_free_lock(who.signal)


cdef void wake(sleeper *who) noexcept nogil:
    """The guard is held."""
    if not who.is_signalled:
        who.is_signalled = True
        PyThread_release_lock(who.signal)


cdef void ring(sleeper *who) noexcept nogil:
    PyThread_acquire_lock(who.guard, 1)
    who.is_rung = True
    wake(who)
    PyThread_release_lock(who.guard)


cdef void wait(sleeper *who) noexcept nogil:
    """Until ``until``, or until it is woken. The guard is held, but not meanwhile."""
    cdef double until = who.until, seconds = until - who.now
    cdef long long microseconds = -1 if seconds > SECONDS_MAX else <long long>(seconds * 1e6) + 1
    cdef int status
    PyThread_release_lock(who.guard)
    status = PyThread_acquire_lock_timed(who.signal, microseconds, 0)
    PyThread_acquire_lock(who.guard, 1)
    if status == 1:
        who.is_signalled = False
    else:
        who.now = max(who.now, until)


cdef void linger(sleeper *looker, sleeper *who, double due, double now) noexcept nogil:
    """A sleeper's oldest open batch is due then, what was due before no longer counts; under the looker's guard."""
    who.lingering = due
    who.is_told = False
    looker.now = max(looker.now, now)
    if due < INFINITY:
        who.look = max(who.look, due)
    if due < looker.until:
        wake(looker)


@cython.final
cdef class Watch:
    """One thread that looks after what lingers in many producers, and wakes that of a producer only when a batch of it
    has lingered.

    Most batches are sent before their time is over. Sixteen producers that commit one record after another had sixteen
    threads that looked every five milliseconds, which was a fifth of all that the machine did. ``run()`` is for a
    thread of its own; it never returns, and never has the interpreter. ``is_lost``: in a forked child, where that
    thread is not.
    """
    cdef sleeper _own
    cdef list _alarms                  # keeps them alive
    cdef sleeper **_watched            # the same, under the guard
    cdef Py_ssize_t _count
    cdef public bint is_lost

    def __cinit__(self):
        prepare(&self._own)
        self._alarms = []

    def __dealloc__(self):
        free(self._watched)
        dispose(&self._own)

    def add(self, Alarm alarm not None, double now):
        """From here on an alarm goes off when this says so."""
        self._watch([*self._alarms, alarm], now)
        alarm._watch = self

    def remove(self, Alarm alarm not None):
        """Nobody looks after it any more."""
        self._watch([one for one in self._alarms if one is not alarm], -INFINITY)

    cdef int _watch(self, list alarms, double now) except -1:
        cdef sleeper **watched = <sleeper **>malloc(<size_t>(len(alarms) + 1) * sizeof(sleeper *))
        cdef Py_ssize_t index
        if watched is NULL:
            raise MemoryError()
        for index in range(len(alarms)):
            watched[index] = &(<Alarm>alarms[index])._own
        if not self.is_lost:
            PyThread_acquire_lock(self._own.guard, 1)
            watched, self._watched = self._watched, watched
            self._count = len(alarms)
            self._own.now = max(self._own.now, now)
            wake(&self._own)  # something may linger already
            PyThread_release_lock(self._own.guard)
        free(watched)
        self._alarms = alarms  # not before: those that leave may be gone with the old list
        return 0

    def run(self):
        """Looks whenever a batch may have lingered, for ever."""
        cdef sleeper *own = &self._own
        cdef sleeper *one
        cdef Py_ssize_t index
        with nogil:
            PyThread_acquire_lock(own.guard, 1)
            while True:
                own.until = INFINITY
                for index in range(self._count):
                    one = self._watched[index]
                    if one.look > own.now:
                        own.until = min(own.until, one.look)
                    if one.lingering > own.now:
                        own.until = min(own.until, one.lingering)
                    elif not one.is_told:
                        one.is_told = True
                        ring(one)
                wait(own)


@cython.final
cdef class Alarm:
    """Wakes one thread when a batch has lingered long enough, when its own time has come, or when it is rung for.

    Where a Watch has it, that knows when a batch has lingered. Else whoever sleeps looks by itself, without the
    interpreter. And where each batch is sent at once, the next would find a sleeper without an end in sight, and wake it: so
    it sleeps no longer than until the last of them would have lingered. Times are seconds of the caller's clock; none is
    read here.
    """
    cdef sleeper _own
    cdef Watch _watch                  # looks after what lingers, and its guard is that of ``lingering``

    def __cinit__(self):
        prepare(&self._own)

    def __dealloc__(self):
        dispose(&self._own)

    def ring(self):
        """Wakes the sleeper, or keeps it from falling asleep."""
        ring(&self._own)

    cdef void _linger_until(self, double due, double now) noexcept:
        """The oldest open batch is due then; what was due before no longer counts."""
        cdef sleeper *looker = &self._own if self._watch is None else &self._watch._own
        if self._watch is not None and self._watch.is_lost:
            return  # with all of its parent's threads; the guard may never be given back
        PyThread_acquire_lock(looker.guard, 1)
        linger(looker, &self._own, due, now)
        PyThread_release_lock(looker.guard)

    def sleep(self, double now, double due):
        """Returns when a batch has lingered, at ``due``, or when it is rung."""
        cdef sleeper *own = &self._own
        cdef sleeper *watch = NULL if self._watch is None else &self._watch._own
        with nogil:
            if watch is not NULL:
                PyThread_acquire_lock(watch.guard, 1)
                linger(watch, own, own.lingering, now)  # to be told of it again, should it still be there
                PyThread_release_lock(watch.guard)
            PyThread_acquire_lock(own.guard, 1)
            own.now = now
            while not own.is_rung:
                own.until = due if watch is not NULL else min(due, own.lingering)
                if own.until <= own.now:
                    break
                if watch is NULL and own.look > own.now:
                    own.until = min(own.until, own.look)
                wait(own)
            own.is_rung = False
            own.until = -INFINITY
            PyThread_release_lock(own.guard)


cdef class Accumulator:
    """Takes records and puts them into open batches; everything that needs a decision is asked of a subclass.

    ``_meet_topic(topic)`` returns the TopicIntake of a topic seen for the first time, ``_make_room(topic, partition,
    bytes)`` sees to an open batch with room, ``_send_now(partition)`` sends it without lingering,
    ``_refuse_size(bytes)`` and ``_refuse_partition(topic, partition)`` raise or, for a topic that has grown, return.

    Concurrency: many threads send at once. Whatever must not be seen half done runs without giving up the GIL.
    """
    cdef dict _topics
    cdef object _now_ms
    cdef object _monotonic_s
    cdef dict _partition_counts        # of the broker's topics; None: nobody knows
    cdef int64_t _record_bytes_max
    cdef bint _is_eager
    cdef bint _ignores_keys
    cdef bint _rotates
    cdef readonly object opened        # open batches, oldest first, with closed ones among them
    cdef readonly dict incomplete      # closed batches that are not done
    cdef readonly int64_t available_bytes
    cdef readonly int64_t record_count
    cdef readonly int64_t record_bytes
    cdef readonly int64_t batch_count  # in the log, and what they hold
    cdef readonly int64_t sent_records
    cdef readonly int64_t sent_bytes
    cdef Alarm _alarm                  # of who sends what has lingered; None: nobody does
    cdef double _linger_s
    cdef public object gate            # None: records are welcome; else it is called, and raises

    def __cinit__(self, *args, **options):
        self._topics = {}
        self.opened = deque()
        self.incomplete = {}

    def _configure(self, now_ms, *, int64_t record_bytes_max, int64_t buffer_bytes, bint is_eager,
                   bint ignores_keys, bint rotates, monotonic_s=None, dict partition_counts=None):
        """``partition_counts`` are the broker's own, by topic."""
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._partition_counts = partition_counts
        self._record_bytes_max = record_bytes_max
        self.available_bytes = buffer_bytes
        self._is_eager = is_eager
        self._ignores_keys = ignores_keys or rotates
        self._rotates = rotates

    def linger_with(self, Alarm alarm not None, double linger_s):
        """The alarm goes off when an open batch is that old."""
        self._alarm = alarm
        self._linger_s = linger_s

    def send(self, topic, value=None, key=None, partition=None, timestamp=None, headers=None, on_delivery=None):
        """Adds one record to the batch that its partition has open; the answer comes with the Delivery.

        ``value`` and ``key`` are bytes or None, ``timestamp`` is milliseconds since 1970 (default: now), ``headers``
        are (str, bytes or None) pairs. A key decides the partition as Java's producer does; without one, records
        stick to a partition for a batch. ``on_delivery(error, metadata)`` is called once the record is done.
        """
        cdef TopicIntake intake
        cdef PartitionIntake target
        cdef Batch batch
        cdef Delivery delivery
        cdef _Headers pairs = None
        cdef ol_slice key_slice, value_slice
        cdef ol_block block
        cdef ol_fault fault
        cdef ol_status status
        cdef PyObject *found
        cdef int32_t number = -1
        cdef int64_t when, size, done = 0
        if timestamp is None:
            when = self._now_ms()
        else:
            when = timestamp
            if when < 0:
                raise InvalidTimestampError(f"timestamp {when} is negative")
        if value is not None and not PyBytes_CheckExact(value):
            value = _bytes_of(value, "value")
        if key is not None and not PyBytes_CheckExact(key):
            key = _bytes_of(key, "key")
        value_slice = _slice_of(value)
        key_slice = _slice_of(key)
        size = RECORD_BYTES_OVERHEAD + max(key_slice.size, 0) + max(value_slice.size, 0)
        memset(&block, 0, sizeof(block))
        block.count = 1
        block.keys = &key_slice
        block.values = &value_slice
        if headers is not None:
            pairs = _Headers.__new__(_Headers)
            size += pairs._gather(headers)
            block.header_starts = &pairs._start
            block.header_ends = &pairs._end
            block.header_keys = pairs._keys
            block.header_values = pairs._values
        if self.gate is not None:  # before the rest: who may not send at all should hear that first
            self.gate()
        found = PyDict_GetItem(self._topics, topic)
        intake = <TopicIntake>found if found is not NULL else self._topic(topic)
        if partition is not None:
            number = partition
            if number < 0 or number >= len(intake.partitions):
                self._refuse_partition(intake, partition)
        elif key_slice.size >= 0 and not self._ignores_keys:
            number = ol_key_partition(key_slice.data, <size_t>key_slice.size, <int32_t>len(intake.partitions))
        elif self._rotates:
            number = intake.sticky
            intake.sticky = (number + 1) % <int32_t>len(intake.partitions)
        if size > self._record_bytes_max:
            self._refuse_size(size)
        while True:
            if self.gate is not None:
                self.gate()
            target = <PartitionIntake>PyList_GET_ITEM(intake.partitions, intake.sticky if number < 0 else number)
            batch = target.open_batch
            if batch is None and self._is_opened_alike(intake, target, size):
                batch = target.open_batch
            if batch is not None:
                batch._encoder.default_timestamp = when
                status = ol_encode(&batch._encoder, &block, &done, &fault)
                if status == OL_OK:
                    break
                if status != OL_BATCH_FULL:
                    fault.position = fault.base_offset = fault.record = -1
                    raise fault_error(&fault, "")
            self._make_room(intake, target, size)
        # Until here nobody else could see the batch without the record, or the record without its place.
        delivery = Delivery.__new__(Delivery)
        delivery._batch = batch
        delivery._index = <int32_t>batch.record_count
        delivery._timestamp = when
        delivery._key_size = key_slice.size
        delivery._value_size = value_slice.size
        batch.record_count += 1
        self.record_count += 1
        self.record_bytes += size - RECORD_BYTES_OVERHEAD
        if on_delivery is not None:
            delivery.add_callback(on_delivery)
        if self._is_eager and not _is_sent_directly(batch, False):
            self._send_now(target)
        return delivery

    cdef TopicIntake _topic(self, topic):
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, not {type(topic).__name__}")
        intake = self._topics.get(topic)
        if intake is None:
            intake = self._topics.setdefault(topic, self._meet_topic(topic))
        return intake

    def topic_intake(self, topic):
        """The intake of a topic, asked for if it is new."""
        return self._topic(topic)

    def forget_topic(self, topic):
        """The next record for it asks again."""
        self._topics.pop(topic, None)

    def partitions(self):
        """Every partition that records were sent to."""
        return [partition for intake in self._topics.values() for partition in (<TopicIntake>intake).partitions]

    # Buffer memory: taken before a batch is opened, given back when it is done.

    def take_bytes(self, int64_t count):
        """Reserves memory; False if there is not enough."""
        if self.available_bytes < count:
            return False
        self.available_bytes -= count
        return True

    def give_bytes(self, int64_t count):
        self.available_bytes += count

    def open_batch(self, PartitionIntake target not None, int64_t bytes_max, int64_t reserved_bytes, int64_t now_ms):
        """Opens a batch with memory that was taken; False if the partition has one by now."""
        return self._open(target, bytes_max, reserved_bytes, now_ms)

    def open_if_free(self, PartitionIntake target not None, int64_t bytes_max, int64_t reserved_bytes, double now_s):
        """take_bytes() and open_batch() in one step; False if there is not enough memory, or an open batch."""
        if self.available_bytes < reserved_bytes:
            return False
        self.available_bytes -= reserved_bytes
        if self._open(target, bytes_max, reserved_bytes, <int64_t>(now_s * 1000)):
            return True
        self.available_bytes += reserved_bytes
        return False

    cdef bint _is_opened_alike(self, TopicIntake topic, PartitionIntake target, int64_t size) except -1:
        """Opens a batch like the last one, where nothing has changed on which its limits depend; else _make_room()
        finds out, and says what is wrong."""
        cdef PyObject *count
        if target._log_options is None or size > target._batch_bytes or self.available_bytes < target._batch_bytes:
            return False
        count = PyDict_GetItem(self._partition_counts, topic.topic)
        if count is NULL or <object>count != len(topic.partitions):
            return False
        if target.log.options is not target._log_options or target.log.is_closed:
            return False
        self.available_bytes -= target._batch_bytes
        if self._open(target, target._batch_bytes, target._batch_bytes, <int64_t>(self._monotonic_s() * 1000)):
            return True
        self.available_bytes += target._batch_bytes
        return False

    cdef bint _open(self, PartitionIntake target, int64_t bytes_max, int64_t reserved_bytes, int64_t now_ms) except -1:
        cdef Batch batch = Batch.__new__(Batch, target, bytes_max, reserved_bytes, now_ms)
        if ol_bytes_reserve(&batch._encoder.out, <size_t>reserved_bytes) != OL_OK:
            raise MemoryError()
        if target.open_batch is not None:  # not before: making the batch may have run other threads
            return False
        target.open_batch = batch
        self.opened.append(batch)
        self._set_alarm(now_ms)
        return True

    def close_batch(self, PartitionIntake target not None):
        """Takes the open batch away from senders and lets it wait its turn; None if there is none to send."""
        return self._close_batch(target)

    cdef Batch _close_batch(self, PartitionIntake target):
        cdef Batch batch = target.open_batch
        if batch is None:
            return None
        target.open_batch = None
        batch.is_open = False
        self._set_alarm(0)
        if not batch.record_count:
            batch.complete(-1, -1)
            self.available_bytes += batch.reserved_bytes
            return None
        self.incomplete[batch] = None
        target.waiting.append(batch)
        return batch

    def oldest_opened_ms(self):
        """When the batch was opened that is open for longest; -1 if none is."""
        self._forget_closed()
        return (<Batch>self.opened[0]).opened_ms if self.opened else -1

    cdef int _set_alarm(self, int64_t now_ms) except -1:
        """For the batch that is open for longest."""
        self._forget_closed()
        if self._alarm is not None:
            self._alarm._linger_until(
                (<Batch>self.opened[0]).opened_ms / 1000.0 + self._linger_s if self.opened else INFINITY,
                now_ms / 1000.0)
        return 0

    cdef int _forget_closed(self) except -1:
        opened = self.opened
        while opened and not (<Batch>opened[0]).is_open:
            opened.popleft()
        return 0

    def close_oldest(self, int64_t opened_until_ms):
        """Closes the batch that is open for longest, if it was opened by then; returns its partition, else None.

        In one step: a batch that nobody sends to any more is never out of sight of drop_open() and ``incomplete``.
        """
        cdef Batch batch
        while self.opened:
            batch = self.opened[0]
            if batch.is_open and batch.opened_ms > opened_until_ms:
                return None
            self.opened.popleft()
            if batch.is_open and self.close_batch(batch.target) is not None:
                return batch.target
        return None

    def add_batch(self, Batch batch not None):
        """Lets an encoded batch wait its turn behind all that was sent to its partition before."""
        self.close_batch(batch.target)
        self.record_count += batch.record_count
        self.record_bytes += <int64_t>batch._size
        self.incomplete[batch] = None
        batch.target.waiting.append(batch)

    def seal(self, Batch batch not None, identity, int16_t attributes, compress=None):
        """Makes it the next record batch of (producer id, epoch); with another identity the sequence starts over."""
        self._seal(batch, identity, attributes, compress)

    cdef int _seal(self, Batch batch, identity, int16_t attributes, compress) except -1:
        cdef PartitionIntake target = batch.target
        if target.identity is not identity:
            if target.identity != identity:
                target.next_sequence = 0
            target.identity = identity
        producer_id, epoch = identity
        batch._seal(producer_id, epoch, target.next_sequence if producer_id >= 0 else -1, attributes, compress)
        return 0

    def note_sent(self, Batch batch not None):
        """The batch that waited for longest is in the log: it waits no more, and the next follows it in sequence."""
        self._note_sent(batch)

    cdef int _note_sent(self, Batch batch) except -1:
        batch.target.waiting.popleft()
        if batch.base_sequence >= 0:
            batch.target.next_sequence = <int32_t>((batch.base_sequence + batch.record_count) & INT32_MAX)
        batch.target.retry_at = 0.0
        batch.target.is_uncertain = False
        self.batch_count += 1
        self.sent_records += batch.record_count
        self.sent_bytes += <int64_t>batch._size
        return 0

    def acknowledge(self, Batch batch not None, int64_t base_offset, int64_t log_append_time_ms):
        """note_sent() and complete() in one step, which nobody can interrupt half way."""
        return self._acknowledge(batch, base_offset, log_append_time_ms)

    cdef bint _acknowledge(self, Batch batch, int64_t base_offset, int64_t log_append_time_ms) except -1:
        self._note_sent(batch)
        return self._complete(batch, base_offset, log_append_time_ms, None)

    def complete(self, Batch batch not None, int64_t base_offset, int64_t log_append_time_ms, error=None):
        """The broker's answer to a batch, once, which also gives its memory back; False if there was one before."""
        return self._complete(batch, base_offset, log_append_time_ms, error)

    cdef bint _complete(self, Batch batch, int64_t base_offset, int64_t log_append_time_ms, error) except -1:
        if not batch._complete(base_offset, log_append_time_ms, error):
            return False
        self.incomplete.pop(batch, None)
        self.available_bytes += batch.reserved_bytes
        return True

    def drop_open(self):
        """Takes all open batches away without sending them; returns them."""
        cdef Batch batch
        dropped = []
        while self.opened:
            batch = self.opened.popleft()
            if batch.is_open:
                batch.target.open_batch = None
                batch.is_open = False
                self.incomplete[batch] = None
                dropped.append(batch)
        self._set_alarm(0)
        return dropped

    # What a subclass decides.

    def _meet_topic(self, topic):
        raise TypeError("an Accumulator is a base: use Producer")

    def _make_room(self, topic, partition, count):
        raise TypeError("an Accumulator is a base: use Producer")

    def _send_now(self, partition):
        raise TypeError("an Accumulator is a base: use Producer")

    def _refuse_size(self, count):
        raise TypeError("an Accumulator is a base: use Producer")

    def _refuse_partition(self, topic, partition):
        raise TypeError("an Accumulator is a base: use Producer")


cdef class DirectSender:
    """Sends a batch that nothing stands before in one step, in the thread that waits for it; all else is a subclass's.

    That is nearly every batch whose records are waited for one by one, and then each Python frame on the way costs as
    much as the batch's checksum. ``_react(queue, batch, error)`` answers what the broker refuses, under the queue's
    lock, ``_leave(queue)`` has somebody else look after it, ``_announce(batch)`` tells who waits that it is done,
    ``_run_callbacks()`` calls what is due.
    """
    cdef public bint _is_direct        # of a producer whose answers nobody else has to hear
    cdef public dict _in_transaction   # what produce() is told of a transaction; None: there are none
    cdef public object _broker
    cdef public Accumulator _intake
    cdef public object _transactions   # has the identity, and the error that forbids to send
    cdef public int _acks
    cdef public int16_t attributes
    cdef public object compress
    cdef public object _callbacks      # batches whose callbacks are due
    cdef public int _waiters

    cdef bint _is_sent(self, Batch batch, bint is_awaited) except -1:
        """Sends an open batch; False where more is to be done, by the way that batches take otherwise. Where it
        ``is_awaited``, this thread also waits for the device."""
        cdef PartitionIntake queue = batch.target
        if not self._is_direct or queue.open_batch is not batch or queue.waiting or queue.in_flight:
            return False
        if not batch.record_count:  # it was opened for a record that was refused
            return False
        identity = self._transactions.identity
        if queue.identity is not identity and (self._in_transaction is None or identity[0] < 0):
            return False
        if self._transactions.error is not None or not queue._acquire(False):
            return False
        # Tried, not waited for: all that was looked at is still so.
        try:
            self._intake._close_batch(queue)
            self._send(queue, batch, identity)
        except BaseException:  # interrupted: the batch waits in its queue
            queue._release()
            self._leave(queue)
            raise
        queue._release()
        if is_awaited and not batch.is_done:
            self._settle_alone(queue, batch)
        # Who came while the lock was held has left its batch to us.
        if not batch.is_done or queue.waiting:
            return False
        if self._callbacks:
            self._run_callbacks()
        return True

    def _flush_one(self):
        """Sends the one batch that there is, and waits for it; False where more is to be done, or was to be."""
        cdef Accumulator intake = self._intake
        intake._forget_closed()
        if len(intake.opened) != 1 or intake.incomplete or self._callbacks:
            return False
        return self._is_sent(intake.opened[0], True) and not intake.incomplete and not self._callbacks

    cdef int _settle_alone(self, PartitionIntake queue, Batch batch) except -1:
        """Waits for the device on behalf of a batch that is alone in flight, and acknowledges it. What is more than
        that, an error of the device above all, is left to who settles otherwise, and asks again."""
        cdef object settling = (<object>queue).settling
        if len(queue.in_flight) != 1 or queue.in_flight[0][0] is not batch or not settling.acquire(False):
            return 0
        try:
            # Looked at again: who held the lock may have answered it.
            if len(queue.in_flight) == 1 and queue.in_flight[0][0] is batch:
                base_offset, _, log_append_time_ms, _, pending = queue.in_flight[0][1]
                pending.wait()
                # In this order: interrupted in between, it is found here again, and answered once.
                if (self._intake._complete(batch, base_offset, log_append_time_ms, None)
                        and (self._waiters or batch._callbacks is not None)):
                    self._announce(batch)
                queue.in_flight.popleft()
        except Exception:
            pass
        except BaseException:
            settling.release()
            self._leave(queue)
            raise
        settling.release()
        return 0

    cdef int _send(self, PartitionIntake queue, Batch batch, identity) except -1:
        try:
            self._intake._seal(batch, identity, self.attributes, self.compress)
            if self._in_transaction is not None:
                self._transactions.join(queue.key)
                produced = self._broker.produce(queue.key, batch, **self._in_transaction)
                self._transactions.batch_sent(queue.key)
            elif self._acks == -1:
                produced = self._broker.produce(queue.key, batch)
            else:
                produced = self._broker.produce(queue.key, batch, acks=self._acks)
        except Exception as error:
            self._react(queue, batch, error)
            return 0
        base_offset, _, log_append_time_ms, _, pending = produced
        if pending is not None:
            self._intake._note_sent(batch)
            queue.in_flight.append((batch, produced))
        elif (self._intake._acknowledge(batch, base_offset, log_append_time_ms)
                and (self._waiters or batch._callbacks is not None)):
            self._announce(batch)
        return 0


cdef inline bint _is_sent_directly(Batch batch, bint is_awaited) except -1:
    owner = batch.target.owner
    return isinstance(owner, DirectSender) and (<DirectSender>owner)._is_sent(batch, is_awaited)


@cython.final
cdef class _Headers:
    """Slices of one record's headers, and what keeps them alive."""
    cdef ol_slice *_keys
    cdef ol_slice *_values
    cdef int64_t _start
    cdef int64_t _end
    cdef list _kept

    def __dealloc__(self):
        free(self._keys)
        free(self._values)

    cdef int64_t _gather(self, headers) except -1:
        """Returns the bytes that the headers may take."""
        cdef const char *text
        cdef Py_ssize_t size
        cdef int64_t total = 0
        cdef tuple pairs = tuple(headers.items() if isinstance(headers, dict) else headers)
        self._kept = [pairs]
        self._keys = <ol_slice *>malloc(max(len(pairs), 1) * sizeof(ol_slice))
        self._values = <ol_slice *>malloc(max(len(pairs), 1) * sizeof(ol_slice))
        if self._keys is NULL or self._values is NULL:
            raise MemoryError()
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise TypeError(f"headers are (str, bytes) pairs, not {type(pair).__name__}")
            name, value = pair
            if not isinstance(name, str):
                raise TypeError(f"a header key is a str, not {type(name).__name__}")
            if value is not None and not PyBytes_CheckExact(value):
                value = _bytes_of(value, "header value")
            self._kept.append(name)
            self._kept.append(value)
            text = PyUnicode_AsUTF8AndSize(name, &size)
            self._keys[self._end] = ol_slice(<const uint8_t *>text, size)
            self._values[self._end] = _slice_of(value)
            total += HEADER_BYTES_OVERHEAD + size + max(self._values[self._end].size, 0)
            self._end += 1
        return total


cdef inline ol_slice _slice_of(item):
    if item is None:
        return ol_slice(NULL, -1)
    return ol_slice(<const uint8_t *>PyBytes_AS_STRING(item), PyBytes_GET_SIZE(item))


cdef bytes _bytes_of(item, str what):
    """The bytes of a buffer; a record is bytes, and nothing is turned into them by guessing."""
    if isinstance(item, str):
        raise TypeError(f"{what} must be bytes, not str: encode it first, for example with .encode()")
    try:
        return memoryview(item).tobytes()
    except TypeError:
        raise TypeError(f"{what} must be bytes, not {type(item).__name__}") from None
