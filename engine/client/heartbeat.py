"""Heartbeats: one thread for all members on a broker, which keeps them alive while their consumers are at work.

It also goes on with a rebalance whose answer comes while nobody polls, and leaves a group for a consumer that was
dropped without being closed. It starts with the first member and ends with the last.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import weakref
from typing import TYPE_CHECKING, Final

from ..base.clock import monotonic_of, now_ms, when_moved

if TYPE_CHECKING:
    from collections.abc import Callable

    from .group_member import GroupMember

logger = logging.getLogger("oncelog.consumer")

_ALL: weakref.WeakKeyDictionary[object, Heartbeats] = weakref.WeakKeyDictionary()
_ALL_LOCK: Final = threading.Lock()


def heartbeats_of(broker: object) -> Heartbeats:
    """The heartbeats of all members on a broker."""
    with _ALL_LOCK:
        found = _ALL.get(broker)
        if found is None:
            found = _ALL[broker] = Heartbeats(getattr(broker, "now_ms", now_ms))
        return found


class Heartbeats:
    """Any thread may add, remove and nudge; the mailbox is a queue that a signal handler could put into."""

    def __init__(self, now: Callable[[], int] = now_ms) -> None:
        self._now_s = monotonic_of(now)
        when_moved(now, self._moved)
        self._mailbox: queue.SimpleQueue[GroupMember | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._due: dict[GroupMember, float] = {}
        self._owners: dict[GroupMember, weakref.ref[object]] = {}
        self._thread: threading.Thread | None = None

    def add(self, member: GroupMember, owner: object) -> None:
        """Keeps a member alive as long as it is one, and its owner is there."""
        with self._lock:
            self._owners[member] = weakref.ref(owner, lambda _: self._mailbox.put(None))
            self._due[member] = self._now_s() + member.heartbeat_interval_ms / 1000
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="oncelog-heartbeats", daemon=True
                )
                self._thread.start()
        self._mailbox.put(None)

    def remove(self, member: GroupMember) -> None:
        """From now on nobody hears of a member."""
        with self._lock:
            self._due.pop(member, None)
            self._owners.pop(member, None)
        self._mailbox.put(None)

    def nudge(self, member: GroupMember) -> None:
        """Something has come for a member whose consumer does not poll at the moment."""
        self._mailbox.put(member)

    def _moved(self) -> None:
        """A clock was moved by hand: those who became due are heard before anybody judges them by their silence."""
        self._beat_all(None)
        self._mailbox.put(None)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    self._thread = None
                    return
                wait_s = max(min(self._due.values()) - self._now_s(), 0)
            nudged = None
            with contextlib.suppress(queue.Empty):
                nudged = self._mailbox.get(timeout=wait_s)
            self._beat_all(nudged)
            del nudged

    def _beat_all(self, nudged: GroupMember | None) -> None:
        now = self._now_s()
        with self._lock:
            orphans = [member for member, owner in self._owners.items() if owner() is None]
            due = [
                member
                for member, at in self._due.items()
                if (at <= now or member is nudged) and member not in orphans
            ]
            for member in due:
                self._due[member] = now + member.heartbeat_interval_ms / 1000
        for member in orphans:
            self.remove(member)
            member.leave("its consumer is gone")
        for member in due:
            try:
                if not member.beat():
                    self.remove(member)
            except Exception:
                logger.exception("a heartbeat failed, and will be sent again")
