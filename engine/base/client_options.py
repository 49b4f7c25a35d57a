"""The options of producers and consumers."""

from __future__ import annotations

from typing import Final

from .broker_options import INT_MAX, MIB, MINUTE_MS, SECOND_MS, compression_levels
from .option import Kind, Option, table

BOOLEAN, INT, LONG, STRING, LIST = Kind.BOOLEAN, Kind.INT, Kind.LONG, Kind.STRING, Kind.LIST

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
# As Java's Duration reads it, without a sign: days, then hours, minutes and seconds behind a T.
DURATION: Final = r"[Pp](?=[0-9Tt])([0-9]+[Dd])?([Tt](?=[0-9])([0-9]+[Hh])?([0-9]+[Mm])?([0-9]+([.,][0-9]{0,9})?[Ss])?)?"
_CONSUMER_CLASSES: Final = "org.apache.kafka.clients.consumer."
ASSIGNORS: Final = {
    "range": f"{_CONSUMER_CLASSES}RangeAssignor",
    "roundrobin": f"{_CONSUMER_CLASSES}RoundRobinAssignor",
    "sticky": f"{_CONSUMER_CLASSES}StickyAssignor",
    "cooperative-sticky": f"{_CONSUMER_CLASSES}CooperativeStickyAssignor",
}
ROUND_ROBIN: Final = "org.apache.kafka.clients.producer.RoundRobinPartitioner"

# An option is an entry of a table: its facts in one line, its meaning below.
# fmt: off
PRODUCER: Final = table(
    Option("acks", STRING, "all", choices=("all", "-1", "0", "1"),
           doc="When a send counts as done: 0 at once, 1 when it is in the log, all (or -1) when "
               "it is as durable as the log was opened for."),
    Option("batch.size", INT, 16384, 0,
           doc="Bytes of one partition's records that go into a batch; 0: no batching."),
    Option("buffer.memory", LONG, 32 * MIB, 0,
           doc="Bytes of records that may wait to be written; then send waits."),
    Option("client.id", STRING, "",
           doc="A name for this producer, for people."),
    Option("compression.type", STRING, "none", choices=CODECS,
           doc="The codec of batches."),
    *compression_levels(),
    Option("delivery.timeout.ms", INT, 2 * MINUTE_MS, 0,
           doc="From send to its answer, with all waits and repetitions; at least linger.ms + "
               "request.timeout.ms."),
    Option("enable.idempotence", BOOLEAN, True,
           doc="Whether the log tells a repeated batch from a new one."),
    Option("linger.ms", LONG, 5, 0,
           doc="How long a batch waits for more records."),
    Option("max.block.ms", LONG, MINUTE_MS, 0,
           doc="How long send waits for memory, and a transaction's call for its answer."),
    Option("max.in.flight.requests.per.connection", INT, 5, 1,
           doc="Batches that may be under way at a time; at most 5 with idempotence."),
    Option("max.request.size", INT, MIB, 0,
           doc="The largest record, before compression."),
    Option("metadata.max.age.ms", LONG, 5 * MINUTE_MS, 0,
           doc="Age at which the list of partitions is read anew."),
    Option("partitioner.adaptive.partitioning.enable", BOOLEAN, True,
           doc="Whether records without a key go rather to partitions that are quick."),
    Option("partitioner.availability.timeout.ms", LONG, 0, 0,
           doc="How long a partition may keep a batch waiting before it is avoided; 0: any time."),
    Option("partitioner.class", STRING, None,
           choices=("roundrobin",), aliases={ROUND_ROBIN: "roundrobin"},
           doc="How a record's partition is chosen. None: by its key, without one partition by "
               "partition, a batch each."),
    Option("partitioner.ignore.keys", BOOLEAN, False,
           doc="Whether keys play no part in the choice of a partition."),
    Option("request.timeout.ms", INT, 30 * SECOND_MS, 0,
           doc="How long one attempt may take."),
    Option("retries", INT, INT_MAX, 0, INT_MAX,
           doc="How often a send is repeated; delivery.timeout.ms ends it in any case."),
    Option("retry.backoff.max.ms", LONG, SECOND_MS, 0,
           doc="The longest pause before a repetition."),
    Option("retry.backoff.ms", LONG, 100, 0,
           doc="The first pause before a repetition; each is twice the one before."),
    Option("transaction.timeout.ms", INT, MINUTE_MS,
           doc="How long a transaction may stay open before it is aborted."),
    Option("transaction.two.phase.commit.enable", BOOLEAN, False,
           doc="Whether another system decides how a transaction ends; it then has no timeout."),
    Option("transactional.id", STRING, None, 1,
           doc="A name that stays the same over restarts: makes the producer transactional, and "
               "fences the one before."),
)
# fmt: on

