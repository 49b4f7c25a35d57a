"""Groups in the world of txn_world.py: members that come, go and fall silent, and offsets, plain and in transactions.

Rebalances can stop half-way: then what members of the old generation may still do is tried. Time goes on only when a
rebalance is over, so that nothing but silence costs a member its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oncelog.base.errors import (
    ConcurrentTransactionsError,
    IllegalGenerationError,
    OncelogError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from oncelog.broker.assignors import ASSIGNORS, MemberSubscription
from oncelog.broker.group_answers import GroupDescription, OffsetCommit
from oncelog.broker.group_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from tests.sim.offset_model import Commit, OffsetModel
from tests.sim.txn_model import BrokenPromiseError, Kind, Transaction
from tests.sim.txn_parts import KEYS, Doubt, Holder
from tests.sim.txn_stage import REFUSALS, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncelog.broker.group_metadata import JoinedGroup
    from oncelog.broker.pending import Pending
    from oncelog.segment.names import TopicPartition

SHARED, SIMPLE = "readers", "nobody/in it"  # a group with members, and one without
SESSION_MS = 30_000
TOPICS = {"bills": 2, "orders": 2}
PROTOCOLS = [("range", encode_subscription(Subscription(tuple(TOPICS))))]
OUT = (IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError)


@dataclass
class Seat:
    """Somebody who may be a member."""

    member_id: str = ""
    generation: int = -1
    is_silent: bool = False
    heard_ms: int = 0
    joining: Pending[JoinedGroup] | None = None

    @property
    def identity(self) -> dict[str, Any]:
        return {"member_id": self.member_id, "generation_id": self.generation}


@dataclass
class Gang:
    """The group with members, as far as the model knows it."""

    seats: list[Seat] = field(default_factory=lambda: [Seat() for _ in range(3)])
    generation: int = -1
    leader: str | None = None  # who shares out in the last generation that somebody has heard of
    phase: str = "stable"  # joining, syncing; doubt: a crash may come in the middle of it
    zombies: list[dict[str, Any]] = field(default_factory=list)

    @property
    def members(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.member_id]

    def bury(self, seat: Seat) -> None:
        """It is no member any more, or one of a generation that is over."""
        self.zombies = [*self.zombies[-5:], seat.identity]


class Groups(Stage):
    """Members, their rebalances, and offsets."""

    def __init__(self, *given: Any, **options: Any) -> None:
        self.offsets = OffsetModel()
        self.gang = Gang()
        self._commits = 0
        super().__init__(*given, **options)

    # ------------------------------------------------------------ members

    def join(self, number: int, stop: str = "") -> None:
        """A member comes, or has the partitions shared out anew; ``stop`` names what the rebalance is left in."""
        self.trace.append(f"join {number} stop={stop}")
        self._finish_rebalance()
        seat = self.gang.seats[number % len(self.gang.seats)]
        if seat.is_silent or seat.joining is not None:
            return
        self._ask(seat)
        waiting: object = seat.joining
        if waiting is not None and stop == "joining":
            self.gang.phase = "joining"
        else:
            self._finish_rebalance(stops=stop == "syncing")

    def _ask(self, seat: Seat) -> None:
        options = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": 60_000}
        seat.joining = self.broker.join_group(
            SHARED, seat.member_id, protocols=PROTOCOLS, client_id="seat", **options
        )
        seat.heard_ms = self.clock()
        if seat.joining.done():
            self._learn(seat)

    def _learn(self, seat: Seat) -> JoinedGroup:
        assert seat.joining is not None
        joined = seat.joining.result()
        before, seat.joining = seat.identity, None
        if seat.member_id and joined.generation_id != seat.generation:
            self.gang.zombies = [*self.gang.zombies[-5:], before]
        seat.member_id, seat.generation = joined.member_id, joined.generation_id
        self.gang.leader = joined.leader
        seat.heard_ms = self.clock()
        return joined

    def _finish_rebalance(self, *, stops: bool = False) -> None:
        """All who are alive join and sync, unless they have to wait for somebody who is silent."""
        gang = self.gang
        if self._state() == "PreparingRebalance":
            for seat in gang.members:
                if seat.joining is None and not seat.is_silent:
                    self._ask(seat)
        for seat in gang.seats:
            if seat.joining is not None and seat.joining.done():
                self._learn(seat)
        state = self._state()
        if state == "CompletingRebalance":
            if gang.phase != "syncing":
                gang.phase = "syncing"
                self._check_generation()
            if not stops and any(not seat.is_silent for seat in gang.members):
                self._share_out()
        else:
            gang.phase = "joining" if state == "PreparingRebalance" else "stable"

    def _state(self) -> str:
        described = self._described()
        return "Empty" if described is None else str(described.state.label)

    def _check_generation(self) -> None:
        # Where all fell silent while they waited, what they were told last is all there is to go by.
        heard = [seat for seat in self.gang.members if not seat.is_silent] or self.gang.members
        generations = {seat.generation for seat in heard}
        if len(generations) != 1 or min(generations) <= self.gang.generation:
            raise BrokenPromiseError(
                Kind.GENERATION, SHARED, f"{generations} after {self.gang.generation}"
            )
        self.gang.generation = generations.pop()

    def _share_out(self) -> None:
        if any(seat.is_silent and seat.member_id == self.gang.leader for seat in self.gang.members):
            return  # nobody else may: the others wait until its session is over
        members = [seat for seat in self.gang.members if not seat.is_silent]
        asked = {seat.member_id: MemberSubscription(tuple(TOPICS)) for seat in members}
        plan = {
            name: encode_assignment(Assignment(tuple(keys)))
            for name, keys in ASSIGNORS["range"](asked, TOPICS).items()
        }
        answers = [
            self.broker.sync_group(SHARED, seat.member_id, seat.generation, plan)
            for seat in members
        ]
        given = [
            key
            for answer in answers
            for key in decode_assignment(answer.result().assignment).partitions
        ]
        if sorted(given) != sorted(KEYS):
            raise BrokenPromiseError(Kind.SHARED, SHARED, given)
        self.gang.phase = "stable"

    def _remove(self, seat: Seat) -> None:
        self.gang.bury(seat)
        seat.member_id, seat.generation, seat.is_silent, seat.joining = "", -1, False, None

    def leave(self, number: int) -> None:
        self.trace.append(f"leave {number}")
        self._finish_rebalance()
        seat = self.gang.seats[number % len(self.gang.seats)]
        if seat.member_id:
            assert self.broker.leave_group(SHARED, [(seat.member_id, None)]) == [None]
            self._remove(seat)
            self._finish_rebalance()

    def fall_silent(self, number: int) -> None:
        """A member is heard of no more: until its session is over it still is one."""
        self.trace.append(f"silent {number}")
        self._finish_rebalance()
        seat = self.gang.seats[number % len(self.gang.seats)]
        if seat.member_id:
            seat.is_silent = True

    def tick_groups(self) -> None:
        """Before the broker looks at the time: those who live say so. After: those whose time was up are out."""
        for seat in self.gang.members:
            if not seat.is_silent and seat.joining is None:
                self.broker.heartbeat(SHARED, seat.member_id, seat.generation)
                seat.heard_ms = self.clock()

    def note_expiry(self) -> None:
        described = self._described()
        inside = set() if described is None else {row.member_id for row in described.members}
        for seat in [seat for seat in self.gang.members if seat.joining is None]:
            is_over = self.clock() >= seat.heard_ms + SESSION_MS
            if (seat.member_id in inside) == is_over:
                raise BrokenPromiseError(
                    Kind.EXPIRY, SHARED, f"{seat} at {self.clock()}, inside: {inside}"
                )
            if is_over:
                self._remove(seat)
        self._finish_rebalance()

    def _described(self) -> Any:
        found = self.broker.describe_groups([SHARED])[SHARED]
        return found if isinstance(found, GroupDescription) else None

    # ------------------------------------------------------------ offsets

    def _next_offset(self) -> int:
        self._commits += 1
        return self._commits

    def commit_offset(self, number: int, key: TopicPartition, crash: int | None = None) -> None:
        """A plain commit: of a member, or of nobody into the group that has no members."""
        seat = self._committer(number)
        group = SIMPLE if seat is None else SHARED
        offset = self._next_offset()
        self.trace.append(f"commit {group} {key.directory} {offset} {seat} crash={crash}")
        who = {} if seat is None else seat.identity

        def call() -> None:
            try:
                answers = self.broker.offset_commit(group, {key: OffsetCommit(offset)}, **who)
            except RebalanceInProgressError:
                assert self.gang.phase == "syncing"
                self.offsets.refused.add(offset)
                return
            assert answers == {key: None}
            if seat is not None:
                seat.heard_ms = self.clock()
            self.offsets.committed((group, key), Commit(offset, None, is_durable=True))

        self._call(call, crash, lambda: self._doubt((group, key), offset, None))

    def _committer(self, number: int) -> Seat | None:
        members = self.gang.members
        return members[number % len(members)] if members and number % 4 else None

    def _doubt(
        self, place: tuple[str, TopicPartition], offset: int, of: Transaction | None
    ) -> None:
        self.offsets.committed(place, Commit(offset, of, is_sure=False))

    def send_offsets(
        self, number: int, member: int, key: TopicPartition, crash: int | None = None
    ) -> None:
        """Offsets inside a transaction, of a member or into the group without members."""
        holder = self.holders[number]
        if holder.is_shut_out or holder.doubt is not None or holder.is_prepared or self.offline:
            return
        seat = self._committer(member)
        offset = self._next_offset()
        self.trace.append(f"send offsets {holder.name} {key.directory} {offset} {seat} {crash}")
        if holder.transaction is None:
            holder.transaction = Transaction(f"{holder.name}/offsets-{offset}")
            holder.ended = None
        group, who = (SIMPLE, {}) if seat is None else (SHARED, seat.identity)
        self._send_offsets(holder, (group, key), offset, who, crash)

    def _send_offsets(
        self,
        holder: Holder,
        place: tuple[str, TopicPartition],
        offset: int,
        who: dict[str, Any],
        crash: int | None,
    ) -> None:
        transaction = holder.transaction
        assert transaction is not None

        def call() -> None:
            if not self._is_ongoing(holder):
                holder.started_ms = self.clock()
            try:
                self._txn_offset_commit(holder.producer, place, offset, who)
            except (*OUT, ConcurrentTransactionsError):
                # Only what is sent again, after a crash, may find its generation gone.
                if holder.doubt is None and not self.offline:
                    raise
                holder.doubt = None
                if not self._is_ongoing(holder):
                    holder.transaction = None
                return
            holder.doubt = None
            self.offsets.committed(place, Commit(offset, transaction))

        def in_doubt() -> None:
            self._doubt(place, offset, transaction)
            holder.doubt = Doubt(call, in_doubt)

        self._call(call, crash, in_doubt)

    def _txn_offset_commit(
        self, producer: Any, place: tuple[str, TopicPartition], offset: int, who: dict[str, Any]
    ) -> None:
        group, key = place
        name, identity = producer.transactional_id, (producer.producer_id, producer.epoch)
        if producer.version == 1:
            self.broker.add_offsets_to_txn(name, *identity, group)
        answers = self.broker.txn_offset_commit(
            name,
            group,
            *identity,
            offsets={key: OffsetCommit(offset)},
            transaction_version=producer.version,
            **who,
        )
        assert answers == {key: None}

    def zombie_offsets(self, number: int, key: TopicPartition, verb: int) -> None:
        """Who is shut out, of a group or of its transactional id, commits nothing; nor does a stranger."""
        offset = self._next_offset()
        self.offsets.refused.add(offset)
        offsets = {key: OffsetCommit(offset)}
        self.trace.append(f"zombie offsets {number} {key.directory} {offset} verb={verb}")
        call: Callable[[], Any] | None = None
        if verb == 0 and self.gang.zombies:
            who = self.gang.zombies[number % len(self.gang.zombies)]
            call = lambda: self.broker.offset_commit(SHARED, offsets, **who)  # noqa: E731
        elif verb == 1 and self.gang.zombies and self.holders[2].transaction is not None:
            member = self.gang.zombies[number % len(self.gang.zombies)]
            producer = self.holders[2].producer
            call = lambda: self._txn_offset_commit(producer, (SHARED, key), offset, member)  # noqa: E731
        elif verb == 2 and self.zombies:
            zombie = self.zombies[number % len(self.zombies)]
            call = lambda: self._txn_offset_commit(zombie, (SIMPLE, key), offset, {})  # noqa: E731
        elif verb == 3 and self.gang.members:
            call = lambda: self.broker.offset_commit(SHARED, offsets)  # noqa: E731
        if call is None:
            return
        try:
            call()
        except (*OUT, *REFUSALS):
            return
        raise BrokenPromiseError(Kind.ZOMBIE_OFFSET, key, f"commit {offset} was not refused")

    # ------------------------------------------------------------ what is seen

    def check_groups(self) -> None:
        for group in (SHARED, SIMPLE):
            found = self.broker.offset_fetch(group, KEYS)
            stable = self.broker.offset_fetch(group, KEYS, require_stable=True)
            for key in KEYS:
                value = found[key]
                assert not isinstance(value, OncelogError), value
                self.offsets.check(
                    (group, key),
                    None if value is None else value.offset,
                    is_unstable=isinstance(stable[key], OncelogError),
                )

    def lost(self, *, power_fails: bool) -> None:
        if power_fails:
            self.offsets.lost_power()

    def came_back(self, *, power_fails: bool) -> None:
        """Members that were in a finished generation still are, and have a new session; others join anew. Those of a
        machine that lost its power are gone."""
        gang, described = self.gang, self._described()
        inside = set() if described is None else {row.member_id for row in described.members}
        if power_fails:
            self._lose_members(inside)
            return
        if gang.phase == "stable" and {seat.member_id for seat in gang.members} != inside:
            raise BrokenPromiseError(Kind.GENERATION, SHARED, f"{gang.members} became {inside}")
        for seat in gang.seats:
            seat.joining, seat.heard_ms = None, self.clock()
            if seat.member_id and seat.member_id not in inside:
                self._remove(seat)
        self._lose_strangers(inside)
        if gang.phase != "stable":  # a generation that was not shared out may come again
            gang.generation, gang.phase = -1, "stable"
            for seat in gang.members:
                if (
                    described is not None
                ):  # of what was not shared out, a silent one knows nothing that counts
                    seat.generation = min(seat.generation, described.generation)
                if not seat.is_silent and seat.joining is None:
                    self._ask(seat)
            gang.zombies.clear()
        self._finish_rebalance()

    def _lose_members(self, inside: set[str]) -> None:
        self.gang = Gang()
        for member_id in inside:
            self.broker.leave_group(SHARED, [(member_id, None)])
        self._finish_rebalance()

    def _lose_strangers(self, inside: set[str]) -> None:
        """Members of an unfinished generation, whose answer never came."""
        for member_id in inside - {seat.member_id for seat in self.gang.members}:
            self.broker.leave_group(SHARED, [(member_id, None)])
