"""python -m interop: a real Kafka reads what oncelog writes, and oncelog what Kafka leaves behind.

--jars DIR   where Kafka's jars are or will be, build/interop/jars unless told
--keep DIR   work here, and leave everything for a look; a temporary directory unless told
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import oncelog
from oncelog.log.checkpoint import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    LOG_START,
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_offsets,
)
from oncelog.segment.names import TopicPartition

from . import coordinators, dump, history
from .kafka import Broker, Kafka, Row, missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncelog.client.directory import LogDirectory

ROOT: Final = Path(__file__).resolve().parents[1]
LEVELS: Final = ("read_committed", "read_uncommitted")
TOPICS: Final = sorted(history.TOPICS)
CHECKPOINTS: Final = (RECOVERY_POINT, HIGH_WATERMARK, LOG_START)
PRODUCED: Final = 20
# What a broker's log says of our partitions when it re-reads their segments, and when it does not like something.
OURS: Final = rf"\b({'|'.join(TOPICS)})-\d"
RECOVERING: Final = rf"{OURS}.*Recovering unflushed segment"
COMPLAINT: Final = rf"\] (WARN|ERROR|FATAL) .*{OURS}"


class _Talk:
    """One line for every check, with the time it took."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        print(f"  ok  {text}  ({now - self._since:.1f} s)", flush=True)
        self._since = now


# ---------------------------------------------------------------- our side


def our_rows(log: LogDirectory, level: str) -> list[Row]:
    rows = [
        Row(
            topic, number, one.offset, one.timestamp, one.timestamp_type, one.key, one.value,
            tuple((name, content) for name, content in one.headers),
        )
        for topic in TOPICS
        for number in log.topics()[topic]
        for one in log.read(topic, number, isolation_level=level)
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row[:3])


def our_ends(log: LogDirectory, level: str) -> dict[tuple[str, int], tuple[int, int]]:
    found = {}
    for topic in TOPICS:
        for number in log.topics()[topic]:
            one = log.partition(topic, number)
            end = one.last_stable_offset if level == "read_committed" else one.high_watermark
            found[topic, number] = (one.log_start_offset, end)
    return found


def our_offsets(log: LogDirectory, timestamp: int) -> dict[tuple[str, int], int]:
    """As GetOffsetShell counts: -1 latest, -2 earliest, -3 of the largest timestamp, else of a timestamp."""
    found = {}
    for topic in TOPICS:
        for number in log.topics()[topic]:
            one = log.partition(topic, number)
            if timestamp == -1:
                found[topic, number] = one.high_watermark
            elif timestamp == -2:
                found[topic, number] = one.log_start_offset
            else:
                hit = (
                    one.max_timestamp() if timestamp == -3 else one.offset_for_timestamp(timestamp)
                )
                if hit is not None:
                    found[topic, number] = hit[1]
    return found


class Answers:
    """Everything a client could ask, as our reader answers it; taken from a directory once."""

    def __init__(self, path: Path) -> None:
        with oncelog.open(path, read_only=True) as log:
            self.rows = {level: our_rows(log, level) for level in LEVELS}
            self.ends = {level: our_ends(log, level) for level in LEVELS}
            stamps = sorted(row.timestamp for row in self.rows["read_uncommitted"])
            times = [-1, -2, -3, stamps[len(stamps) // 3], stamps[2 * len(stamps) // 3]]
            self.offsets = {time: our_offsets(log, time) for time in times}

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.rows[level])} {level}" for level in LEVELS)
        return f"{len(self.ends[LEVELS[0]])} partitions, {counts} records"


# ---------------------------------------------------------------- checks


def same(what: str, theirs: object, ours: object) -> None:
    if theirs == ours:
        return
    if isinstance(theirs, list) and isinstance(ours, list):
        theirs, ours = _first_difference(theirs, ours)
    elif isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        theirs = {key: theirs.get(key) for key in keys}
        ours = {key: ours.get(key) for key in keys}
    raise AssertionError(f"{what}\n  Kafka: {theirs}\n  we:    {ours}")


def _first_difference(theirs: Sequence[object], ours: Sequence[object]) -> tuple[object, object]:
    for one, other in zip(theirs, ours, strict=False):
        if one != other:
            return one, other
    return f"{len(theirs)} records", f"{len(ours)} records"


