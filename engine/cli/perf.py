"""``oncelog perf``: how fast this machine produces, consumes and commits, told as Kafka's perf tools tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from .data import (
    FileToWrite,
    FiniteNumber,
    data_option,
    json_option,
    opened_to_read,
    opened_to_write,
    pairs_of,
)
from .output import CommandGroup, Misuse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..client.client import Log
    from ..client.producer import Producer

CHUNK: Final = 512  # records between two looks at the clock
ARROW_ROWS: Final = 10_000
PAYLOADS: Final = 64
PAYLOAD_BYTES_MAX: Final = 64 << 20  # of all that are made
SIZE_MAX: Final = 16 << 20
LETTERS: Final = bytes(65 + byte % 26 for byte in range(256))  # what a byte of chance becomes

topic_option = click.option(
    "--topic", default="perf", show_default=True, metavar="TOPIC", help="Made if it is not there."
)
props_option = click.option(
    "--producer-props",
    "props",
    multiple=True,
    metavar="NAME=VALUE",
    help="A producer option; may be repeated.",
)
plot_option = click.option(
    "--plot",
    type=FileToWrite(),
    metavar="FILE",
    help="Write a picture: throughput over time, latency by percentile.",
)
size_option = click.option(
    "--record-size",
    type=click.IntRange(1, SIZE_MAX),
    default=100,
    show_default=True,
    metavar="BYTES",
)
throughput_option = click.option(
    "--throughput",
    type=FiniteNumber(),
    default=-1,
    metavar="N",
    help="Records per second at most; -1, the default: as fast as it goes.",
)
durability_option = click.option(
    "--durability",
    type=click.Choice(["os", "fsync"]),
    default="os",
    show_default=True,
    help="What an acknowledgement promises.",
)


@click.group(cls=CommandGroup, short_help="Measure producing, consuming, latency and transactions.")
def perf() -> None:
    """Measure producing, consuming, latency and transactions on this machine, in one process.

    \b
    Example
      oncelog perf produce --num-records 1000000 --record-size 100 --data /tmp/perf

    The last lines are those of Kafka's perf tools, with more percentiles, so that they can be compared.
    """


def _payloads(size: int) -> list[bytes]:
    import random

    chance = random.Random(0)  # noqa: S311 - the same letters each time
    count = max(1, min(PAYLOADS, PAYLOAD_BYTES_MAX // size))
    return [chance.randbytes(size).translate(LETTERS) for _ in range(count)]


def _arrow_rows(size: int, total: int) -> int:
    """Rows of a batch: as many as are sent at once, of large ones fewer."""
    return max(1, min(ARROW_ROWS, total, PAYLOAD_BYTES_MAX // size))


def _ensure(log: Log, topic: str, partitions: int) -> None:
    if topic not in log.topics():
        log.create_topic(topic, partitions)


def _producer(log: Log, props: tuple[str, ...], **more: Any) -> Producer:
    given = {
        name.replace(".", "_"): value for name, value in pairs_of(props, "--producer-props").items()
    }
    return log.producer(**{**more, **given})


def _pacer(throughput: float) -> Callable[[int], None]:
    """A call that waits until so many records are due, counted from now; it never does where no limit is set."""
    import threading

    from ..base.clock import monotonic_s

    if throughput <= 0:
        return lambda _sent: None
    pause, began = threading.Event(), monotonic_s()

    def keep_pace(sent: int) -> None:
        ahead = sent / throughput - (monotonic_s() - began)
        if ahead > 0:
            pause.wait(ahead)

    return keep_pace


# ---------------------------------------------------------------- produce


@perf.command(short_help="Measure a producer.")
@data_option
@topic_option
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Of a topic that is made.",
)
@click.option(
    "--num-records", type=click.IntRange(1), default=1_000_000, show_default=True, metavar="N"
)
@size_option
@throughput_option
@click.option(
    "--arrow", is_flag=True, help="From Arrow columns instead of Python objects one by one."
)
@click.option("--transactional-id", metavar="ID", help="In transactions.")
@click.option(
    "--transaction-duration-ms",
    type=click.IntRange(1),
    metavar="MS",
    help="Of each; implies a transactional id.",
)
@props_option
@durability_option
@plot_option
@json_option
def produce(
    data: Path,
    *,
    topic: str,
    partitions: int,
    num_records: int,
    record_size: int,
    throughput: float,
    arrow: bool,
    transactional_id: str | None,
    transaction_duration_ms: int | None,
    props: tuple[str, ...],
    durability: str,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure a producer: records per second, and the time from send to acknowledgement.

    \b
    Examples
      oncelog perf produce --num-records 1000000 --record-size 100 --data /tmp/perf
      oncelog perf produce --arrow --producer-props compression.type=lz4 --data /tmp/perf
      oncelog perf produce --transaction-duration-ms 100 --data /tmp/perf
    """
    from .perf_figures import Meter, tell_produced

    if transaction_duration_ms is not None and transactional_id is None:
        transactional_id = "oncelog-perf"
    with opened_to_write(data, create=True, durability=durability) as log:
        _ensure(log, topic, partitions)
        more = {"transactional_id": transactional_id} if transactional_id else {}
        meter = Meter("producing", num_records, record_size, is_quiet=as_json, tells_windows=True)
        with _producer(log, props, **more) as producer:
            # What is sent is made, and pyarrow imported, before the clock runs.
            send = _sender(producer, topic, record_size, num_records, meter, is_arrow=arrow)
            with meter:
                _drive(
                    producer,
                    send,
                    num_records,
                    throughput,
                    transactional_id is not None,
                    transaction_duration_ms,
                    meter,
                )
    tell_produced(meter, as_json=as_json, plot=plot)


