"""The small text files beside the logs are read and written as Kafka writes them, and doubted when they are not."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.disk import Disk as SlowDisk
from oncelog.base.errors import CorruptFileError
from oncelog.log import checkpoint
from oncelog.log.checkpoint import EpochEntry
from oncelog.segment.names import TopicPartition

from ..golden_cases import CASES, GOLDEN, expected

if TYPE_CHECKING:
    from pathlib import Path

OFFSET_FILES = [
    checkpoint.RECOVERY_POINT,
    checkpoint.HIGH_WATERMARK,
    checkpoint.LOG_START,
    checkpoint.CLEANER,
]
KEYS = st.builds(
    TopicPartition, st.text("ab.-_09", min_size=1, max_size=9), st.integers(0, 2**31 - 1)
)


class Disk(SlowDisk):
    """Keeps replaced files in memory, and counts: what is written, not how."""

    def __init__(self) -> None:
        self.written: dict[str, bytes] = {}

    def replace(self, path: object, data: bytes, *, sync: bool = True) -> None:
        assert sync
        self.written[str(path)] = data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


# ---------------------------------------------------------------- the broker's own


@pytest.mark.parametrize(("case", "name"), list(itertools.product(CASES, OFFSET_FILES)))
def test_a_brokers_checkpoints_are_read_and_written_back(case: str, name: str) -> None:
    """Goal: every row of every checkpoint; written back they have the broker's lines, in an order of our own."""
    file = GOLDEN / case / "data" / name
    if not file.exists():
        assert checkpoint.read_offsets(str(file)) == {}
        return
    text = file.read_text()
    if case != "killed":
        assert text == expected(case)["checkpointFiles"].get(name, text)
    found = checkpoint.read_offsets(str(file))
    rows = [line.split() for line in text.splitlines()[2:]]
    assert found == {TopicPartition(row[0], int(row[1])): int(row[2]) for row in rows}
    if text:
        disk = Disk()
        checkpoint.write_offsets(disk, "f", found)
        assert sorted(disk.written["f"].decode().splitlines()) == sorted(text.splitlines())


def test_a_brokers_epochs_topic_ids_properties_and_marker_are_read() -> None:
    """Goal: leader epochs and topic ids of every partition are written back byte for byte; the clean stop's epoch is
    the one in expected.json; the killed broker left none."""
    for case in CASES:
        data = GOLDEN / case / "data"
        for directory in data.iterdir():
            epochs = directory / checkpoint.LEADER_EPOCH
            metadata = directory / checkpoint.PARTITION_METADATA
            if not directory.is_dir() or not epochs.exists():
                continue
            disk = Disk()
            checkpoint.write_epochs(disk, "epochs", checkpoint.read_epochs(str(epochs)))
            assert disk.written["epochs"] == epochs.read_bytes()
            topic_id = checkpoint.read_topic_id(str(metadata))
            if topic_id is None:
                assert directory.name.startswith("__cluster_metadata")
                continue
            topic = directory.name.rpartition("-")[0]
            assert topic_id == expected(case)["topicIds"].get(topic, topic_id)
            checkpoint.write_topic_id(disk, "id", topic_id)
            assert disk.written["id"] == metadata.read_bytes()
        properties = checkpoint.read_properties(str(data / checkpoint.META_PROPERTIES))
        assert properties["version"] == "1"
        assert {"cluster.id", "node.id", "directory.id"} <= set(properties)
        epoch = checkpoint.read_clean_shutdown(str(data / checkpoint.CLEAN_SHUTDOWN))
        if case == "killed":
            assert epoch is None
        else:
            text = expected(case)["checkpointFiles"][checkpoint.CLEAN_SHUTDOWN]
            assert text == f'{{"version":0,"brokerEpoch":{epoch}}}'
            disk = Disk()
            assert epoch is not None
            checkpoint.write_clean_shutdown(disk, "marker", epoch)
            assert disk.written["marker"].decode() == text


# ---------------------------------------------------------------- our own


@given(st.dictionaries(KEYS, st.integers(-1, 2**63 - 1), max_size=12))
def test_offsets_survive_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[TopicPartition, int]
) -> None:
    path = tmp_path_factory.mktemp("checkpoint") / "offsets"
    disk = Disk()
    checkpoint.write_offsets(disk, "f", offsets)
    path.write_bytes(disk.written["f"])
    assert checkpoint.read_offsets(str(path)) == offsets


@given(
    st.lists(
        st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=12, unique=True
    )
)
def test_epochs_survive_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]]
) -> None:
    epochs = sorted({epoch for epoch, _ in pairs})
    offsets = sorted({offset for _, offset in pairs})
    entries = [EpochEntry(*pair) for pair in zip(epochs, offsets, strict=False)]
    path = tmp_path_factory.mktemp("checkpoint") / "epochs"
    disk = Disk()
    checkpoint.write_epochs(disk, "f", entries)
    path.write_bytes(disk.written["f"])
    assert checkpoint.read_epochs(str(path)) == entries


