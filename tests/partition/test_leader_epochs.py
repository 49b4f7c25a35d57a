"""Leader epochs, line by line of section 10 of the checklist (kafka-cases), what concerns the cache and its file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.disk import Disk as SlowDisk
from oncelog.base.rows import HEADER_DTYPE
from oncelog.partition.leader_epochs import LeaderEpochs
from oncelog.segment.batch import encode
from tests.partition.logs import KEY, NOW, open_partition

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


class Disk(SlowDisk):
    """Without waiting for the device, which is no matter here."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: object) -> None:
        pass


def epochs_with(directory: Path, *pairs: tuple[int, int]) -> LeaderEpochs:
    found = LeaderEpochs(str(directory), Disk())
    for epoch, offset in pairs:
        found.assign(epoch, offset)
    return found


def stored(directory: Path) -> list[tuple[int, int]]:
    entries = LeaderEpochs(str(directory), None).entries
    return [(entry.epoch, entry.start_offset) for entry in entries]


def batches(*pairs: tuple[int, int]) -> NDArray[np.void]:
    rows = np.zeros(len(pairs), HEADER_DTYPE)
    rows["partition_leader_epoch"] = [epoch for epoch, _ in pairs]
    rows["base_offset"] = [offset for _, offset in pairs]
    return rows


def test_an_epoch_enters_with_its_first_offset_and_is_on_disk(tmp_path: Path) -> None:
    epochs = epochs_with(tmp_path)
    assert (epochs.latest, epochs.entries) == (-1, [])
    assert not (tmp_path / "leader-epoch-checkpoint").exists()
    epochs.assign(2, 10)
    epochs.assign(5, 30)
    assert epochs.latest == 5
    assert epochs.entries == stored(tmp_path) == [(2, 10), (5, 30)]
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n2 10\n5 30\n"


def test_the_same_epoch_again_changes_nothing(tmp_path: Path) -> None:
    """Goal: only its first offset counts; a lower one, which a truncation may bring, does."""
    epochs = epochs_with(tmp_path, (2, 10))
    before = (tmp_path / "leader-epoch-checkpoint").stat().st_mtime_ns
    epochs.assign(2, 10)
    epochs.assign(2, 15)
    assert epochs.entries == [(2, 10)]
    assert (tmp_path / "leader-epoch-checkpoint").stat().st_mtime_ns == before
    epochs.assign(2, 9)
    assert epochs.entries == stored(tmp_path) == [(2, 9)]


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ((3, 40), [(1, 10), (2, 20), (3, 40)]),  # lower than the latest: that one goes
        ((1, 40), [(1, 40)]),
        ((6, 25), [(1, 10), (2, 20), (6, 25)]),  # starts below the latest: that one goes
        ((6, 30), [(1, 10), (2, 20), (6, 30)]),
        ((6, 10), [(6, 10)]),
        ((6, 0), [(6, 0)]),
        ((0, 5), [(0, 5)]),
        ((-1, 50), [(1, 10), (2, 20), (4, 30)]),  # a batch without an epoch says nothing
    ],
)
def test_entries_that_contradict_a_new_one_are_removed(
    tmp_path: Path, added: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    """Goal: epochs and offsets rise, both, whatever is assigned."""
    epochs = epochs_with(tmp_path, (1, 10), (2, 20), (4, 30))
    epochs.assign(*added)
    assert epochs.entries == stored(tmp_path) == expected


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (7, (7, 100)),  # current: the log's end
        (4, (4, 30)),  # older: the start of the next
        (5, (4, 30)),  # unknown between: the largest below, and its end
        (6, (4, 30)),
        (2, (2, 20)),
        (1, (1, 10)),  # below the first: as asked, and where the first starts
        (0, (0, 10)),
        (8, (-1, -1)),  # newer than known
        (-1, (-1, -1)),
    ],
)
def test_the_end_of_an_epoch_is_where_the_next_begins(
    tmp_path: Path, epoch: int, expected: tuple[int, int]
) -> None:
    epochs = epochs_with(tmp_path, (2, 10), (4, 20), (7, 30))
    assert epochs.end_offset_for(epoch, 100) == expected


def test_without_entries_no_epoch_has_an_end(tmp_path: Path) -> None:
    assert epochs_with(tmp_path).end_offset_for(0, 100) == (-1, -1)


