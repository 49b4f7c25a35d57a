"""What can happen to a broker and its clients, one action at a time.

Every action makes one call of a client, as real ones do: a call that was cut off is made again, or somebody else takes
over. Any of them can be cut off by a crash at its n-th call to the disk. After each action, all that readers see is
held against the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncelog.base.errors import (
    ConcurrentTransactionsError,
    InvalidTxnStateError,
    KafkaStorageError,
    OutOfOrderSequenceError,
    TransactionAbortableError,
)
from tests.broker.brokers import plain
from tests.sim.txn_groups import Groups
from tests.sim.txn_model import (
    ABORTED,
    COMMITTED,
    OPEN,
    BrokenPromiseError,
    Fate,
    Kind,
    Transaction,
)
from tests.sim.txn_parts import Doubt, Holder, Sent, take_offline

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncelog.segment.names import TopicPartition

HOUSEKEEPING_MS = 10_000
RETRIES_MAX = 5  # a broker knows this many batches of a producer again


class World(Groups):
    """Everything, and what can happen to it."""

    # ------------------------------------------------------------ transactions

    def send(self, number: int, key: TopicPartition, count: int, crash: int | None = None) -> None:
        holder = self.holders[number]
        self.trace.append(f"send {holder.name} {key.directory} x{count} crash={crash}")
        values = self._values(count, holder.name)
        if holder.is_shut_out:
            self._refuse(lambda: holder.producer.send(key, *values))
        elif holder.doubt is not None:
            self._call(holder.doubt.call, crash, holder.doubt.note)
        elif not holder.is_prepared:
            if holder.transaction is None:
                holder.transaction = Transaction(f"{holder.name}/{self._number}")
                holder.ended = None
            self._send(holder, key, values, crash)

    def _send(
        self, holder: Holder, key: TopicPartition, values: tuple[bytes, ...], crash: int | None
    ) -> None:
        transaction = holder.transaction
        assert transaction is not None

        def call() -> None:
            if not self._is_ongoing(holder):
                holder.started_ms = self.clock()
            try:
                produced = holder.producer.send(key, *values)
            except (KafkaStorageError, ConcurrentTransactionsError):
                assert self.offline, "no partition is offline"
                self._forget_empty(holder)
                return
            holder.doubt = None
            self.model.wrote(key, produced.base_offset, values, transaction)

        def in_doubt() -> None:
            self.model.may_have_written(key, values, transaction)
            holder.doubt = Doubt(call, in_doubt)

        self._call(call, crash, in_doubt)

    def _forget_empty(self, holder: Holder) -> None:
        """A first send that was refused has not begun a transaction, or one that holds nothing."""
        known = any(
            record.transaction is holder.transaction
            for partition in self.model.partitions.values()
            for record in partition.records
        )
        if not known and not self._is_ongoing(holder):
            holder.transaction = None

    def resend(self, number: int, key: TopicPartition) -> None:
        """The last batch again, as after an answer that got lost: it is known again, and stays single."""
        holder = self.holders[number]
        self.trace.append(f"resend {holder.name} {key.directory}")
        if holder.transaction is None or holder.doubt is not None or self.offline:
            return
        written = [
            record
            for record in self.model.partitions[key].records
            if record.transaction is holder.transaction
        ]
        if not written:
            return
        last = [
            r for r in written if r.value.rsplit(b".", 1)[0] == written[-1].value.rsplit(b".", 1)[0]
        ]
        producer = holder.producer
        sequence = producer.sequences[key] - len(last)
        produced = self.broker.produce(
            key,
            producer.batch(key, [record.value for record in last], sequence),
            transactional_id=producer.transactional_id,
            transaction_version=producer.version,
        )
        assert (produced.is_duplicate, produced.base_offset) == (True, last[0].offset)

    def end(self, number: int, *, commits: bool, crash: int | None = None) -> None:
        holder = self.holders[number]
        self.trace.append(f"end {holder.name} commits={commits} crash={crash}")
        if holder.doubt is not None:
            self._call(holder.doubt.call, crash, holder.doubt.note)
        elif holder.is_shut_out:
            self._end_shut_out(holder, commits=commits)
        elif holder.transaction is None:
            self._end_nothing(holder, commits=commits)
        else:
            self._end(holder, COMMITTED if commits else ABORTED, crash)

    def _end(self, holder: Holder, fate: Fate, crash: int | None) -> None:
        ending = self._ending(holder, fate)
        self._call(ending.call, crash, ending.note)

    def _ending(self, holder: Holder, fate: Fate) -> Doubt:
        transaction, producer = holder.transaction, holder.producer
        assert transaction is not None

        def call() -> None:
            identity = (producer.producer_id, producer.epoch)
            try:
                producer.end(committed=fate is COMMITTED)
            except (TransactionAbortableError, ConcurrentTransactionsError):
                assert self.offline, "no partition is offline"
                return
            holder.doubt, holder.transaction, holder.is_prepared = None, None, False
            holder.ended = (*identity, fate is COMMITTED)
            self.ended(transaction, fate)

        def in_doubt() -> None:
            transaction.fates.add(fate)
            holder.doubt = Doubt(call, in_doubt)

        return Doubt(call, in_doubt)

    def ended(self, transaction: Transaction, fate: Fate) -> None:
        """The broker says how a transaction has ended; what it holds is now durable, if it counts."""
        if transaction.fates == {ABORTED if fate is COMMITTED else COMMITTED}:
            raise BrokenPromiseError(
                Kind.TORN, transaction.name, f"{transaction}, and now {fate.value}"
            )
        is_new, transaction.fates = transaction.fates != {fate}, {fate}
        if fate is COMMITTED:
            self.offsets.ended(transaction)
        for key, partition in self.model.partitions.items():
            last = [r.offset for r in partition.records if r.transaction is transaction]
            if last and is_new and key in self.offline:
                transaction.unmarked.add(key)
            if last and fate is COMMITTED:
                self.model.made_durable(key, last[-1] + 1)

    def _end_nothing(self, holder: Holder, *, commits: bool) -> None:
        """Version 2 aborts nothing and bumps the epoch; other ends of nothing are refused or repeat the last."""
        identity = (holder.producer.producer_id, holder.producer.epoch)
        try:
            holder.producer.end(committed=commits)
        except (InvalidTxnStateError, ConcurrentTransactionsError):
            return
        if (holder.producer.producer_id, holder.producer.epoch) != identity:
            assert not commits
            holder.ended = (*identity, commits)

    def _end_shut_out(self, holder: Holder, *, commits: bool) -> None:
        """A time-out has aborted it: a commit is refused, an abort of version 2 repeats it and goes on from there."""
        if commits or holder.producer.version == 1:
            self._refuse(lambda: holder.producer.end(committed=commits))
            return
        try:
            holder.producer.end(committed=False)
        except ConcurrentTransactionsError:
            assert self.offline
            return
        holder.is_shut_out = False

    def end_again(self, number: int, *, commits: bool) -> None:
        """The same end a second time is answered as the first; the other one is refused."""
        holder = self.holders[number]
        self.trace.append(f"end again {holder.name} commits={commits}")
        if holder.ended is None or holder.transaction or holder.doubt or holder.is_shut_out:
            return
        *identity, committed = holder.ended
        producer = holder.producer

        def call() -> tuple[int, int]:
            answer = self.broker.end_txn(
                holder.name, *identity, committed=commits, transaction_version=producer.version
            )
            return answer.producer_id, answer.producer_epoch

        if commits != committed:
            self._refuse(call)
            return
        try:
            assert call() == (producer.producer_id, producer.epoch)
        except ConcurrentTransactionsError:
            assert self.offline

    def take_over(self, number: int, crash: int | None = None, *, keeps: bool = False) -> None:
        """Somebody else takes the id: the old holder is a zombie, its transaction is aborted, or kept to be ended."""
        holder = self.holders[number]
        keeps = keeps and holder.two_phases and not holder.doubt and holder.transaction is not None
        self.trace.append(f"take over {holder.name} keeps={keeps} crash={crash}")

        def call() -> None:
            old, transaction = holder.producer, holder.transaction
            try:
                holder.producer = self._initialized(
                    old.transactional_id,
                    old.version,
                    holder.timeout_ms,
                    two_phases=holder.two_phases,
                    keeps=keeps,
                )
            except ConcurrentTransactionsError:
                assert self.offline
                in_doubt()
                self._ask_who_is_open()
                self._note_unmarked(holder)
                return
            self.zombies = [*self.zombies[-5:], old]
            holder.is_shut_out, holder.doubt, holder.ended = False, None, None
            holder.is_prepared = keeps
            if keeps:
                holder.doubt = self._ending(holder, COMMITTED)
            elif transaction is not None:
                holder.transaction = None
                if OPEN in transaction.fates:
                    transaction.fates = transaction.fates - {OPEN} | {ABORTED}

        def in_doubt() -> None:
            if not keeps and holder.transaction and OPEN in holder.transaction.fates:
                holder.transaction.fates.add(ABORTED)
            holder.doubt = Doubt(call, in_doubt)

        self._call(call, crash, in_doubt)

    def _note_unmarked(self, holder: Holder) -> None:
        """Aborted by somebody else, while some partition could not be written."""
        transaction = holder.transaction
        if transaction is None or OPEN in transaction.fates:
            return
        for key in self.offline:
            partition = self.model.partitions[key]
            if any(record.transaction is transaction for record in partition.records):
                transaction.unmarked.add(key)

    def zombie(self, number: int, key: TopicPartition, verb: int) -> None:
        """Whoever was shut out gets nothing done any more."""
        if not self.zombies:
            return
        zombie = self.zombies[number % len(self.zombies)]
        self.trace.append(f"zombie {zombie.transactional_id} {verb}")
        verbs: tuple[Callable[[], Any], ...] = (
            lambda: zombie.send(key, *self._values(1, "zombie")),
            zombie.commit,
            zombie.abort,
            lambda: self.broker.add_partitions_to_txn(
                zombie.transactional_id, zombie.producer_id, zombie.epoch, [key]
            ),
        )
        self._refuse(verbs[verb % len(verbs)])

    def prepare(self, crash: int | None = None) -> None:
        """The first phase of two: whatever happens from here on, the transaction waits for its end."""
        holder = self.holders[-1]
        self.trace.append(f"prepare {holder.name} crash={crash}")
        transaction, producer = holder.transaction, holder.producer
        if transaction is None or holder.doubt or self.offline:
            return

        def call() -> None:
            self.broker.transactions.prepare_txn(holder.name, producer.producer_id, producer.epoch)
            holder.is_prepared = True
            self.offsets.ended(transaction)
            for key, partition in self.model.partitions.items():
                for record in partition.records:
                    if record.transaction is transaction:
                        self.model.made_durable(key, record.offset + 1)

        self._call(call, crash, lambda: None)

    def complete(self, *, commits: bool, crash: int | None = None) -> None:
        """An outside coordinator ends what is prepared; the holder learns of it by asking for the same."""
        holder = self.holders[-1]
        self.trace.append(f"complete {holder.name} commits={commits} crash={crash}")
        transaction = holder.transaction
        if transaction is None or holder.doubt or not holder.is_prepared:
            return
        fate = COMMITTED if commits else ABORTED
        ending = self._ending(holder, fate)

        def call() -> None:
            self.broker.complete_transaction(holder.name, commit=commits)
            self.ended(transaction, fate)
            holder.doubt = ending

        self._call(call, crash, ending.note)

    # ------------------------------------------------------------ plain producers

    def send_plain(
        self, number: int, key: TopicPartition, count: int, *, waits: bool, crash: int | None = None
    ) -> None:
        producer = self.plain[number % len(self.plain)]
        self.trace.append(f"plain {number} {key.directory} x{count} waits={waits} crash={crash}")
        if producer.doubt is not None:
            self._call(producer.doubt.call, crash, producer.doubt.note)
            return
        values = self._values(count, "plain")
        is_written = False

        def call() -> None:
            nonlocal is_written
            sequence = producer.sequences[key]
            try:
                produced = self.broker.produce(
                    key,
                    plain(
                        self.broker, *values, producer_id=producer.producer_id, sequence=sequence
                    ),
                )
            except KafkaStorageError:
                assert key in self.offline
                return
            is_written = True
            self.model.wrote(key, produced.base_offset, values)
            producer.doubt = None
            producer.sequences[key] += count
            sent = producer.sent[key]
            sent.append(Sent(sequence, values, produced.base_offset, self._openings))
            del sent[:-RETRIES_MAX]
            if produced.pending is not None and waits:
                produced.pending.wait()
                self.model.made_durable(key, produced.last_offset + 1)

        def in_doubt() -> None:
            if not is_written:
                self.model.may_have_written(key, values)
                producer.doubt = Doubt(call, in_doubt)

        self._call(call, crash, in_doubt)

    def resend_plain(self, number: int, key: TopicPartition, back: int) -> None:
        """One of the last five batches once more: answered with where it was."""
        producer = self.plain[number % len(self.plain)]
        self.trace.append(f"plain again {number} {key.directory} {back}")
        if not producer.sent[key] or producer.doubt is not None or key in self.offline:
            return
        back %= len(producer.sent[key])
        sent = producer.sent[key][-1 - back]
        batch = plain(
            self.broker, *sent.values, producer_id=producer.producer_id, sequence=sent.sequence
        )
        try:
            produced = self.broker.produce(key, batch)
        except OutOfOrderSequenceError:
            # Of batches before a restart only the last is known, as in Kafka; no older one gets in again.
            assert back, "the last batch must be known"
            assert sent.openings < self._openings
            return
        assert (produced.is_duplicate, produced.base_offset) == (True, sent.offset)

    # ------------------------------------------------------------ time, and the broker itself

    def let_time_pass(self, ms: int, crash: int | None = None) -> None:
        """Housekeeping aborts what took too long, and writes the markers that had to wait."""
        self.trace.append(f"time {ms} crash={crash}")
        self._finish_rebalance()
        self.clock.advance(ms)
        self.tick_groups()
        late = []
        for holder in self.holders:
            if holder.transaction and OPEN in holder.transaction.fates and self._is_late(holder):
                holder.transaction.fates.add(ABORTED)
                late.append(holder)
        phase, crashes = self.gang.phase, self.crashes
        self.gang.phase = "doubt"
        self._call(self._tick, crash, lambda: None)
        if self.crashes == crashes:
            self.gang.phase = phase
            self.note_expiry()
        for holder in late:
            self._note_time_out(holder)

    def _tick(self) -> None:
        self.broker.tick()

    def _is_late(self, holder: Holder, grace_ms: int = 0) -> bool:
        since = max(holder.started_ms + holder.timeout_ms, self.opened_ms if grace_ms else 0)
        return (
            holder.transaction is not None
            and not holder.two_phases
            and self.clock() > since + grace_ms
        )

    def _note_time_out(self, holder: Holder) -> None:
        transaction = holder.transaction
        if transaction is None or ABORTED not in transaction.fates:
            return
        if self._is_ongoing(holder):
            assert not self._is_late(holder, HOUSEKEEPING_MS), "a time-out is overdue"
            transaction.fates &= {OPEN}
            return
        transaction.fates -= {OPEN}
        if transaction.fates == {ABORTED}:
            self._note_unmarked(holder)
            if holder.doubt is not None:  # it may never have begun, and nobody can tell
                self.take_over(self.holders.index(holder))
            else:
                holder.transaction, holder.is_shut_out = None, True

    def go_offline(self, key: TopicPartition) -> None:
        self.trace.append(f"offline {key.directory}")
        if key not in self.offline:
            self.offline[key] = take_offline(self.broker.partition(key))

    def come_online(self) -> None:
        self.trace.append("online")
        for heal in self.offline.values():
            heal()
        self.offline.clear()
        self.let_time_pass(1_000)
        for transaction in self._unmarked():
            transaction.unmarked.clear()

    def delete(self, key: TopicPartition, portion: float, crash: int | None = None) -> None:
        self.trace.append(f"delete {key.directory} {portion} crash={crash}")
        partition = self.broker.partition(key)
        start, stable = partition.log_start_offset, partition.last_stable_offset
        before = start + int((stable - start) * portion)
        if key in self.offline:
            return

        def call() -> None:
            assert self.broker.delete_records(key, before) == before
            self.model.deleted(key, before)

        self._call(call, crash, lambda: self.model.deleted(key, before))

    def compact(self, crash: int | None = None) -> None:
        """The coordinator's own log loses what no longer counts."""
        self.trace.append(f"compact crash={crash}")
        self._call(self._compact, crash, lambda: None)

    def _compact(self) -> None:
        self.broker.compact()

    def restart(self, crash: int | None = None) -> None:
        self.trace.append(f"restart crash={crash}")
        had_offline = bool(self.offline)
        died = False

        def in_doubt() -> None:
            nonlocal died
            died = True

        self._call(self.broker.close, crash, in_doubt)
        if died:
            return
        if had_offline:
            self.model.crashed()
        else:
            self.model.restarted()
            self.offsets.made_durable()
            for reader in self.readers:
                for key, partition in self.model.partitions.items():
                    reader.seen[key] = [
                        item for item in reader.seen[key] if item[0] >= partition.start
                    ]
        self._come_back(power_fails=False)

    def crash(self) -> None:
        self.trace.append("crash")
        self._die(power_fails=False)

    def fail_power(self) -> None:
        self.trace.append("power failure")
        self._die(power_fails=True)
