"""How long does it take to judge a producer's batch?
Times    ProducerTable.check for each of 100,000 known producers, in random order: accept, duplicate.
Excludes learning of the producers.
Anchor   a lookup of the same keys in a Python dict is the limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from oncelog._native.sequence import ProducerTable
from oncelog.base.rows import PRODUCER_DTYPE

from .harness import FIRST_TIMESTAMP_MS, Case, Contestant, Role, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from .harness import Settings

PRODUCERS: Final = 100_000
DICT: Final = "dict lookup"


def table_of(ids: list[int]) -> ProducerTable:
    rows = np.zeros(len(ids), PRODUCER_DTYPE)
    rows["producer_id"] = ids
    rows["last_sequence"] = 9
    rows["last_offset"] = np.arange(len(ids)) * 10 + 9
    rows["offset_delta"] = 9
    rows["timestamp"] = FIRST_TIMESTAMP_MS
    rows["coordinator_epoch"] = -1
    rows["current_txn_first_offset"] = -1
    table = ProducerTable()
    table.load(rows)
    return table


def cases(settings: Settings) -> Iterator[Case]:
    count = 100 if settings.quick else PRODUCERS
    rng = np.random.default_rng(settings.seed)
    ids = rng.choice(10 * count, count, replace=False).tolist()
    table = table_of(ids)
    asked = rng.permutation(ids).tolist()
    known = dict.fromkeys(ids, (0, 9))
    for kind, sequence in (("next", 10), ("duplicate", 0)):

        def judge(sequence: int = sequence) -> None:
            check = table.check
            for producer in asked:
                check(producer, 0, sequence, 10)

        def reveal(sequence: int = sequence) -> int:
            return sum(table.check(producer, 0, sequence, 10) for producer in asked)

        def look_up() -> None:
            for producer in asked:
                known[producer]

        yield Case(
            f"sequence.{kind}",
            f"check the {kind} batch, {count:,} producers",
            Unit.NS_PER_RECORD,
            count,
            [
                Contestant("oncelog", Role.OURS, judge, reveal=reveal),
                Contestant(DICT, Role.LIMIT, look_up),
            ],
        )


def test_sequence(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
