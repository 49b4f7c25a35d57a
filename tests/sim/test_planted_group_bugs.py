"""The checks of groups in the random histories can fail: one bug at a time, planted in the group coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.errors import OncelogError
from oncelog.broker.group_membership import Membership
from oncelog.broker.group_metadata import GroupMetadata
from oncelog.broker.group_offsets import GroupOffsets, OffsetsPartition
from oncelog.broker.txn_coordinator import TransactionCoordinator
from tests.sim.txn_model import BrokenPromiseError, Kind
from tests.sim.txn_parts import KEYS
from tests.sim.txn_world import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

A, B = KEYS[:2]


def played_by_groups(path: Path) -> World:
    """The same for groups: commits of members and of nobody, in and out of transactions, rebalances, zombies."""
    world = World(path)
    for _ in range(2):
        for number in (1, 2):
            world.join(number)
            world.check()
        world.commit_offset(1, A)
        world.commit_offset(0, A)
        world.check()
        world.commit_offset(2, A)
        world.check()
        world.send_offsets(1, 1, A)
        world.send_offsets(1, 0, B)
        world.check()
        world.end(1, commits=True)
        world.check()
        world.send_offsets(2, 1, B)
        world.check()
        world.end(2, commits=False)
        world.check()
        world.join(3)
        world.join(1, "syncing")
        world.zombie_offsets(0, A, 0)
        world.take_over(1)
        world.zombie_offsets(0, A, 2)
        world.check()
        world.fall_silent(2)
        for _ in range(4):
            world.let_time_pass(11_000)
            world.check()
        world.restart()
    world.close()
    return world


def test_the_planted_history_of_groups_is_sound_without_a_bug(tmp_path: Path) -> None:
    assert played_by_groups(tmp_path).checks > 20


def lose_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third commit is answered and thrown away."""
    commit, calls = GroupOffsets.commit, []

    def committed(self: GroupOffsets, *what: Any, **options: Any) -> int:
        calls.append(what)
        return 0 if len(calls) % 3 == 0 else commit(self, *what, **options)

    monkeypatch.setattr(GroupOffsets, "commit", committed)


def commit_what_was_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every marker of offsets is taken for a commit."""
    end = OffsetsPartition.end_transaction

    def ended(self: OffsetsPartition, *who: int, committed: bool) -> None:
        end(self, *who, committed=True)

    monkeypatch.setattr(OffsetsPartition, "end_transaction", ended)


def count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of a transaction are written as plain ones."""
    write = OffsetsPartition.write

    def written(self: OffsetsPartition, keys: Any, values: Any, *_: Any, **__: Any) -> int:
        return write(self, keys, values)

    monkeypatch.setattr(OffsetsPartition, "write", written)


def call_everything_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupOffsets, "is_pending", lambda *_: False)


def believe_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks who commits."""
    monkeypatch.setattr(GroupMetadata, "check_commit", lambda *_, **__: None)


def believe_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks whose transaction offsets belong to."""

    append = TransactionCoordinator.append

    def appended(self: TransactionCoordinator, *what: Any, **options: Any) -> Any:
        try:
            return append(self, *what, **options)
        except OncelogError:
            return what[4]()

    monkeypatch.setattr(TransactionCoordinator, "append", appended)


def repeat_a_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebalance changes the members, and not the generation."""
    move = GroupMetadata.next_generation

    def moved(self: GroupMetadata, now_ms: int) -> None:
        before = self.generation
        move(self, now_ms)
        self.generation = max(before, 1)

    monkeypatch.setattr(GroupMetadata, "next_generation", moved)


def forget_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes, and nobody is thrown out."""
    monkeypatch.setattr(Membership, "expire", lambda *_: 0)


def share_with_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every member gets what the first one gets."""
    assign = Membership._assign

    def assigned(self: Membership, group: GroupMetadata, given: Any) -> None:
        assign(self, group, dict.fromkeys(given, next(iter(given.values()), b"")))

    monkeypatch.setattr(Membership, "_assign", assigned)


def forget_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is read at start, one group gets lost."""
    load = OffsetsPartition.load

    def loaded(self: OffsetsPartition) -> Any:
        others = load(self)
        groups: Any = self.table.groups
        if groups:
            groups.popitem()
        return others

    monkeypatch.setattr(OffsetsPartition, "load", loaded)


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        pytest.param(lose_a_commit, {Kind.OFFSET_LOST, Kind.UNSTABLE}, id="lost"),
        pytest.param(commit_what_was_aborted, {Kind.OFFSET_ABORTED}, id="aborted-counts"),
        pytest.param(count_at_once, {Kind.OFFSET_OPEN}, id="open-counts"),
        pytest.param(call_everything_stable, {Kind.UNSTABLE}, id="stable"),
        pytest.param(believe_members, {Kind.ZOMBIE_OFFSET}, id="zombie-member"),
        pytest.param(believe_producers, {Kind.ZOMBIE_OFFSET}, id="zombie-producer"),
        pytest.param(repeat_a_generation, {Kind.GENERATION}, id="generation"),
        pytest.param(forget_sessions, {Kind.EXPIRY}, id="session"),
        pytest.param(share_with_two, {Kind.SHARED}, id="two-owners"),
        pytest.param(forget_at_start, {Kind.OFFSET_LOST}, id="lost-at-start"),
    ],
)
def test_a_bug_in_the_group_coordinator_is_caught(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    kinds: set[Kind],
) -> None:
    """Goal: the checks of groups can fail. Method: break one thing at a time."""
    plant(monkeypatch)
    with pytest.raises(BrokenPromiseError) as caught:
        played_by_groups(tmp_path)
    assert caught.value.kind in kinds
