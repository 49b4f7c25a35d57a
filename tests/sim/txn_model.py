"""What readers must see of a broker: the promise of exactly once in plain Python, held against what they did see.

Duty    the model is told what was asked of a broker and what it answered. A view is what readers see of a partition at
        one moment. ``check`` compares the two and raises BrokenPromiseError, with the kind of promise that does not hold.
Doubt   a crash in the middle of a call leaves several outcomes that are all right. The model keeps the set, and takes
        the first one that the broker shows; from then on the broker is held to it, on every partition alike.
Power   where it fails, a partition may lose what lies behind its durable end, but nothing in between.

Values are never repeated, so that a value tells which send, and which transaction, a record comes from.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oncelog.segment.names import TopicPartition

Seen = tuple[int, bytes]  # an offset and the value there


class Fate(enum.Enum):
    """What has become of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


OPEN, COMMITTED, ABORTED = Fate


class Kind(enum.Enum):
    """A promise that can be broken."""

    LOST = "a record is lost"
    DUPLICATED = "a record is there twice"
    ABORTED_SEEN = "an aborted record is seen"
    OPEN_SEEN = "a record of an open transaction is seen"
    ORDER = "records are out of order"
    TORN = "a transaction ended in two ways"
    INVENTED = "a record is there that nobody has sent"
    STABLE = "the last stable offset is wrong"
    START = "the log starts at the wrong offset"
    OFFSET_LOST = "a committed offset is lost"
    OFFSET_ABORTED = "an offset of an aborted transaction counts"
    OFFSET_OPEN = "an offset of an open transaction counts"
    ZOMBIE_OFFSET = "somebody who is shut out has committed an offset"
    UNSTABLE = "an offset that may still change is given out as stable, or one that cannot is not"
    GENERATION = "a generation of a group is not what it was, or comes twice"
    SHARED = "a partition has two owners, or none"
    EXPIRY = "a session that is over goes on, or one that is not is ended"


class BrokenPromiseError(AssertionError):
    """A promise does not hold."""

    def __init__(self, kind: Kind, where: object, what: object) -> None:
        super().__init__(f"{where}: {kind.value}: {what}")
        self.kind = kind


class View(NamedTuple):
    """What readers see of one partition at one moment, and the offsets that it answers with."""

    start: int
    stable: int
    end: int
    committed: list[Seen]
    uncommitted: list[Seen]


@dataclass(eq=False)
class Transaction:
    """One transaction and the fates that it may have; one of them, once it is known."""

    name: str
    fates: set[Fate] = field(default_factory=lambda: {OPEN})
    shown: dict[TopicPartition, Fate] = field(default_factory=dict)  # how readers saw it end
    unmarked: set[TopicPartition] = field(default_factory=set)  # decided, the marker has to wait

    def __repr__(self) -> str:
        fates = "|".join(sorted(fate.value for fate in self.fates))
        return f"<transaction {self.name} {fates}>"

    def fates_at(self, key: TopicPartition) -> set[Fate]:
        """What it may look like on one partition."""
        return {OPEN} if key in self.unmarked else self.fates


@dataclass
class Written:
    """A record that is in a partition, and the transaction that it belongs to, if any."""

    offset: int
    value: bytes
    transaction: Transaction | None


class Attempt(NamedTuple):
    """A send that was cut off: all of it is there, or nothing."""

    values: tuple[bytes, ...]
    transaction: Transaction | None


@dataclass
class PartitionModel:
    """What one partition holds, in the order in which it was appended."""

    start: int = 0
    may_start_lower: bool = False  # a crash may undo a deletion
    durable: int = 0  # below, nothing is lost when the power fails
    has_lost_power: bool = False
    records: list[Written] = field(default_factory=list)
    values: set[bytes] = field(default_factory=set)
    attempts: list[Attempt] = field(default_factory=list)

    def add(self, offset: int, value: bytes, transaction: Transaction | None) -> None:
        self.records.append(Written(offset, value, transaction))
        self.values.add(value)


