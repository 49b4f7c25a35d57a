# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Committed offsets: what the batches of __consumer_offsets amount to, kept up to date batch by batch.
Room    wraps the record readers of csrc/decode.c: no files, no codecs, no policy.
Borrow  nothing: what is kept is copied out of the batches.
GIL     released while a batch is proven sound; held while its records are taken over. Callers hold a lock of their own.
Fails   with oncelog.base.errors types; a batch is proven whole before its first record counts.
Layout  engine/broker/group_records.py. Only the forms that Kafka 4 writes are read here; ``decode_other`` reads the
        rest, and is asked to explain what is damaged. pyext/offset_records.pyx writes them.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp
from oncelog_c cimport (
    OL_ATTR_CONTROL, OL_ATTR_TRANSACTIONAL, OL_COMPRESSED, OL_CONTROL_ABORT, OL_HEADER_BYTES, OL_OK, OL_SKIPPED, check,
    decompressed, ol_batch_open, ol_fault, ol_grow_zeroed, ol_header, ol_record, ol_records_check, ol_records_next,
    ol_slice, ol_status, pin, pinned_data, pinned_size,
)

import numpy as np

cdef enum:
    CONTROL_COMMIT = 1
    UUID_BYTES = 16
    PARTITION_BYTES = 4  # at the end of a key
    ROWS_MIN = 16
    RECORDS_MAX = 128   # read at a time
    GAP_MAX = 16  # rows are for numbers without large gaps: one far away number must not claim memory


@cython.final
@cython.no_gc  # it refers to bytes and text alone; a million of them are no work for the collector
@cython.freelist(512)
cdef class CommittedOffset:
    """An offset that a group has committed. ``record_offset``: where in __consumer_offsets it says so."""
    cdef readonly int64_t offset
    cdef readonly int64_t commit_ms
    cdef readonly int64_t expire_ms
    cdef readonly int64_t record_offset
    cdef readonly int32_t leader_epoch
    cdef readonly str metadata
    cdef readonly bytes topic_id

    def __init__(self, int64_t offset, int32_t leader_epoch=-1, str metadata not None="", int64_t commit_ms=-1,
                 int64_t expire_ms=-1, bytes topic_id not None=b"", *, int64_t record_offset=-1):
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.metadata = metadata
        self.commit_ms = commit_ms
        self.expire_ms = expire_ms
        self.topic_id = topic_id
        self.record_offset = record_offset

    cdef tuple _fields(self):
        return (self.offset, self.leader_epoch, self.metadata, self.commit_ms, self.expire_ms, self.topic_id)

    def __eq__(self, other):
        """The same commit, wherever it is written."""
        if not isinstance(other, CommittedOffset):
            return NotImplemented
        return self._fields() == (<CommittedOffset>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (f"CommittedOffset(offset={self.offset}, leader_epoch={self.leader_epoch}, metadata={self.metadata!r}, "
                f"commit_ms={self.commit_ms}, record_offset={self.record_offset})")


cdef struct Key:
    const uint8_t *group
    const uint8_t *topic
    Py_ssize_t group_size
    Py_ssize_t topic_size


cdef struct Value:
    const uint8_t *metadata
    const uint8_t *topic_id     # NULL: none
    Py_ssize_t metadata_size
    int64_t offset
    int64_t commit_ms
    int32_t leader_epoch


cdef inline uint16_t _u16(const uint8_t *at) noexcept nogil:
    return <uint16_t>(at[0] << 8 | at[1])


cdef inline uint32_t _u32(const uint8_t *at) noexcept nogil:
    return <uint32_t>_u16(at) << 16 | _u16(at + 2)


cdef inline int64_t _i64(const uint8_t *at) noexcept nogil:
    return <int64_t>(<uint64_t>_u32(at) << 32 | _u32(at + 4))


cdef bint _read_key(Key *key, const ol_slice *data) noexcept nogil:
    """A key of type 0 or 1, exactly as long as it says."""
    cdef int64_t left = data.size - 2
    cdef const uint8_t *at = data.data + 2
    if left < 2:
        return False
    key.group_size = _u16(at)
    left -= 2 + key.group_size
    if left < 2 or key.group_size > 0x7fff:
        return False
    key.group = at + 2
    at = key.group + key.group_size
    key.topic_size = _u16(at)
    left -= 2 + key.topic_size
    if left != PARTITION_BYTES or key.topic_size > 0x7fff:
        return False
    key.topic = at + 2
    return True


cdef bint _read_value(Value *value, const ol_slice *data) noexcept nogil:
    """A value of version 3 or 4 with no tag but that of the topic id."""
    cdef const uint8_t *at = data.data
    cdef int64_t left = data.size - 14
    cdef int version
    if left < 2:
        return False
    version = _u16(at)
    value.offset = _i64(at + 2)
    value.leader_epoch = <int32_t>_u32(at + 10)
    value.topic_id = NULL
    at += 14
    if version == 3:
        value.metadata_size = _u16(at)
        value.metadata = at + 2
        left -= 2 + value.metadata_size
        if left != 8 or value.metadata_size > 0x7fff:
            return False
        value.commit_ms = _i64(value.metadata + value.metadata_size)
        return True
    if version != 4 or at[0] == 0:
        return False
    if at[0] < 0x80:
        value.metadata_size = at[0] - 1
        value.metadata = at + 1
        left -= 1
    elif at[1] < 0x80:
        value.metadata_size = (at[0] & 0x7f | <Py_ssize_t>at[1] << 7) - 1
        value.metadata = at + 2
        left -= 2
    else:
        return False
    left -= value.metadata_size
    if left < 9 or value.metadata_size < 0:
        return False
    at = value.metadata + value.metadata_size
    value.commit_ms = _i64(at)
    if left == 9:
        return at[8] == 0
    if left == 11 + UUID_BYTES and at[8] == 1 and at[9] == 0 and at[10] == UUID_BYTES:
        value.topic_id = at + 11
        return True
    return False


cdef inline bytes _bytes(const ol_slice *data):
    if data.size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char *>data.data, <Py_ssize_t>data.size)


