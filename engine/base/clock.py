"""The only clock. What decides takes the time as an argument; the edges ask here."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


# The same clock for who asks at every record: no Python frame stands before it.
now_ns = time.time_ns


def monotonic_s() -> float:
    """Seconds since some moment, for waiting: they pass evenly, whatever happens to the time of day."""
    return time.monotonic()