def _sender(
    producer: Producer, topic: str, size: int, total: int, meter: Any, *, is_arrow: bool
) -> Callable[[int], int]:
    """A call that sends up to so many records, and says how many. One in each is timed until it is acknowledged."""
    from ..base.clock import monotonic_s

    payloads = _payloads(size)
    if is_arrow:
        from .record_files import value_batch

        rows = value_batch(
            [payloads[number % len(payloads)] for number in range(_arrow_rows(size, total))]
        )

        def send_rows(count: int) -> int:
            started = monotonic_s()
            some = rows.slice(0, min(count, rows.num_rows))
            producer.send_arrow(topic, some)
            producer.flush()
            meter.latency(monotonic_s() - started)
            return int(some.num_rows)

        return send_rows

    def send_some(count: int) -> int:
        started = monotonic_s()
        meet = meter.latency
        count = min(count, CHUNK)
        send = producer.send
        send(
            topic,
            payloads[0],
            on_delivery=lambda _error, _metadata: meet(monotonic_s() - started),
        )
        rest = count - 1
        while rest >= len(payloads):
            for payload in payloads:
                send(topic, payload)
            rest -= len(payloads)
        for payload in payloads[:rest]:
            send(topic, payload)
        return count

    return send_some


def _drive(
    producer: Producer,
    send: Callable[[int], int],
    total: int,
    throughput: float,
    is_transactional: bool,
    duration_ms: int | None,
    meter: Any,
) -> None:
    """Sends all, no faster than asked for, in transactions of a given length."""
    from ..base.clock import monotonic_s

    step = total if throughput <= 0 else max(1, min(CHUNK, int(throughput / 20)))
    keep_pace = _pacer(throughput)
    sent, deadline = 0, 0.0
    if is_transactional:
        producer.begin_transaction()
        deadline = monotonic_s() + (duration_ms or 1 << 40) / 1000
    while sent < total:
        count = send(min(step, total - sent))
        sent += count
        meter.advance(count)
        keep_pace(sent)
        if is_transactional and monotonic_s() >= deadline and sent < total:
            producer.commit_transaction()
            producer.begin_transaction()
            deadline = monotonic_s() + (duration_ms or 1 << 40) / 1000
    if is_transactional:
        producer.commit_transaction()
    else:
        producer.flush()


# ---------------------------------------------------------------- consume