def install(ours: Path, broker: Broker, *, is_clean: bool) -> None:
    """Our partitions in the place of the broker's, under its topic ids; its checkpoints speak for them as ours do."""
    for topic, count in history.TOPICS.items():
        for number in range(count):
            name = TopicPartition(topic, number).directory
            topic_id = (broker.data / name / PARTITION_METADATA).read_bytes()
            shutil.rmtree(broker.data / name)
            shutil.copytree(ours / name, broker.data / name)
            (broker.data / name / PARTITION_METADATA).write_bytes(topic_id)
    for checkpoint in CHECKPOINTS:
        rows = {
            key: offset
            for key, offset in read_offsets(str(broker.data / checkpoint)).items()
            if key.topic not in history.TOPICS
        }
        rows.update(read_offsets(str(ours / checkpoint)))
        lines = [f"{key.topic} {key.partition} {offset}" for key, offset in sorted(rows.items())]
        (broker.data / checkpoint).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    if not is_clean:
        (broker.data / CLEAN_SHUTDOWN).unlink()


def serve(broker: Broker, answers: Answers, talk: _Talk) -> None:
    """The broker's clients get what our reader gets."""
    for level in LEVELS:
        rows, ends = broker.read(level, TOPICS)
        same(f"start and end at {level}", ends, answers.ends[level])
        same(f"records at {level}", rows, answers.rows[level])
        talk(f"a consumer at {level}: {len(rows)} records and {len(ends)} ends as ours")
    for asked, offsets in answers.offsets.items():
        same(f"offsets for time {asked}", broker.offsets(asked, TOPICS), offsets)
    talk(
        f"GetOffsetShell: latest, earliest, max timestamp, {len(answers.offsets) - 3} timestamps as ours"
    )


@contextlib.contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def write_and_close(path: Path) -> None:
    directory = history.open_directory(path)
    history.write(directory)
    directory.close()


def write_and_kill(path: Path) -> None:
    """A writer that is killed while it writes."""
    command = [sys.executable, "-m", "interop.history", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"written\n":
            raise AssertionError("our writer failed")
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)


def round_trip(kafka: Kafka, work: Path, talk: _Talk, *, is_clean: bool) -> None:
    """Our directory, served by a broker, and what the broker leaves, read by us."""
    ours, broker = work / "ours", Broker(kafka, work / "broker")
    (write_and_close if is_clean else write_and_kill)(ours)
    answers = Answers(ours)
    talk(f"oncelog wrote {answers}, then {'closed' if is_clean else 'was killed'}")
    if is_clean:
        for suffix, (files, entries) in dump.check(kafka, ours).items():
            talk(
                f"DumpLogSegments: {files} {suffix} files, {entries} entries as ours, no complaint"
            )
    with running(broker):
        broker.create(history.TOPICS)
        broker.stop()
    install(ours, broker, is_clean=is_clean)
    with running(broker):
        believed = not broker.said(RECOVERING)
        if believed is not is_clean:
            raise AssertionError(f"the broker {'believed' if believed else 'recovered'} our files")
        talk(f"a broker started on it and {'believed' if is_clean else 'recovered'} it")
        serve(broker, answers, talk)
        broker.produce("ended", 0, PRODUCED)
        served = {level: broker.read(level, TOPICS) for level in LEVELS}
        talk(
            f"Kafka's producer went on in our files: {PRODUCED} records committed, {PRODUCED} aborted"
        )
        (broker.stop if is_clean else broker.kill)()
    if complaints := broker.said(COMPLAINT):
        raise AssertionError("the broker complains:\n" + "\n".join(complaints))
    left = Answers(broker.data)
    for level, (rows, ends) in served.items():
        same(f"what the broker left, {level}", rows, left.rows[level])
        same(f"where the broker's logs end, {level}", ends, left.ends[level])
    talk(
        f"oncelog read what the broker left when it was {'stopped' if is_clean else 'killed'}: {left}"
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m interop", description=__doc__.splitlines()[0])
    parser.add_argument("--jars", type=Path, default=ROOT / "build/interop/jars")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args(words)
    if lacks := missing():
        print(f"skipped: {', '.join(lacks)}; a broker needs Maven and a JDK of version 17 or later")
        return 0
    talk = _Talk()
    try:
        kafka = Kafka(options.jars)
        talk(f"Kafka's jars in {options.jars}")
        with contextlib.ExitStack() as stack:
            work = options.keep or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="interop-"))
            )
            for name, is_clean in (("closed", True), ("killed", False)):
                print(f"{name}:", flush=True)
                round_trip(kafka, work / name, talk, is_clean=is_clean)
            print("coordinators:", flush=True)
            coordinators.write(work / "coordinators")
            for topic, count in coordinators.check(kafka, work / "coordinators").items():
                talk(f"Kafka's decoder reads {count} records of {topic} as we do")
    except AssertionError as error:
        print(f"FAIL  {error}", file=sys.stderr)
        return 1
    print("Kafka and oncelog agree.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
