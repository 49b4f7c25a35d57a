"""The only clock. What decides takes the time as an argument; the edges ask here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


# Seconds since some moment, for waiting: they pass evenly, whatever happens to the time of day.
monotonic_s = time.monotonic


# ---------------------------------------------------------------- clocks that are moved by hand
#
# Whoever opens a log may bring a clock: any call that tells the milliseconds since 1970. One that also has
# ``monotonic_s`` is asked by those who wait, and one with ``subscribe`` tells them when it was moved. Both are what a
# test needs so that nobody sleeps through a day that takes a microsecond; a plain clock needs neither.


def monotonic_of(now: Callable[[], int]) -> Callable[[], float]:
    """What those wait by who live by a clock: its own, or the machine's."""
    found: Callable[[], float] = getattr(now, "monotonic_s", monotonic_s)
    return found


def is_moved_by_hand(now: Callable[[], int]) -> bool:
    return hasattr(now, "subscribe")


def when_moved(now: Callable[[], int], call: Callable[[], None]) -> None:
    """Has a bound method called whenever the clock is moved by hand, as long as its object lives."""
    if is_moved_by_hand(now):
        now.subscribe(call)  # type: ignore[attr-defined]
