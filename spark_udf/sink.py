"""The sink: tasks encode and stage, the driver commits once.

Duty      df.write and df.writeStream of format "oncelog", exactly once.
Where     writers are made on the driver and pickled; write() runs in tasks, commit() and abort() in a Python worker
          beside the driver. A streaming commit is made by another instance than the one that planned the batch: all
          it knows comes from the options, the messages of the tasks and the checkpoint.
Crash     a driver that dies before EndTxn has written nothing that a reader sees; one that dies after it finds the
          token when the batch is run again, and skips it. What it left in the staging folder is swept later.
"""

from __future__ import annotations

import logging
import socket
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from oncelog import errors, staging

from .checkpoint import local_path, query_id
from .options import Option, duration_ms, one_of, read_options, text, whole
from .sink_columns import check_columns
from .workers import spare_what_is_loaded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

logger = logging.getLogger("oncelog.spark")

OPTIONS: Final = {
    "path": Option(text),
    "topic": Option(text),
    "txnAppId": Option(text),
    "txnVersion": Option(whole),
    "staging": Option(text),
    "compression": Option(one_of("none", "gzip", "snappy", "lz4", "zstd"), "none"),
    "durability": Option(one_of("os", "fsync"), "os"),
    "lockTimeout": Option(duration_ms, 10_000),
    # Spark's own, which it hands on:
    "checkpointLocation": Option(text),
    "queryName": Option(text),
    "outputMode": Option(text),
}
STAGING_ENDING: Final = ".staging"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
QUERY_PROPERTY: Final = "sql.streaming.queryId"


class Staged(WriterCommitMessage):
    """What a task says when it has staged its rows."""

    def __init__(self, file: staging.StagedFile, run: str, query: str) -> None:
        self.file = file
        self.run = run
        self.query = query


class Settings(NamedTuple):
    """What the options say, checked; it travels to the tasks."""

    path: str
    topic: str | None
    root: str  # of all staging
    compression: str
    durability: str
    lock_timeout_ms: int
    columns: tuple[str, ...]
    topics: dict[str, staging.TopicLayout]


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of df.write; txnAppId and txnVersion make it repeatable."""
    options = read_options(given, OPTIONS)
    application, version = options["txnAppId"], options["txnVersion"]
    if (application is None) != (version is None):
        given_one, missing = ("txnAppId", "txnVersion")[:: 1 if version is None else -1]
        raise ValueError(
            f"option {given_one} was given without {missing}: both together name a write, so that it happens once"
        )
    if version is not None and version < 0:
        raise ValueError(f"option txnVersion: counts from 0, not {version}")
    settings = _settings(options, schema, overwrite)
    token = None if application is None else staging.Token(application, "", version)
    return BatchWriter(settings, token)


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of df.writeStream; the checkpoint, or txnAppId, says whose batches they are."""
    options = read_options(given, OPTIONS)
    if options["txnVersion"] is not None:
        raise ValueError("option txnVersion is for df.write: a stream counts its batches itself")
    settings = _settings(options, schema, overwrite)
    query = query_id(options["checkpointLocation"])
    application = options["txnAppId"] or query
    if not application:
        raise ValueError(
            f"the checkpoint {options['checkpointLocation'] or '(none is given as an option)'} cannot be read from the "
            "driver's file system, and with it the query's id: name the stream with option txnAppId, and keep the "
            "name for as long as the checkpoint lives"
        )
    return StreamWriter(settings, application, query)


def _settings(options: Mapping[str, Any], schema: StructType, overwrite: bool) -> Settings:
    if overwrite:
        raise ValueError(
            "a log is appended to and never overwritten: use mode('append'), for streams outputMode('append') or "
            "('update'); to empty a topic, delete its records or the topic"
        )
    if options["path"] is None:
        raise ValueError("option path is missing: name the directory of the log")
    path, topic = local_path(options["path"], "path"), options["topic"]
    topics = staging.topic_layouts(path)
    if topic is not None and topic not in topics:
        known = ", ".join(sorted(topics)[:20]) or "none at all"
        raise errors.UnknownTopicOrPartitionError(
            f"{path} has no topic {topic!r}, only {known}; make it with log.create_topic()"
        )
    columns = check_columns(schema, topic)
    root = local_path(options["staging"] or path + STAGING_ENDING, "staging")
    staging.make_root(root)
    return Settings(
        path,
        topic,
        root,
        options["compression"],
        options["durability"],
        options["lockTimeout"],
        columns,
        topics,
    )


