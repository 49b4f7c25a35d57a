"""Every option: Kafka's name, type, default and limits, and how what a caller gives is read.

Names come dotted, as Kafka writes them, or as keyword arguments (``segment.bytes``, ``segment_bytes``).
What is read is keyed by the dotted name and has Python's types; lists are tuples of texts. The one default
that differs from Kafka's is isolation.level: a reader who does not know of transactions must not see
aborted records. docs/reference/options.md is made from these tables.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from .broker_options import BROKER, DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, SYNONYMS, TOPIC
from .client_options import CONSUMER, DURATION, PRODUCER
from .errors import InvalidConfigError
from .option import Kind, Option

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BROKER",
    "CONSUMER",
    "LEFT_OUT",
    "PRODUCER",
    "TOPIC",
    "WITHOUT_EFFECT",
    "Kind",
    "Option",
    "check_options",
    "read_options",
    "reset_duration_ms",
    "topic_defaults",
]

OWNERS: Final = {"topic": TOPIC, "broker": BROKER, "producer": PRODUCER, "consumer": CONSUMER}

_NO_REMOTE = "there is no remote storage, every segment is local"
_NO_REPLICATION = "there is one replica, so nothing is copied that could be slowed down"
_NO_NETWORK = "the log is in this process, there is no connection to set up"
_BYTES = "keys and values are bytes, encode and decode them where you use them"
# Options of Kafka that people may bring along, and why they mean nothing here.
LEFT_OUT: Final[Mapping[str, str]] = {
    "follower.replication.throttled.replicas": _NO_REPLICATION,
    "leader.replication.throttled.replicas": _NO_REPLICATION,
    "local.retention.bytes": _NO_REMOTE,
    "local.retention.ms": _NO_REMOTE,
    "remote.log.copy.disable": _NO_REMOTE,
    "remote.log.delete.on.disable": _NO_REMOTE,
    "remote.storage.enable": _NO_REMOTE,
    "bootstrap.servers": _NO_NETWORK,
    "security.protocol": _NO_NETWORK,
    "connections.max.idle.ms": _NO_NETWORK,
    "reconnect.backoff.ms": _NO_NETWORK,
    "reconnect.backoff.max.ms": _NO_NETWORK,
    "send.buffer.bytes": _NO_NETWORK,
    "receive.buffer.bytes": _NO_NETWORK,
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "interceptor.classes": "call your own code before send and after poll",
    "log.dir": "the directory is the one that is opened",
    "log.dirs": "the directory is the one that is opened",
}
_ONE_REPLICA = "there is one replica, and it leads"
_MAPPED = "files are mapped, there is no buffer to size"
# Options that are taken, so that Kafka's configurations can be used, and what they would change is not here. A test
# proves of all others that something reads them.
WITHOUT_EFFECT: Final[Mapping[str, Mapping[str, str]]] = {
    "topic": {
        "file.delete.delay.ms": "files go at once: a reader keeps what it has mapped, however long it reads",
        "min.insync.replicas": _ONE_REPLICA,
        "preallocate": 'files are made longer ahead where that helps, in "fsync" durability, by a megabyte',
        "unclean.leader.election.enable": _ONE_REPLICA,
    },
    "broker": {
        "default.replication.factor": _ONE_REPLICA,
        "log.cleaner.io.buffer.size": _MAPPED,
        "log.cleaner.io.max.bytes.per.second": "the cleaner is not slowed down; it has a thread of its own",
        "log.cleaner.threads": "one thread cleans, log after log",
        "log.flush.start.offset.checkpoint.interval.ms": "log starts are written with the recovery points",
        "log.preallocate": "preallocate has none",
        "log.segment.delete.delay.ms": "file.delete.delay.ms has none",
        "min.insync.replicas": _ONE_REPLICA,
        "num.recovery.threads.per.data.dir": "partitions are recovered one after another, by who first uses them",
        "offsets.commit.timeout.ms": "a commit is one local write, which either succeeds or fails",
        "offsets.load.buffer.size": _MAPPED,
        "offsets.topic.compression.codec": "committed offsets are written as they are, uncompressed",
        "offsets.topic.replication.factor": _ONE_REPLICA,
        "transaction.partition.verification.enable": "every write is verified, as it costs no request",
        "transaction.state.log.load.buffer.size": _MAPPED,
        "transaction.state.log.min.isr": _ONE_REPLICA,
        "transaction.state.log.replication.factor": _ONE_REPLICA,
        "unclean.leader.election.enable": _ONE_REPLICA,
    },
    "producer": {
        "metadata.max.age.ms": "new partitions are known at once",
        "request.timeout.ms": "there is no request that could get lost; delivery.timeout.ms still has to exceed it",
    },
    "consumer": {
        "request.timeout.ms": "there is no request that could get lost",
        "retry.backoff.max.ms": "the pause stays at retry.backoff.ms: the other side is in this process",
    },
}
_NAMES_SHOWN: Final = 3
IN_FLIGHT_MAX: Final = 5  # as many batches as the log remembers of each producer


def check_options(table: Mapping[str, Option], given: Mapping[str, object]) -> dict[str, Any]:
    """What is given, by dotted names and as Python's types; raises for a name or value that is not allowed."""
    names = {option.python_name: name for name, option in table.items()}
    read: dict[str, Any] = {}
    for word, value in given.items():
        name = word if word in table else names.get(word)
        if name is None:
            raise InvalidConfigError(_unknown(table, word))
        if name in read:
            raise InvalidConfigError(f"{name} is given twice")
        read[name] = table[name].read(value)
    return read


