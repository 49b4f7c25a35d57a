"""Both coordinators of a broker that is only looked at: groups and transactions as their logs tell of them.

Duty         the same replays as the coordinators'; nobody is thrown out and nothing is ended
Concurrency  any thread; what was read once stays as it is
Crash        nothing is written
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ..base.errors import InvalidRequestError
from .group_coordinator import GroupCoordinator
from .group_metadata import IN_PROCESS, GroupMetadata, GroupState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .txn_states import TransactionDescription, TransactionListing, TransactionStates


class ObservedGroups(GroupCoordinator):
    """Groups as their log tells of them. Members are those of the last generation that was written."""

    def load(self) -> None:
        """Reads the log; nobody is thrown out for not showing up, as they show up elsewhere."""
        self._groups.load(self._options.consumer_session_timeout_ms)
        self._is_loaded = True

    def leave_out_the_dead(self) -> None:
        """Nobody writes the directory: members of a process that had it open are gone, as its next opening will find."""
        for group in self._groups.values():
            if not isinstance(group, GroupMetadata):
                continue
            for member in list(group.members.values()):
                if member.client_host == IN_PROCESS and member.instance_id is None:
                    del group.members[member.member_id]
            if not group.members:
                group.state = GroupState.EMPTY

    def offset_commit(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidRequestError("offsets cannot be committed in a directory that is only read")


class ObservedTransactions:
    """Transactions as their log tells of them."""

    def __init__(self, states: TransactionStates, now_ms: Callable[[], int]) -> None:
        self._states = states
        self._now_ms = now_ms
        states.load()

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        return self._states.describe(transactional_id)

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        duration_ms_min: int = -1,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        return self._states.matching(
            self._now_ms(), states, producer_ids, duration_ms_min, id_pattern
        )
