"""A sink whose driver dies at a chosen step of a chosen batch: kill -9, and nobody gets to tidy up.

The steps are those between which nothing may be lost, doubled or torn. What is to happen comes in the environment,
which the driver's Python, its Java and all their workers share; the sink itself is the real one.
"""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from oncelog.client import staged_commit
from oncelog.client.producer import Producer
from oncelog.spark.sink import StreamWriter, stream_writer
from oncelog.spark.source import OncelogDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.datasource import WriterCommitMessage

# In the order in which a batch passes them.
POINTS = (
    "task-staged",  # one task is done, others may not be
    "all-staged",  # the driver is about to commit
    "token-checked",
    "appending",  # some of the data is in the log
    "appended",  # all of it, without the token
    "token-added",  # both, before EndTxn
    "ended",  # EndTxn is written, the log still open
    "committed",  # all done, but Spark has not heard of it
    "commit-logged",  # Spark has written its commit log
)
POINT, BATCH, DRIVER = "ONCELOG_KILL_POINT", "ONCELOG_KILL_BATCH", "ONCELOG_KILL_DRIVER"


def die() -> None:
    """Kills the driver's Java and Python, and this process, at once."""
    driver = int(os.environ[DRIVER])
    line = [os.getpid()]
    while line[-1] not in (driver, 1):
        line.append(int(Path(f"/proc/{line[-1]}/stat").read_text().rpartition(")")[2].split()[1]))
    # Java first: it must not see a worker go and write about it.
    java = [pid for pid in line if Path(f"/proc/{pid}/comm").read_text().startswith("java")]
    for pid in [*java, *reversed(line)]:
        if pid > 1:
            os.kill(pid, signal.SIGKILL)


def is_due(point: str, batch: int) -> bool:
    return os.environ.get(POINT) == point and batch >= int(os.environ[BATCH])


def dying(point: str, call: Callable[..., Any], *, before: bool = False) -> Callable[..., Any]:
    """A call that is the last one, or is never made."""

    @functools.wraps(call)
    def last(*arguments: Any, **options: Any) -> Any:
        if before:
            die()
        result = call(*arguments, **options)
        die()
        return result

    return last


STEPS = {
    "token-checked": (staged_commit, "read_token", False),
    "appending": (Producer, "send_encoded", False),
    "appended": (Producer, "send_offsets_to_transaction", True),
    "token-added": (Producer, "send_offsets_to_transaction", False),
    "ended": (Producer, "commit_transaction", False),
}


class KillingWriter(StreamWriter):
    """The sink's writer, with a death in it; and in every other batch a task is lost after it has staged its rows."""

    def write(self, iterator: Iterator[Any]) -> Any:
        from pyspark import TaskContext

        staged = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        if is_due("task-staged", batch):
            die()
        if batch % 2 == 0 and context.partitionId() == 0 and context.attemptNumber() == 0:
            raise RuntimeError("this attempt is lost, and with it what it was about to report")
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        point = os.environ.get(POINT, "")
        staged_commit.SERIAL_BYTES = 0  # type: ignore[misc]  # small batches take the way of large ones
        if is_due("all-staged", batchId):
            die()
        if point in STEPS and is_due(point, batchId):
            home, name, before = STEPS[point]
            step = dying(point, getattr(home, name), before=before)
            with mock.patch.object(home, name, step):
                super().commit(messages, batchId)
        else:
            super().commit(messages, batchId)
        if is_due("committed", batchId):
            die()


class KillingDataSource(OncelogDataSource):
    """The data source, under its own name."""

    def streamWriter(self, schema: Any, overwrite: bool) -> KillingWriter:  # noqa: N802
        logged = Path(self.options["checkpointLocation"]) / "commits"
        last = max((int(file.name) for file in logged.glob("[0-9]*")), default=-1)
        if is_due("commit-logged", last):
            die()
        real = stream_writer(self.options, schema, overwrite)
        real.__class__ = KillingWriter
        assert isinstance(real, KillingWriter)
        return real
