"""The .txnindex file, line by line of section 4 of the checklist (kafka-cases); lookups are in tests/native."""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from oncelog.base import disk
from oncelog.base.disk import Disk as SlowDisk
from oncelog.base.disk import map_file
from oncelog.base.errors import CorruptRecordError, TruncatedBatchError
from oncelog.base.rows import ABORTED_DTYPE
from oncelog.segment import txn_index
from oncelog.segment.txn_index import TxnIndexFile, encode_entries

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ENTRY = struct.Struct(">hqqqq")
TXNS = [(1, 10, 20, 5), (2, 5, 25, 22), (1, 22, 30, 27), (3, 27, 40, 41)]


class Disk(SlowDisk):
    """Without waiting for the device, which is no matter here."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: object) -> None:
        pass


def rows(txns: list[tuple[int, int, int, int]]) -> NDArray[np.void]:
    return np.array(txns, ABORTED_DTYPE)


def file_bytes(txns: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(ENTRY.pack(0, *txn) for txn in txns)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.txnindex"


def opened(path: Path, base_offset: int = 0) -> TxnIndexFile:
    return TxnIndexFile(str(path), base_offset)


def found(index: TxnIndexFile) -> list[tuple[int, ...]]:
    return [row.tolist() for row in index.collect(0, 2**62)[0]]


def test_an_index_that_grows_over_pages_shows_every_entry_at_once(path: Path) -> None:
    """Goal: what was appended is found by the next lookup, also right before and behind the end of a page."""
    index, disk = opened(path), Disk()
    txns = [(number, 2 * number, 2 * number + 1, 2 * number + 2) for number in range(400)]
    for count, txn in enumerate(txns, 1):
        index.append(disk, rows([txn]))
        assert found(index)[-1] == txn
        assert len(index) == count
    assert found(index) == txns
    index.close()
    assert path.read_bytes() == file_bytes(txns)


def test_entries_are_written_as_kafka_writes_them(path: Path) -> None:
    """Goal: version int16, producer id, first, last and last stable offset int64, big-endian; wide values."""
    txn = (0x0102030405060708, 0x1112131415161718, 0x3132333435363738, 0x2122232425262728)
    assert encode_entries(rows([txn])) == bytes(2) + bytes(
        byte + 16 * field for field in (0, 1, 3, 2) for byte in range(1, 9)
    )
    opened(path).append(Disk(), rows([txn]))
    assert path.read_bytes() == file_bytes([txn])


def test_the_file_is_made_by_the_first_abort(path: Path) -> None:
    """Goal: no abort, no file: neither a lookup nor an append of nothing makes one."""
    index = opened(path)
    assert (len(index), found(index)) == (0, [])
    index.append(Disk(), rows([]))
    index.sync()
    index.close()
    assert not path.exists()
    index.append(Disk(), rows(TXNS[:1]))
    assert path.read_bytes() == file_bytes(TXNS[:1])
    assert found(index) == TXNS[:1]


def test_an_empty_file_is_an_empty_index(path: Path) -> None:
    path.touch()
    assert len(opened(path)) == 0


def test_a_reopened_file_grows_at_its_end(path: Path) -> None:
    """Goal: appended one by one, with a new object for each, the file is the one written at once."""
    for txn in TXNS:
        index = opened(path)
        index.append(Disk(), rows([txn]))
        index.close()
    assert path.read_bytes() == file_bytes(TXNS)
    assert found(opened(path)) == TXNS
    index = opened(path)
    index.append(Disk(), rows([(9, 41, 50, 51), (9, 52, 60, 61)]))
    assert len(index) == 6


@pytest.mark.parametrize("last_offset", [20, 19])
def test_a_last_offset_that_does_not_rise_is_refused_and_leaves_nothing(
    path: Path, last_offset: int
) -> None:
    """Goal: error; the index is as before, takes the right entry next, and after a close the file has no more."""
    index = opened(path)
    index.append(Disk(), rows(TXNS[:1]))
    with pytest.raises(CorruptRecordError, match="do not rise"):
        index.append(Disk(), rows([(2, 5, last_offset, 26)]))
    assert found(index) == TXNS[:1]
    index.close()
    assert path.read_bytes() == file_bytes(TXNS[:1])
    index.append(Disk(), rows(TXNS[1:2]))
    assert found(index) == TXNS[:2]


def test_a_write_that_failed_halfway_is_overwritten_or_cut_off(path: Path) -> None:
    """Goal: half an entry behind the last is no entry: the next append covers it, a close removes it."""

    class Torn(Disk):
        def write(self, descriptor: int, data: object, position: int) -> None:
            super().write(descriptor, bytes(memoryview(data))[:20], position)  # type: ignore[arg-type]
            raise OSError(28, "No space left on device")

    index = opened(path)
    index.append(Disk(), rows(TXNS[:1]))
    with pytest.raises(OSError, match="No space"):
        index.append(Torn(), rows(TXNS[1:2]))
    assert path.stat().st_size == 54
    assert found(index) == TXNS[:1]
    index.close()
    assert path.read_bytes() == file_bytes(TXNS[:1])
    again = opened(path)
    with pytest.raises(OSError, match="No space"):
        again.append(Torn(), rows(TXNS[1:2]))
    again.append(Disk(), rows(TXNS[1:3]))
    assert path.read_bytes() == file_bytes(TXNS[:3])


def test_truncating_removes_transactions_that_end_at_the_offset_or_above(path: Path) -> None:
    """Goal: by last offset, whatever the first; with none left there is no file."""
    for offset, kept in (
        (41, 4),
        (40, 3),
        (31, 3),
        (30, 2),
        (26, 2),
        (25, 1),
        (21, 1),
        (20, 0),
        (0, 0),
    ):
        path.write_bytes(file_bytes(TXNS))
        index = opened(path)
        index.truncate_to(Disk(), offset)
        assert found(index) == TXNS[:kept]
        assert (path.read_bytes() if path.exists() else b"") == file_bytes(TXNS[:kept])
        assert path.exists() == (kept > 0)


def test_rewriting_replaces_the_file_and_not_the_bytes_under_a_reader(path: Path) -> None:
    """Goal: a mapping handed out before shows the old entries for as long as it lives."""
    path.write_bytes(file_bytes(TXNS))
    mapping = map_file(path)
    old = opened(path)
    entries = old.index.entries()
    index = opened(path)
    index.rewrite(Disk(), rows(TXNS[2:]))
    assert found(index) == TXNS[2:]
    assert bytes(memoryview(mapping)) == file_bytes(TXNS)
    assert entries["producer_id"].tolist() == [1, 2, 1, 3]
    index.rewrite(Disk(), rows([]))
    index.rewrite(Disk(), rows([]))  # removing what is gone is no error
    assert not path.exists()
    assert found(old) == TXNS


def test_a_reader_goes_on_when_the_file_is_renamed_or_removed(path: Path) -> None:
    """Goal: deletion renames first and removes later; an index that was opened answers through both."""
    path.write_bytes(file_bytes(TXNS))
    index = opened(path)
    assert len(index) == 4
    renamed = path.rename(f"{path}.deleted")
    assert found(index) == TXNS
    renamed.unlink()
    assert found(index) == TXNS


def test_entries_held_in_memory_leave_the_file_alone(path: Path) -> None:
    path.write_bytes(b"damaged")
    index = opened(path)
    index.hold(rows(TXNS))
    assert found(index) == TXNS
    index.close()
    assert path.read_bytes() == b"damaged"


def test_what_cannot_be_believed_is_an_error_that_names_the_file(path: Path) -> None:
    """Goal: a partial entry, an entry below the segment's base; whoever asked rebuilds from the log."""
    path.write_bytes(file_bytes(TXNS)[:-1])
    with pytest.raises(TruncatedBatchError) as cut:
        len(opened(path))
    assert (cut.value.file, cut.value.position) == (str(path), 102)
    path.write_bytes(file_bytes(TXNS))
    assert len(opened(path, base_offset=20)) == 4
    with pytest.raises(CorruptRecordError) as below:
        opened(path, base_offset=21).collect(0, 100)
    assert (below.value.file, below.value.position) == (str(path), 0)


def test_a_reader_that_opens_the_file_does_not_undo_what_a_writer_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an entry is not forgotten, nor written over by the next, because a reader asked at the same moment.
    Method: the reader has looked whether there is a file, and stands still; meanwhile the writer adds an entry."""
    entered, may_go_on = threading.Event(), threading.Event()
    real = disk.exists

    def slow(path: str) -> bool:
        is_there = real(path)
        if threading.current_thread() is reader:
            entered.set()
            may_go_on.wait(
                0.3
            )  # the writer may have to wait for the reader: then this ends by itself
        return is_there

    monkeypatch.setattr(txn_index, "exists", slow)
    index = opened(tmp_path / "00000000000000000000.txnindex")
    reader = threading.Thread(target=lambda: index.index)
    reader.start()
    assert entered.wait(10)
    index.append(Disk(), rows(TXNS[:1]))
    may_go_on.set()
    reader.join(10)
    assert len(index) == 1
    index.append(Disk(), rows(TXNS[1:]))
    assert found(index) == TXNS
    index.close()
