"""An answer that comes later: the broker never waits, so its caller gets something to wait on.

Concurrency  any thread may ask, add callbacks or complete. Callbacks run in the thread that completes, which holds no
             lock of the broker meanwhile; they must be quick.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from ..base.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("oncelog.broker")

T = TypeVar("T")


class Pending(Generic[T]):
    """The answer of a call that waits for other members of a group, or for time to pass."""

    __slots__ = ("_callbacks", "_error", "_is_done", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Pending[T]], None]] = []
        self._value: T | None = None
        self._error: Exception | None = None
        self._is_done = False

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._is_done

    def result(self) -> T:
        """The answer; raises the error that it is, or that it is not there yet."""
        if not self._is_done:
            raise IllegalStateError("the answer is not there yet: wait for add_done_callback")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # whoever completes it gives a value of this type

    def add_done_callback(self, callback: Callable[[Pending[T]], None]) -> None:
        """Calls back once the answer is there: at once, if it is."""
        with self._lock:
            if not self._is_done:
                self._callbacks.append(callback)
                return
        callback(self)

    def complete(self, value: T | None = None, error: Exception | None = None) -> None:
        """Gives the answer; only the first one counts."""
        with self._lock:
            if self._is_done:
                return
            self._value, self._error, self._is_done = value, error, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except (
                Exception
            ):  # one member's mistake is no reason to leave the others without an answer
                logger.exception("a callback of a pending answer failed")
