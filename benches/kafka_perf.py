"""How fast do Kafka's own perf tools go on a real broker, and ``oncelog perf`` beside them?
Times    what each tool says of itself. Producing: from the first send to the last acknowledgement, Kafka's after a
         quarter of its records to warm up. Consuming: the time of fetching, after any rebalance, of all records from
         their beginning. Transactions: begin, send one record, commit, one after another.
Excludes starting the processes and the broker, making the values: both sides send the same 64 of them in turn. What is
         consumed lies in the cache of pages.
Anchor   kafka-producer-perf-test, kafka-consumer-perf-test (which proves no checksum; ours proves all), and for
         transactions of one record, which these cannot do, a loop around Kafka's Java producer. One partition, the
         defaults of each side, nobody waits for the device. Everything written is read again and counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import re
import shutil
import sys
from typing import TYPE_CHECKING, Final

from interop.kafka import KafkaError, run_apart

from .files import read_through
from .harness import DisagreementError
from .kafka_cases import (
    CONSUME,
    CONSUME_ARROW,
    KAFKA,
    OURS,
    PRODUCE,
    PRODUCE_ARROW,
    TRANSACTIONS,
    Answer,
)
from .kafka_ground import BROKER_BYTES, need_room, scratch, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from interop.kafka import Broker

    from .kafka_ground import Ground

VALUE_BYTES: Final = 100
STORED_BYTES: Final = 112  # of one record with its share of a batch, rounded up
VALUES: Final = 64
LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TOPIC: Final = "perf"
WARM_UP_SHARE: Final = 4  # one in so many records warms Java up
OURS_PER_KAFKAS: Final = 10  # transactions: ours would be over too soon otherwise
ATTEMPTS: Final = 3  # at a round of Kafka's transactions
MIB: Final = 1 << 20
DONE: Final = re.compile(
    r"^(\d+)(?: steady state)? records sent, ([\d.]+) records/sec .*99\.9th\.$", re.MULTILINE
)
READ: Final = re.compile(r"^\d{4}-\d\d-\d\d [^,]+, [^,]+(?:, [\d.]+){8}$", re.MULTILINE)
COMMITTED: Final = re.compile(
    r"^(\d+) transactions committed, ([\d.]+) transactions/sec .*99\.9th\.$", re.MULTILINE
)


@dataclasses.dataclass(frozen=True)
class Told:
    """What a perf tool says: how many, how fast, and the line that says so."""

    count: int
    per_second: float
    line: str
    megabytes: float = 0.0


def _nothing_told(text: str) -> KafkaError:
    return KafkaError(f"a perf tool told no figures, but: {sentence(text)}")


def produced(text: str) -> Told:
    """All that was sent, at the rate of the last summary: that of the steady state where there was a warm-up."""
    found = list(DONE.finditer(text))
    if not found:
        raise _nothing_told(text)
    return Told(int(found[0][1]), float(found[-1][2]), found[-1][0])


def consumed(text: str) -> Told:
    """The last columns leave out the time of a rebalance, which a consumer without a group does not have."""
    found = READ.findall(text)
    if not found:
        raise _nothing_told(text)
    line = found[-1]
    columns = line.split(", ")
    return Told(int(columns[4]), float(columns[9]), line, float(columns[2]))


def committed(text: str) -> Told:
    found = list(COMMITTED.finditer(text))
    if not found:
        raise _nothing_told(text)
    return Told(int(found[-1][1]), float(found[-1][2]), found[-1][0])


def expect(who: str, told: Told, count: int) -> None:
    """All records went through, and all of their bytes where the tool counts them."""
    megabytes = count * VALUE_BYTES / MIB
    if told.count != count or (told.megabytes and abs(told.megabytes - megabytes) > 0.001):
        raise DisagreementError(f"{who} did not do the work of {count:,} records: {told.line}")


# ---------------------------------------------------------------- two sides


def _into_cache(partition: Path) -> None:
    """A system may give cached pages that nobody has used for a minute to others."""
    read_through(partition.iterdir())


class KafkaSide:
    """Kafka's tools on a running broker."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self._broker = broker
        self._values = folder / "values"
        self._values.write_bytes(b"\n".join(values()))

    def _tool(self, name: str, *words: object) -> str:
        output, _ = self._broker.kafka.tool(name, *map(str, words))
        return output.decode(errors="replace")

    def produce(self, topic: str, count: int) -> Told:
        self._broker.create({topic: 1})
        where = ("--bootstrap-server", self._broker.address, "--topic", topic)
        what = ("--num-records", count, "--payload-file", self._values, "--throughput", -1)
        warm_up = ("--warmup-records", count // WARM_UP_SHARE)
        return produced(self._tool("ProducerPerformance", *where, *what, *warm_up))

    def consume(self, topic: str, count: int) -> Told:
        _into_cache(self._broker.data / f"{topic}-0")
        where = ("--bootstrap-server", self._broker.address, "--topic", topic)
        return consumed(self._tool("ConsumerPerformance", *where, "--num-records", count))

    def transactions(self, topic: str, count: int) -> Told:
        """On a busy machine a broker now and then takes a commit for one in an invalid state, which is fatal to its
        producer: the round then begins again, on a topic of its own, and what it tells says so."""
        sizes = (count, VALUE_BYTES, count // WARM_UP_SHARE)
        failures: list[KafkaError] = []
        while True:
            name = f"{topic}-{len(failures) + 1}"
            self._broker.create({name: 1})
            try:
                told = committed(self._tool("Transactions", self._broker.address, name, *sizes))
            except KafkaError as error:
                failures.append(error)
                if len(failures) == ATTEMPTS:
                    raise
                continue
            again = "".join(f"; begun again after: {sentence(error)}" for error in failures)
            return dataclasses.replace(told, line=told.line + again)


class OurSide:
    """``oncelog perf`` on directories of its own, as a user runs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _perf(self, what: str, name: str, *words: object) -> str:
        where = ["--data", str(self._folder / name), "--topic", TOPIC]
        command = [sys.executable, "-m", "oncelog", "perf", what, *where, *map(str, words)]
        status, output, said = run_apart(command)
        if status != 0:
            raise RuntimeError(f"oncelog perf {what} failed: {said.decode(errors='replace')}")
        return output.decode()

    def produce(self, name: str, count: int, *flags: str) -> Told:
        size = ("--record-size", VALUE_BYTES)
        return produced(self._perf("produce", name, "--num-records", count, *size, *flags))

    def consume(self, name: str, *flags: str) -> Told:
        _into_cache(self._folder / name / f"{TOPIC}-0")
        return consumed(self._perf("consume", name, *flags))

    def transactions(self, name: str, count: int) -> Told:
        words = ("--num-transactions", count, "--record-size", VALUE_BYTES)
        return committed(self._perf("transactions", name, *words))

    def forget(self, name: str) -> None:
        shutil.rmtree(self._folder / name, ignore_errors=True)


def values() -> list[bytes]:
    """Letters, as our tool makes them, the same each time."""
    chance = random.Random(0)
    return [bytes(chance.choices(LETTERS, k=VALUE_BYTES)) for _ in range(VALUES)]


# ---------------------------------------------------------------- turns


@dataclasses.dataclass(frozen=True)
class Turn:
    """A tool that is to run, the cases that its figures belong to, and how many it must count."""

    who: str
    cases: tuple[str, ...]
    call: Callable[[], Told]
    count: int


def _in_turn(turns: list[Turn], number: int, answers: dict[str, Answer]) -> Iterator[str]:
    """One round; who begins changes with it. Yields what each tool has printed."""
    first = number % len(turns)
    for turn in turns[first:] + turns[:first]:
        os.sync()  # what one has written is not to be carried to the device in the time of the next
        told = turn.call()
        expect(turn.who, told, turn.count)
        for name in turn.cases:
            answers[name].add(turn.who, told.per_second, told.line)
        yield f"{turn.cases[0]} {turn.who}: {told.line}"


def _sides(
    ground: Ground, stack: contextlib.ExitStack, name: str, size: int
) -> tuple[KafkaSide | None, OurSide, str]:
    """Kafka's side, or why it is not there, and ours."""
    ours = OurSide(stack.enter_context(scratch(name)))
    try:
        need_room(size + BROKER_BYTES)
        broker, folder = stack.enter_context(ground.broker(f"{name}-broker"))
        broker.start()
    except KafkaError as error:
        return None, ours, sentence(error)
    return KafkaSide(broker, folder), ours, ""


def _perf_turns(
    kafka: KafkaSide | None, ours: OurSide, topic: str, count: int
) -> tuple[list[Turn], list[Turn]]:
    """Who writes, and who reads what was written."""
    call = functools.partial
    writes = [
        Turn(OURS, (PRODUCE,), call(ours.produce, "objects", count), count),
        Turn(OURS, (PRODUCE_ARROW,), call(ours.produce, "arrow", count, "--arrow"), count),
    ]
    reads = [
        Turn(OURS, (CONSUME,), call(ours.consume, "objects"), count),
        Turn(OURS, (CONSUME_ARROW,), call(ours.consume, "arrow", "--arrow"), count),
    ]
    if kafka is not None:  # which has one way only, and is compared with both of ours
        write, read = call(kafka.produce, topic, count), call(kafka.consume, topic, count)
        writes.append(Turn(KAFKA, (PRODUCE, PRODUCE_ARROW), write, count))
        reads.append(Turn(KAFKA, (CONSUME, CONSUME_ARROW), read, count))
    return writes, reads


def perf(ground: Ground, count: int, rounds: int, answers: dict[str, Answer]) -> Iterator[str]:
    """Producing and consuming; the answers are filled as it goes."""
    need_room(2 * count * STORED_BYTES)
    with contextlib.ExitStack() as stack:
        size = (rounds + 2) * count * STORED_BYTES
        kafka, ours, missing = _sides(ground, stack, "kafka-perf", size)
        for name in (PRODUCE, PRODUCE_ARROW, CONSUME, CONSUME_ARROW):
            answers[name] = Answer(name, count, ground.version, missing)
        for number in range(rounds):
            for turns in _perf_turns(kafka, ours, f"{TOPIC}-{number}", count):
                yield from _in_turn(turns, number, answers)
            ours.forget("objects")
            ours.forget("arrow")


def transactions(
    ground: Ground, count: int, rounds: int, answers: dict[str, Answer]
) -> Iterator[str]:
    """Transactions of one record; ``count`` is how many of Kafka's make a round."""
    with contextlib.ExitStack() as stack:
        kafka, ours, missing = _sides(ground, stack, "kafka-transactions", 0)
        answers[TRANSACTIONS] = Answer(TRANSACTIONS, 1, ground.version, missing)
        many = count * OURS_PER_KAFKAS
        for number in range(rounds):
            commit = functools.partial(ours.transactions, "commits", many)
            turns = [Turn(OURS, (TRANSACTIONS,), commit, many)]
            if kafka is not None:
                commit = functools.partial(kafka.transactions, f"{TOPIC}-{number}", count)
                turns.append(Turn(KAFKA, (TRANSACTIONS,), commit, count))
            yield from _in_turn(turns, number, answers)
            ours.forget("commits")