# ---------------------------------------------------------------- in tasks


def _stage(
    settings: Settings, application: str, run: str, rows: Iterator[RecordBatch], batch: int
) -> Staged:
    """Encodes the rows of one task into a file of its own; another attempt has another one."""
    context = TaskContext.get()
    host = socket.gethostname()
    number = context.partitionId() if context is not None else 0
    query = (context.getLocalProperty(QUERY_PROPERTY) or "") if context is not None else ""
    folder = staging.StagingFolder(settings.root, application, batch, run)
    path = folder.file(f"{number}-{uuid.uuid4().hex[:12]}", host)
    columns = list(settings.columns)
    with staging.StagingWriter(
        path,
        settings.topics,
        topic=settings.topic,
        compression=settings.compression,
        host=host,
    ) as writer:
        for some in rows:
            writer.add(some.select(columns))
        file = writer.finish()
    spare_what_is_loaded()
    return Staged(file, run, query)


# ---------------------------------------------------------------- on the driver


def _commit(
    settings: Settings, messages: Sequence[WriterCommitMessage | None], token: staging.Token | None
) -> None:
    files = [message.file for message in _staged(messages)]
    if len(files) < len(messages):
        raise errors.StagingError(
            f"{len(messages) - len(files)} of {len(messages)} tasks did not say what they staged"
        )
    with (
        ThreadPoolExecutor(1, "oncelog-sweep") as aside,
        staging.open_log(
            settings.path, durability=settings.durability, timeout_ms=settings.lock_timeout_ms
        ) as log,
    ):
        done = staging.commit_staged(log, files, token, keeps_files=False)
        # Nobody needs the files any more; the kernel lets go of them while the log is written to the device.
        swept = aside.submit(_sweep, settings, messages, token)
    swept.result()
    if done.is_repeated and token is not None:
        logger.info("batch %d of %s is in the log already", token.batch, token.application)


def _abort(
    settings: Settings,
    messages: Sequence[WriterCommitMessage | None],
    token: staging.Token | None,
    runs: Iterable[str] = (),
) -> None:
    """Removes what was staged; what is committed stays so. An abort that fails must not hide why there was one."""
    last = None
    try:
        if token is not None:
            with staging.open_log(settings.path, durability=settings.durability) as log:
                last = staging.read_token(log, token.application)
    except errors.OncelogError as error:
        logger.warning("staged files are left to a later sweep: %s", error)
        return
    if token is not None and last == token:
        logger.warning(
            "batch %d of %s is committed, and stays so: the next attempt skips it",
            token.batch,
            token.application,
        )
    staging.sweep(settings.root, {*runs, *(message.run for message in _staged(messages))})


def _sweep(
    settings: Settings, messages: Sequence[WriterCommitMessage | None], token: staging.Token | None
) -> None:
    runs = {message.run for message in _staged(messages)}
    if token is None:
        staging.sweep(settings.root, runs)
    else:
        staging.sweep(settings.root, runs, application=token.application, committed=token.batch)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


class BatchWriter(DataSourceArrowWriter):
    """One df.write: planned, pickled, and used in tasks and for the commit alike."""

    def __init__(self, settings: Settings, token: staging.Token | None) -> None:
        self._settings = settings
        self._token = token
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[RecordBatch]) -> Staged:
        application = self._run if self._token is None else self._token.application
        batch = 0 if self._token is None else self._token.batch
        return _stage(self._settings, application, self._run, iterator, batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._settings, messages, self._token)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._settings, messages, self._token, [self._run])


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch of a query: planned by one instance, committed or aborted by another."""

    def __init__(self, settings: Settings, application: str, query: str | None) -> None:
        self._settings = settings
        self._application = application
        self._query = query
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[RecordBatch]) -> Staged:
        context = TaskContext.get()
        said = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
        return _stage(self._settings, self._application, self._run, iterator, int(said or 0))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self._settings, messages, self._token(messages, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._settings, messages, self._token(messages, batchId))

    def _token(self, messages: list[WriterCommitMessage | None], batch: int) -> staging.Token:
        """Whose batch it is. Where the checkpoint is out of sight, the tasks have heard the query's id from Spark."""
        query = self._query
        if query is None:
            query = next((message.query for message in _staged(messages)), "")
        return staging.Token(self._application, query, batch)
