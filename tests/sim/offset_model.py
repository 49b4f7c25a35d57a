"""What groups have committed: the log of commits as a list, and what it must look like from outside.

Of the commits of one place, a group's partition, the last one counts that is plain or whose transaction has committed;
their order is that of the calls. A commit that was cut off, or that lost its power, is there or not: the first look
decides. Offsets are never repeated, so that an offset tells which commit it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.sim.txn_model import ABORTED, COMMITTED, OPEN, BrokenPromiseError, Kind, Transaction

if TYPE_CHECKING:
    from oncelog.segment.names import TopicPartition

Place = tuple[str, "TopicPartition"]


@dataclass
class Commit:
    """One commit of one offset."""

    offset: int
    transaction: Transaction | None
    is_sure: bool = True
    is_durable: bool = False

    @property
    def fates(self) -> set[object]:
        return {COMMITTED} if self.transaction is None else set(self.transaction.fates)


@dataclass
class OffsetModel:
    """All commits that may still count."""

    commits: dict[Place, list[Commit]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)

    # ------------------------------------------------------------ what was done

    def committed(self, place: Place, commit: Commit) -> None:
        """A commit was answered; one that is repeated takes its place behind all others."""
        known = self.commits.setdefault(place, [])
        known[:] = [other for other in known if other.offset != commit.offset]
        known.append(commit)

    def ended(self, transaction: Transaction) -> None:
        """A transaction has committed, or is prepared: what it holds is on the device."""
        for known in self.commits.values():
            for commit in known:
                if commit.transaction is transaction and commit.is_sure:
                    commit.is_durable = True

    def made_durable(self) -> None:
        for known in self.commits.values():
            for commit in known:
                commit.is_durable = commit.is_sure

    def lost_power(self) -> None:
        for known in self.commits.values():
            for commit in known:
                commit.is_sure = commit.is_sure and commit.is_durable

    # ------------------------------------------------------------ what is seen

    def check(self, place: Place, offset: int | None, *, is_unstable: bool) -> None:
        """Raises BrokenPromiseError unless this is what may be seen. Settles what was in doubt."""
        known = self.commits.setdefault(place, [])
        self._check_offset(place, known, offset)
        self._settle(known, offset)
        self._check_unstable(place, known, is_unstable=is_unstable)
        last = max((at for at, commit in enumerate(known) if commit.offset == offset), default=0)
        known[:] = [c for at, c in enumerate(known) if at >= last or OPEN in c.fates]

    def _check_offset(self, place: Place, known: list[Commit], offset: int | None) -> None:
        possible: set[int | None] = set()
        for commit in reversed(known):
            if COMMITTED in commit.fates:
                possible.add(commit.offset)
                if commit.is_sure and commit.fates == {COMMITTED}:
                    break
        else:
            possible.add(None)
        if offset in possible:
            return
        found = next((commit for commit in known if commit.offset == offset), None)
        if offset in self.refused:
            kind = Kind.ZOMBIE_OFFSET
        elif found is not None and found.fates == {ABORTED}:
            kind = Kind.OFFSET_ABORTED
        elif found is not None and OPEN in found.fates:
            kind = Kind.OFFSET_OPEN
        else:
            kind = Kind.OFFSET_LOST
        raise BrokenPromiseError(kind, place, f"{offset} is none of {possible}")

    @staticmethod
    def _settle(known: list[Commit], offset: int | None) -> None:
        """Commits behind the one that is seen do not count; it does."""
        at = max((n for n, commit in enumerate(known) if commit.offset == offset), default=-1)
        if at >= 0:
            known[at].is_sure = True
            transaction = known[at].transaction
            if transaction is not None and len(transaction.fates) > 1:
                transaction.fates = {COMMITTED}
        for commit in list(known[at + 1 :]):
            if commit.fates == {COMMITTED}:
                known.remove(commit)  # it was cut off, or lost
            elif commit.is_sure and commit.transaction is not None:
                commit.transaction.fates.discard(COMMITTED)

    @staticmethod
    def _check_unstable(place: Place, known: list[Commit], *, is_unstable: bool) -> None:
        waiting = [commit for commit in known if OPEN in commit.fates]
        must = any(commit.is_sure and commit.fates == {OPEN} for commit in waiting)
        if (must and not is_unstable) or (is_unstable and not waiting):
            raise BrokenPromiseError(
                Kind.UNSTABLE, place, f"unstable: {is_unstable}, waiting: {waiting}"
            )
