"""A directory that a real broker left behind shows, from its files alone, what the broker and its clients saw.

Left out, each for a reason that stands at its test: the max timestamp of `killed/k-index-0` (the broker believed a
damaged time index), indexes of compacted segments (the cleaner starts counting anew with every group of batches it
writes), and the internal topics of three cases, of which expected.json has offsets and files only.
"""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import oncelog
from oncelog._native.abort_filter import visible_batches
from oncelog._native.txn_index import TxnIndex
from oncelog.base.disk import Disk
from oncelog.base.rows import ABORTED_DTYPE, PRODUCER_DTYPE
from oncelog.log.log import LogOptions
from oncelog.partition.data_directory import DataDirectory
from oncelog.partition.partition import Isolation, Partition, PartitionOptions
from oncelog.partition.producer_snapshot import decode_snapshot, encode_snapshot
from oncelog.partition.producer_state import ProducerState
from oncelog.segment.batch import records, scan
from oncelog.segment.names import parse_directory
from oncelog.segment.segment import Segment, SegmentOptions

from ..golden_cases import CASES, GOLDEN, PARTITIONS, GoldenPartition, expected, expected_seen, seen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from oncelog.client.directory import LogDirectory

# Every partition that a reader opens: also the internal ones of which only offsets were noted.
ALL = [
    GoldenPartition(case, name)
    for case in CASES
    for name in expected(case)["partitions"]
    if (GOLDEN / case / "data" / name).is_dir()
]
DUMPED = [partition for partition in ALL if "txnindex" in partition.expected]
TXN_FIELDS = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
SEGMENTS = [
    (partition, file)
    for partition in DUMPED
    for file in sorted(partition.expected["files"])
    if file.endswith(".log")
]


def folder(partition: GoldenPartition) -> Path:
    return GOLDEN / partition.case / "data" / partition.name


def interval_of(topic: str) -> int:
    """index.interval.bytes: 512 in every user's topic (see `notes`), Kafka's default in its own."""
    return 4096 if topic.startswith("__") else 512


