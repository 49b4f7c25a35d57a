"""How do our source and our sink compare with Spark's own, on a real broker?
Times    source: all records of four partitions, a tenth aborted, to the sum of the lengths of keys and values,
         read_committed. Sink: the same rows into four partitions.
Excludes the start of Spark and of the broker, and one round that warms up.
Anchor   Spark's Kafka source, on a broker that serves a copy of the very files ours reads, and a Python source that
         yields ready-made Arrow batches; Spark's Kafka sink, which is at least once where ours is exactly once. Every
         read must come to the same sum; what both sinks have written is read again, counted and summed up.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING, Any, Final

import oncelog
from interop.kafka import KafkaError
from oncelog.log.checkpoint import (
    HIGH_WATERMARK,
    LOG_START,
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_offsets,
)

from . import spark_jobs as jobs
from .harness import DisagreementError
from .kafka_cases import KAFKA, OURS, READ, READY, SINK, Answer
from .kafka_ground import BROKER_BYTES, need_room, undisturbed
from .running import is_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from interop.kafka import Broker

    from .kafka_ground import Ground

STORED_BYTES: Final = 130  # of one record with its share of a batch, rounded up
SINK_TOPIC: Final = "received"


def install(ours: Path, broker: Broker) -> None:
    """Our partitions in the place of the broker's, under its topic id; its checkpoints speak for them as ours do."""
    for number in range(jobs.PARTITIONS):
        name = f"{jobs.TOPIC}-{number}"
        topic_id = (broker.data / name / PARTITION_METADATA).read_bytes()
        shutil.rmtree(broker.data / name)
        shutil.copytree(ours / name, broker.data / name)
        (broker.data / name / PARTITION_METADATA).write_bytes(topic_id)
    for checkpoint in (RECOVERY_POINT, HIGH_WATERMARK, LOG_START):
        rows = dict(read_offsets(str(broker.data / checkpoint)))
        found = read_offsets(str(ours / checkpoint)).items()
        rows.update((key, offset) for key, offset in found if key.topic == jobs.TOPIC)
        lines = [f"{key.topic} {key.partition} {offset}" for key, offset in sorted(rows.items())]
        (broker.data / checkpoint).write_text("\n".join(["0", str(len(lines)), *lines, ""]))


# ---------------------------------------------------------------- same work


def content(rows: Any) -> tuple[int, int, int]:
    """(records, bytes, sum of checksums): no loss, repetition or change leaves all three as they were."""
    found = rows.selectExpr(
        "count(*)",
        "coalesce(sum(octet_length(key) + octet_length(value)), 0)",
        "coalesce(sum(crc32(key) + crc32(value)), 0)",
    ).first()
    return tuple(map(int, found))  # type: ignore[return-value]


def agreed(answers: dict[str, object]) -> None:
    """Raises unless all have done the same work."""
    if len(set(answers.values())) != 1:
        raise DisagreementError(f"not the same work: {answers}")


def _turns(
    contestants: dict[str, Callable[[], object]], rounds: int, answer: Answer
) -> Iterator[str]:
    """One round that warms up, then those that count; in each, all must come to the same."""
    names = list(contestants)
    for number in range(rounds + 1):
        given = {}
        first = number % len(names)
        for name in names[first:] + names[:first]:
            # A sink that leaves its rows to the system would have them written in the clock of whoever comes next.
            os.sync()
            began = time.monotonic()
            given[name] = contestants[name]()
            per_second = answer.work / (time.monotonic() - began)
            if number:
                answer.add(name, per_second)
            told = "" if number else ", to warm up"
            yield f"{answer.name} {name}: {per_second:,.0f} rows/s{told}"
        agreed(given)


# ---------------------------------------------------------------- source and sink


def _from_kafka(spark: Any, broker: Broker, topic: str) -> Any:
    options = {
        "kafka.bootstrap.servers": broker.address,
        "kafka.isolation.level": "read_committed",
        "subscribe": topic,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
    }
    return spark.read.format("kafka").options(**options).load()


def _read(spark: Any, broker: Broker, log: Path, rounds: int, answer: Answer) -> Iterator[str]:
    ceiling = jobs.register_ceiling(spark, answer.work)
    contestants: dict[str, Callable[[], object]] = {
        OURS: lambda: jobs.read_ours(spark, log),
        KAFKA: lambda: jobs.lengths(_from_kafka(spark, broker, jobs.TOPIC)),
        READY: lambda: jobs.lengths(spark.read.format(ceiling).load()),
    }
    return _turns(contestants, rounds, answer)


def _write(spark: Any, broker: Broker, target: Path, rounds: int, answer: Answer) -> Iterator[str]:
    with oncelog.open(target) as log:
        log.create_topic(SINK_TOPIC, partitions=jobs.PARTITIONS)

    def ours() -> None:
        rows = jobs.rows_to_write(spark, answer.work)
        rows.write.format("oncelog").option("topic", SINK_TOPIC).mode("append").save(str(target))

    def kafka() -> None:
        options = {"kafka.bootstrap.servers": broker.address, "topic": SINK_TOPIC}
        jobs.rows_to_write(spark, answer.work).write.format("kafka").options(**options).save()

    yield from _turns({OURS: ours, KAFKA: kafka}, rounds, answer)
    # Of all rounds: a row that one of them lost or wrote twice shows.
    once = content(jobs.rows_to_write(spark, answer.work))
    found = spark.read.format("oncelog").option("subscribe", SINK_TOPIC).load(str(target))
    agreed(
        {
            "asked for": tuple(figure * (rounds + 1) for figure in once),
            OURS: content(found),
            KAFKA: content(_from_kafka(spark, broker, SINK_TOPIC)),
        }
    )
    yield f"{SINK}: {once[0] * (rounds + 1):,} rows read back from each, with the same checksums"


@contextlib.contextmanager
def _session(folder: Path, connector: list[Path]) -> Iterator[Any]:
    from oncelog.spark.java import JavaNotFoundError

    try:
        spark = jobs.make_session(folder, connector)
    except JavaNotFoundError as error:
        raise KafkaError(str(error)) from error
    try:
        yield spark
    finally:
        with undisturbed():
            spark.stop()


def spark_rounds(
    ground: Ground, records: int, sink_records: int, rounds: int, answers: dict[str, Answer]
) -> Iterator[str]:
    """Runs both; the answers are filled as it goes."""
    absent = [name for name in ("pyspark", "pandas") if not is_installed(name)]
    if absent:
        raise KafkaError(f"{' and '.join(absent)} not installed: pip install 'oncelog[spark]'")
    # The log and its copy, what both sinks write, and what ours stages before it commits.
    need_room((2 * records + (2 * rounds + 3) * sink_records) * STORED_BYTES + BROKER_BYTES)
    with ground.broker("kafka-spark") as (broker, folder):
        connector = ground.connector()
        committed = jobs.write_payments(folder / "log", records)
        yield f"{READ}: {records:,} records are written, {committed:,} of them committed"
        broker.start()
        broker.create({jobs.TOPIC: jobs.PARTITIONS, SINK_TOPIC: jobs.PARTITIONS})
        broker.stop()
        install(folder / "log", broker)
        broker.start()
        with _session(folder / "spark", connector) as spark:
            read = Answer(READ, committed, ground.version)
            sink = Answer(SINK, sink_records, ground.version)
            yield from _read(spark, broker, folder / "log", rounds, read)
            answers[READ] = read
            yield from _write(spark, broker, folder / "sink", rounds, sink)
            answers[SINK] = sink
