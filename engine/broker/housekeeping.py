"""What a broker does by itself, and when: time-outs, retention, expiry, checkpoints, at Kafka's intervals.

The jobs here are short. Compaction may take minutes and has its own call, ``Broker.compact``, so that a time-out never
waits for it. Nothing here waits or has a thread: whoever owns the broker calls ``tick`` when the time it answered
with has passed.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..base.errors import OncelogError
from ..log.log import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..partition.partition import Partition
    from .broker import Broker

logger = logging.getLogger("oncelog.broker")

MARKER_RETRY_MS: Final = 1000  # of a marker whose partition could not be written
# Kafka looks for logs to be flushed only where log.flush.scheduler.interval.ms is set. Here flush.ms suffices.
FLUSH_LOOK_MS_MAX: Final = 1000


@dataclass
class _Job:
    name: str
    run: Callable[[], object]
    interval_ms: int
    wait_ms_max: int  # its interval, or before the first time more
    due_ms: int


class Housekeeping:
    """The jobs of one broker. One thread at a time may tick."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        config, transactions = broker.config, broker.transactions
        delay_ms: int = config["log.initial.task.delay.ms"]
        plan: tuple[tuple[str, Callable[[], object], int], ...] = (
            (
                "abort transactions that took too long",
                transactions.abort_timed_out,
                config["transaction.abort.timed.out.transaction.cleanup.interval.ms"],
            ),
            (
                "write markers that could not be written",
                transactions.retry_markers,
                MARKER_RETRY_MS,
            ),
            (
                "forget offsets of groups that are gone",
                broker.groups.expire_offsets,
                config["offsets.retention.check.interval.ms"],
            ),
            (
                "forget transactional ids that nobody uses",
                transactions.expire_ids,
                config["transaction.remove.expired.transaction.cleanup.interval.ms"],
            ),
            (
                "forget producers that are silent",
                self._expire_producers,
                config["producer.id.expiration.check.interval.ms"],
            ),
            (
                "force to the device what flush.ms asks for",
                self._flush,
                min(max(config["log.flush.scheduler.interval.ms"], 1), FLUSH_LOOK_MS_MAX),
            ),
        )
        delayed: tuple[tuple[str, Callable[[], object], int], ...] = (
            (
                "remove what topics no longer keep",
                broker.apply_retention,
                config["log.retention.check.interval.ms"],
            ),
            (
                "write checkpoints",
                self._checkpoint,
                config["log.flush.offset.checkpoint.interval.ms"],
            ),
        )
        now_ms = broker.now_ms()
        self._jobs = [_Job(*job, job[2], now_ms + job[2]) for job in plan]
        self._jobs += [_Job(*job, max(job[2], delay_ms), now_ms + delay_ms) for job in delayed]
        self._flushed_ms: dict[object, int] = {}
        self._checkpointed: dict[object, tuple[int, int, int]] = {}

    def tick(self) -> int:
        """Runs what is due; returns the milliseconds until something is again. A failure is logged and tried again
        at its next time."""
        now_ms = self._broker.now_ms()
        for job in self._jobs:
            if job.due_ms > now_ms + job.wait_ms_max:  # the clock was set back
                job.due_ms = now_ms + job.interval_ms
            if job.due_ms <= now_ms:
                job.due_ms = now_ms + job.interval_ms
                try:
                    job.run()
                except OncelogError as error:
                    if self._broker.is_closed:
                        break
                    logger.warning("cannot %s: %s", job.name, error)
        due_ms = max(0, min(job.due_ms for job in self._jobs) - self._broker.now_ms())
        return min(due_ms, self._broker.groups.tick())

    def _expire_producers(self) -> None:
        for partition in self._broker.opened():
            if not partition.is_offline and not partition.is_closed:
                with _for_others_to_go_on(partition):
                    partition.expire_producers(self._broker.now_ms())

    def _flush(self) -> None:
        """Forces logs to the device whose last time is flush.ms ago, if they were written since."""
        now_ms = self._broker.now_ms()
        flushed: dict[object, int] = {}
        for partition in self._broker.opened():
            flush_ms = partition.options.log.flush_ms
            if flush_ms == NEVER or partition.is_offline or partition.is_closed:
                continue
            flushed[partition.key] = min(self._flushed_ms.get(partition.key, now_ms), now_ms)
            if partition.recovery_point >= partition.log_end_offset:
                flushed[partition.key] = now_ms
            elif now_ms - flushed[partition.key] >= flush_ms:
                with _for_others_to_go_on(partition):
                    partition.sync()
                    flushed[partition.key] = now_ms
        self._flushed_ms = flushed

    def _checkpoint(self) -> None:
        """Brings sealed segments to the device, so that a crash leaves little to prove, and writes how far it is."""
        now: dict[object, tuple[int, int, int]] = {}
        for partition in self._broker.opened():
            if partition.is_offline or partition.is_closed:
                continue
            with _for_others_to_go_on(partition):
                if partition.recovery_point < partition.log.active.base_offset:
                    partition.sync()
            now[partition.key] = (
                partition.recovery_point,
                partition.log_start_offset,
                partition.high_watermark,
            )
        if now != self._checkpointed:
            self._broker.checkpoint()
            self._checkpointed = now


@contextlib.contextmanager
def _for_others_to_go_on(partition: Partition) -> Iterator[None]:
    """What fails on one partition, or because its topic was deleted meanwhile, is no reason to skip the rest."""
    try:
        yield
    except OncelogError as error:
        logger.warning("%s: %s", partition.key.directory, error)
