# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Committed offsets, the other way: a commit as keys and values of __consumer_offsets.
Room    wraps nothing: bytes are put together here. No files, no policy.
Borrow  nothing.
GIL     held: a commit has few offsets.
Fails   never for an offset that cannot be written: it is told which are refused.
Layout  engine/broker/group_records.py, in the form that Kafka 4 writes; pyext/offsets.pyx reads it
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    EXPIRING = 1  # versions of the value
    CURRENT = 4
    TEXT_MAX = 0x7fff  # bytes that a string of the older form has room for
    UUID_BYTES = 16
    PARTITION_BYTES = 4  # at the end of a key


cdef inline uint8_t *_put(uint8_t *at, uint64_t number, int size) noexcept nogil:
    """The lowest bytes of a number, the highest of them first; returns where they end."""
    cdef int place
    for place in range(size):
        at[place] = <uint8_t>(number >> 8 * (size - 1 - place))
    return at + size


cdef inline uint8_t *_put_varint(uint8_t *at, size_t number) noexcept nogil:
    while number >= 0x80:
        at[0] = <uint8_t>(number & 0x7f | 0x80)
        at += 1
        number >>= 7
    at[0] = <uint8_t>number
    return at + 1


cdef inline uint8_t *_put_bytes(uint8_t *at, const void *data, Py_ssize_t size) noexcept nogil:
    memcpy(at, data, <size_t>size)
    return at + size


cdef bint _number(object given, int64_t minimum, int64_t maximum, int64_t *number) except -1:
    """Whether a number lies between two others; it is then in ``number``."""
    cdef int overflow = 0
    number[0] = PyLong_AsLongLongAndOverflow(given, &overflow)
    return not overflow and minimum <= number[0] <= maximum


cdef bytes _key(str group, str topic, int64_t partition):
    cdef Py_ssize_t group_size, topic_size
    cdef const char *group_data = PyUnicode_AsUTF8AndSize(group, &group_size)
    cdef const char *topic_data = PyUnicode_AsUTF8AndSize(topic, &topic_size)
    cdef bytes made
    cdef uint8_t *at
    if group_size > TEXT_MAX or topic_size > TEXT_MAX:
        raise ValueError(f"a group id or a topic of more than {TEXT_MAX} bytes")
    made = PyBytes_FromStringAndSize(NULL, 6 + group_size + topic_size + PARTITION_BYTES)
    at = _put(<uint8_t *>PyBytes_AS_STRING(made), 1, 2)
    at = _put_bytes(_put(at, <uint64_t>group_size, 2), group_data, group_size)
    at = _put_bytes(_put(at, <uint64_t>topic_size, 2), topic_data, topic_size)
    _put(at, <uint64_t>partition, PARTITION_BYTES)
    return made


cdef bytes _value(int64_t offset, int64_t leader_epoch, str metadata, int64_t commit_ms, int64_t expire_ms,
                  bytes topic_id):
    """An offset as Kafka 4 writes it; with an expiry in the one version that has room for it."""
    cdef Py_ssize_t text_size, room
    cdef const char *text = PyUnicode_AsUTF8AndSize(metadata, &text_size)
    cdef bytes made
    cdef uint8_t *start
    cdef uint8_t *at
    if expire_ms != -1 and text_size > TEXT_MAX:
        raise ValueError(f"metadata of {text_size} bytes, with an expiry")
    if topic_id is not None and PyBytes_GET_SIZE(topic_id) != UUID_BYTES:
        raise AssertionError(f"a topic id has {UUID_BYTES} bytes, not {len(topic_id)}")
    room = 48 + UUID_BYTES + text_size
    made = PyBytes_FromStringAndSize(NULL, room)
    start = <uint8_t *>PyBytes_AS_STRING(made)
    if expire_ms != -1:
        at = _put(_put(start, EXPIRING, 2), <uint64_t>offset, 8)
        at = _put_bytes(_put(at, <uint64_t>text_size, 2), text, text_size)
        at = _put(_put(at, <uint64_t>commit_ms, 8), <uint64_t>expire_ms, 8)
    else:
        at = _put(_put(_put(start, CURRENT, 2), <uint64_t>offset, 8), <uint64_t>leader_epoch, 4)
        at = _put_bytes(_put_varint(at, <size_t>text_size + 1), text, text_size)
        at = _put(at, <uint64_t>commit_ms, 8)
        if topic_id is None:
            at = _put(at, 0, 1)  # tagged fields: none
        else:  # one, with tag 0
            at = _put_bytes(_put(at, 1 << 16 | UUID_BYTES, 3), PyBytes_AS_STRING(topic_id), UUID_BYTES)
    return made[:at - start]


def offset_records(str group not None, offsets, int64_t commit_ms, int64_t expire_ms, Py_ssize_t metadata_max,
                   topic_id_of):
    """(keys, values, refused) of a commit: of {(topic, partition): (offset, leader epoch, metadata)}.

    Refused are the partitions whose numbers or texts cannot be written, or whose metadata has more characters than it
    may have; ``topic_id_of`` is asked for the id of each topic, or None.
    """
    cdef list keys = [], values = [], refused = []
    cdef str topic, known = None
    cdef str metadata
    cdef bytes topic_id = None
    cdef int64_t partition, offset, leader_epoch
    for key, commit in offsets.items():
        topic, number = key
        position, epoch, metadata = commit
        if topic is None or metadata is None:
            raise TypeError(f"a topic and metadata are text: {key!r}, {commit!r}")
        if (len(metadata) > metadata_max or not _number(number, 0, INT32_MAX, &partition)
                or not _number(position, 0, INT64_MAX, &offset) or not _number(epoch, -1, INT32_MAX, &leader_epoch)):
            refused.append(key)
            continue
        if topic is not known:
            known, topic_id = topic, topic_id_of(topic)
        try:
            name = _key(group, topic, partition)
            value = _value(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id)
        except ValueError:
            refused.append(key)
        else:
            keys.append(name)
            values.append(value)
    return keys, values, refused
