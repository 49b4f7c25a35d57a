"""Closed batches on their way to the broker: in order for each partition, again after errors, settled when durable.

Duty         drains the queue of a partition, reacts to what the broker answers, tells who waits.
Concurrency  whoever has work does it: the thread that fills a batch appends it, the thread that waits for a record sends
             it. One thread at a time drains a partition (its lock is tried, never waited for: the holder looks again
             after releasing it), so order holds without a hand-over. A background thread is started with the first
             batch that lingers, and takes care of whatever nobody waits for; one more for all producers looks when
             it has to.
Callbacks    run after all locks are released, in order of completion, one thread at a time.
Crash        what is not acknowledged may be lost; nothing here is on disk.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from .._native.accumulator import Accumulator, Alarm, Batch, DirectSender, PartitionIntake, Watch
from .._native.attempt import Attempt
from ..base.clock import monotonic_of, monotonic_s, when_moved
from ..base.errors import (
    BufferExhaustedError,
    DuplicateSequenceError,
    OncelogError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from ..segment.batch import Attributes
from ..segment.compression import LEVEL_OPTIONS, Codec, compressor
from ..segment.names import TopicPartition

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Mapping

    from .transaction_manager import TransactionManager

FOREVER: Final = float("inf")
# A wait looks again after this long: another thread may have met an error that is retried by whoever waits.
LOOK_AGAIN_S: Final = 0.5


class PartitionQueue(PartitionIntake):
    """One partition's batches between send and acknowledgement, and its place in the producer's sequence."""

    __slots__ = ("settling",)

    def __init__(self, topic: str, partition: int, owner: Sender) -> None:
        super().__init__(topic, partition, owner)
        self.key = TopicPartition(topic, partition)
        self.settling = threading.Lock()  # held by who waits for the device


def _queue(partition: PartitionIntake) -> PartitionQueue:
    """What native code hands back is what it was given."""
    assert isinstance(partition, PartitionQueue)
    return partition


def _queues(batches: Iterable[Batch]) -> set[PartitionQueue]:
    return {_queue(batch.target) for batch in list(batches)}


class Sender(DirectSender):
    """Moves batches from an accumulator to a broker."""

    def __init__(
        self,
        broker: Any,
        intake: Accumulator,
        transactions: TransactionManager,
        options: Mapping[str, Any],
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._broker = broker
        self._intake = intake
        self.monotonic_s = monotonic_of(broker.now_ms)
        self._transactions = transactions
        # Where nobody else hears of an answer, a batch that is in the log is done in the same native step.
        self._is_direct = type(intake).complete is Accumulator.complete
        self._log = log
        self._acks = {"all": -1}.get(options["acks"]) or int(options["acks"])
        self._linger_s: float = options["linger.ms"] / 1000
        self._retries: int = options["retries"]
        self._retry_s: float = options["retry.backoff.ms"] / 1000
        self._retry_max_s: float = options["retry.backoff.max.ms"] / 1000
        self._delivery_s: float = options["delivery.timeout.ms"] / 1000
        self._max_block_s: float = options["max.block.ms"] / 1000
        self._in_flight_max: int = options["max.in.flight.requests.per.connection"]
        codec = Codec.of(options["compression.type"])
        level = options[LEVEL_OPTIONS[codec]] if codec in LEVEL_OPTIONS else None
        self.attributes = int(codec)
        self.compress = compressor(codec, level)
        if transactions.is_transactional:
            self.attributes |= Attributes.TRANSACTIONAL
        self._in_transaction = None
        if transactions.is_transactional:
            self._in_transaction = {
                "acks": self._acks,
                "transactional_id": transactions.transactional_id,
                "transaction_version": transactions.transaction_version,
            }
        # Who waits for a batch, for memory or for callbacks waits here; nobody is notified if nobody waits.
        self._changed = threading.Condition(threading.Lock())
        self._waiters = 0
        self._callbacks = deque()
        self._queued_calls = 0  # batches whose callbacks were due
        self._calling = threading.Lock()
        self._caller = 0
        self._stalled: dict[PartitionQueue, None] = {}
        self._alarm = Alarm()
        self._asleep_until = 0.0
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        if self._linger_s:
            intake.linger_with(self._alarm, self._linger_s)
        self.error_count = self.retry_count = self.exhausted_count = 0
        when_moved(broker.now_ms, self._moved)

    def _deadline(self, timeout_ms: int | None) -> float:
        return FOREVER if timeout_ms is None else self.monotonic_s() + timeout_ms / 1000

    def _moved(self) -> None:
        """The clock was moved by hand: everybody who waits looks at it anew."""
        self._alarm.ring()
        with self._changed:
            self._changed.notify_all()

    # ------------------------------------------------------------ what senders need

    def reserve(self, count: int) -> None:
        """Takes buffer memory, and waits up to max.block.ms while others have it."""
        if self._intake.take_bytes(count):
            return
        deadline = self.monotonic_s() + self._max_block_s
        while True:
            self.send_all()  # what lingers has memory, too
            if self._caller == threading.get_ident():  # a callback: nobody else might settle
                for queue in _queues(self._intake.incomplete):
                    self._settle(queue)
            if self._wait_until(lambda: self._intake.take_bytes(count), deadline, LOOK_AGAIN_S):
                return
            if self.monotonic_s() >= deadline:
                self.exhausted_count += 1
                raise BufferExhaustedError(
                    f"no {count} bytes of buffer.memory became free within max.block.ms"
                )

    def open_batch(self, queue: PartitionQueue, bytes_max: int, reserved_bytes: int) -> None:
        """Sees to an open batch, which is sent after linger.ms if nothing else happens."""
        intake = self._intake
        if not intake.open_if_free(queue, bytes_max, reserved_bytes, self.monotonic_s()):
            if queue.open_batch is not None:
                return
            self.reserve(reserved_bytes)
            now_ms = int(self.monotonic_s() * 1000)
            if not intake.open_batch(queue, bytes_max, reserved_bytes, now_ms):
                intake.give_bytes(reserved_bytes)
                return
        if self._thread is None and self._linger_s:
            self._start()

    def dispatch(self, queue: PartitionQueue) -> None:
        """Sends what waits for a partition, as far as it goes, in this thread."""
        self._drain(queue)
        if self._callbacks:
            self._run_callbacks()

    def send_all(self, *, is_awaited: bool = False) -> None:
        """Closes all open batches and sends what waits, without waiting for it; ``is_awaited``: who asks settles."""
        intake = self._intake
        now_ms = int(self.monotonic_s() * 1000)  # what others open from now on is not ours to send
        while (closed := intake.close_oldest(now_ms)) is not None:
            self._drain(_queue(closed), is_awaited=is_awaited)
        if intake.incomplete:
            for queue in _queues(intake.incomplete):
                self._drain(queue, is_awaited=is_awaited)
        if self._callbacks:
            self._run_callbacks()

    # ------------------------------------------------------------ waiting

    def wait_for(self, batch: Batch, timeout_ms: int | None = None) -> None:
        """Returns when a batch is done; raises if that takes too long."""
        if not self._done_by(batch, FOREVER if timeout_ms is None else self._deadline(timeout_ms)):
            raise RequestTimedOutError(
                f"{batch.target.topic}-{batch.target.partition}: not acknowledged within {timeout_ms} ms"
            )
        if self._callbacks:
            self._run_callbacks()

    def _done_by(self, batch: Batch, deadline: float) -> bool:
        """Waits for a batch. Who waits works: it is sent, or sent again, by this thread."""
        queue = batch.target
        assert isinstance(queue, PartitionQueue)
        while True:
            if batch.is_open:
                self._intake.close_batch(queue)
            try:
                self._drain(queue, is_awaited=True)
                if queue.in_flight:
                    self._settle(queue)
            except BaseException:  # interrupted: what it was about to wait for is the background's
                self._leave(queue)
                raise
            if batch.is_done:
                return True
            pause = LOOK_AGAIN_S
            if queue.retry_at:
                pause = min(pause, max(queue.retry_at - self.monotonic_s(), 0.0))
            if self._wait_until(lambda: batch.is_done, deadline, pause):
                return True
            if self.monotonic_s() >= deadline:
                return False

    def flush(self, timeout_ms: int | None = None) -> None:
        """Sends everything and returns when all of it is done and its callbacks have been called."""
        if self._flush_one():
            return
        deadline = self._deadline(timeout_ms)
        try:
            self.send_all(is_awaited=True)
            batches = list(self._intake.incomplete)
            if batches:
                for queue in _queues(batches):
                    self._settle(queue)
        except BaseException:
            for queue in _queues(self._intake.incomplete):
                self._leave(queue)
            raise
        if batches:
            late = sum(not self._done_by(batch, deadline) for batch in batches)
            if late:
                raise RequestTimedOutError(
                    f"{late} batches were not acknowledged within {timeout_ms} ms"
                )
        if not self._callbacks:
            return
        self._run_callbacks()
        queued = self._queued_calls
        if self._callbacks and self._caller != threading.get_ident():
            # Those that are left were queued later: they come in order, and leave when they were called.
            while not self._wait_until(
                lambda: len(self._callbacks) <= self._queued_calls - queued, deadline, LOOK_AGAIN_S
            ):
                if self.monotonic_s() >= deadline:
                    break
                self._run_callbacks()  # who called them may have been interrupted

    def _wait_until(self, is_so: Callable[[], bool], deadline: float, pause: float) -> bool:
        """Waits for a change up to ``pause`` seconds; whether ``is_so`` then."""
        until = min(deadline, self.monotonic_s() + pause)
        with self._changed:
            # Before the look: who changes something looks at this after the change.
            self._waiters += 1
            try:
                while not is_so():
                    left = until - self.monotonic_s()
                    if left <= 0:
                        return False
                    self._changed.wait(None if left == FOREVER else left)
                return True
            finally:
                self._waiters -= 1

    def _notify(self) -> None:
        if self._waiters:
            with self._changed:
                self._changed.notify_all()

    # ------------------------------------------------------------ draining

    def _drain(self, queue: PartitionQueue, *, is_awaited: bool = False) -> None:
        """Sends what waits for a partition. What has to wait for the device is left to the background, unless the
        caller ``is_awaited`` to settle it."""
        waiting = queue.waiting
        # Released and looked at again: who came while the lock was held has left its batch to us.
        while waiting:
            has_to_wait = False
            with Attempt(queue.lock) as is_ours:
                if not is_ours:
                    break
                while waiting and not has_to_wait:
                    has_to_wait = not self._send_head(queue)
            if has_to_wait:
                # Not under the lock: the background may come at once, find it taken, and believe in who has it.
                self._leave(queue)
                return
        if queue.in_flight and not is_awaited:
            self._leave(queue)

    def _leave(self, queue: PartitionQueue) -> None:
        """Leaves a partition to the background."""
        if queue.waiting or queue.in_flight:
            self._stalled[queue] = None
            self._attend(queue.retry_at)

    def _send_head(self, queue: PartitionQueue) -> bool:
        """Sends the oldest batch of a partition; False if it has to wait."""
        batch = queue.waiting[0]
        if queue.retry_at and self.monotonic_s() < queue.retry_at:
            return False
        if len(queue.in_flight) >= self._in_flight_max:
            return False
        transactions = self._transactions
        if transactions.error is not None:
            refusal = transactions.refusal()
            if refusal is not None:
                self._give_up(queue, batch, refusal)
                return True
        try:
            # Where an attempt may have taken effect, the very same bytes: only so can the log tell a repetition.
            if not queue.is_uncertain:
                identity = transactions.identity
                if identity[0] < 0:
                    identity = transactions.need_identity()
                self._intake.seal(batch, identity, self.attributes, self.compress)
            if self._in_transaction is not None:
                transactions.join(queue.key)
                produced = self._broker.produce(queue.key, batch, **self._in_transaction)
                transactions.batch_sent(queue.key)
            else:
                produced = self._broker.produce(queue.key, batch, acks=self._acks)
        except Exception as error:  # noqa: BLE001
            self._react(queue, batch, error)
        else:
            base_offset, _, log_append_time_ms, _, pending = produced
            if pending is None and self._is_direct:
                if self._intake.acknowledge(batch, base_offset, log_append_time_ms) and (
                    self._waiters or batch.has_callbacks
                ):
                    self._announce(batch)
                return True
            try:
                self._sent(queue, batch)
            finally:  # also where a person interrupts: what waits no more is answered, or nobody ever would
                if not queue.waiting or queue.waiting[0] is not batch:
                    if pending is None:
                        try:
                            self._complete(batch, base_offset, log_append_time_ms, None)
                        except BaseException:
                            self._complete(batch, base_offset, log_append_time_ms, None)
                            raise
                    else:
                        queue.in_flight.append((batch, produced))
        return True

    def _react(self, queue: PartitionQueue, batch: Batch, error: Exception) -> None:
        """What an error of the broker means for the batch that was sent."""
        if isinstance(error, DuplicateSequenceError):
            # In the log since an attempt whose answer was lost; where, it no longer remembers.
            self._sent(queue, batch)
            self._complete(batch, -1, -1, None)
        elif isinstance(error, OncelogError):
            self._refused(queue, batch, error)
        else:  # whoever waits for the batch has to hear of it
            self._log.error(
                "a batch for %s-%d failed", queue.topic, queue.partition, exc_info=error
            )
            self._give_up(queue, batch, error)

    def _sent(self, queue: PartitionQueue, batch: Batch) -> None:
        self._intake.note_sent(batch)
        if self._in_transaction is not None:
            self._transactions.batch_sent(queue.key)

    def _refused(self, queue: PartitionQueue, batch: Batch, error: OncelogError) -> None:
        """What follows from an error: a new identity, another attempt later, or the end of the batch."""
        batch.attempts += 1
        now = self.monotonic_s()
        is_late = now >= batch.opened_ms / 1000 + self._delivery_s
        may_repeat = batch.attempts <= self._retries and not is_late
        try:
            if may_repeat and self._transactions.recover(error):
                self._settle(queue)
                queue.is_uncertain = False
                self.retry_count += batch.record_count
                if batch.attempts > 1:
                    self._postpone(queue, batch, now)  # it was not the identity, or not it alone
                return
        except OncelogError as another:
            error = another
        if error.retriable and may_repeat:
            queue.is_uncertain |= error.took_effect is not False
            self.retry_count += batch.record_count
            self._log.warning(
                "%s-%d: attempt %d failed, trying again: %s",
                *queue.key,
                batch.attempts,
                error,
            )
            self._postpone(queue, batch, now, self._transactions.pause_s(error))
            return
        if is_late and error.retriable:
            error = RequestTimedOutError(
                f"{queue.topic}-{queue.partition}: given up after delivery.timeout.ms ({error})"
            )
        self._give_up(queue, batch, error)

    def _postpone(
        self, queue: PartitionQueue, batch: Batch, now: float, pause: float | None = None
    ) -> None:
        if pause is None:
            pause = min(self._retry_s * 2 ** min(batch.attempts - 1, 30), self._retry_max_s)
        # Not past the delivery time-out: then it is given up, and what waits behind it is next.
        queue.retry_at = min(now + pause, max(now, batch.opened_ms / 1000 + self._delivery_s))

    def _give_up(self, queue: PartitionQueue, batch: Batch, error: Exception) -> None:
        queue.waiting.popleft()
        took_effect = error.took_effect if isinstance(error, OncelogError) else None
        is_certain = took_effect is False and not queue.is_uncertain
        queue.retry_at = 0.0
        queue.is_uncertain = False
        if isinstance(error, UnknownTopicOrPartitionError):
            self._intake.forget_topic(queue.topic)
        if error is not self._transactions.error:
            self._transactions.batch_failed(error, is_certain=is_certain)
        self._complete(batch, -1, -1, error)

    def _settle(self, queue: PartitionQueue, *, blocking: bool = False) -> None:
        """Waits for the device on behalf of batches that are in the log, and acknowledges them."""
        while queue.in_flight:
            with Attempt(queue.settling, blocking=blocking) as is_ours:
                if not is_ours:
                    return
                while queue.in_flight:
                    batch, produced = queue.in_flight[0]
                    error: OncelogError | None = None
                    try:
                        produced.pending.wait()
                    except OncelogError as failure:
                        error = failure
                        self._transactions.batch_failed(failure, is_certain=False)
                    # In this order: interrupted in between, it is found here again, and answered once.
                    self._complete(batch, produced.base_offset, produced.log_append_time_ms, error)
                    queue.in_flight.popleft()
            if queue.waiting:
                self._drain(queue, is_awaited=True)

    def _complete(
        self, batch: Batch, base_offset: int, log_append_time_ms: int, error: Exception | None
    ) -> None:
        if not self._intake.complete(batch, base_offset, log_append_time_ms, error):
            return
        if error is not None:
            self.error_count += batch.record_count
        self._announce(batch)

    def _announce(self, batch: Batch) -> None:
        """Who waits for a batch hears that it is done, and callbacks of its records are due."""
        if batch.has_callbacks:
            self._queued_calls += 1
            self._callbacks.append(batch)
        if self._waiters:
            self._notify()

    def drop(self, error: Exception, partitions: Iterable[PartitionIntake]) -> None:
        """Gives up everything that is unsent, and waits for what is under way."""
        for batch in self._intake.drop_open():
            self._complete(batch, -1, -1, error)
        for queue in map(_queue, partitions):
            if not queue.waiting and not queue.in_flight and not queue.lock.locked():
                continue
            with queue.lock:
                was_uncertain, queue.is_uncertain = queue.is_uncertain, False
                queue.retry_at = 0.0
                while queue.waiting:
                    self._complete(queue.waiting.popleft(), -1, -1, error)
            if was_uncertain:
                self._transactions.batch_failed(error, is_certain=False)
            self._settle(queue)
        self._run_callbacks()

    # ------------------------------------------------------------ callbacks

    def _run_callbacks(self) -> None:
        while self._callbacks:
            with Attempt(self._calling) as is_ours:
                if not is_ours:
                    return
                try:
                    self._caller = threading.get_ident()
                    while self._callbacks:
                        self._call_back(self._callbacks[0])
                        # Last: interrupted before, it is found here again, with what was not called.
                        self._callbacks.popleft()
                        self._notify()
                finally:
                    self._caller = 0

    def _call_back(self, batch: Batch) -> None:
        for delivery, callback in batch.take_callbacks():
            try:
                delivery.answer(callback)
            except Exception:  # it is the caller's code  # noqa: BLE001
                self._log.exception("an on_delivery callback failed")

    # ------------------------------------------------------------ the background

    def _attend(self, due: float) -> None:
        """Sees to it that the background looks after things at that time."""
        if self._thread is None:
            self._start()
        if self._asleep_until > due:
            self._alarm.ring()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._is_stopping:
                if self.monotonic_s is monotonic_s:  # else somebody moves the clock by hand
                    _WATCHMAN.watch(self._alarm)
                thread = threading.Thread(target=self._run, name="oncelog-producer", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while not self._is_stopping:
            # Announced before the look: whoever adds work after the look sees that we sleep, and rings.
            self._asleep_until = FOREVER
            due = self._next_due()
            if due:
                self._asleep_until = due
                self._alarm.sleep(self.monotonic_s(), due)
            self._asleep_until = 0.0
            try:
                self._work()
            except Exception:  # without it nothing would linger out  # noqa: BLE001
                self._log.exception("the background of a producer failed, and goes on")

    def _next_due(self) -> float:
        """When there will be something to do, beside what lingers, of which the alarm knows; 0 for now."""
        due = FOREVER
        for queue in list(self._stalled):
            if queue.in_flight or not queue.retry_at:
                return 0.0
            due = min(due, queue.retry_at)
        return due

    def _work(self) -> None:
        for queue in list(self._stalled):
            self._stalled.pop(queue, None)
            self._settle(queue, blocking=True)
            self._drain(queue)
        until_ms = round((self.monotonic_s() - self._linger_s) * 1000)
        while (closed := self._intake.close_oldest(until_ms)) is not None:
            self._drain(_queue(closed))
        self._run_callbacks()

    def stop(self) -> None:
        """Ends the background; what waits stays where it is."""
        self._is_stopping = True
        _WATCHMAN.leave(self._alarm)
        self._alarm.ring()
        thread = self._thread
        # A callback that runs in the background may be what closes the producer, or wait for who does.
        if thread is not None and threading.get_ident() != thread.ident != self._caller:
            thread.join()


class _Watchman:
    """The one thread of this process that looks after what lingers; it is there from the first producer on that needs
    it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watch: Watch | None = None

    def watch(self, alarm: Alarm) -> None:
        with self._lock:
            if self._watch is None:
                self._watch = Watch()
                threading.Thread(target=self._watch.run, name="oncelog-linger", daemon=True).start()
            self._watch.add(alarm, monotonic_s())

    def leave(self, alarm: Alarm) -> None:
        with self._lock:
            if self._watch is not None:
                self._watch.remove(alarm)

    def lose(self) -> None:
        """In a forked child: the thread is its parent's, and so is whoever held the lock."""
        self._lock = threading.Lock()
        if self._watch is not None:
            self._watch.is_lost = True
            self._watch = None


_WATCHMAN: Final = _Watchman()
os.register_at_fork(after_in_child=_WATCHMAN.lose)
