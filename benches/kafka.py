"""How does our source and our sink compare with Spark's own, on a real broker of Kafka's?

python -m benches.kafka [--records N] [--sink-records N] [--rounds N] [--jars DIR]   (make bench-kafka)

Source  all records of four partitions, a tenth aborted, to the sum of the lengths of keys and values, read_committed:
        Spark's Kafka source from a broker, ours from the files of the same log, and a Python source that yields
        ready-made Arrow batches. We write the log; the broker is started on a copy of it.
Sink    the same rows into four partitions: Spark's Kafka sink, at least once; ours, exactly once.
Fair    one Spark, one run; contestants take turns; every read must come to the same sum.

Needs Java 17 and Maven, for Kafka's jars and for those of Spark's connector, and room for three times the log. What is
missing is said in one line, and is no failure. Nothing stays but the jars.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import oncelog
from interop.kafka import Broker, Kafka, KafkaError, missing
from oncelog.log.checkpoint import (
    HIGH_WATERMARK,
    LOG_START,
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_offsets,
)

from . import spark_jobs as jobs
from .harness import ROOT, Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONNECTOR: Final = Path(__file__).with_name("kafka_connector.xml")
RECORDS: Final = 10_000_000
SINK_RECORDS: Final = 2_000_000
LOG_BYTES_PER_RECORD: Final = 130
SINK_TOPIC: Final = "received"
# What must be shown, as rates: ours over the other's.
READ_TARGETS: Final = {"Spark's Kafka source": 4.0, "ready-made batches": 0.8}
SINK_TARGETS: Final = {"Spark's Kafka sink": 2.0}
OURS: Final = "oncelog"


def _connector(jars: Path) -> list[Path]:
    """The jars of Spark's connector, fetched once."""
    folder = jars.parent / "spark-connector"
    if not list(folder.glob("spark-sql-kafka-*.jar")):
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder.resolve()}"]
        done = subprocess.run(
            ["mvn", "-B", "-q", "-f", str(CONNECTOR), *goal],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise KafkaError(
                f"Spark's Kafka connector is not to be had: {(done.stdout + done.stderr)[:300]}"
            )
    return sorted(folder.glob("*.jar"))


def _lacking(records: int) -> str:
    """Why this cannot run here; nothing if it can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "pyspark is not installed"
    if lacks := missing():
        return ", ".join(lacks)
    need, free = 3 * records * LOG_BYTES_PER_RECORD, shutil.disk_usage(ROOT).free
    if free < need:
        return f"the disk has room for {free >> 20:,} MiB, and {need >> 20:,} MiB are needed"
    return ""


def _install(ours: Path, broker: Broker) -> None:
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


def _turns(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Best seconds of each, after a first round that warms up and must give the same everywhere."""
    given = {name: call() for name, call in contestants.items()}
    if len(set(given.values())) != 1:
        raise AssertionError(f"not the same work: {given}")
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, call in contestants.items():
            began = time.monotonic()
            call()
            best[name] = min(best[name], time.monotonic() - began)
    return best


def _show(what: str, count: int, best: dict[str, float], targets: dict[str, float]) -> bool:
    """A line for each, and whether all targets are met."""
    print(f"{what}: {count:,} records, best of the rounds")
    met = True
    for name, seconds in best.items():
        line = f"  {name:<24}{count / seconds / 1e6:>8.2f} million rows/s"
        if name in targets:
            ratio = seconds / best[OURS]
            met &= ratio >= targets[name]
            line += f"   ours {ratio:.2f}x, target {targets[name]:g}x"
            line += "   met" if ratio >= targets[name] else "   missed"
        print(line, flush=True)
    return met


def _read(spark: Any, broker: Broker, log: Path, committed: int, rounds: int) -> bool:
    options = {
        "kafka.bootstrap.servers": broker.address,
        "kafka.isolation.level": "read_committed",
        "subscribe": jobs.TOPIC,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
    }
    ceiling = jobs.register_ceiling(spark, committed)
    contestants: dict[str, Callable[[], object]] = {
        OURS: lambda: jobs.read_ours(spark, log),
        "Spark's Kafka source": lambda: jobs.lengths(
            spark.read.format("kafka").options(**options).load()
        ),
        "ready-made batches": lambda: jobs.lengths(spark.read.format(ceiling).load()),
    }
    return _show("source", committed, _turns(contestants, rounds), READ_TARGETS)


def _sink(spark: Any, broker: Broker, folder: Path, count: int, rounds: int) -> bool:
    target = folder / "sink"
    with oncelog.open(target) as log:
        log.create_topic(SINK_TOPIC, partitions=jobs.PARTITIONS)

    def ours() -> int:
        rows = jobs.rows_to_write(spark, count)
        rows.write.format("oncelog").option("topic", SINK_TOPIC).mode("append").save(str(target))
        return count

    def kafka() -> int:
        rows = jobs.rows_to_write(spark, count)
        options = {"kafka.bootstrap.servers": broker.address, "topic": SINK_TOPIC}
        rows.write.format("kafka").options(**options).save()
        return count

    return _show(
        "sink", count, _turns({OURS: ours, "Spark's Kafka sink": kafka}, rounds), SINK_TARGETS
    )


def compare(records: int, sink_records: int, rounds: int, jars: Path) -> bool:
    """Runs everything; whether all targets are met."""
    scratch = Scratch("kafka")
    kafka, connector = Kafka(jars), _connector(jars)
    broker = Broker(kafka, scratch.path / "broker")
    spark = None
    try:
        committed = jobs.write_payments(scratch.path / "log", records)
        broker.start()
        broker.create({jobs.TOPIC: jobs.PARTITIONS, SINK_TOPIC: jobs.PARTITIONS})
        broker.stop()
        _install(scratch.path / "log", broker)
        broker.start()
        spark = jobs.make_session(scratch.path / "spark", connector)
        met = _read(spark, broker, scratch.path / "log", committed, rounds)
        return _sink(spark, broker, scratch.path, sink_records, rounds) and met
    finally:
        if spark is not None:
            spark.stop()
        broker.kill()
        shutil.rmtree(scratch.path, ignore_errors=True)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.kafka")
    parser.add_argument("--records", type=int, default=RECORDS, help="of the log that is read")
    parser.add_argument("--sink-records", type=int, default=SINK_RECORDS, help="that are written")
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument(
        "--jars", type=Path, default=ROOT / "build/interop/jars", help="Kafka's jars"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args(words)
    if lacks := _lacking(options.records):
        print(f"bench-kafka: skipped, {lacks}")
        return 0
    # Whoever ends this by a signal must not find a broker left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        met = compare(options.records, options.sink_records, options.rounds, options.jars)
    except KafkaError as error:
        print(f"bench-kafka: skipped, {error}")
        return 0
    return 0 if met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
