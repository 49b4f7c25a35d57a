"""What a comparison with Kafka stands on: its jars, a broker while it is needed, and nothing left behind.

Lacking  a program, the network, room on the disk: KafkaError with one line that says what to do without.
Gone     a broker ends, and its directory goes, with the block that uses it, however that ends: an interrupt, SIGTERM and
         SIGHUP come as KeyboardInterrupt, and a second one waits until all is taken away.
Jars     stay, for they take a download: Kafka's in one directory, those of Spark's connector in the one beside it.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from interop.kafka import Broker, Kafka, KafkaError, missing, run_apart

from .files import Scratch, lacking_room

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTOR: Final = Path(__file__).with_name("kafka_connector.xml")
SENTENCE_MAX: Final = 300
JARS_BYTES: Final = 256 << 20  # Kafka's and the connector's, and what Maven keeps of them
BROKER_BYTES: Final = 256 << 20  # beside its records: metadata, indexes that are made at full size
# What Kafka's own start script gives a broker.
BROKER_JAVA: Final = (
    "-Xms1g -Xmx1g -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "
    "-XX:+ExplicitGCInvokesConcurrent -XX:MaxInlineLevel=15"
)
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# What marks the line that says why, best first: Maven's mark, the root of a Java stack, its head.
MARKS: Final = ("[ERROR]", "Caused by:", 'Exception in thread "main"')


def sentence(text: object) -> str:
    """The line that says what went wrong, without Maven's colours and cross references; the first if none is marked."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(text))
    lines = [" ".join(line.split()) for line in plain.splitlines()]
    for mark in MARKS:
        marked = [line.removeprefix(mark).strip() for line in lines if line.startswith(mark)]
        if marked:
            lines = marked[::-1] if mark == "Caused by:" else marked
            break
    found = next(filter(None, lines), "no reason was given").partition(" -> [Help")[0]
    return found if len(found) <= SENTENCE_MAX else found[: SENTENCE_MAX - 1] + "…"


def need_room(size: int) -> None:
    """Raises KafkaError where the disk has no room for so many bytes."""
    if lacks := lacking_room(size):
        raise KafkaError(lacks)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Whoever ends this by a signal finds it ended as Ctrl-C ends it: with all taken away."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """What is taken away is taken away whole, whoever is impatient."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Ground:
    """The jars in a directory, asked for once, and brokers on directories of their own."""

    def __init__(self, jars: Path) -> None:
        self.jars = jars
        self._lacks = ""

    @functools.cached_property
    def _kafka(self) -> Kafka:
        if lacks := missing(self.jars):
            raise KafkaError(", ".join(lacks))
        if self.version:
            return Kafka(self.jars)
        need_room(JARS_BYTES)
        try:
            return Kafka(self.jars)
        except KafkaError as error:
            reason = sentence(str(error).partition(": ")[2])
            raise KafkaError(f"Kafka's jars could not be fetched: {reason}") from error

    @property
    def kafka(self) -> Kafka:
        """Kafka's tools; KafkaError says what they lack, the second time without trying again."""
        if self._lacks:
            raise KafkaError(self._lacks)
        try:
            return self._kafka
        except KafkaError as error:
            self._lacks = sentence(error)
            raise KafkaError(self._lacks) from error

    @property
    def version(self) -> str:
        """Of Kafka, as its jar is named; empty as long as it is not here."""
        names = sorted(path.stem for path in self.jars.glob("kafka_2.13-*.jar"))
        return names[-1].rpartition("-")[2] if names else ""

    def connector(self) -> list[Path]:
        """The jars of Spark's Kafka connector, fetched once."""
        folder = self.jars.resolve().parent / "spark-connector"
        if not list(folder.glob("spark-sql-kafka-*.jar")):
            if shutil.which("mvn") is None:
                raise KafkaError("no mvn on the PATH to fetch Spark's Kafka connector with")
            need_room(JARS_BYTES)
            # Half of the jars look like all of them, so they come to their place together.
            part = folder.with_name("spark-connector.part")
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={part}"]
            try:
                status, output, said = run_apart(["mvn", "-B", "-q", "-f", str(CONNECTOR), *goal])
                if status != 0:
                    reason = sentence((output + said).decode(errors="replace"))
                    raise KafkaError(f"Spark's Kafka connector could not be fetched: {reason}")
                shutil.rmtree(folder, ignore_errors=True)
                part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return sorted(folder.glob("*.jar"))

    @contextlib.contextmanager
    def broker(self, name: str) -> Iterator[tuple[Broker, Path]]:
        """A broker that is not started yet, and the directory it lies in; both gone afterwards."""
        kafka = self.kafka
        with scratch(name) as path:
            broker = Broker(kafka, path / "broker", BROKER_JAVA)
            try:
                yield broker, path
            finally:
                with undisturbed():
                    broker.kill()


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A directory that goes with the block, also where an exception still refers to it."""
    held = Scratch(name)
    try:
        yield held.path
    finally:
        with undisturbed():
            shutil.rmtree(held.path, ignore_errors=True)