cdef str _text(const uint8_t *data, Py_ssize_t size):
    """A text, or None for bytes that are not UTF-8."""
    try:
        return PyUnicode_DecodeUTF8(<const char *>data, size, NULL)
    except UnicodeDecodeError:
        return None


cdef struct Row:
    int64_t offset
    int64_t commit_ms
    int64_t record_offset
    int32_t leader_epoch
    int32_t label               # 0: there is no row; else where its metadata and topic id are, plus one


cdef inline void _fill(Row *row, const Value *value, int64_t record_offset, int32_t label) noexcept:
    row.label = label
    row.offset = value.offset
    row.commit_ms = value.commit_ms
    row.record_offset = record_offset
    row.leader_epoch = value.leader_epoch


@cython.final
@cython.no_gc  # it refers to numbers, bytes and text alone
cdef class TopicOffsets:
    """The offsets of one group and topic by partition: a mapping, to be read only. An offset is made an object when
    it is asked for. Most rows have the same metadata and topic id, which are kept once, as a label."""
    cdef Row *_rows             # by partition number
    cdef int32_t _capacity
    cdef int32_t _used
    cdef dict _others           # what does not fit a row: far away numbers, offsets with an expiry
    cdef list _labels           # (metadata, topic id)
    cdef dict _numbers          # of labels, from 1 on
    cdef bytes _last_topic_id   # of the last label without metadata, as the next row most often has it, too
    cdef int32_t _last_label

    def __cinit__(self):
        self._others = {}
        self._labels = []
        self._numbers = {}

    def __dealloc__(self):
        free(self._rows)

    def __len__(self):
        return self._used + len(self._others)

    def __contains__(self, partition):
        return self.get(partition) is not None

    def __iter__(self):
        cdef int32_t number
        found = [number for number in range(self._capacity) if self._rows[number].label]
        found.extend(self._others)
        return iter(found)

    def items(self):
        """(partition, offset) pairs."""
        return [(number, self.get(number)) for number in self]

    def get(self, partition):
        """The offset of a partition, or None."""
        cdef CommittedOffset made
        cdef Row *row
        if not 0 <= partition < self._capacity or self._rows[<int32_t>partition].label == 0:
            return self._others.get(partition)
        row = &self._rows[<int32_t>partition]
        made = CommittedOffset.__new__(CommittedOffset)
        made.offset = row.offset
        made.commit_ms = row.commit_ms
        made.expire_ms = -1
        made.record_offset = row.record_offset
        made.leader_epoch = row.leader_epoch
        made.metadata, made.topic_id = self._labels[row.label - 1]
        return made

    cdef inline Row *_row(self, int32_t partition) except? NULL:
        """The row for a partition, NULL if it does not get one."""
        if partition >= self._capacity and not self._has_grown(partition):
            return NULL
        return &self._rows[partition]

    cdef bint _has_grown(self, int32_t partition) except -1:
        """Makes rows for all partitions up to one; False if it is too far away."""
        cdef int32_t capacity = self._capacity
        cdef Row *rows
        if partition >= 2 * capacity + GAP_MAX:
            return False
        while capacity <= partition:
            capacity = max(2 * capacity, ROWS_MIN)
        rows = <Row *>ol_grow_zeroed(self._rows, <size_t>self._capacity * sizeof(Row), <size_t>capacity * sizeof(Row))
        if rows == NULL:
            raise MemoryError("no memory for committed offsets")
        self._rows = rows
        self._capacity = capacity
        return True

    cdef int _set(self, int32_t partition, const Value *value, int64_t record_offset, str metadata,
                  bytes topic_id) except -1:
        cdef Row *row = self._row(partition) if partition >= 0 else NULL
        if row == NULL:
            self._others[partition] = CommittedOffset(value.offset, value.leader_epoch, metadata, value.commit_ms, -1,
                                                      topic_id, record_offset=record_offset)
            return 0
        if row.label == 0:
            self._used += 1
            if self._others:
                self._others.pop(partition, None)
        _fill(row, value, record_offset, self._label(metadata, topic_id))
        return 0

    cdef inline int32_t _label(self, str metadata, bytes topic_id) except -1:
        if topic_id is self._last_topic_id and not metadata:
            return self._last_label
        return self._new_label(metadata, topic_id)

    cdef int32_t _new_label(self, str metadata, bytes topic_id) except -1:
        cdef int32_t number
        cdef list labels = self._labels
        if len(labels) > 2 * <Py_ssize_t>self._capacity + ROWS_MIN:  # most of them are nobody's any more
            self._labels = []
            self._numbers = {}
            for number in range(self._capacity):
                if self._rows[number].label:
                    self._rows[number].label = self._number_of(labels[self._rows[number].label - 1])
        number = self._number_of((metadata, topic_id))
        self._last_topic_id = None if metadata else topic_id
        self._last_label = number
        return number

    cdef int32_t _number_of(self, tuple label) except -1:
        cdef object number = self._numbers.get(label)
        if number is None:
            self._labels.append(label)
            number = self._numbers[label] = len(self._labels)
        return number

    cdef int _put(self, partition, CommittedOffset made) except -1:
        """An offset that is an object already; one with an expiry stays one."""
        cdef Value value
        if made.expire_ms == -1:
            value.offset = made.offset
            value.commit_ms = made.commit_ms
            value.leader_epoch = made.leader_epoch
            return self._set(partition, &value, made.record_offset, made.metadata, made.topic_id)
        self._discard(partition)
        self._others[partition] = made
        return 0

    cdef int _discard(self, partition) except -1:
        cdef Row *row
        self._others.pop(partition, None)
        if 0 <= partition < self._capacity:
            row = &self._rows[<int32_t>partition]
            if row.label:
                row.label = 0
                self._used -= 1
        return 0


