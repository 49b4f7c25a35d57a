"""Producer ids: handed out from blocks, never twice."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import KafkaStorageError, OncelogError
from oncelog.broker.producer_ids import BLOCK_SIZE, PRODUCER_ID_MAX, ProducerIds

if TYPE_CHECKING:
    from collections.abc import Iterable


def ids_from(blocks: Iterable[range]) -> ProducerIds:
    return ProducerIds(iter(blocks).__next__)


def test_ids_come_from_blocks_of_1000_one_after_the_other() -> None:
    taken: list[int] = []

    def take_block() -> range:
        taken.append(len(taken) * BLOCK_SIZE)
        return range(taken[-1], taken[-1] + BLOCK_SIZE)

    producer_ids = ProducerIds(take_block)
    assert not taken  # a process that needs no id costs no block
    assert [producer_ids.next() for _ in range(2001)] == list(range(2001))
    assert taken == [0, 1000, 2000]


def test_many_threads_get_different_ids() -> None:
    lock = threading.Lock()
    blocks = iter(range(0, 10**6, BLOCK_SIZE))

    def take_block() -> range:
        with lock:
            first = next(blocks)
        return range(first, first + BLOCK_SIZE)

    producer_ids = ProducerIds(take_block)
    found: list[list[int]] = [[] for _ in range(8)]

    def take(mine: list[int]) -> None:
        mine.extend(producer_ids.next() for _ in range(2500))

    threads = [threading.Thread(target=take, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for mine in found for number in mine) == list(range(20_000))


@pytest.mark.parametrize(
    "second",
    [range(1000), range(999, 1999), range(500, 1500), range(1000, 1000), range(3000, 2000, -1)],
    ids=["again", "overlapping", "inside", "empty", "descending"],
)
def test_a_block_that_does_not_follow_is_refused_and_never_handed_out(second: range) -> None:
    producer_ids = ids_from([range(1000), second, range(1000, 2000)])
    for _ in range(1000):
        producer_ids.next()
    with pytest.raises(OncelogError, match="does not follow 999"):
        producer_ids.next()
    assert producer_ids.next() == 1000


def test_a_block_past_the_largest_id_is_refused() -> None:
    last = PRODUCER_ID_MAX + 1 - BLOCK_SIZE
    producer_ids = ids_from(
        [range(last + 1, last + 1 + BLOCK_SIZE), range(last, last + BLOCK_SIZE)]
    )
    with pytest.raises(OncelogError, match="used up"):
        producer_ids.next()
    assert producer_ids.next() == last


def test_a_gap_between_blocks_is_fine() -> None:
    """Another process may have taken what lies between."""
    producer_ids = ids_from([range(5), range(1000, 2000)])
    assert [producer_ids.next() for _ in range(6)] == [0, 1, 2, 3, 4, 1000]


def test_a_block_that_cannot_be_taken_is_asked_for_again_by_the_next_call() -> None:
    attempts = []

    def take_block() -> range:
        attempts.append(1)
        if len(attempts) == 1:
            raise KafkaStorageError("disk full")
        return range(1000)

    producer_ids = ProducerIds(take_block)
    with pytest.raises(KafkaStorageError):
        producer_ids.next()
    assert producer_ids.next() == 0


def test_a_restart_wastes_the_rest_of_the_block() -> None:
    """Goal: what was taken counts as used, although nobody got it. Method: two processes, one counter."""
    written_down = [0]

    def take_block() -> range:
        written_down[0] += BLOCK_SIZE
        return range(written_down[0] - BLOCK_SIZE, written_down[0])

    assert ProducerIds(take_block).next() == 0
    assert ProducerIds(take_block).next() == 1000