def test_truncating_the_end_forgets_epochs_that_begin_there_or_later(tmp_path: Path) -> None:
    for offset, kept in ((31, 3), (30, 2), (25, 2), (20, 1), (10, 0), (0, 0)):
        directory = tmp_path / str(offset)
        directory.mkdir()
        epochs = epochs_with(directory, (2, 10), (4, 20), (7, 30))
        epochs.truncate_from_end(offset)
        assert epochs.entries == stored(directory) == [(2, 10), (4, 20), (7, 30)][:kept]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (5, [(2, 10), (4, 20), (7, 30)]),
        (10, [(2, 10), (4, 20), (7, 30)]),
        (11, [(2, 11), (4, 20), (7, 30)]),
        (19, [(2, 19), (4, 20), (7, 30)]),
        (20, [(4, 20), (7, 30)]),
        (25, [(4, 25), (7, 30)]),
        (30, [(7, 30)]),
        (99, [(7, 99)]),
    ],
)
def test_truncating_the_start_moves_the_epoch_that_holds_it(
    tmp_path: Path, offset: int, expected: list[tuple[int, int]]
) -> None:
    """Goal: earlier ones go, the last of them is entered again at the new log start."""
    epochs = epochs_with(tmp_path, (2, 10), (4, 20), (7, 30))
    epochs.truncate_from_start(offset)
    assert epochs.entries == stored(tmp_path) == expected


def test_batches_tell_their_epochs(tmp_path: Path) -> None:
    """Goal: recovery and followers find epochs in the batches; what is known stays, lower and missing ones say nothing."""
    epochs = epochs_with(tmp_path, (2, 10))
    epochs.note(batches((2, 20), (2, 25), (3, 30), (3, 35), (-1, 37), (2, 38), (6, 40)))
    assert epochs.entries == stored(tmp_path) == [(2, 10), (3, 30), (6, 40)]
    epochs.note(batches((6, 50), (6, 60)))
    epochs.note(batches())
    assert epochs.entries == [(2, 10), (3, 30), (6, 40)]


def test_a_damaged_file_is_noticed_and_not_believed(tmp_path: Path) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n2\n1 10\n")
    epochs = LeaderEpochs(str(tmp_path), None)
    assert epochs.is_damaged
    assert epochs.entries == []
    assert not epochs_with(tmp_path / "none").is_damaged


def test_a_reader_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    epochs_with(tmp_path, (2, 10))
    reader = LeaderEpochs(str(tmp_path), None)
    reader.assign(9, 50)
    reader.truncate_from_end(0)
    assert stored(tmp_path) == [(2, 10)]


@pytest.mark.parametrize("text", ["0\n2\n4 0\n9 77\n", "no such version\n", None])
def test_a_mere_reader_has_the_epochs_that_the_log_allows_once_it_asks(
    tmp_path: Path, text: str | None
) -> None:
    """Goal: opening to read reads no epochs, and whoever asks later gets them as a writer would have mended them.
    Method: a file with an epoch past the end, a damaged one, none; many threads ask at once."""
    directory, partition = open_partition(tmp_path)
    for number in range(3):
        data = bytearray(encode([b"v"]))
        partition.append_as_leader(data, leader_epoch=4 + number, now_ms=NOW)
    directory.close()
    path = tmp_path / KEY.directory / "leader-epoch-checkpoint"
    assert path.read_text() == "0\n3\n4 0\n5 1\n6 2\n"
    expected = [(4, 0), (5, 1), (6, 2)]
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
        expected = [(4, 0)] if text.startswith("0") else expected
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            directory, partition = open_partition(tmp_path, read_only=True)
            assert "epochs" not in vars(partition)
            asked = pool.map(lambda _, partition=partition: partition.epochs.entries, range(8))
            assert all(entries == expected for entries in asked)
            directory.close()


@given(st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 60)), max_size=20), st.data())
def test_whatever_happens_epochs_and_offsets_rise(
    pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Goal: the invariant of the file, under any order of assignments and truncations."""
    epochs = LeaderEpochs("/nonexistent", None)
    for epoch, offset in pairs:
        epochs.assign(epoch, offset)
        if data.draw(st.booleans()):
            epochs.truncate_from_end(data.draw(st.integers(0, 60)))
        if data.draw(st.booleans()):
            epochs.truncate_from_start(data.draw(st.integers(0, 60)))
        entries = epochs.entries
        assert entries == sorted(set(entries))
        assert len({entry.epoch for entry in entries}) == len(entries)
        assert [entry.start_offset for entry in entries] == sorted(
            {entry.start_offset for entry in entries}
        )
