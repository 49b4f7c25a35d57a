"""A million records to Kafka's bytes and back, then a broker's directory: the first half of ``make demo``, about ten
seconds.

It builds an Arrow table, encodes it into record batches with every codec, writes .log files, maps them, reads them
back in several ways, and shows that a damaged byte is found; each time is the best of three. Then it opens a directory
that a real Kafka broker left, as a consumer of either isolation level sees it, and proves it sound.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import oncelog
from oncelog.base.disk import map_file
from oncelog.base.errors import CorruptRecordError
from oncelog.segment import batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from oncelog.client.reader import Read
    from oncelog.segment.batch import EncodedBatches

Result = TypeVar("Result")

RECORDS = 1_000_000
GZIP_RECORDS = 200_000  # gzip is slow everywhere
PYTHON_RECORDS = 200_000
REPEATS = 3
STEPS = 14
START_MS = 1794787200000
# Three transactional producers and two others, interleaved; some transactions aborted, one left open.
BROKER = Path(__file__).resolve().parents[1] / "tests/golden/txn-mixed/data"
KEY_BYTES = 16
VALUE = (
    b'{"account": 0000000, "amount": 00000.00, "currency": "EUR", "teller": 000, "note": "for tea"}'
)

console = Console()
talk = Console(stderr=True)


def make_rows(count: int) -> list[pa.RecordBatch]:
    """Records as a service would have them, 10,000 at a time: key, JSON value, timestamp."""
    values = np.tile(np.frombuffer(VALUE, np.uint8), (count, 1))
    is_digit = values[0] == ord("0")
    random = np.random.default_rng(0)
    values[:, is_digit] = random.integers(ord("0"), ord("9") + 1, (count, is_digit.sum()), np.uint8)
    table = pa.table(
        {
            "key": pa.array(np.char.zfill(np.arange(count).astype("S"), KEY_BYTES), pa.binary()),
            "value": pa.array(values.view(f"V{len(VALUE)}").ravel().tolist(), pa.binary()),
            "timestamp": pa.array(START_MS + np.arange(count) // 1000, pa.timestamp("ms", "UTC")),
        }
    )
    rows: list[pa.RecordBatch] = table.to_batches(max_chunksize=10_000)
    return rows


def encode(rows: list[pa.RecordBatch], codec: str) -> list[EncodedBatches]:
    """Arrow in, record batches out: the bytes that an idempotent producer of Kafka's would send."""
    encoded, offset = [], 0
    for some in rows:
        encoded.append(
            batch.encode_arrow(
                some,
                compression=codec,
                base_offset=offset,
                producer_id=7,
                producer_epoch=0,
                base_sequence=offset,
            )
        )
        offset += len(some)
    return encoded


def write(path: Path, batches: list[EncodedBatches]) -> None:
    """Batches are plain bytes: one after another in a file, they are a log segment."""
    with path.open("wb") as file:
        file.writelines(batches)


def read_arrow(log: Buffer, *, views: bool = False) -> int:
    """Decodes a whole log into Arrow record batches, checksums verified, and counts the rows."""
    return sum(pa.record_batch(columns).num_rows for columns in batch.decode(log, views=views))


class Step(NamedTuple):
    """One row of the table: what was done to how many records, and the best time."""

    name: str
    records: int
    file_bytes: int | None
    seconds: float


class Stopwatch:
    """Times steps; a progress bar goes to stderr if that is a terminal."""

    def __init__(self, progress: Progress) -> None:
        self.steps: list[Step] = []
        self._progress = progress
        self._task = progress.add_task("making records", total=STEPS * REPEATS)

    def best(self, name: str, records: int, run: Callable[[], Result]) -> Result:
        """Runs it three times and notes the best time."""
        self._progress.update(self._task, description=name)
        seconds = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            result = run()
            seconds.append(time.perf_counter() - started)
            self._progress.advance(self._task)
        self.steps.append(Step(name, records, None, min(seconds)))
        return result

    def note_size(self, path: Path) -> None:
        self.steps[-1] = self.steps[-1]._replace(file_bytes=path.stat().st_size)