def test_a_file_is_replaced_whole(path: Path) -> None:
    """Goal: written beside, synced, renamed: never a half-written file under the name, and nothing is left beside."""
    order: list[str] = []

    class Watched(SlowDisk):
        def write(self, descriptor: int, data: object, position: int) -> None:
            order.append("write")
            super().write(descriptor, data, position)  # type: ignore[arg-type]

        def sync(self, descriptor: int) -> None:
            order.append("sync")

        def rename(self, source: object, target: object) -> None:
            order.append("rename")
            assert path.read_text() == "0\n0\n"
            super().rename(source, target)  # type: ignore[arg-type]

        def sync_directory(self, directory: object) -> None:
            order.append("sync directory")

    path.write_text("0\n0\n")
    checkpoint.write_offsets(Watched(), str(path), {TopicPartition("t", 3): 4})
    assert order == ["write", "sync", "rename", "sync directory"]
    assert path.read_text() == "0\n1\nt 3 4\n"
    assert list(path.parent.iterdir()) == [path]


# ---------------------------------------------------------------- what cannot be believed


def test_a_missing_or_empty_file_says_nothing(path: Path) -> None:
    for _ in range(2):
        assert checkpoint.read_offsets(str(path)) == {}
        assert checkpoint.read_epochs(str(path)) == []
        path.touch()


@pytest.mark.parametrize(
    "text",
    [
        "1\n0\n", "-0\n0\n", "x\n0\n", "\n0\n", "0\n", "0\n\n", "0\nx\n", "0\n-1\n", "0\n1\n", "0\n2\nt 0 1\n",
        "0\n0\nt 0 1\n", "0\n1\nt 0\n", "0\n1\nt 0 1 2\n", "0\n1\nt x 1\n", "0\n1\nt 0 x\n", "0\n1\nt 0 --1\n",
        "0\n1\nt -1 1\n", "0\n1\nt 0 1", "0\n1\nt 0 \u00b2\n", "0\n1\nt 0 9223372036854775808\n",
        "0\n99999999999999999999\n", "0\n1\nt 0 1\nt 1 1\n", "0 \u00b2\n0\n", "\0\0\0\0",
    ],
)  # fmt: skip
def test_offsets_that_are_not_what_was_written_name_their_file(path: Path, text: str) -> None:
    """Goal: unknown version, count that does not match, a row that is none, a last line cut off, digits of others."""
    path.write_text(text, newline="")
    with pytest.raises(CorruptFileError) as caught:
        checkpoint.read_offsets(str(path))
    assert caught.value.file == str(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "1\n0\n", "0\n1\n0\n", "0\n1\n0 1 2\n", "0\n1\n-1 0\n", "0\n1\n0 -1\n", "0\n2\n1 0\n0 5\n", "0\n2\n0 5\n1 0\n",
        "0\n2\n0 0\n0 5\n", "0\n2\n0 5\n1 5\n", "0\n1\n0 0", "0\n1\nx 0\n", "0\n1\n0 9223372036854775808\n",
    ],
)  # fmt: skip
def test_epochs_that_are_not_what_was_written_name_their_file(path: Path, text: str) -> None:
    """Goal: as above; and both epochs and offsets rise, each of them."""
    path.write_text(text)
    with pytest.raises(CorruptFileError) as caught:
        checkpoint.read_epochs(str(path))
    assert caught.value.file == str(path)


def test_bytes_that_are_no_text_are_an_error_of_ours(path: Path) -> None:
    path.write_bytes(b"0\n1\n\xff\xfe 0 1\n")
    with pytest.raises(CorruptFileError, match="not text"):
        checkpoint.read_offsets(str(path))


def test_every_cut_of_a_checkpoint_is_found(path: Path) -> None:
    """Goal: no truncation gives other offsets. Method: every size; only the empty file says nothing."""
    whole = b"0\n3\nalpha 0 120\nbeta 1 3456\ngamma 12 7890\n"
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFileError):
            checkpoint.read_offsets(str(path))
    path.write_bytes(whole)
    assert len(checkpoint.read_offsets(str(path))) == 3


def test_topic_ids_of_another_form_are_refused(path: Path) -> None:
    assert checkpoint.read_topic_id(str(path)) is None
    for text in (
        "", "version: 1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", "version: 0\ntopic_id: short", "version: 0",
        "topic_id: AAAAAAAAAAAAAAAAAAAAAA", "\0" * 43,
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(CorruptFileError):
            checkpoint.read_topic_id(str(path))
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n")
    assert checkpoint.read_topic_id(str(path)) == "A" * 22


def test_properties_are_read_as_kafka_writes_them(path: Path) -> None:
    assert checkpoint.read_properties(str(path)) == {}
    path.write_text("#comment=1\n!other=2\n\nnode.id=1\ncluster.id=a=b\n spaced = x \nno sign\n")
    assert checkpoint.read_properties(str(path)) == {
        "node.id": "1",
        "cluster.id": "a=b",
        "spaced": "x",
    }


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ('{"version":0,"brokerEpoch":13}', 13),
        ('{"version":0,"brokerEpoch":13,"more":[1]}', 13),
        ('{"version":0}', -1),
        ("", -1),
        ("0", -1),
        ("[]", -1),
        ('{"brokerEpoch":null}', -1),
        ("\x00\x01", -1),
    ],
)
def test_the_mark_of_a_clean_stop_counts_by_being_there(path: Path, text: str, epoch: int) -> None:
    """Goal: fields that are not known are tolerated, and so is a file of an older version without any."""
    assert checkpoint.read_clean_shutdown(str(path)) is None
    path.write_text(text)
    assert checkpoint.read_clean_shutdown(str(path)) == epoch