# fmt: off
CONSUMER: Final = table(
    Option("allow.auto.create.topics", BOOLEAN, True,
           doc="Whether a topic that is asked for may be made."),
    Option("auto.commit.interval.ms", INT, 5 * SECOND_MS, 0,
           doc="Time between two commits by itself."),
    Option("auto.offset.reset", STRING, "latest",
           choices=("latest", "earliest", "none"), pattern=f"by_duration:{DURATION}",
           example="by_duration:P1DT2H3M4S",
           doc="Where to begin without a committed offset: at the end, at the start, not at all, "
               "or so long ago."),
    Option("check.crcs", BOOLEAN, True,
           doc="Whether the checksum of what is read is checked."),
    Option("client.id", STRING, "",
           doc="A name for this consumer, for people."),
    Option("client.rack", STRING, "",
           doc="Where this consumer stands: its group is told, as by Kafka's consumers. The one "
               "broker has no rack, so that nothing is fetched or assigned by it."),
    Option("default.api.timeout.ms", INT, MINUTE_MS, 0,
           doc="How long a call may take that says nothing else."),
    Option("enable.auto.commit", BOOLEAN, True,
           doc="Whether offsets are committed by themselves; only with a group."),
    Option("exclude.internal.topics", BOOLEAN, True,
           doc="Whether a pattern passes over internal topics."),
    Option("fetch.max.bytes", INT, 50 * MIB, 0,
           doc="Bytes that one fetch aims at; a larger first batch still comes."),
    Option("fetch.max.wait.ms", INT, 500, 0,
           doc="How long a fetch waits for fetch.min.bytes."),
    Option("fetch.min.bytes", INT, 1, 0,
           doc="Bytes that a fetch waits for."),
    Option("group.id", STRING, None,
           doc="The group whose members share the partitions, and under which offsets are "
               "committed."),
    Option("group.instance.id", STRING, None, 1,
           doc="A name for this member that stays over restarts, which then cost no rebalance."),
    Option("heartbeat.interval.ms", INT, 3 * SECOND_MS,
           doc="Time between two signs of life; well below session.timeout.ms."),
    Option("isolation.level", STRING, "read_committed",
           choices=("read_committed", "read_uncommitted"),
           doc="Whether open and aborted transactions are hidden. Kafka's default is "
               "read_uncommitted."),
    Option("max.partition.fetch.bytes", INT, MIB, 0,
           doc="Bytes of one partition that one fetch aims at."),
    Option("max.poll.interval.ms", INT, 5 * MINUTE_MS, 1,
           doc="Time without a poll after which the member counts as gone."),
    Option("max.poll.records", INT, 500, 1,
           doc="The most records that one poll returns."),
    Option("metadata.max.age.ms", LONG, 5 * MINUTE_MS, 0,
           doc="Age at which the list of partitions is read anew."),
    Option("partition.assignment.strategy", LIST, ("range", "cooperative-sticky"),
           choices=tuple(ASSIGNORS), aliases={name: short for short, name in ASSIGNORS.items()},
           doc="How members share the partitions, by preference; all members need one in common."),
    Option("request.timeout.ms", INT, 30 * SECOND_MS, 0,
           doc="How long one attempt may take."),
    Option("retry.backoff.max.ms", LONG, SECOND_MS, 0,
           doc="The longest pause before a repetition."),
    Option("retry.backoff.ms", LONG, 100, 0,
           doc="The first pause before a repetition; each is twice the one before."),
    Option("session.timeout.ms", INT, 45 * SECOND_MS,
           doc="Time without a sign of life after which the member counts as gone."),
)
# fmt: on
