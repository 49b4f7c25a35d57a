"""What our own encoder has just made is not proven again by the log; what anybody else could have changed is."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pytest

import oncelog
from oncelog._native.accumulator import Batch
from oncelog._native.batch import EncodedBatches
from oncelog._native.segment import check_one
from oncelog.base.errors import CorruptRecordError
from oncelog.segment.batch import encode

from .test_accumulator import NOW, Collector

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Buffer

TIME_MAX = 2**63 - 1
VALUES = [b"value-%04d" % number * 10 for number in range(100)]


def batches() -> EncodedBatches:
    found = encode(VALUES, timestamp_ms=NOW)
    assert isinstance(found, EncodedBatches)
    assert len(found) > 4096, "less is proven at once"
    return found


def is_taken(data: Buffer) -> bool:
    return check_one(data, 1 << 30, True, False, -TIME_MAX - 1, TIME_MAX) is not None


def _memory(address: int, size: int) -> Any:
    return (ctypes.c_uint8 * size).from_address(address)


class Stranger(bytearray):
    """Bytes that borrow the word of others."""

    def __init__(self, data: bytes, word: object) -> None:
        super().__init__(data)
        self.word = word

    def proof(self) -> object:
        return self.word


def test_bytes_that_were_handed_out_for_writing_are_proven_again() -> None:
    collector = Collector()
    (untouched,) = Batch.encoded(collector.queues[0], batches(), 0)
    assert is_taken(untouched)
    views: tuple[Callable[[Any], Any], ...] = (memoryview, np.asarray)
    for hand_out in views:
        (batch,) = Batch.encoded(collector.queues[0], batches(), 0)
        hand_out(batch)[200] ^= 1
        assert not is_taken(batch), "its checksum is wrong, and was looked at"


def test_what_is_written_through_the_whole_is_found_in_its_part() -> None:
    collector = Collector()
    encoded = batches()
    (batch,) = Batch.encoded(collector.queues[0], encoded, 0)
    memoryview(encoded)[200] ^= 1
    assert not is_taken(batch)


def test_a_proof_spares_the_second_look() -> None:
    """Goal: what is proven is not read again, or the other tests here would prove nothing.
    Method: a byte changes behind everybody's back, which only a look at all bytes would find."""
    collector = Collector()
    encoded = batches()
    address = _address(encoded)
    (batch,) = Batch.encoded(collector.queues[0], encoded, 0)
    _memory(address, len(encoded))[200] ^= 1
    assert is_taken(batch)
    assert not is_taken(memoryview(batch))
    assert not is_taken(batch), "and never again after a view was given out"


def _address(encoded: EncodedBatches) -> int:
    """Where its bytes lie, asked without touching its proof."""

    class View(ctypes.Structure):
        _fields_ = [
            ("buf", ctypes.c_void_p),
            ("obj", ctypes.py_object),
            ("len", ctypes.c_ssize_t),
            ("rest", ctypes.c_byte * 64),
        ]

    view = View()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    assert get(ctypes.py_object(encoded), ctypes.byref(view), 0) == 0
    address: int = view.buf
    release(ctypes.byref(view))
    return address


def test_nobody_borrows_the_word_of_others() -> None:
    collector = Collector()
    sound = batches()
    broken = bytearray(bytes(batches()))
    broken[200] ^= 1
    stranger = Stranger(bytes(broken), sound.proof())
    assert not is_taken(stranger)
    (batch,) = Batch.encoded(collector.queues[0], stranger, 0)
    assert not is_taken(batch)
    for word in (None, 7, object()):
        assert not is_taken(Stranger(bytes(broken), word))


def test_what_a_codec_made_is_proven() -> None:
    """Goal: nobody vouches for a codec, which may be the caller's own.
    Method: it returns nonsense, and the batch says that it is not compressed."""
    collector = Collector()
    for value in VALUES:
        collector.send("t", value)
    (batch,) = collector.closed()
    batch.seal(1, 0, 0, 0, lambda _: bytes(5000))
    assert not is_taken(batch)


def test_memory_is_reused_only_by_who_is_alone_with_it() -> None:
    encoded = batches()
    states = [encoded.is_shared]
    with memoryview(encoded):
        states.append(encoded.is_shared)
    states.append(encoded.is_shared)
    assert states == [False, True, False]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_rows_of_many_sends_do_not_run_into_each_other(
    tmp_path: Path, durability: Literal["os", "fsync"]
) -> None:
    """Goal: memory that rows are encoded in is used again, but by nobody before its batch is done.
    Method: rows of other sizes each time, with and without waiting, read back from the files."""
    expected: list[bytes] = []
    with oncelog.open(tmp_path, durability=durability) as log:
        log.create_topic("orders", partitions=1)
        with log.producer() as producer:
            for number in range(12):
                values = [b"%d-%d" % (number, row) * (number % 5 + 1) for row in range(900)]
                producer.send_arrow("orders", pa.table({"value": pa.array(values, pa.binary())}))
                expected += values
                if number % 3 == 0:
                    producer.flush()
        assert pa.table(log.read("orders"))["value"].to_pylist() == expected


def test_damage_in_bytes_from_elsewhere_is_refused(tmp_path: Path) -> None:
    damaged = bytearray(bytes(batches()))
    damaged[200] ^= 1
    with oncelog.open(tmp_path) as log:
        log.create_topic("orders", partitions=1)
        with log.producer(retries=0) as producer:
            sent = producer.send_encoded("orders", 0, damaged)
            with pytest.raises(CorruptRecordError):
                sent.result()