@cython.final
cdef class OffsetTable:
    """Offsets by group, topic and partition; ``pending`` has those of open transactions, by producer id.

    Both hold {group: {topic: TopicOffsets}}, without empty entries, and are to be read only.
    ``open`` has the producers with something pending in each group.
    """
    cdef readonly dict groups
    cdef readonly dict pending
    cdef readonly dict open
    cdef object _decode_other
    # The place of the record before, as the next one is most often beside it.
    cdef bytes _names           # its key, but for the partition
    cdef bytes _topic_id
    cdef int64_t _producer_id
    cdef TopicOffsets _partitions
    cdef int32_t _run_label     # of its row if it has no metadata: a record that differs in numbers alone gets it, too; else 0
    cdef bint _run_has_id

    def __init__(self, decode_other):
        self.groups = {}
        self.pending = {}
        self.open = {}
        self._decode_other = decode_other
        self._forget_place()

    cdef void _forget_place(self) noexcept:
        self._names = self._topic_id = b""
        self._partitions = None
        self._run_label = 0

    def apply(self, buffer, positions, *, int64_t start_offset=0, decompress=None, str file=""):
        """Takes batches over, in the order of the log; returns the records that are no offsets, as (key, value)."""
        cdef const int64_t[::1] starts = np.ascontiguousarray(positions, dtype=np.int64)
        cdef object held = pin(buffer)
        cdef list others = []
        cdef Py_ssize_t index
        try:
            for index in range(starts.shape[0]):
                self._apply_batch(held, starts[index], start_offset, decompress, file, others)
        finally:
            self._forget_place()
        return others

    def apply_one(self, buffer, int64_t base_offset):
        """Takes over one batch that was just written and is not compressed; what it says of groups is known.

        False, and nothing was done, if these are not the bytes that the log has at that offset.
        """
        cdef object held = pin(buffer)
        if pinned_size(held) < OL_HEADER_BYTES or _i64(pinned_data(held)) != base_offset:
            return False
        try:
            self._apply_batch(held, 0, 0, None, "", [])
        finally:
            self._forget_place()
        return True

    cdef int _apply_batch(self, object held, int64_t position, int64_t start_offset, object decompress, str file,
                          list others) except -1:
        cdef ol_header header
        cdef ol_fault fault
        cdef ol_status status
        cdef ol_record some[RECORDS_MAX]
        cdef ol_record *record
        cdef const uint8_t *base = pinned_data(held)
        cdef const uint8_t *records
        cdef size_t size = pinned_size(held)
        cdef size_t at = 0
        cdef int64_t index, count, producer_id
        cdef object payload = None  # keeps decompressed records alive
        with nogil:
            status = ol_batch_open(&header, base, size, position, start_offset, INT64_MAX, True, True, &fault)
        if status == OL_SKIPPED:
            return 0
        records = base + header.position + OL_HEADER_BYTES
        size = <size_t>header.size - OL_HEADER_BYTES
        if status == OL_COMPRESSED:
            payload = decompressed(decompress, &header, base, file)
            records, size = pinned_data(payload), pinned_size(payload)
        else:
            check(status, &fault, file)
        with nogil:
            status = ol_records_check(&header, records, size, &fault)
        check(status, &fault, file)
        if header.attributes & OL_ATTR_CONTROL:
            if header.control_type == CONTROL_COMMIT or header.control_type == OL_CONTROL_ABORT:
                self._end(header.producer_id, header.control_type == CONTROL_COMMIT)
            return 0
        producer_id = header.producer_id if header.attributes & OL_ATTR_TRANSACTIONAL else -1
        while at < size:
            count = ol_records_next(some, RECORDS_MAX, &header, records, size, &at)
            if count == 0:
                raise AssertionError("a checked batch has an unreadable record")
            for index in range(count):
                record = &some[index]
                if record.key.size < 0 or record.offset < start_offset:
                    continue
                if record.key.size < 2 or record.key.data[0] != 0 or record.key.data[1] > 1:
                    others.append((_bytes(&record.key), _bytes(&record.value)))
                else:
                    self._apply_record(record, producer_id)
        return 0

    cdef inline int _apply_record(self, const ol_record *record, int64_t producer_id) except -1:
        cdef Value value
        cdef Row *row
        if record.value.size < 0 or not _read_value(&value, &record.value):
            return self._apply_other(record, producer_id)
        row = self._row_of_run(record, &value, producer_id)
        if row == NULL:
            return self._apply_offset(record, &value, producer_id)
        _fill(row, &value, record.offset, self._run_label)
        return 0

    cdef inline bint _is_beside(self, const ol_record *record, int64_t producer_id) noexcept:
        """Whether a record is about the same group and topic as the one before, and of the same producer."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self._names)
        return (self._partitions is not None and producer_id == self._producer_id
                and record.key.size == size + PARTITION_BYTES
                and memcmp(PyBytes_AS_STRING(self._names), record.key.data, <size_t>size) == 0)

    cdef inline Row *_row_of_run(self, const ol_record *record, const Value *value, int64_t producer_id) noexcept:
        """The row for a record that differs from the one before in numbers alone; NULL if it does not, or has none yet."""
        cdef TopicOffsets partitions = self._partitions
        cdef Row *row
        cdef uint32_t partition
        if (self._run_label == 0 or value.metadata_size or (value.topic_id != NULL) != self._run_has_id
                or not self._is_beside(record, producer_id)):
            return NULL
        if self._run_has_id and memcmp(PyBytes_AS_STRING(self._topic_id), value.topic_id, UUID_BYTES) != 0:
            return NULL
        partition = _u32(record.key.data + record.key.size - PARTITION_BYTES)
        if partition >= <uint32_t>partitions._capacity:
            return NULL
        row = &partitions._rows[partition]
        if row.label == 0:
            if partitions._others:
                return NULL
            partitions._used += 1
        return row

    cdef int _apply_offset(self, const ol_record *record, const Value *value, int64_t producer_id) except -1:
        cdef str metadata = ""
        cdef bytes topic_id
        if not self._is_beside(record, producer_id) and not self._find_place(record, producer_id):
            return self._apply_other(record, producer_id)
        if value.metadata_size:
            metadata = _text(value.metadata, value.metadata_size)
            if metadata is None:
                return self._apply_other(record, producer_id)
        topic_id = self._topic_id_of(value)
        self._partitions._set(<int32_t>_u32(record.key.data + record.key.size - PARTITION_BYTES), value, record.offset,
                              metadata, topic_id)
        self._run_has_id = value.topic_id != NULL
        self._run_label = 0
        if not metadata and topic_id is self._partitions._last_topic_id:
            self._run_label = self._partitions._last_label
        return 0

    cdef inline bytes _topic_id_of(self, const Value *value):
        """The topic id, most often that of the record before."""
        if value.topic_id == NULL:
            return b""
        if (PyBytes_GET_SIZE(self._topic_id) != UUID_BYTES
                or memcmp(PyBytes_AS_STRING(self._topic_id), value.topic_id, UUID_BYTES) != 0):
            self._topic_id = PyBytes_FromStringAndSize(<const char *>value.topic_id, UUID_BYTES)
        return self._topic_id

    cdef int _apply_other(self, const ol_record *record, int64_t producer_id) except -1:
        """A tombstone, an offset in an older form, or a damaged one, for which this raises."""
        group, topic, partition, row = self._decode_other(_bytes(&record.key), _bytes(&record.value), record.offset)
        if row is None:
            self._remove(group, topic, partition)
        else:
            self._partitions_of(self._root_of(group, producer_id), group, topic)._put(partition, row)
        return 0

    cdef bint _find_place(self, const ol_record *record, int64_t producer_id) except -1:
        """The partitions of a record's group and topic; False for a damaged key."""
        cdef Key key
        cdef str group, topic
        if not _read_key(&key, &record.key):
            return False
        group = _text(key.group, key.group_size)
        topic = _text(key.topic, key.topic_size)
        if group is None or topic is None:
            return False
        self._partitions = self._partitions_of(self._root_of(group, producer_id), group, topic)
        self._names = PyBytes_FromStringAndSize(<const char *>record.key.data,
                                                <Py_ssize_t>record.key.size - PARTITION_BYTES)
        self._producer_id = producer_id
        return True

    cdef dict _root_of(self, str group, int64_t producer_id):
        """Where the offsets of a producer's transaction wait, or those of no transaction are."""
        cdef dict root
        if producer_id < 0:
            return self.groups
        root = self.pending.get(producer_id)
        if root is None:
            root = self.pending[producer_id] = {}
        self.open.setdefault(group, set()).add(producer_id)
        return root

    cdef TopicOffsets _partitions_of(self, dict root, str group, str topic):
        cdef dict topics = root.get(group)
        cdef TopicOffsets partitions
        if topics is None:
            topics = root[group] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = TopicOffsets.__new__(TopicOffsets)
        return partitions

    cdef int _remove(self, str group, str topic, partition) except -1:
        """A tombstone: the offset goes, and so do those that wait for the end of a transaction."""
        self._forget_place()
        _discard(self.groups, group, topic, partition)
        for producer_id in tuple(self.open.get(group, ())):
            root = self.pending[producer_id]
            _discard(root, group, topic, partition)
            if group not in root:
                self._close(group, producer_id)
        return 0

    cdef int _close(self, str group, int64_t producer_id) except -1:
        """Nothing of a producer's transaction waits in a group any more."""
        cdef set producers = self.open[group]
        producers.discard(producer_id)
        if not producers:
            del self.open[group]
        return 0

    def end(self, int64_t producer_id, bint committed):
        """A marker that was just written."""
        self._end(producer_id, committed)

    cdef int _end(self, int64_t producer_id, bint committed) except -1:
        """A marker. Of what is committed now, a plain commit that lies later in the log stays."""
        cdef dict root = self.pending.pop(producer_id, None)
        cdef TopicOffsets kept, partitions
        cdef CommittedOffset row, other
        self._forget_place()
        if root is None:
            return 0
        for group in root:
            self._close(group, producer_id)
        if not committed:
            return 0
        for group, topics in root.items():
            for topic, partitions in topics.items():
                kept = self._partitions_of(self.groups, group, topic)
                for partition, row in partitions.items():
                    other = kept.get(partition)
                    if other is None or row.record_offset > other.record_offset:
                        kept._put(partition, row)
        return 0

    def is_pending(self, str group not None, str topic not None, partition):
        """Whether an open transaction is about to commit this offset."""
        for producer_id in self.open.get(group, ()):
            topics = (<dict>self.pending[producer_id]).get(group)
            if topics is not None and partition in topics.get(topic, ()):
                return True
        return False


cdef int _discard(dict root, str group, str topic, partition) except -1:
    """Takes an offset out, and what is empty without it."""
    cdef dict topics = root.get(group)
    cdef TopicOffsets partitions
    if topics is None:
        return 0
    partitions = topics.get(topic)
    if partitions is None:
        return 0
    partitions._discard(partition)
    if len(partitions) == 0:
        del topics[topic]
        if not topics:
            del root[group]
    return 0
