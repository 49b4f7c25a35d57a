"""Producer ids, handed out one by one from blocks of 1,000 that were written down before.

Duty         no id is ever given twice, whatever crashes: the rest of a block is lost with the process
Concurrency  any thread
Crash        a block counts as used as soon as it is taken, so the next start begins behind it

Kafka fetches the next block in the background when nine tenths of one are used, since a block comes from another
machine. Here taking one is a local append, which costs every thousandth caller some microseconds: no prefetch.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base.errors import OncelogError

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_SIZE: Final = 1000
PRODUCER_ID_MAX: Final = 2**63 - 1


class ProducerIdentity(NamedTuple):
    """Who a producer is: an id, and an epoch that rises whenever an older holder must be shut out.

    ``ongoing_*`` tell of a prepared transaction that was kept: the identity with which it was written.
    """

    producer_id: int
    producer_epoch: int
    ongoing_producer_id: int = -1
    ongoing_producer_epoch: int = -1


class ProducerIds:
    """The ids of the block in hand. ``take_block`` returns the next one when it is safely written down."""

    def __init__(self, take_block: Callable[[], range]) -> None:
        self._take_block = take_block
        self._lock = threading.Lock()
        self._next = 0
        self._end = 0

    def next(self) -> int:
        """An id that nobody had before."""
        with self._lock:
            if self._next >= self._end:
                self._use(self._take_block())
            producer_id = self._next
            self._next += 1
            return producer_id

    def _use(self, block: range) -> None:
        """Takes a block into use, if it cannot hold an id that was given before or that does not exist."""
        if not len(block) or block.step != 1 or block.start < self._end:
            raise OncelogError(
                f"the block of producer ids {block.start} to {block.stop - 1} does not follow {self._end - 1}"
            )
        if block.stop - 1 > PRODUCER_ID_MAX:
            raise OncelogError(
                f"producer ids are used up: the next block would end at {block.stop - 1}"
            )
        self._next, self._end = block.start, block.stop
