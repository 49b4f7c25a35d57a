"""The options of topics and brokers, and which broker option sets the default of which topic option."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from .option import Kind, Option, table

if TYPE_CHECKING:
    from collections.abc import Mapping

BOOLEAN, SHORT, INT, LONG = Kind.BOOLEAN, Kind.SHORT, Kind.INT, Kind.LONG
DOUBLE, STRING, LIST = Kind.DOUBLE, Kind.STRING, Kind.LIST

LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
DOUBLE_MAX: Final = float.fromhex("0x1.fffffffffffffp+1023")
SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
MIB: Final = 1 << 20
# The default batch: 1 MiB of records and the head that Kafka's log counts with them.
MESSAGE_BYTES_MAX: Final = MIB + 12

BROKER_CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
POLICIES: Final = ("compact", "delete")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")


# fmt: off
def compression_levels() -> tuple[Option, ...]:
    """How hard each codec tries; topics, brokers and producers have the same three."""
    return (
        Option("compression.gzip.level", INT, -1, 1, 9, also=(-1,),
               doc="Level of gzip; -1 is its own default."),
        Option("compression.lz4.level", INT, 9, 1, 17,
               doc="Level of lz4."),
        Option("compression.zstd.level", INT, 3, -131072, 22,
               doc="Level of zstd; below zero it is faster."),
    )
# fmt: on


# An option is an entry of a table: its facts in one line, its meaning below.
# fmt: off
TOPIC: Final = table(
    Option("cleanup.policy", LIST, ("delete",), choices=POLICIES,
           doc="How old records leave: whole segments by age and size, by newer values of their "
               "key, or both; an empty list keeps all."),
    Option("compression.type", STRING, "producer", choices=BROKER_CODECS,
           doc="The codec of stored batches; producer leaves them as they come."),
    *compression_levels(),
    Option("delete.retention.ms", LONG, DAY_MS, 0,
           doc="How long a compacted topic keeps tombstones and markers, so that a reader from "
               "the start sees them."),
    Option("file.delete.delay.ms", LONG, MINUTE_MS, 0,
           doc="How long a deleted segment's files stay, for readers that have them open."),
    Option("flush.messages", LONG, LONG_MAX, 1,
           doc="Records after which the log is forced to the device."),
    Option("flush.ms", LONG, LONG_MAX, 0,
           doc="Age at which written records are forced to the device."),
    Option("index.interval.bytes", INT, 4096, 0,
           doc="Bytes of log between two entries of an index."),
    Option("internal.segment.bytes", INT, None,
           doc="Overrides segment.bytes without its minimum, for tests."),
    Option("max.compaction.lag.ms", LONG, LONG_MAX, 1,
           doc="Age at which a record is compacted however little else is dirty."),
    Option("max.message.bytes", INT, MESSAGE_BYTES_MAX, 0,
           doc="The largest batch, as stored, that the topic takes."),
    Option("message.timestamp.after.max.ms", LONG, HOUR_MS, 0,
           doc="How far a record's time may be ahead of the clock."),
    Option("message.timestamp.before.max.ms", LONG, LONG_MAX, 0,
           doc="How far a record's time may be behind the clock."),
    Option("message.timestamp.type", STRING, "CreateTime", choices=TIMESTAMP_TYPES,
           doc="Whose clock stamps records: the producer's or the log's."),
    Option("min.cleanable.dirty.ratio", DOUBLE, 0.5, 0, 1,
           doc="Share of the log that must be dirty before it is compacted."),
    Option("min.compaction.lag.ms", LONG, 0, 0,
           doc="Age below which a record is not compacted."),
    Option("min.insync.replicas", INT, 1, 1,
           doc="Replicas that must have a batch before acks=all is answered; there is one."),
    Option("preallocate", BOOLEAN, False,
           doc="Whether a new segment's file gets its full size at once."),
    Option("retention.bytes", LONG, -1,
           doc="Size of a partition above which its oldest segments go; -1: no limit."),
    Option("retention.ms", LONG, 7 * DAY_MS, -1,
           doc="Age above which segments go; -1: no limit."),
    Option("segment.bytes", INT, 1 << 30, MIB,
           doc="Size at which a new segment is begun."),
    Option("segment.index.bytes", INT, 10 * MIB, 4,
           doc="Largest size of an index; a full one begins a new segment."),
    Option("segment.jitter.ms", LONG, 0, 0,
           doc="At most this much is taken off segment.ms at random, so that partitions do not "
               "roll at once."),
    Option("segment.ms", LONG, 7 * DAY_MS, 1,
           doc="Age at which a new segment is begun."),
    Option("unclean.leader.election.enable", BOOLEAN, False,
           doc="Whether a replica that is behind may lead; kept for Kafka, there is one replica."),
)
# fmt: on

# fmt: off
BROKER: Final = table(
    Option("auto.create.topics.enable", BOOLEAN, True,
           doc="Whether the first use of a topic makes it. Only where it is given: else a topic that is "
               "not there is an error."),
    Option("broker.id", INT, -1,
           doc="The older name of node.id; -1: not given."),
    Option("compression.type", STRING, "producer", choices=BROKER_CODECS,
           doc="Default of a topic's compression.type."),
    *compression_levels(),
    Option("default.replication.factor", INT, 1,
           doc="Replicas of a topic that is made without saying; there is one."),
    Option("delete.topic.enable", BOOLEAN, True,
           doc="Whether topics may be deleted."),
    Option("fetch.max.bytes", INT, 55 * MIB, 1024,
           doc="The most that one fetch returns, whatever it asks for."),
    Option("group.initial.rebalance.delay.ms", INT, 3 * SECOND_MS,
           doc="How long an empty group waits for more members before it starts."),
    Option("group.max.session.timeout.ms", INT, 30 * MINUTE_MS,
           doc="The longest session that a member may ask for."),
    Option("group.max.size", INT, INT_MAX, 1,
           doc="The most members of a group."),
    Option("group.min.session.timeout.ms", INT, 6 * SECOND_MS,
           doc="The shortest session that a member may ask for."),
    Option("log.cleaner.backoff.ms", LONG, 15 * SECOND_MS, 0,
           doc="Pause of the cleaner when nothing is to be cleaned."),
    Option("log.cleaner.dedupe.buffer.size", LONG, 128 * MIB,
           doc="Memory for the keys of the log being cleaned."),
    Option("log.cleaner.delete.retention.ms", LONG, DAY_MS, 0,
           doc="Default of a topic's delete.retention.ms."),
    Option("log.cleaner.enable", BOOLEAN, True,
           doc="Whether compacted topics are compacted."),
    Option("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9,
           doc="How full the cleaner's table of keys may get."),
    Option("log.cleaner.io.buffer.size", INT, MIB // 2, 0,
           doc="Memory for the cleaner's reads and writes."),
    Option("log.cleaner.io.max.bytes.per.second", DOUBLE, DOUBLE_MAX,
           doc="The most that the cleaner reads and writes a second."),
    Option("log.cleaner.max.compaction.lag.ms", LONG, LONG_MAX, 1,
           doc="Default of a topic's max.compaction.lag.ms."),
    Option("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5, 0, 1,
           doc="Default of a topic's min.cleanable.dirty.ratio."),
    Option("log.cleaner.min.compaction.lag.ms", LONG, 0, 0,
           doc="Default of a topic's min.compaction.lag.ms."),
    Option("log.cleaner.threads", INT, 1, 0,
           doc="Logs that are cleaned at a time."),
    Option("log.cleanup.policy", LIST, ("delete",), choices=POLICIES,
           doc="Default of a topic's cleanup.policy."),
    Option("log.flush.interval.messages", LONG, LONG_MAX, 1,
           doc="Default of a topic's flush.messages."),
    Option("log.flush.interval.ms", LONG, None,
           doc="Default of a topic's flush.ms; not given, log.flush.scheduler.interval.ms is."),
    Option("log.flush.offset.checkpoint.interval.ms", INT, MINUTE_MS, 0,
           doc="Time between two checkpoints of the recovery points."),
    Option("log.flush.scheduler.interval.ms", LONG, LONG_MAX,
           doc="Time between two looks for logs to be forced to the device; at most a second."),
    Option("log.flush.start.offset.checkpoint.interval.ms", INT, MINUTE_MS, 0,
           doc="Time between two checkpoints of the log starts."),
    Option("log.index.interval.bytes", INT, 4096, 0,
           doc="Default of a topic's index.interval.bytes."),
    Option("log.index.size.max.bytes", INT, 10 * MIB, 4,
           doc="Default of a topic's segment.index.bytes."),
    Option("log.initial.task.delay.ms", LONG, 30 * SECOND_MS, 0,
           doc="Time from start to the first retention and the first checkpoints."),
    Option("log.message.timestamp.after.max.ms", LONG, HOUR_MS, 0,
           doc="Default of a topic's message.timestamp.after.max.ms."),
    Option("log.message.timestamp.before.max.ms", LONG, LONG_MAX, 0,
           doc="Default of a topic's message.timestamp.before.max.ms."),
    Option("log.message.timestamp.type", STRING, "CreateTime", choices=TIMESTAMP_TYPES,
           doc="Default of a topic's message.timestamp.type."),
    Option("log.preallocate", BOOLEAN, False,
           doc="Default of a topic's preallocate."),
    Option("log.retention.bytes", LONG, -1,
           doc="Default of a topic's retention.bytes."),
    Option("log.retention.check.interval.ms", LONG, 5 * MINUTE_MS, 1,
           doc="Time between two looks for segments to be deleted."),
    Option("log.retention.hours", INT, 168,
           doc="Default of a topic's retention.ms, in hours, if no finer one is given."),
    Option("log.retention.minutes", INT, None,
           doc="Default of a topic's retention.ms, in minutes; goes before hours."),
    Option("log.retention.ms", LONG, None,
           doc="Default of a topic's retention.ms; goes before minutes and hours."),
    Option("log.roll.hours", INT, 168, 1,
           doc="Default of a topic's segment.ms, in hours."),
    Option("log.roll.jitter.hours", INT, 0, 0,
           doc="Default of a topic's segment.jitter.ms, in hours."),
    Option("log.roll.jitter.ms", LONG, None,
           doc="Default of a topic's segment.jitter.ms; goes before hours."),
    Option("log.roll.ms", LONG, None,
           doc="Default of a topic's segment.ms; goes before hours."),
    Option("log.segment.bytes", INT, 1 << 30, MIB,
           doc="Default of a topic's segment.bytes."),
    Option("log.segment.delete.delay.ms", LONG, MINUTE_MS, 0,
           doc="Default of a topic's file.delete.delay.ms."),
    Option("message.max.bytes", INT, MESSAGE_BYTES_MAX, 0,
           doc="Default of a topic's max.message.bytes."),
    Option("min.insync.replicas", INT, 1, 1,
           doc="Default of a topic's min.insync.replicas."),
    Option("node.id", INT, 1, 0,
           doc="The number of this broker, in meta.properties and in answers."),
    Option("num.partitions", INT, 1, 1,
           doc="Partitions of a topic that is made without saying."),
    Option("num.recovery.threads.per.data.dir", INT, 2, 1,
           doc="Partitions that are recovered at a time after a crash."),
    Option("offset.metadata.max.bytes", INT, 4096,
           doc="The longest remark that may be stored with a committed offset."),
    Option("offsets.commit.timeout.ms", INT, 5 * SECOND_MS, 1,
           doc="How long a commit of offsets may take."),
    Option("offsets.load.buffer.size", INT, 5 * MIB, 1,
           doc="Bytes read at a time when committed offsets are loaded."),
    Option("offsets.retention.check.interval.ms", LONG, 10 * MINUTE_MS, 1,
           doc="Time between two looks for committed offsets to be forgotten."),
    Option("offsets.retention.minutes", INT, 10080, 1,
           doc="How long the offsets of an empty group are kept."),
    Option("offsets.topic.compression.codec", INT, 0,
           doc="The codec of __consumer_offsets, by its number."),
    Option("offsets.topic.num.partitions", INT, 50, 1,
           doc="Partitions of __consumer_offsets; fixed once it exists."),
    Option("offsets.topic.replication.factor", SHORT, 3, 1,
           doc="Kept for Kafka: here there is one replica."),
    Option("offsets.topic.segment.bytes", INT, 100 * MIB, 1,
           doc="Size at which __consumer_offsets begins a new segment."),
    Option("producer.id.expiration.check.interval.ms", INT, 10 * MINUTE_MS, 1,
           doc="Time between two looks for idle producers."),
    Option("producer.id.expiration.ms", INT, DAY_MS, 1,
           doc="How long a partition remembers an idle producer."),
    Option("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10 * SECOND_MS, 1,
           doc="Time between two looks for transactions that took too long."),
    Option("transaction.max.timeout.ms", INT, 15 * MINUTE_MS, 1,
           doc="The longest transaction.timeout.ms that a producer may ask for."),
    Option("transaction.partition.verification.enable", BOOLEAN, True,
           doc="Whether a write is checked to belong to an open transaction."),
    Option("transaction.remove.expired.transaction.cleanup.interval.ms", INT, HOUR_MS, 1,
           doc="Time between two looks for transactional ids to be forgotten."),
    Option("transaction.state.log.load.buffer.size", INT, 5 * MIB, 1,
           doc="Bytes read at a time when transactions are loaded."),
    Option("transaction.state.log.min.isr", INT, 2, 1,
           doc="Kept for Kafka: here there is one replica."),
    Option("transaction.state.log.num.partitions", INT, 50, 1,
           doc="Partitions of __transaction_state; fixed once it exists."),
    Option("transaction.state.log.replication.factor", SHORT, 3, 1,
           doc="Kept for Kafka: here there is one replica."),
    Option("transaction.state.log.segment.bytes", INT, 100 * MIB, 1,
           doc="Size at which __transaction_state begins a new segment."),
    Option("transaction.two.phase.commit.enable", BOOLEAN, False,
           doc="Whether producers may leave the end of a transaction to another system."),
    Option("transactional.id.expiration.ms", INT, 7 * DAY_MS, 1,
           doc="How long an idle transactional id is remembered."),
    Option("unclean.leader.election.enable", BOOLEAN, False,
           doc="Default of a topic's unclean.leader.election.enable."),
)
# fmt: on


class Synonym(NamedTuple):
    """A broker option that sets the default of a topic option, in units of so many milliseconds."""

    name: str
    factor: int = 1


# The first that is given counts; none given, the last one that has a default.
SYNONYMS: Final[Mapping[str, tuple[Synonym, ...]]] = {
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "preallocate": (Synonym("log.preallocate"),),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
    ),
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
}