@perf.command(short_help="Measure a consumer.")
@data_option
@topic_option
@click.option(
    "--num-records",
    "--messages",
    "num_records",
    type=click.IntRange(1),
    metavar="N",
    help="As many as there are unless told.",
)
@click.option("--arrow", is_flag=True, help="Arrow columns instead of Python records.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
)
@click.option(
    "--consumer-props",
    "props",
    multiple=True,
    metavar="NAME=VALUE",
    help="A consumer option; may be repeated.",
)
@plot_option
@json_option
def consume(
    data: Path,
    *,
    topic: str,
    num_records: int | None,
    arrow: bool,
    isolation_level: str,
    props: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure a consumer that reads a topic from its beginning, without a group.

    \b
    Examples
      oncelog perf consume --data /tmp/perf
      oncelog perf consume --arrow --num-records 1000000 --data /tmp/perf
    """
    from importlib import import_module

    from .._native.records import content_bytes
    from ..base.clock import monotonic_s
    from .perf_figures import Meter, tell_consumed
    from .record_files import value_bytes

    with opened_to_read(data) as directory:
        if topic not in directory.topics():
            raise Misuse(f"There is no topic {topic} to consume: 'oncelog perf produce' makes one.")
        partitions = [directory.partition(topic, number) for number in directory.topics()[topic]]
        there = sum(one.last_stable_offset - one.log_start_offset for one in partitions)
    given = {
        name.replace(".", "_"): value for name, value in pairs_of(props, "--consumer-props").items()
    }
    wanted = num_records or there
    if arrow:
        import_module(
            "oncelog.client.arrow"
        )  # loaded by the first poll else: start-up, and no consuming
    with opened_to_write(data) as log:
        options: dict[str, Any] = {
            "auto_offset_reset": "earliest",
            "isolation_level": isolation_level,
            "max_poll_records": 2000,  # what stays in a cache until it is looked at
            **given,
        }
        with log.consumer(**options) as consumer:
            consumer.assign([(topic, number) for number in log.topics()[topic]])
            with Meter("consuming", wanted, 0, is_quiet=as_json) as meter:
                while meter.records < wanted:
                    started = monotonic_s()
                    if arrow:
                        rows = consumer.poll_arrow(timeout_ms=0, views=True)
                        count, size = rows.num_rows, value_bytes(rows)
                    else:
                        records = consumer.poll(timeout_ms=0)
                        count = len(records)
                        size = content_bytes(records)
                    if not count:
                        break
                    meter.latency(monotonic_s() - started)
                    meter.advance(count, size)
    tell_consumed(meter, as_json=as_json, plot=plot)


# ---------------------------------------------------------------- end to end


@perf.command("end-to-end", short_help="Measure from send to receipt.")
@data_option
@topic_option
@click.option(
    "--num-records", type=click.IntRange(1), default=10_000, show_default=True, metavar="N"
)
@size_option
@throughput_option
@props_option
@durability_option
@plot_option
@json_option
def end_to_end(
    data: Path,
    *,
    topic: str,
    num_records: int,
    record_size: int,
    throughput: float,
    props: tuple[str, ...],
    durability: str,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure the time from a send to the consumer that has the record, one record at a time.

    \b
    Example
      oncelog perf end-to-end --num-records 10000 --record-size 100 --data /tmp/perf
    """
    from ..base.clock import monotonic_s
    from .perf_figures import Meter, tell_latency

    payload = _payloads(record_size)[0]
    with opened_to_write(data, create=True, durability=durability) as log:
        _ensure(log, topic, 1)
        with (
            _producer(log, props) as producer,
            log.consumer(auto_offset_reset="latest") as consumer,
        ):
            consumer.assign([(topic, number) for number in log.topics()[topic]])
            consumer.poll(timeout_ms=0)
            with Meter("end to end", num_records, record_size, is_quiet=as_json) as meter:
                keep_pace = _pacer(throughput)
                for sent in range(num_records):
                    keep_pace(sent)
                    started = monotonic_s()
                    producer.send(topic, payload)
                    producer.flush()
                    records = consumer.poll(timeout_ms=1000)
                    if len(records) != 1 or records[0].value != payload:
                        raise Misuse(f"Somebody else writes to {topic}: name a topic of its own.")
                    meter.latency(monotonic_s() - started)
                    meter.advance(1)
    tell_latency(meter, as_json=as_json, plot=plot)


# ---------------------------------------------------------------- transactions


@perf.command(short_help="Measure transactions.")
@data_option
@topic_option
@click.option(
    "--num-records",
    type=click.IntRange(1),
    metavar="N",
    help="Records in all; 10000 unless told. The last transaction may be shorter.",
)
@click.option(
    "--num-transactions",
    type=click.IntRange(1),
    metavar="N",
    help="Transactions in all, instead of --num-records.",
)
@click.option(
    "--records-per-transaction",
    "per_transaction",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
)
@size_option
@throughput_option
@props_option
@durability_option
@plot_option
@json_option
def transactions(
    data: Path,
    *,
    topic: str,
    num_records: int | None,
    num_transactions: int | None,
    per_transaction: int,
    record_size: int,
    throughput: float,
    props: tuple[str, ...],
    durability: str,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure transactions: begin, send, commit, one after another.

    \b
    Examples
      oncelog perf transactions --num-records 10000 --data /tmp/perf
      oncelog perf transactions --num-transactions 1000 --records-per-transaction 100 --durability fsync --data /tmp/perf
    """
    from ..base.clock import monotonic_s
    from .perf_figures import Meter, tell_transactions

    if num_records is not None and num_transactions is not None:
        raise click.UsageError("Give one of --num-records and --num-transactions.")
    total = num_transactions * per_transaction if num_transactions else num_records or 10_000
    payload = _payloads(record_size)[0]
    with opened_to_write(data, create=True, durability=durability) as log:
        _ensure(log, topic, 1)
        with (
            _producer(log, props, transactional_id="oncelog-perf") as producer,
            Meter(
                "committing",
                -(-total // per_transaction),
                record_size,
                is_quiet=as_json,
                tells_windows=True,
                noun="transactions",
            ) as meter,
        ):
            keep_pace = _pacer(throughput)
            for sent in range(0, total, per_transaction):
                keep_pace(sent)
                started = monotonic_s()
                count = min(per_transaction, total - sent)
                producer.begin_transaction()
                for _ in range(count):
                    producer.send(topic, payload)
                producer.commit_transaction()
                meter.latency(monotonic_s() - started)
                meter.advance(1, count * record_size)
    tell_transactions(meter, total, as_json=as_json, plot=plot)
