"""The commit of staged files: all of them and a token in one transaction, once.

Duty         fence whoever committed for the application before, ask the token whether the batch is in the log, append
             what was staged, commit both together.
Token        the offset of a reserved group, ``__oncelog_sink.<application>``: the number of the last batch, with the
             query that it belongs to. It lies in ``__consumer_offsets``, neither expires nor can be reset or deleted.
Concurrency  one process has the log open, and one commit at a time runs in it. Partitions are appended to side by side;
             in each of them the files follow one another in the order in which they were given.
Crash        before the coordinator's decision the transaction is aborted, by the next commit of the application or by
             its time-out; after it, opening the log completes it. Either way data and token share their fate.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base import clock
from ..base.errors import CommitTokenError, DirectoryLockedError, OncelogError
from ..segment.names import TopicPartition
from .client import Log
from .staging import StagedReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .producer import Producer
    from .staging import Extent, StagedFile

    Piece = tuple[StagedReader, Extent]

logger = logging.getLogger("oncelog.client")

GROUP_PREFIX: Final = "__oncelog_sink."
TOKEN_KEY: Final = TopicPartition("__oncelog_sink", 0)
# A commit's own limit: nobody else can use the log meanwhile, so there is no hurry.
TRANSACTION_TIMEOUT_MS: Final = 15 * 60 * 1000
BUFFER_BYTES: Final = 64 << 20
REQUEST_BYTES_MAX: Final = 2**31 - 1
LOOK_AGAIN_S: Final = 0.05
# How many partitions are appended to at once: what copies and what waits for the device take turns.
APPENDERS: Final = 4
# After so many bytes of a partition the device begins with them, while more are copied.
WRITE_BYTES: Final = 16 << 20
# Less than this is appended sooner than threads are started.
SERIAL_BYTES: Final = 8 << 20
# How many staged files are open at once.
FILES_OPEN_MAX: Final = 256
ANONYMOUS: Final = "__oncelog_sink"


class Token(NamedTuple):
    """What was committed last: a batch of an application, and the query it came from ("" where there is none)."""

    application: str
    query: str
    batch: int


class Committed(NamedTuple):
    """What a commit did."""

    is_repeated: bool  # the batch was in the log before, and nothing was written
    record_count: int


def open_log(path: str, *, durability: str = "os", timeout_ms: int = 0) -> Log:
    """Opens a log for a commit; waits while another process has it, which is named when that takes too long."""
    deadline = clock.monotonic_s() + timeout_ms / 1000
    while True:
        try:
            return Log(path, durability=durability, _keeps_epoch=True)
        except DirectoryLockedError:
            if clock.monotonic_s() >= deadline:
                raise
        threading.Event().wait(LOOK_AGAIN_S)


def read_token(log: Log, application: str) -> Token | None:
    """The last batch that an application has committed."""
    answer = log.broker.offset_fetch(GROUP_PREFIX + application, [TOKEN_KEY])[TOKEN_KEY]
    if isinstance(answer, OncelogError):
        raise answer
    if answer is None:
        return None
    query = json.loads(answer.metadata)["query"] if answer.metadata else ""
    return Token(application, query, answer.offset)


def is_committed(last: Token | None, token: Token) -> bool:
    """Whether a batch is in the log, judged by the last one that was committed; raises if it cannot follow it."""
    if last is None:
        return False
    if last.query != token.query:
        raise CommitTokenError(
            f"batch {token.batch} of application {token.application!r} comes from {_named(token.query)}, but batch "
            f"{last.batch}, the last one committed, came from {_named(last.query)}. Go on from the checkpoint of the "
            "latter, or choose another txnAppId for what starts anew: its batches count from 0, and nobody can tell "
            "which of them the log has"
        )
    if token.batch < last.batch:
        raise CommitTokenError(
            f"batch {token.batch} of application {token.application!r} is older than batch {last.batch}, the last one "
            "committed. The checkpoint is behind the log: restore its newest state, or choose another txnAppId to "
            "write these batches once more"
        )
    return token.batch == last.batch


def _named(query: str) -> str:
    return f"query {query}" if query else "a batch write"


def commit_staged(
    log: Log,
    files: Sequence[StagedFile],
    token: Token | None = None,
    *,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    keeps_files: bool = True,
) -> Committed:
    """Appends staged files in one transaction together with the token; nothing where the token is there already.

    Memory is bounded by an extent for each partition that is appended to at once, and ``buffer.memory``, whatever the
    size of the batch. Unless it keeps the files they are empty afterwards, whether it succeeds or not: for who stages
    anew rather than commit the same files once more.
    """
    with log.producer(
        transactional_id=ANONYMOUS if token is None else GROUP_PREFIX + token.application,
        transaction_timeout_ms=transaction_timeout_ms,
        max_request_size=REQUEST_BYTES_MAX,
        buffer_memory=BUFFER_BYTES,
        linger_ms=0,
    ) as producer:
        # Only now: whoever was about to commit the same is fenced, and what it left open is aborted.
        if token is not None and is_committed(read_token(log, token.application), token):
            return Committed(is_repeated=True, record_count=0)
        with producer.transaction() as transaction:
            count = sum(
                _append_files(
                    log, producer, files[start : start + FILES_OPEN_MAX], keeps_files=keeps_files
                )
                for start in range(0, len(files), FILES_OPEN_MAX)
            )
            if token is not None:
                metadata = json.dumps({"query": token.query})
                transaction.send_offsets(
                    {TOKEN_KEY: (token.batch, -1, metadata)}, GROUP_PREFIX + token.application
                )
    return Committed(is_repeated=False, record_count=count)


def _append_files(
    log: Log, producer: Producer, files: Sequence[StagedFile], *, keeps_files: bool
) -> int:
    """Sends staged files in the producer's transaction; returns how many records they held."""
    with contextlib.ExitStack() as opened:
        readers = [
            opened.enter_context(StagedReader(file, keeps_file=keeps_files)) for file in files
        ]
        parts: dict[TopicPartition, list[Piece]] = {}
        for reader in readers:
            for extent in reader.extents:
                key = TopicPartition(extent.topic, extent.partition)
                parts.setdefault(key, []).append((reader, extent))
        if len(parts) < 2 or sum(file.size for file in files) < SERIAL_BYTES:
            return sum(
                records for pieces in parts.values() for records, _ in _appended(producer, pieces)
            )
        # Entered last and left first: the files stay open for as long as somebody reads them.
        threads = opened.enter_context(ThreadPoolExecutor(APPENDERS, "oncelog-commit"))
        jobs = [threads.submit(_append_durably, log, producer, *part) for part in parts.items()]
        try:
            return sum(job.result() for job in jobs)
        except BaseException:
            for job in jobs:
                job.cancel()
            raise


def _append_durably(
    log: Log, producer: Producer, key: TopicPartition, pieces: Sequence[Piece]
) -> int:
    """Appends to one partition and has it written to the device, which the log's close would wait for anyway: the
    device begins while there is more to copy, and the wait of one partition is the time of another."""
    partition = log.broker.partition(key)
    count = unwritten_bytes = 0
    for records, size in _appended(producer, pieces):
        count += records
        unwritten_bytes += size
        if unwritten_bytes >= WRITE_BYTES:
            partition.start_writing()
            unwritten_bytes = 0
    partition.sync_to(partition.log_end_offset)
    return count


def _appended(producer: Producer, pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    """Sends what was staged for one partition, piece by piece; how many records and bytes each had."""
    memory = bytearray(max(extent.size for _, extent in pieces))
    for reader, extent in pieces:
        sent = producer.send_encoded(
            extent.topic, extent.partition, reader.read_into(memory, extent)
        )
        error = sent.exception()  # waits: from here on the memory is free again
        if error is not None:
            raise error
        yield extent.record_count, extent.size
