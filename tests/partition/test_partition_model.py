"""A partition against a model that is a plain list: whatever the order of calls, both show the same records.

The model keeps one entry per batch and derives everything else by walking the list: the last stable offset, what is
aborted, what a producer may send next. Its producers follow both transaction versions at random.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from oncelog.base.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
)
from tests.partition.logs import (
    ABORT,
    COMMIT,
    COMMITTED,
    KEY,
    NOW,
    UNCOMMITTED,
    Writer,
    contents,
    open_directory,
    open_partition,
    options,
    read,
)
from tests.sim.sim_disk import CountingDisk

OPTIONS = options(segment_bytes=700, index_bytes=64, interval=100)
PRODUCERS = 3


@dataclass
class Batch:
    """One batch or marker as the model remembers it."""

    base_offset: int
    values: list[bytes]
    producer: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    marker: str = ""  # "", "commit" or "abort"

    @property
    def next_offset(self) -> int:
        return self.base_offset + (1 if self.marker else len(self.values))


@dataclass
class Model:
    """The log as a list of batches."""

    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    segment_starts: list[int] = field(default_factory=lambda: [0])

    @property
    def end(self) -> int:
        kept = [batch for batch in self.batches if batch.base_offset >= self.segment_starts[0]]
        return kept[-1].next_offset if kept else self.segment_starts[-1]

    def open_transactions(self) -> dict[int, int]:
        """First offset of each producer's open transaction."""
        found: dict[int, int] = {}
        for batch in self.batches:
            if batch.marker:
                found.pop(batch.producer, None)
            elif batch.transactional:
                found.setdefault(batch.producer, batch.base_offset)
        return found

    @property
    def stable(self) -> int:
        return max(min([self.end, *self.open_transactions().values()]), self.start)

    def records(self, *, committed: bool) -> list[tuple[int, bytes | None]]:
        ended: dict[int, str] = {}
        fate: dict[int, str] = {}
        for batch in reversed(self.batches):  # the next marker of its producer decides
            if batch.marker:
                ended[batch.producer] = batch.marker
            elif batch.transactional:
                fate[batch.base_offset] = ended.get(batch.producer, "open")
        limit = self.stable if committed else self.end
        return [
            (batch.base_offset + at, value)
            for batch in self.batches
            if not batch.marker and not (committed and fate.get(batch.base_offset) == "abort")
            for at, value in enumerate(batch.values)
            if self.start <= batch.base_offset + at < limit
        ]