def demo(folder: Path, watch: Stopwatch) -> list[str]:
    """All steps in order. Returns what there is to say about them."""
    rows = make_rows(RECORDS)

    for codec in ("none", "lz4", "zstd", "snappy", "gzip"):
        some = rows[: GZIP_RECORDS // 10_000] if codec == "gzip" else rows
        count = sum(map(len, some))
        batches = watch.best(f"encode, {codec}", count, partial(encode, some, codec))
        write(folder / f"{codec}.log", batches)
        watch.note_size(folder / f"{codec}.log")
        if codec == "none":
            watch.best("write the file", count, partial(write, folder / "none.log", batches))

    # Reading starts with a mapping: nothing is copied until somebody wants it.
    log = map_file(folder / "none.log")
    headers = watch.best("scan headers, CRC", RECORDS, lambda: batch.scan(log))
    sound = "ok" if headers["crc_ok"].all() else "BAD"
    count = headers["record_count"].sum()
    said = [f"Scan: {len(headers):,} batches, {count:,} records, checksums {sound}."]
    counts = [
        watch.best("decode to Arrow, copied", RECORDS, partial(read_arrow, log)),
        watch.best("decode to Arrow, views", RECORDS, partial(read_arrow, log, views=True)),
    ]
    for codec in ("lz4", "zstd", "snappy"):
        packed = map_file(folder / f"{codec}.log")
        counts.append(watch.best(f"decode to Arrow, {codec}", RECORDS, partial(read_arrow, packed)))
    assert set(counts) == {RECORDS}

    written = pa.Table.from_batches(rows)
    read = pa.Table.from_batches(map(pa.record_batch, batch.decode(log)))
    assert all(read[name].equals(written[name]) for name in written.column_names)
    said.append("Decode: keys, values and timestamps are those that were encoded.")

    # One record at a time, as Python values.
    watch.best(
        "Python records",
        PYTHON_RECORDS,
        lambda: sum(1 for _ in batch.records(log, end_offset=PYTHON_RECORDS)),
    )
    said += [f"{record}" for record in batch.records(log, start_offset=10, end_offset=12)]

    # One bit is wrong in more than a hundred million bytes: in the last value of the batch in the middle.
    damaged, middle = bytearray(log), headers[len(headers) // 2]
    damaged[middle["position"] + middle["size"] - 20] ^= 1
    _, _, error = watch.best(
        "find a flipped bit", RECORDS // 2, lambda: batch.scan_prefix(damaged, file="none.log")
    )
    assert isinstance(error, CorruptRecordError)
    said.append(f"A flipped bit: {error}.")
    return said


def show(steps: list[Step]) -> None:
    record_bytes = KEY_BYTES + len(VALUE)
    table = Table(
        title=f"{RECORDS:,} records of {KEY_BYTES} B key and {len(VALUE)} B value, one thread",
        caption=f"MB counts keys and values; best of {REPEATS}; checksums written and verified",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("step", no_wrap=True)
    for name in ("records", "MB", "file MB", "ms", "records/s", "MB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for step in steps:
        size = step.records * record_bytes / 1e6
        table.add_row(
            step.name,
            f"{step.records:,}",
            f"{size:.0f}",
            "" if step.file_bytes is None else f"{step.file_bytes / 1e6:.1f}",
            f"{step.seconds * 1e3:.0f}",
            f"{step.records / step.seconds / 1e6:.1f} M",
            f"{size / step.seconds:,.0f}",
        )
    console.print(table)


def count(read: Read) -> int:
    """Records of a read, without a Python object for any of them."""
    return sum(rows.num_rows for rows in read.to_batches())


def show_broker(folder: Path) -> None:
    """What consumers would see in a directory that a broker left, from its files alone."""
    data = folder / "kafka-data"
    shutil.copytree(BROKER, data)
    table = Table(
        title="A directory that a Kafka broker wrote, opened read-only",
        caption="LSO: last stable offset, where the oldest open transaction begins",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("partition", no_wrap=True)
    for name in ("end", "LSO", "read_uncommitted", "read_committed", "aborted txns", "open"):
        table.add_column(name, justify="right", no_wrap=True)
    with oncelog.open(data, read_only=True) as log:
        for topic, partitions in log.topics().items():
            if topic.startswith("__"):
                continue  # the broker's own
            for number in partitions:
                partition = log.partition(topic, number)
                stable, end = partition.last_stable_offset, partition.log_end_offset
                table.add_row(
                    f"{topic}-{number}",
                    f"{end:,}",
                    f"{stable:,}",
                    f"{count(log.read(topic, number, isolation_level='read_uncommitted')):,}",
                    f"{count(log.read(topic, number)):,}",
                    f"{len(partition.aborted_transactions(0, stable)):,}",
                    "yes" if stable < end else "no",
                )
        first = next(iter(log.read("mixed", 0)))
    console.print(table)
    console.print(f"{first}", soft_wrap=True, highlight=False, markup=False)


def run(folder: str, *arguments: str) -> None:
    """A command of ours, as a person would type it."""
    console.print(f"\n$ oncelog {' '.join(arguments)}", highlight=False, style="bold")
    sys.stdout.flush()
    subprocess.run([sys.executable, "-m", "oncelog", *arguments], cwd=folder, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="oncelog-demo-") as name:
        columns = (TextColumn("{task.description:30}"), BarColumn(), TimeElapsedColumn())
        with Progress(
            *columns, console=talk, transient=True, disable=not talk.is_terminal
        ) as progress:
            watch = Stopwatch(progress)
            said = demo(Path(name), watch)
        show(watch.steps)
        for sentence in said:
            console.print(sentence, soft_wrap=True, highlight=False, markup=False)
        run(name, "inspect", "--max", "4", "zstd.log")
        console.print()
        show_broker(Path(name))
        run(name, "verify", "kafka-data")


if __name__ == "__main__":
    main()
