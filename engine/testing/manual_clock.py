"""A clock that is moved by hand, and takes those along who live by it."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final

from ..base.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable

START_MS: Final = 1_700_000_000_000


class ManualClock:
    """The time of a log in a test: ``oncelog.open(path, clock=ManualClock())``. Any thread may move it.

    For the broker time stands still until ``advance``: records get the same timestamp, no transaction runs out of
    time. Those who wait in real time, in a poll, for an acknowledgement or for a batch to linger, go on doing so,
    lest a test with one thread wait for itself; but what is moved by hand counts for them as well.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._moved_s = 0.0
        self._moving = threading.RLock()
        self._subscribers: list[weakref.WeakMethod[Callable[[], None]]] = []

    def __call__(self) -> int:
        return self._now_ms

    def __repr__(self) -> str:
        return f"ManualClock({self._now_ms})"

    @property
    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """What waits are measured by: the seconds that have passed, and those that were skipped."""
        return monotonic_s() + self._moved_s

    def advance(self, ms: int) -> None:
        """Moves the time on, and returns when everything that became due in the broker is done.

        Nobody lived through the time between: what was due five times is done once. Waits that are over end at once,
        each in its own thread.
        """
        if ms < 0:
            raise ValueError(f"time moves on, not back: {ms} ms")
        with self._moving:
            self._now_ms += ms
            self._moved_s += ms / 1000
            # The latest first: clients are heard before the broker judges them by their silence.
            for subscriber in reversed(list(self._subscribers)):
                call = subscriber()
                if call is None:
                    self._subscribers.remove(subscriber)
                else:
                    call()

    def subscribe(self, call: Callable[[], None]) -> None:
        """Calls a bound method after each move, as long as its object lives; once, however often it subscribes."""
        with self._moving:
            subscriber = weakref.WeakMethod(call)
            if subscriber not in self._subscribers:  # a log that is opened again
                self._subscribers.append(subscriber)
