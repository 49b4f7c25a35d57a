"""Which batches may a read_committed reader see?
Times    one call over batch headers and the aborted transactions among them, to a mask; "scan": 100,000 headers of 50
         producers that take turns, a tenth of their transactions aborted; "fetch": the 64 headers of one fetch.
Excludes reading the headers (bench_scan), finding the aborted transactions (bench_txn_index).
Anchor   the same rule in plain Python, over headers that are Python numbers already; the plain C floor, which trusts its
         input, and a memcpy of the headers are the limits. Everything lies in the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from oncelog._native.abort_filter import visible_batches
from oncelog.base.rows import ABORTED_DTYPE, HEADER_DTYPE

from . import floor
from .harness import Case, Contestant, Role, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from pytest_benchmark.fixture import BenchmarkFixture

    from .harness import Settings

# name: headers, producers
SIZES: Final = {"scan": (100_000, 50), "fetch": (64, 4)}
BATCHES_PER_TRANSACTION: Final = 10
ABORT_EVERY: Final = 10
RECORDS: Final = 10  # of a batch
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
ABORT, COMMIT, NO_CONTROL = 0, 1, -1
PLAIN: Final = "plain Python rule"


def headers(count: int, producers: int) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """(headers in the order of offsets, aborted transactions): producers take turns, batch by batch."""
    rows = np.zeros(count, HEADER_DTYPE)
    numbers = np.arange(count)
    step = numbers // producers % (BATCHES_PER_TRANSACTION + 1)
    transaction = numbers // producers // (BATCHES_PER_TRANSACTION + 1) * producers
    transaction += numbers % producers
    is_marker = step == BATCHES_PER_TRANSACTION
    is_aborted = transaction % ABORT_EVERY == 0
    rows["base_offset"] = numbers * RECORDS
    rows["last_offset_delta"] = RECORDS - 1
    rows["producer_id"] = numbers % producers
    rows["attributes"] = np.where(is_marker, TRANSACTIONAL | CONTROL, TRANSACTIONAL)
    rows["control_type"] = np.where(is_marker, np.where(is_aborted, ABORT, COMMIT), NO_CONTROL)
    ends = rows[is_marker & is_aborted]
    aborted = np.zeros(len(ends), ABORTED_DTYPE)
    aborted["producer_id"] = ends["producer_id"]
    aborted["last_offset"] = ends["base_offset"] + RECORDS - 1
    aborted["first_offset"] = ends["base_offset"] - BATCHES_PER_TRANSACTION * producers * RECORDS
    return rows, aborted


def _plain(rows: NDArray[np.void], aborted: NDArray[np.void]) -> Callable[[], list[bool]]:
    """The consumer's rule as one writes it in Python: a queue, a set, and a look at every batch."""
    last_offsets = (rows["base_offset"] + rows["last_offset_delta"]).tolist()
    batches = list(
        zip(last_offsets, *(rows[name].tolist() for name in
            ("producer_id", "attributes", "control_type")), strict=True)
    )  # fmt: skip
    queue = sorted(
        zip(aborted["first_offset"].tolist(), aborted["producer_id"].tolist(), strict=True)
    )

    def call() -> list[bool]:
        following = iter([*queue, (1 << 62, -1)])
        first_offset, producer = next(following)
        hidden: set[int] = set()
        visible = []
        for last_offset, producer_id, attributes, control_type in batches:
            while first_offset <= last_offset:
                hidden.add(producer)
                first_offset, producer = next(following)
            if attributes & CONTROL:
                if control_type == ABORT:
                    hidden.discard(producer_id)
                visible.append(False)
            else:
                visible.append(not (attributes & TRANSACTIONAL and producer_id in hidden))
        return visible

    return call


def cases(settings: Settings) -> Iterator[Case]:
    for name, (count, producers) in SIZES.items():
        rows, aborted = headers(min(count, 200) if settings.quick else count, producers)
        plain = _plain(rows, aborted)
        names = {"visible": visible_batches, "rows": rows, "aborted": aborted}
        yield Case(
            f"abort_filter.{name}",
            f"filter {len(rows):,} batches, {len(aborted):,} transactions aborted",
            Unit.NS_PER_BATCH,
            len(rows),
            [
                Contestant(
                    "oncelog", Role.OURS, "visible(rows, aborted)", names,
                    reveal=lambda rows=rows, aborted=aborted: (  # type: ignore[misc]
                        visible_batches(rows, aborted).tolist()
                    ),
                ),
                Contestant(PLAIN, Role.PEER, plain, reveal=plain),
                floor.abort_filter(rows, aborted, settings),
                floor.memcpy(rows.nbytes, settings, loops=max(1, SIZES["scan"][0] // count)),
            ],
        )  # fmt: skip


def test_abort_filter(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