class PartitionMachine(RuleBasedStateMachine):
    """Rules are what clients, coordinators, operators and crashes do."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="oncelog-model-"))
        self.path = self.root / "0"
        self.directory, self.partition = open_partition(self.path, OPTIONS, disk=CountingDisk())
        self.model = Model()
        self.writers = {number: Writer(self.partition, number) for number in range(PRODUCERS)}
        self.sent: dict[int, list[tuple[Batch, Writer]]] = {
            number: [] for number in range(PRODUCERS)
        }
        self.count = 0
        self.crashes = 0

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.close()
            shutil.rmtree(self.root)

    # ------------------------------------------------------------ what is written

    def _values(self, count: int) -> list[bytes]:
        self.count += count
        return [f"value {self.count - at}".encode() for at in range(count)]

    def _note(self, batch: Batch) -> None:
        self.model.batches.append(batch)
        bases = [segment.base_offset for segment in self.partition.log.segments]
        self.model.segment_starts = bases

    @rule(count=st.integers(1, 6))
    def send_plain(self, count: int) -> None:
        values = self._values(count)
        done = Writer(self.partition).send(values)
        assert done.base_offset == self.model.end
        self._note(Batch(done.base_offset, values))

    @rule(
        number=st.integers(0, PRODUCERS - 1), count=st.integers(1, 5), transactional=st.booleans()
    )
    def send(self, number: int, count: int, transactional: bool) -> None:
        writer, values = self.writers[number], self._values(count)
        before = replace(writer)
        if not transactional and number in self.model.open_transactions():
            with pytest.raises(InvalidTxnStateError):
                writer.send(values)
            return
        done = writer.send(values, transactional=transactional)
        assert done.base_offset == self.model.end
        assert not done.is_duplicate
        batch = Batch(
            done.base_offset, values, number, before.epoch, before.sequence, transactional
        )
        self._note(batch)
        self.sent[number].append((batch, before))

    @rule(number=st.integers(0, PRODUCERS - 1), back=st.integers(1, 5))
    def repeat(self, number: int, back: int) -> None:
        """A batch of the last five, in the same epoch, is answered with where it is."""
        if len(self.sent[number]) < back:
            return
        batch, before = self.sent[number][-back]
        if before.epoch != self.writers[number].epoch:
            return
        done = before.on(self.partition).send(batch.values, transactional=batch.transactional)
        assert done.is_duplicate
        assert (done.base_offset, done.last_offset) == (batch.base_offset, batch.next_offset - 1)

    @rule(number=st.integers(0, PRODUCERS - 1), gap=st.integers(1, 9))
    def skip_sequences(self, number: int, gap: int) -> None:
        writer = self.writers[number]
        if not self.sent[number]:
            return
        strayed = replace(writer, sequence=writer.sequence + gap)
        with pytest.raises(OutOfOrderSequenceError):
            strayed.send([b"stray"], transactional=True)

    @rule(number=st.integers(0, PRODUCERS - 1))
    def send_as_zombie(self, number: int) -> None:
        writer = self.writers[number]
        if writer.epoch == 0 or not self._is_epoch_known(number):
            return
        zombie = replace(writer, epoch=writer.epoch - 1, sequence=0)
        with pytest.raises(InvalidProducerEpochError):
            zombie.send([b"zombie"], transactional=True)

    def _is_epoch_known(self, number: int) -> bool:
        epoch = self.writers[number].epoch
        return any(
            batch.producer == number and batch.epoch == epoch for batch in self.model.batches
        )

    @rule(number=st.integers(0, PRODUCERS - 1), commits=st.booleans(), bumps=st.booleans())
    def end(self, number: int, commits: bool, bumps: bool) -> None:
        """The coordinator ends a transaction, or one that has no data here."""
        writer = self.writers[number]
        done = writer.end(COMMIT if commits else ABORT, bumps_epoch=bumps)
        kind = "commit" if commits else "abort"
        self._note(Batch(done.base_offset, [], number, writer.epoch, marker=kind))
        if bumps:
            self.sent[number].clear()

    @rule(number=st.integers(0, PRODUCERS - 1))
    def fence(self, number: int) -> None:
        """A new producer takes the id over: data in a higher epoch that starts at zero."""
        if number in self.model.open_transactions():
            return
        writer = self.writers[number]
        writer.epoch, writer.sequence = writer.epoch + 1, 0
        self.sent[number].clear()
        self.send(number=number, count=1, transactional=False)

    # ------------------------------------------------------------ what is removed

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        """Cuts at any offset: the batch that holds it goes as well. Producers are told anew what is known."""
        model = self.model
        if model.end == model.start:
            return
        offset = model.start + int(share * (model.end - model.start))
        self.partition.truncate_to(offset, NOW)
        if offset == model.end:
            return  # nothing to do
        model.batches = [batch for batch in model.batches if batch.next_offset <= offset]
        model.segment_starts = [base for base in model.segment_starts if base < offset] or [offset]
        if model.end < model.start:  # the start lay within the batch that had to go
            model.batches = []
            model.segment_starts = [model.start]
        bases = [segment.base_offset for segment in self.partition.log.segments]
        assert model.segment_starts == bases
        self._resume_writers()

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        model = self.model
        offset = model.start + int(share * (model.end - model.start))
        assert self.partition.delete_records(offset) == offset
        model.start = offset
        self._forget_segments()
        with pytest.raises(OffsetOutOfRangeError):
            self.partition.delete_records(model.end + 1)

    def _forget_segments(self) -> None:
        """Batches of segments that are gone."""
        first = self.partition.log.start_offset
        self.model.segment_starts = [segment.base_offset for segment in self.partition.log.segments]
        gone = [batch for batch in self.model.batches if batch.base_offset < first]
        self.gone_open = gone
        # A transaction that began in a removed segment is still open: keep what says so.
        still_open = {number for number, at in self.model.open_transactions().items() if at < first}
        kept_open = [
            batch
            for batch in gone
            if batch.producer in still_open and (batch.transactional or batch.marker)
        ]
        kept_other = [
            batch
            for batch in gone
            if batch.transactional and batch not in kept_open and self._ends_later(batch, first)
        ]
        keep = sorted([*kept_open, *kept_other], key=lambda batch: batch.base_offset)
        self.model.batches = [
            *keep,
            *(batch for batch in self.model.batches if batch.base_offset >= first),
        ]

    def _ends_later(self, batch: Batch, first: int) -> bool:
        return any(
            other.marker and other.producer == batch.producer and other.base_offset >= first
            for other in self.model.batches
            if other.base_offset > batch.base_offset
        )

    @rule()
    def roll(self) -> None:
        self.partition.roll(NOW)
        self.model.segment_starts = [segment.base_offset for segment in self.partition.log.segments]

    # ------------------------------------------------------------ stops and starts

    def _resume_writers(self) -> None:
        """Clients learn from the log where they are, as after an epoch bump: by what it knows of them."""
        table = self.partition.need_state().table
        for number, writer in self.writers.items():
            writer.partition = self.partition
            known = table.get(number)
            self.sent[number].clear()
            if known is None:
                writer.epoch, writer.sequence = writer.epoch + 1, 0
            else:
                writer.epoch = int(known["producer_epoch"])
                writer.sequence = (int(known["last_sequence"]) + 1) % 2**31

    @rule()
    def reopen(self) -> None:
        """A clean stop: everything is as before, also the start of the log."""
        known = [self._known(number) for number in range(PRODUCERS)]
        self.directory.close()
        self.directory, self.partition = open_partition(self.path, OPTIONS, disk=CountingDisk())
        self._check_resumed(known)

    @rule(syncs=st.booleans(), checkpoints=st.booleans())
    def crash(self, syncs: bool, checkpoints: bool) -> None:
        """The process dies: what it wrote is there, what it had not checkpointed of the start is not."""
        if syncs:
            self.partition.sync()
        if checkpoints:
            self.directory.checkpoint()
        known = [self._known(number) for number in range(PRODUCERS)]
        self.crashes += 1
        copy = self.root / str(self.crashes)
        shutil.copytree(self.path, copy)
        self.directory.close()
        shutil.rmtree(self.path)
        self.path = copy
        self.directory, self.partition = open_partition(self.path, OPTIONS, disk=CountingDisk())
        assert not self.partition.damage
        assert self.partition.log_start_offset <= self.model.start
        self.partition.delete_records(self.model.start)
        self._check_resumed(known)

    def _known(self, number: int) -> Any:
        row = self.partition.need_state().table.get(number)
        return None if row is None else row.tolist()

    def _check_resumed(self, known: list[Any]) -> None:
        """The log knows the same of its producers as before; of their batches, the last at least."""
        for number, writer in self.writers.items():
            assert self._known(number) == known[number]
            writer.partition = self.partition
            del self.sent[number][:-1]

    # ------------------------------------------------------------ what is seen

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "partition"):
            return
        assert self.partition.log_start_offset == self.model.start
        assert self.partition.log_end_offset == max(self.model.end, self.model.start)
        assert self.partition.last_stable_offset == self.model.stable

    @invariant()
    def readers_agree(self) -> None:
        if not hasattr(self, "partition"):
            return
        assert read(self.partition, UNCOMMITTED) == self.model.records(committed=False)
        assert read(self.partition, COMMITTED) == self.model.records(committed=True)

    @rule(share=st.floats(0, 1), width=st.integers(1, 30))
    def read_a_part(self, share: float, width: int) -> None:
        """A reader that starts in the middle of a transaction sees no more and no less."""
        start = self.model.start + int(share * (self.model.end - self.model.start))
        whole = self.model.records(committed=True)
        part = [record for record in whole if start <= record[0] < start + width]
        assert read(self.partition, COMMITTED, start, start + width) == part

    @rule()
    def look_without_touching(self) -> None:
        """Another process reads the live directory: it sees the same, and changes nothing."""
        before = contents(self.path)
        directory = open_directory(self.path, OPTIONS, read_only=True)
        partition = directory.get(KEY)
        start = self.model.start
        expected = self.model.records(committed=True)
        assert [record for record in read(partition, COMMITTED) if record[0] >= start] == expected
        directory.close()
        assert contents(self.path) == before

    @precondition(lambda self: self.model.end > self.model.start)
    @rule(share=st.floats(0, 0.999), bytes_max=st.integers(0, 900))
    def fetch(self, share: float, bytes_max: int) -> None:
        """Whole batches from the one that holds the offset on, at least one, none at or above the bound."""
        model = self.model
        offset = model.start + int(share * (model.end - model.start))
        fetched = self.partition.fetch(offset, bytes_max, COMMITTED)
        assert fetched.last_stable_offset == model.stable
        assert bool(len(fetched.records)) == (offset < model.stable)


PartitionMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None
)
TestPartition = PartitionMachine.TestCase
