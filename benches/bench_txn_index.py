"""How fast are the aborted transactions of a fetch found?
Times    collect_aborted_txns with 10 hits among 1,000,000 entries; "short": transactions that end soon after they
         began; "long": one transaction, aborted last, was open all the time, so the last stable offset says nothing.
Excludes mapping and summing up the file, which happens once.
Anchor   Kafka's way, entry after entry, as a linear scan in C; and ours with 1,000 entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from oncelog._native.txn_index import ENTRY_DTYPE, TxnIndex

from . import floor
from .harness import Case, Contestant, Role, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from .harness import Settings

MANY: Final = 1_000_000
FEW: Final = 1_000
HITS: Final = 10
STEP: Final = 100  # offsets from one marker to the next
SMALL: Final = "with 1,000 entries"


def entries_of(count: int, *, one_is_long: bool) -> bytes:
    """Transactions one after another, each over most of the offsets up to its marker."""
    rows = np.zeros(count, ENTRY_DTYPE)
    numbers = np.arange(1, count + 1)
    rows["producer_id"] = numbers % 97
    rows["first_offset"] = numbers * STEP - STEP + 1
    rows["last_offset"] = numbers * STEP
    rows["last_stable_offset"] = rows["last_offset"] + 1
    if one_is_long:
        rows["first_offset"][-1] = 0
        rows["last_stable_offset"][:-1] = 0
    return rows.tobytes()


def cases(settings: Settings) -> Iterator[Case]:
    few, many = (FEW // 5, FEW) if settings.quick else (FEW, MANY)
    for kind in ("short", "long"):
        one_is_long = kind == "long"
        near = HITS - one_is_long  # the long one is a hit wherever one looks
        indexes = []
        for count in (many, few):
            data = entries_of(count, one_is_long=one_is_long)
            fetch_offset = count * 9 // 10 * STEP + 1  # most readers are near the end
            indexes.append(
                (TxnIndex(data), fetch_offset, fetch_offset + near * STEP - STEP // 2, data)
            )
        (index, fetch, upper, data), (small, small_fetch, small_upper, _) = indexes
        found = small.collect_aborted_txns(small_fetch, small_upper)[1]
        assert len(found) == HITS
        names = {"collect": index.collect_aborted_txns, "fetch": fetch, "upper": upper}
        few_names = {
            "collect": small.collect_aborted_txns, "fetch": small_fetch, "upper": small_upper,
        }  # fmt: skip
        call = "collect(fetch, upper)"
        yield Case(
            f"txn_index.{kind}",
            f"collect {HITS} of {many:,} aborted transactions, {kind}",
            Unit.NS_PER_CALL,
            1,
            [
                Contestant(
                    "oncelog", Role.OURS, call, names,
                    reveal=lambda index=index, fetch=fetch, upper=upper: (  # type: ignore[misc]
                        index.collect_aborted_txns(fetch, upper)[1].tolist()
                    ),
                ),
                floor.linear_scan(data, fetch, upper, settings),
                Contestant(SMALL, Role.LIMIT, call, few_names),
            ],
        )  # fmt: skip


def test_txn_index(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
