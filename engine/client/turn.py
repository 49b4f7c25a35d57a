"""One thread at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..base.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Callable


class Turn:
    """For a ``with``: one thread at a time, which may come back within its turn; another one is refused."""

    __slots__ = ("_check", "_lock")

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise IllegalStateError(
                "this consumer is in use by another thread: give each thread a consumer of its own "
                "(only wakeup() may be called from another)"
            )
        try:
            self._check()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        self._lock.release()