def read_options(
    table: Mapping[str, Option],
    given: Mapping[str, object],
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Every option of the table: what is given, else ``defaults`` (as read before), else the table's default.

    Options that contradict each other are refused here, since one alone cannot tell.
    """
    chosen = check_options(table, given)
    read = {name: option.default for name, option in table.items()} | dict(defaults or {}) | chosen
    if table is TOPIC:
        _check_topic(read)
    elif table is BROKER:
        _check_broker(read)
    elif table is PRODUCER:
        _settle_producer(read, chosen)
    return read


def topic_defaults(broker_options: Mapping[str, Any]) -> dict[str, Any]:
    """A broker's options, as read, in the words of a topic: the defaults of its topics."""
    found: dict[str, Any] = {}
    for name, synonyms in SYNONYMS.items():
        for synonym in synonyms:
            value = broker_options.get(synonym.name, BROKER[synonym.name].default)
            if value is not None:
                found[name] = value * synonym.factor if synonym.factor > 1 else value
                break
    if found["retention.ms"] < 0:  # any negative number of hours is Kafka's "no limit"
        found["retention.ms"] = -1
    return found


def reset_duration_ms(auto_offset_reset: str) -> int | None:
    """How long ago reading begins with ``by_duration:...``; None for the other values."""
    prefix, _, text = auto_offset_reset.partition(":")
    match = re.fullmatch(DURATION, text)
    if prefix != "by_duration" or match is None:
        return None
    days, _, hours, minutes, seconds, _ = match.groups()
    whole = sum(
        int(part[:-1]) * unit_ms
        for part, unit_ms in ((days, DAY_MS), (hours, HOUR_MS), (minutes, MINUTE_MS))
        if part
    )
    if not seconds:
        return whole
    number, _, fraction = seconds[:-1].replace(",", ".").partition(".")
    return whole + int(number) * SECOND_MS + int(fraction[:3].ljust(3, "0"))


def _unknown(table: Mapping[str, Option], word: str) -> str:
    """What to say about a name that the table does not have."""
    dotted = word.replace("_", ".")
    if dotted in LEFT_OUT:
        return f"{dotted} means nothing here: {LEFT_OUT[dotted]}"
    owners = [f"a {owner}'s" for owner, other in OWNERS.items() if dotted in other]
    if owners:
        return f"{dotted} is {' and '.join(owners)} option, it has no place here"
    import difflib  # for those who need it

    nearest = difflib.get_close_matches(dotted, table, _NAMES_SHOWN)
    hint = f"; the nearest: {', '.join(nearest)}" if nearest else ""
    return f"there is no option {word!r}{hint}"


def _check_topic(read: Mapping[str, Any]) -> None:
    shortest, longest = read["min.compaction.lag.ms"], read["max.compaction.lag.ms"]
    if shortest > longest:
        raise InvalidConfigError(
            f"min.compaction.lag.ms ({shortest}) must not be above max.compaction.lag.ms ({longest})"
        )


def _check_broker(read: Mapping[str, Any]) -> None:
    if topic_defaults(read)["retention.ms"] == 0:
        raise InvalidConfigError(
            "log.retention must be at least one millisecond, or -1 for no limit"
        )
    if read["broker.id"] not in (-1, read["node.id"]):
        raise InvalidConfigError(
            f"broker.id ({read['broker.id']}) and node.id ({read['node.id']}) must be the same"
        )


def _settle_producer(read: dict[str, Any], chosen: Mapping[str, Any]) -> None:
    """Makes the defaults fit what was chosen, as Kafka does, and refuses choices that do not fit each other."""
    is_wanted = chosen.get("enable.idempotence", read["transactional.id"] is not None)
    if read["transactional.id"] is not None and not is_wanted:
        raise InvalidConfigError("transactional.id needs enable.idempotence")
    if read["enable.idempotence"]:
        for name, value, is_fit in (
            ("acks", "all", read["acks"] in ("all", "-1")),
            ("retries", "at least 1", read["retries"] > 0),
        ):
            if not is_fit and is_wanted:
                raise InvalidConfigError(f"{name} must be {value} for an idempotent producer")
            if not is_fit:
                read["enable.idempotence"] = False
    in_flight = read["max.in.flight.requests.per.connection"]
    if read["enable.idempotence"] and in_flight > IN_FLIGHT_MAX:
        raise InvalidConfigError(
            f"max.in.flight.requests.per.connection must be at most {IN_FLIGHT_MAX} for an idempotent"
            f" producer, not {in_flight}"
        )
    if read["transaction.two.phase.commit.enable"] and "transaction.timeout.ms" in chosen:
        raise InvalidConfigError(
            "transaction.timeout.ms has no meaning with transaction.two.phase.commit.enable"
        )
    shortest = read["linger.ms"] + read["request.timeout.ms"]
    if read["delivery.timeout.ms"] < shortest:
        if "delivery.timeout.ms" in chosen:
            raise InvalidConfigError(
                f"delivery.timeout.ms must be at least linger.ms + request.timeout.ms ({shortest})"
            )
        read["delivery.timeout.ms"] = shortest