class Model:
    """All partitions and all transactions that are not yet forgotten."""

    def __init__(self, keys: Iterable[TopicPartition]) -> None:
        self.partitions = {key: PartitionModel() for key in keys}

    # ------------------------------------------------------------ what was done

    def wrote(
        self,
        key: TopicPartition,
        base_offset: int,
        values: Sequence[bytes],
        transaction: Transaction | None = None,
    ) -> None:
        """An append was acknowledged."""
        partition = self.partitions[key]
        if values[0] in partition.values:  # a retry of what was there: at the same place
            known = next(record for record in partition.records if record.value == values[0])
            if known.offset != base_offset:
                raise BrokenPromiseError(
                    Kind.DUPLICATED, key, f"{values[0]!r} at {known.offset}, now at {base_offset}"
                )
            return
        if partition.records and base_offset <= partition.records[-1].offset:
            raise BrokenPromiseError(
                Kind.ORDER, key, f"{values[0]!r} at {base_offset}: that offset is taken"
            )
        for at, value in enumerate(values):
            partition.add(base_offset + at, value, transaction)

    def may_have_written(
        self, key: TopicPartition, values: Sequence[bytes], transaction: Transaction | None = None
    ) -> None:
        """An append was cut off."""
        self.partitions[key].attempts.append(Attempt(tuple(values), transaction))

    def made_durable(self, key: TopicPartition, end: int) -> None:
        self.partitions[key].durable = max(self.partitions[key].durable, end)

    def deleted(self, key: TopicPartition, start: int) -> None:
        partition = self.partitions[key]
        partition.start = max(partition.start, start)

    def restarted(self) -> None:
        """A clean stop and a start: everything is durable, and what was deleted stays so."""
        for partition in self.partitions.values():
            partition.records = [
                record for record in partition.records if record.offset >= partition.start
            ]
            partition.values = {record.value for record in partition.records}
            if partition.records:
                partition.durable = partition.records[-1].offset + 1

    def crashed(self) -> None:
        """The process was killed: all that was written is there, but a deletion may be undone."""
        for partition in self.partitions.values():
            partition.may_start_lower = True

    def lost_power(self) -> None:
        """What was not made durable may be gone, from some offset on."""
        self.crashed()
        for partition in self.partitions.values():
            partition.has_lost_power = True

    # ------------------------------------------------------------ what is seen

    def check(self, views: Mapping[TopicPartition, View]) -> None:
        """Raises BrokenPromiseError unless all views are what readers must see. Settles what was in doubt."""
        for key, view in views.items():
            self._check_log(key, view)
        for key, view in views.items():
            self._check_stable(key, view)
        for key, view in views.items():
            self._settle(key, view)
        for key, view in views.items():
            self._check_committed(key, view)

    def _check_log(self, key: TopicPartition, view: View) -> None:
        """Everything that was appended is there, once, where it was acknowledged, and nothing else is."""
        partition = self.partitions[key]
        self._check_start(key, view)
        if not view.start <= view.stable <= view.end:
            raise BrokenPromiseError(
                Kind.STABLE, key, f"{view.start} <= {view.stable} <= {view.end}"
            )
        offsets = [offset for offset, _ in view.uncommitted]
        values = {value for _, value in view.uncommitted}
        if len(values) < len(view.uncommitted):
            twice = sorted(v for _, v in view.uncommitted)
            raise BrokenPromiseError(
                Kind.DUPLICATED, key, [a for a, b in itertools.pairwise(twice) if a == b]
            )
        if any(a >= b for a, b in itertools.pairwise(offsets)):
            raise BrokenPromiseError(Kind.ORDER, key, offsets)
        self._take_attempts(partition, view)
        if partition.has_lost_power:
            self._drop_lost(key, partition, view)
        expected = [(r.offset, r.value) for r in partition.records if r.offset >= view.start]
        if view.uncommitted == expected:
            return
        missing = [item for item in expected if item[1] not in values]
        if missing:
            raise BrokenPromiseError(Kind.LOST, key, missing)
        known = {value for _, value in expected}
        unknown = [item for item in view.uncommitted if item[1] not in known]
        if unknown:
            raise BrokenPromiseError(Kind.INVENTED, key, unknown)
        raise BrokenPromiseError(Kind.ORDER, key, f"{view.uncommitted} is not {expected}")

    def _check_start(self, key: TopicPartition, view: View) -> None:
        partition = self.partitions[key]
        if partition.may_start_lower and view.start < partition.start:
            partition.start = view.start
        partition.may_start_lower = False
        if view.start != partition.start:
            raise BrokenPromiseError(Kind.START, key, f"{view.start} is not {partition.start}")

    @staticmethod
    def _take_attempts(partition: PartitionModel, view: View) -> None:
        """Sends that were cut off are there whole, or not at all."""
        places = {value: offset for offset, value in view.uncommitted}
        for values, transaction in partition.attempts:
            found = places.get(values[0])
            if found is None or values[0] in partition.values:
                continue
            for at, value in enumerate(values):
                partition.add(found + at, value, transaction)
        partition.attempts.clear()

    @staticmethod
    def _drop_lost(key: TopicPartition, partition: PartitionModel, view: View) -> None:
        """Forgets what a power failure took: a tail, behind what was made durable."""
        partition.has_lost_power = False
        seen = {value for _, value in view.uncommitted}
        here = [record for record in partition.records if record.offset >= view.start]
        gone = [record for record in here if record.value not in seen]
        if not gone:
            return
        first = gone[0].offset
        if first < partition.durable:
            raise BrokenPromiseError(
                Kind.LOST, key, [(record.offset, record.value) for record in gone]
            )
        later = [record for record in here if record.offset > first and record.value in seen]
        if later:
            raise BrokenPromiseError(Kind.LOST, key, f"{first} is gone, {later[0].offset} is not")
        partition.records = [record for record in partition.records if record.offset < first]
        partition.values -= {record.value for record in gone}

    def _transactions_at(self, key: TopicPartition) -> dict[Transaction, int]:
        """Transactions with records that can still be read, and the offset where each begins."""
        found: dict[Transaction, int] = {}
        for record in self.partitions[key].records:
            if record.transaction is not None and record.offset >= self.partitions[key].start:
                found.setdefault(record.transaction, record.offset)
        return found

    def _check_stable(self, key: TopicPartition, view: View) -> None:
        """The last stable offset is where the oldest open transaction begins, else the end."""
        open_at, doubtful_at = [view.end], {}
        for transaction, first in self._transactions_at(key).items():
            fates = transaction.fates_at(key)
            if fates == {OPEN}:
                open_at.append(first)
            elif OPEN in fates:
                doubtful_at[first] = transaction
        bound = min(open_at)
        if view.stable == bound:
            return
        holding = doubtful_at.get(view.stable)
        if holding is None or view.stable > bound:
            raise BrokenPromiseError(Kind.STABLE, key, f"{view.stable} is not {bound}")
        holding.fates = {OPEN}

    def _settle(self, key: TopicPartition, view: View) -> None:
        """A reader beyond a transaction's first record shows what has become of it."""
        visible = {value for _, value in view.committed}
        for transaction, first in self._transactions_at(key).items():
            if first >= view.stable:
                continue
            records = [
                record
                for record in self.partitions[key].records
                if record.transaction is transaction and record.offset >= view.start
            ]
            shown = {
                COMMITTED if record.value in visible else ABORTED
                for record in records
                if record.offset < view.stable
            }
            if len(shown) == 2:
                raise BrokenPromiseError(Kind.TORN, key, f"{transaction} is there in part")
            self._take_fate(key, transaction, shown.pop())

    @staticmethod
    def _take_fate(key: TopicPartition, transaction: Transaction, fate: Fate) -> None:
        transaction.shown[key] = fate
        elsewhere = next((at for at, other in transaction.shown.items() if other is not fate), None)
        if elsewhere is not None:
            raise BrokenPromiseError(
                Kind.TORN, key, f"{transaction} is {fate.value}, not so in {elsewhere}"
            )
        fates = transaction.fates_at(key)
        if fate in fates:
            if len(fates) > 1:
                transaction.fates = {fate}
            return
        if fate is COMMITTED:
            raise BrokenPromiseError(
                Kind.OPEN_SEEN if OPEN in fates else Kind.ABORTED_SEEN, key, transaction
            )
        raise BrokenPromiseError(Kind.LOST, key, f"{transaction} is not seen")

    def _check_committed(self, key: TopicPartition, view: View) -> None:
        """A read_committed reader sees what is stable and not aborted, in order."""
        expected = [
            (record.offset, record.value)
            for record in self.partitions[key].records
            if view.start <= record.offset < view.stable
            and (record.transaction is None or COMMITTED in record.transaction.fates_at(key))
        ]
        if view.committed == expected:
            return
        values = [value for _, value in view.committed]
        if len(set(values)) < len(values):
            raise BrokenPromiseError(
                Kind.DUPLICATED, key, sorted(v for v in set(values) if values.count(v) > 1)
            )
        beyond = [item for item in view.committed if item[0] >= view.stable]
        if beyond:
            raise BrokenPromiseError(Kind.OPEN_SEEN, key, beyond)
        missing = [item for item in expected if item[1] not in values]
        if missing:
            raise BrokenPromiseError(Kind.LOST, key, missing)
        known = {value for _, value in expected}
        unknown = [item for item in view.committed if item[1] not in known]
        if unknown:
            raise BrokenPromiseError(Kind.ABORTED_SEEN, key, unknown)
        raise BrokenPromiseError(Kind.ORDER, key, f"{view.committed} is not {expected}")