def hashes(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_changed() -> Iterator[None]:
    """Every test of this module reads the broker's own files: none of them may differ afterwards."""
    before = {case: hashes(GOLDEN / case / "data") for case in CASES}
    yield
    assert {case: hashes(GOLDEN / case / "data") for case in CASES} == before


@pytest.fixture(scope="module")
def directories() -> Iterator[dict[str, LogDirectory]]:
    """Every case, opened once to be read."""
    opened = {case: oncelog.open(GOLDEN / case / "data", read_only=True) for case in CASES}
    yield opened
    for directory in opened.values():
        directory.close()


def opened(directories: dict[str, LogDirectory], golden: GoldenPartition) -> Partition:
    key = parse_directory(golden.name)
    return directories[golden.case].partition(key.topic, key.partition)


def fresh(golden: GoldenPartition) -> Partition:
    """The partition in an object of its own."""
    data = DataDirectory(GOLDEN / golden.case / "data", now_ms=lambda: 0)
    return data.get(parse_directory(golden.name))


def record_of(said: dict[str, Any]) -> tuple[Any, ...]:
    """A record of expected.json: offset, timestamp, type of timestamp, key, value, headers."""
    return (
        said["offset"],
        said["timestamp"],
        {"CreateTime": 0, "LogAppendTime": 1}[said["timestampType"]],
        expected_seen(said["key"]),
        expected_seen(said["value"]),
        [(name, expected_seen(value)) for name, value in said["headers"]],
    )


def rows_of_table(table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [
        (
            row["offset"],
            row["timestamp"],
            row["timestamp_type"],
            seen(row["key"]),
            seen(row["value"]),
            [(header["key"], seen(header["value"])) for header in row["headers"]],
        )
        for row in table.set_column(
            table.schema.get_field_index("timestamp"),
            "timestamp",
            table["timestamp"].cast(pa.int64()),
        ).to_pylist()
    ]


# ---------------------------------------------------------------- opening


@pytest.mark.parametrize("case", CASES)
def test_opening_and_reading_everything_leaves_every_byte_as_it_was(
    case: str, tmp_path: Path
) -> None:
    """Goal: read-only means just that, also after an unclean stop and with damaged indexes.
    Method: hash a copy of all files, open it, use every reading function, hash again; times of the files count."""
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / case / "data", data)
    before, times = hashes(data), {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    with oncelog.open(data, read_only=True) as log:
        assert log.topics()
        for topic, partitions in log.topics().items():
            assert topic != "__cluster_metadata"
            for number in partitions:
                partition = log.partition(topic, number)
                assert partition.last_stable_offset <= partition.high_watermark
                partition.max_timestamp()
                partition.offset_for_timestamp(0)
                partition.fetch(
                    partition.log_start_offset, 1000, Isolation.READ_COMMITTED, at_least_one=True
                )
            for level in ("read_committed", "read_uncommitted"):
                for views in (False, True):
                    assert (
                        pa.table(log.read(topic, isolation_level=level, views=views)).num_rows >= 0
                    )
    assert hashes(data) == before
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == times


@pytest.mark.parametrize("golden", ALL, ids=str)
def test_offsets_are_those_the_broker_had(
    directories: dict[str, LogDirectory], golden: GoldenPartition
) -> None:
    """Goal: log start, end, high watermark, last stable offset; of `killed` those after the broker's recovery."""
    partition, said = opened(directories, golden), golden.expected
    assert partition.log_start_offset == said["logStartOffset"]
    assert partition.log_end_offset == said["logEndOffset"]
    assert partition.high_watermark == said["highWatermark"]
    assert partition.last_stable_offset == said["lastStableOffset"]
    assert partition.upper_bound(Isolation.READ_COMMITTED) == said["listOffsetsReadCommitted"]
    assert partition.upper_bound(Isolation.READ_UNCOMMITTED) == said["highWatermark"]


# ---------------------------------------------------------------- records


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("golden", PARTITIONS, ids=str)
def test_records_are_those_a_consumer_got(
    directories: dict[str, LogDirectory], golden: GoldenPartition, level: str
) -> None:
    """Goal: every field of every record, at both isolation levels, by every door.
    Method: iteration, record batches with copies and with views, and the Arrow stream, against the consumer's list."""
    key, said = parse_directory(golden.name), golden.expected
    wanted = [record_of(record) for record in said["readUncommitted"]]
    if level == "read_committed":
        committed = set(said["readCommittedOffsets"])
        wanted = [record for record in wanted if record[0] in committed]
        assert [record[0] for record in wanted] == said["readCommittedOffsets"]
    log = directories[golden.case]
    read = log.read(key.topic, key.partition, isolation_level=level)
    found = list(read)
    assert [
        (
            record.offset,
            record.timestamp,
            record.timestamp_type,
            seen(record.key),
            seen(record.value),
            [(name, seen(value)) for name, value in record.headers],
        )
        for record in found
    ] == wanted
    assert {(record.topic, record.partition) for record in found} <= {tuple(key)}
    for views in (False, True):
        read = log.read(key.topic, key.partition, isolation_level=level, views=views)
        batches = list(read.to_batches())
        assert [row for batch in batches for row in rows_of_table(batch)] == wanted
        table = pa.table(read)
        table.validate(full=True)
        assert table.schema == read.schema
        assert rows_of_table(table) == wanted
        assert set(table["topic"].to_pylist()) <= {key.topic}
        assert set(table["partition"].to_pylist()) <= {key.partition}


@pytest.mark.parametrize("golden", PARTITIONS, ids=str)
def test_leader_epochs_of_batches_are_those_a_consumer_got(
    directories: dict[str, LogDirectory], golden: GoldenPartition
) -> None:
    partition = opened(directories, golden)
    epochs = {
        offset: int(row["partition_leader_epoch"])
        for window in partition.windows(0, 2**63 - 1, Isolation.READ_UNCOMMITTED)
        for row in window.rows
        for offset in range(
            int(row["base_offset"]), int(row["base_offset"] + row["last_offset_delta"]) + 1
        )
    }
    for record in golden.expected["readUncommitted"]:
        assert epochs[record["offset"]] == record["leaderEpoch"]


# ---------------------------------------------------------------- transactions


def pairs(aborted: NDArray[np.void]) -> list[list[int]]:
    return [[int(row["producer_id"]), int(row["first_offset"])] for row in aborted]


@pytest.mark.parametrize(
    "golden", [found for found in DUMPED if "txnIndexLookups" in found.expected], ids=str
)
def test_lookups_in_a_transaction_index_are_kafkas(golden: GoldenPartition) -> None:
    """Goal: collect_aborted_txns answers as Kafka's TransactionIndex did for each (fetch offset, upper bound)."""
    for file, lookups in golden.expected["txnIndexLookups"].items():
        base_offset = int(file.split(".")[0])
        index = TxnIndex((folder(golden) / file).read_bytes(), base_offset, file)
        assert lookups
        for lookup in lookups:
            aborted, _, is_complete = index.collect_aborted_txns(
                lookup["fetchOffset"], lookup["upperBound"]
            )
            assert (pairs(aborted), is_complete) == (
                lookup["abortedTransactions"],
                lookup["isComplete"],
            ), (file, lookup)


@pytest.mark.parametrize("golden", DUMPED, ids=str)
def test_transaction_index_entries_are_those_the_tool_printed(golden: GoldenPartition) -> None:
    """Goal: entries of every .txnindex; and, where nothing was compacted, replaying the log makes the same."""
    state = ProducerState(fresh(golden).log)
    for file in sorted(golden.expected["files"]):
        if not file.endswith(".log"):
            continue
        base_offset = int(file.removesuffix(".log"))
        path = folder(golden) / file.replace(".log", ".txnindex")
        index = TxnIndex(path.read_bytes() if path.exists() else b"", base_offset, str(path))
        found = [entry.tolist() for entry in index.entries()]
        assert found == [
            tuple(entry[name] for name in TXN_FIELDS)
            for entry in golden.expected["txnindex"].get(path.name, [])
        ]
        if golden.case != "compacted":  # there the first batches of transactions may be gone
            rows = scan((folder(golden) / file).read_bytes())
            assert [(0, *row.tolist()) for row in state.replay(rows)] == found


@pytest.mark.parametrize(
    "golden", [found for found in ALL if "fetchReadCommitted" in found.expected], ids=str
)
def test_a_fetch_gives_the_brokers_batches_and_every_abort_that_matters(
    directories: dict[str, LogDirectory], golden: GoldenPartition
) -> None:
    """Goal: the same whole batches for the same offset and size, none at or above the last stable offset, and a
    list that filters exactly the committed records out of them.
    Method: repeat the broker's fetches. Its list may name transactions beyond the bytes, since it looks as far as the
    offset index reaches; ours ends with them, so ours is contained in its own."""
    partition, said = opened(directories, golden), golden.expected
    committed = said["readCommittedOffsets"]
    for fetch in said["fetchReadCommitted"]:
        offset = fetch["fetchOffset"]
        found = partition.fetch(offset, fetch["partitionMaxBytes"], Isolation.READ_COMMITTED)
        assert found.high_watermark == fetch["highWatermark"]
        assert found.last_stable_offset == fetch["lastStableOffset"]
        assert found.log_start_offset == fetch["logStartOffset"]
        rows = scan(found.records)
        require_batches_of(rows, fetch)
        assert found.aborted is not None
        named = {
            (entry["producerId"], entry["firstOffset"]) for entry in fetch["abortedTransactions"]
        }
        assert {(pid, first) for pid, first in pairs(found.aborted)} <= named
        if not len(rows):
            assert not len(found.aborted)
            continue
        end = int(rows["base_offset"][-1] + rows["last_offset_delta"][-1]) + 1
        assert end <= fetch["lastStableOffset"]
        wire = found.aborted.copy()
        wire["last_offset"] = wire["last_stable_offset"] = -1  # all that a fetch response carries
        brokers = np.full(len(named), -1, ABORTED_DTYPE)
        for slot, (producer_id, first_offset) in enumerate(sorted(named)):
            brokers[slot]["producer_id"] = producer_id
            brokers[slot]["first_offset"] = first_offset
        for aborted in (found.aborted, wire, brokers):
            visible = visible_batches(rows, aborted)
            assert [
                record.offset
                for record in records(found.records, rows, visible=visible, start_offset=offset)
            ] == [known for known in committed if offset <= known < end]
        listed = expected_aborts(golden, offset, end)
        assert {(pid, first) for pid, first in pairs(found.aborted)} == listed


def require_batches_of(rows: NDArray[np.void], fetch: dict[str, Any]) -> None:
    """Whole batches are the broker's; it sends a cut one behind them, which a consumer throws away."""
    assert len(rows) == fetch["batches"]
    if len(rows):
        last = int(rows["base_offset"][-1] + rows["last_offset_delta"][-1])
        assert int(rows["base_offset"][0]) == fetch["firstBatchBaseOffset"]
        assert last == fetch["lastBatchLastOffset"]
        assert int(rows["size"].sum()) <= fetch["recordsBytes"]


def expected_aborts(golden: GoldenPartition, start: int, end: int) -> set[tuple[int, int]]:
    """What the tool printed of all .txnindex files, cut to a range by hand."""
    said = golden.expected.get("txnindex")
    if said is None:
        said = expected(golden.case)["afterRecoveryAndCleanStop"][golden.name]["txnindex"]
    return {
        (entry["producerId"], entry["firstOffset"])
        for entries in said.values()
        for entry in entries
        if entry["lastOffset"] >= start and entry["firstOffset"] < end
    }


@pytest.mark.parametrize(
    "golden", [found for found in ALL if "fetchReadUncommitted" in found.expected], ids=str
)
def test_an_uncommitted_fetch_gives_the_brokers_batches_and_no_list(
    directories: dict[str, LogDirectory], golden: GoldenPartition
) -> None:
    partition = opened(directories, golden)
    for fetch in golden.expected["fetchReadUncommitted"]:
        found = partition.fetch(
            fetch["fetchOffset"], fetch["partitionMaxBytes"], Isolation.READ_UNCOMMITTED
        )
        assert found.aborted is None
        assert fetch["abortedTransactions"] is None
        require_batches_of(scan(found.records), fetch)


# ---------------------------------------------------------------- timestamps


@pytest.mark.parametrize(
    "golden", [found for found in ALL if "offsetsForTimes" in found.expected], ids=str
)
def test_offsets_for_timestamps_are_those_the_broker_found(
    directories: dict[str, LogDirectory], golden: GoldenPartition
) -> None:
    """Goal: the first record at or after a time, at both isolation levels; none where there is none."""
    partition = opened(directories, golden)
    for query in golden.expected["offsetsForTimes"]:
        found = partition.offset_for_timestamp(query["query"])
        if query["offset"] is None:
            assert found is None
        else:
            assert found == (query["timestamp"], query["offset"])
        committed = partition.offset_for_timestamp(query["query"], Isolation.READ_COMMITTED)
        assert (None if committed is None else committed[1]) == query["readCommittedOffset"]


@pytest.mark.parametrize(
    "golden",
    [
        found
        for found in ALL
        if "maxTimestamp" in found.expected
        # Its time index of segment 0 was overwritten with 0x01. The broker cut it to whole entries and believed
        # them, found nothing at that far future, and answered -1; we check entries against the log.
        and str(found) != "killed/k-index-0"
    ],
    ids=str,
)
def test_the_largest_timestamp_is_the_one_the_broker_found(
    directories: dict[str, LogDirectory], golden: GoldenPartition
) -> None:
    said = golden.expected["maxTimestamp"]
    assert opened(directories, golden).max_timestamp() == (said["timestamp"], said["offset"])


def test_a_damaged_time_index_does_not_hide_the_largest_timestamp(
    directories: dict[str, LogDirectory],
) -> None:
    """Goal: what the broker could not answer any more (see above), the log can.
    Method: the largest timestamp over all batches that DumpLogSegments printed."""
    golden = GoldenPartition("killed", "k-index-0")
    batches = [
        batch
        for file in expected("killed")["afterKill"][golden.name]["batches"].values()
        for batch in file
    ]
    largest = max(batch["CreateTime"] for batch in batches)
    (first, *_) = [batch for batch in batches if batch["CreateTime"] == largest]
    found = opened(directories, golden).max_timestamp()
    assert found is not None
    assert found[0] == largest
    assert first["baseOffset"] <= found[1] <= first["lastOffset"]


# ---------------------------------------------------------------- producers


def snapshot_row(said: dict[str, Any]) -> dict[str, int]:
    """An entry of expected.json as a row; one without a batch has none in its epoch."""
    first = said["currentTxnFirstOffset"]
    return {
        "producer_id": said["producerId"],
        "producer_epoch": said["producerEpoch"],
        "last_sequence": said.get("lastSequence", -1),
        "last_offset": said.get("lastOffset", -1),
        "offset_delta": said.get("offsetDelta", 0),
        "timestamp": said["lastTimestamp"],
        "coordinator_epoch": said["coordinatorEpoch"],
        "current_txn_first_offset": -1 if first is None else first,
    }


def as_dicts(rows: NDArray[np.void]) -> list[dict[str, int]]:
    names = PRODUCER_DTYPE.names or ()
    return [{name: int(row[name]) for name in names} for row in rows]


@pytest.mark.parametrize("golden", DUMPED, ids=str)
def test_snapshots_hold_what_the_tool_printed_and_are_written_back_byte_for_byte(
    golden: GoldenPartition,
) -> None:
    """Goal: fields, order, checksum. Where nothing was compacted away, replaying the log makes the same producers."""
    for file, said in golden.expected["snapshots"].items():
        data = (folder(golden) / file).read_bytes()
        producers = decode_snapshot(data, file)
        assert as_dicts(producers) == [snapshot_row(entry) for entry in said]
        assert encode_snapshot(producers) == data
        if golden.case != "compacted":
            state = ProducerState(fresh(golden).log)
            state.catch_up(int(file.split(".")[0]))
            replayed = sorted(as_dicts(producers), key=lambda row: row["producer_id"])
            assert as_dicts(state.table.snapshot()) == replayed


@pytest.mark.parametrize("golden", ALL, ids=str)
def test_active_producers_are_those_the_broker_described(
    directories: dict[str, LogDirectory], golden: GoldenPartition
) -> None:
    """Goal: snapshot plus replay, or recovery, knows of every producer what DescribeProducers said."""
    state = opened(directories, golden).need_state()
    found = [
        {
            "producerId": row["producer_id"],
            "producerEpoch": row["producer_epoch"],
            "lastSequence": row["last_sequence"],
            "lastTimestamp": row["timestamp"],
            "coordinatorEpoch": None if row["coordinator_epoch"] < 0 else row["coordinator_epoch"],
            "currentTransactionStartOffset": None
            if row["current_txn_first_offset"] < 0
            else row["current_txn_first_offset"],
        }
        for row in as_dicts(state.table.snapshot())
    ]
    said = golden.expected["activeProducers"]
    assert found == sorted(said, key=lambda producer: producer["producerId"])


# ---------------------------------------------------------------- indexes


@pytest.mark.parametrize(
    ("golden", "file"), SEGMENTS, ids=lambda value: str(value).removesuffix(".log")
)
def test_indexes_hold_what_the_tool_printed(golden: GoldenPartition, file: str) -> None:
    """Goal: .index and .timeindex of every segment, entry by entry, loaded as they are."""
    segment = segment_of(golden, file)
    segment.need_indexes()
    stem = file.removesuffix(".log")
    for index, said, names in (
        (segment.offset_index, golden.expected["index"], ("offset", "position")),
        (segment.time_index, golden.expected["timeindex"], ("timestamp", "offset")),
    ):
        suffix = ".index" if names[0] == "offset" else ".timeindex"
        assert index.all() == (folder(golden) / f"{stem}{suffix}").read_bytes()
        assert [index.entry(slot) for slot in range(index.count)] == [
            (entry[names[0]], entry[names[1]]) for entry in said.get(f"{stem}{suffix}", [])
        ]


@pytest.mark.parametrize(
    ("golden", "file"),
    [(golden, file) for golden, file in SEGMENTS if golden.case != "compacted"],
    ids=lambda value: str(value).removesuffix(".log"),
)
def test_indexes_made_from_the_log_are_byte_for_byte_the_brokers(
    golden: GoldenPartition, file: str
) -> None:
    """Goal: a rebuilt index is the one the broker wrote as it appended.
    Method: rebuild in memory with the topic's index.interval.bytes. Compacted segments are left out: the cleaner
    appends filtered buffers, each counted as one, so its entries lie elsewhere (they are read, see above)."""
    segment = segment_of(golden, file)
    segment.rebuild_indexes()
    stem = folder(golden) / file
    assert segment.offset_index.all() == stem.with_suffix(".index").read_bytes()
    assert segment.time_index.all() == stem.with_suffix(".timeindex").read_bytes()


def segment_of(golden: GoldenPartition, file: str) -> Segment:
    path = folder(golden) / file
    options = SegmentOptions(index_interval_bytes=interval_of(golden.name))
    return Segment(str(path.parent), int(path.stem), path.stat().st_size, options)


# ---------------------------------------------------------------- recovery


@pytest.mark.parametrize("name", sorted(expected("killed")["tampered"]), ids=str)
def test_a_killed_brokers_partition_recovers_to_the_files_the_broker_made(
    name: str, tmp_path: Path
) -> None:
    """Goal: after recovery and a clean stop, log, indexes, transaction index and last snapshot are the broker's own.
    Method: recover a copy in place, with the topic's options. One file differs on purpose: the broker kept the
    overwritten time index of k-index-0, we make it anew."""
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / "killed" / "data", data)
    key, said = parse_directory(name), expected("killed")["afterRecoveryAndCleanStop"][name]
    options = PartitionOptions(
        LogOptions(
            SegmentOptions(segment_bytes=8192, segment_index_bytes=4096, index_interval_bytes=512)
        )
    )
    directory = DataDirectory(data, Disk(), now_ms=lambda: 0, options_of=lambda _: options)
    for segment in directory.get(key).log.segments:
        segment.need_indexes()  # those below the recovery point are opened, and mended, when they are needed
    directory.close()
    remade = "00000000000000000000.timeindex" if name == "k-index-0" else None
    for file, size in said["files"].items():
        if file.endswith((".log", ".index", ".timeindex")) and file != remade:
            assert (file, (data / name / file).stat().st_size) == (file, size)
    log = DataDirectory(data, now_ms=lambda: 0, options_of=lambda _: options).get(key).log
    assert {f"{segment.base_offset:020d}.log" for segment in log.segments} == set(said["batches"])
    for segment in log.segments:
        require_files_of(segment, said, remade)
    newest = max(said["snapshots"])
    found = decode_snapshot((data / name / newest).read_bytes())
    assert as_dicts(found) == sorted(
        (snapshot_row(entry) for entry in said["snapshots"][newest]),
        key=lambda row: row["producer_id"],
    )


def require_files_of(segment: Segment, said: dict[str, Any], remade: str | None) -> None:
    """The files of one segment hold what the tool printed after the broker's recovery."""
    stem = f"{segment.base_offset:020d}"
    segment.need_indexes()
    offsets, times = segment.offset_index, segment.time_index
    assert [
        [int(row["base_offset"]), int(row["base_offset"] + row["last_offset_delta"])]
        for rows in segment.rows(check_crc=True)
        for row in rows
    ] == said["batches"][f"{stem}.log"]
    assert [offsets.entry(slot) for slot in range(offsets.count)] == [
        (entry["offset"], entry["position"]) for entry in said["index"][f"{stem}.index"]
    ]
    if f"{stem}.timeindex" != remade:
        assert [times.entry(slot) for slot in range(times.count)] == [
            (entry["timestamp"], entry["offset"])
            for entry in said["timeindex"][f"{stem}.timeindex"]
        ]
    assert [entry.tolist() for entry in segment.txn_index.index.entries()] == [
        tuple(entry[field] for field in TXN_FIELDS)
        for entry in said["txnindex"].get(f"{stem}.txnindex", [])
    ]
