"""A read_committed reader sees what was committed, wherever it starts and however its list is ordered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native.abort_filter import visible_batches
from oncelog.base.rows import ABORTED_DTYPE, HEADER_DTYPE
from oncelog.segment.batch import Attributes, ControlType

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRANSACTIONAL = int(Attributes.TRANSACTIONAL)
CONTROL = int(Attributes.CONTROL)


class Batch(NamedTuple):
    """A batch as the filter sees it, and whether it survives."""

    producer_id: int
    base_offset: int
    span: int = 1  # offsets it takes
    attributes: int = 0
    control_type: int = -1
    is_committed: bool = True


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int = -1


def data(producer_id: int, base_offset: int, count: int = 1, *, is_committed: bool = True) -> Batch:
    return Batch(producer_id, base_offset, count, TRANSACTIONAL, -1, is_committed)


def plain(producer_id: int, base_offset: int, count: int = 1) -> Batch:
    return Batch(producer_id, base_offset, count)


def marker(producer_id: int, base_offset: int, kind: ControlType) -> Batch:
    return Batch(producer_id, base_offset, 1, TRANSACTIONAL | CONTROL, int(kind), False)


def abort(producer_id: int, base_offset: int) -> Batch:
    return marker(producer_id, base_offset, ControlType.ABORT)


def commit(producer_id: int, base_offset: int) -> Batch:
    return marker(producer_id, base_offset, ControlType.COMMIT)


def rows_of(batches: list[Batch]) -> NDArray[np.void]:
    rows = np.zeros(len(batches), HEADER_DTYPE)
    for row, batch in zip(rows, batches, strict=True):
        row["producer_id"] = batch.producer_id
        row["base_offset"] = batch.base_offset
        row["last_offset_delta"] = batch.span - 1
        row["attributes"] = batch.attributes
        row["control_type"] = batch.control_type
    return rows


def visible(batches: list[Batch], aborted: list[Aborted]) -> list[bool]:
    listed = np.array([(*entry, -1) for entry in aborted], ABORTED_DTYPE)
    found = visible_batches(rows_of(batches), listed)
    assert found.dtype == np.bool_
    return [bool(value) for value in found]


def consumer(batches: list[Batch], aborted: list[Aborted]) -> list[bool]:
    """Kafka's consumer, which knows first offsets only: a queue by first offset, a set of aborted producers."""
    queue = sorted(aborted, key=lambda entry: entry.first_offset)
    producers: set[int] = set()
    result = []
    for batch in batches:
        while queue and queue[0].first_offset <= batch.base_offset + batch.span - 1:
            producers.add(queue.pop(0).producer_id)
        if batch.attributes & CONTROL:
            if batch.control_type == ControlType.ABORT:
                producers.discard(batch.producer_id)
            result.append(False)
        else:
            is_hidden = batch.attributes & TRANSACTIONAL and batch.producer_id in producers
            result.append(not is_hidden)
    return result


# ---------------------------------------------------------------- whole histories


@dataclass
class History:
    """Batches in offset order, and the transactions among them that were aborted."""

    batches: list[Batch] = field(default_factory=list)
    aborted: list[Aborted] = field(default_factory=list)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Interleaved producers: transactions of several batches, markers without data, plain batches of the same ids
    in the middle of them, transactions still open at the end."""
    history = History()
    open_txns: dict[int, tuple[int, bool]] = {}  # producer -> first offset, will it abort
    offset = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 40))):
        producer = draw(st.integers(0, 3))
        step = draw(st.sampled_from(["data", "data", "end", "plain", "gap", "none"]))
        count = draw(st.integers(1, 3))
        if step == "data":
            first, aborts = open_txns.setdefault(producer, (offset, draw(st.booleans())))
            history.batches.append(data(producer, offset, count, is_committed=not aborts))
            offset += count
        elif step == "end":
            first, aborts = open_txns.pop(producer, (-1, draw(st.booleans())))
            history.batches.append(abort(producer, offset) if aborts else commit(producer, offset))
            if aborts and first >= 0:
                history.aborted.append(Aborted(producer, first, offset))
            offset += 1
        elif step == "plain":
            history.batches.append(plain(producer, offset, count))
            offset += count
        elif step == "none":
            history.batches.append(plain(-1, offset, count))
            offset += count
        else:
            offset += draw(st.integers(1, 3))  # compaction took something away
    # What is still open has no say yet: the reader is kept below it by the last stable offset.
    stable = min((first for first, _ in open_txns.values()), default=offset)
    history.batches = [batch for batch in history.batches if batch.base_offset < stable]
    return history


@given(histories(), st.data())
def test_what_stays_visible_is_what_was_committed(history: History, draws: st.DataObject) -> None:
    """Goal: truth, not an algorithm: a batch is hidden exactly if its transaction was aborted.
    Method: any window of a history, as if the reader began and ended in the middle; the list in any order, with the
    last offsets of the index or without them, as on the wire."""
    batches = history.batches
    start = draws.draw(st.integers(0, len(batches)))
    stop = draws.draw(st.integers(start, len(batches)))
    window = batches[start:stop]
    expected = [batch.is_committed for batch in window]
    if not window:
        return
    first, last = window[0].base_offset, window[-1].base_offset + window[-1].span
    listed = [
        entry
        for entry in history.aborted
        if entry.last_offset >= first and entry.first_offset < last
    ]
    listed = draws.draw(st.permutations(listed))
    assert visible(window, listed) == expected
    assert visible(window, [entry._replace(last_offset=-1) for entry in listed]) == expected
    # The broker's list may name more than the bytes need.
    assert visible(window, draws.draw(st.permutations(history.aborted))) == expected


@given(histories(), st.data())
def test_missing_markers_hide_no_committed_batch_where_last_offsets_are_known(
    history: History, draws: st.DataObject
) -> None:
    """Goal: segments with markers were deleted, or compaction took them: the index still says where each one ended.
    Method: any of the markers are left out."""
    kept = [
        batch
        for batch in history.batches
        if not batch.attributes & CONTROL or draws.draw(st.booleans())
    ]
    assert visible(kept, history.aborted) == [batch.is_committed for batch in kept]


@given(histories())
def test_a_reader_of_the_wire_list_agrees_with_kafkas_consumer(history: History) -> None:
    listed = [entry._replace(last_offset=-1) for entry in history.aborted]
    assert visible(history.batches, listed) == consumer(history.batches, listed)


batches_of_any_kind = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(0, 2), st.integers(1, 3), st.integers(0, 5)),
    max_size=30,
)


@given(
    batches_of_any_kind,
    st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 90)), max_size=10),
)
def test_even_for_senseless_lists_it_does_what_the_consumer_does(
    steps: list[tuple[int, int, int, int]], entries: list[tuple[int, int]]
) -> None:
    """Goal: no list crashes or confuses it: repeated entries, unknown producers, transactions that never happened.
    Method: random batches and lists against the consumer's algorithm."""
    batches = []
    offset = 0
    for producer, gap, count, kind in steps:
        offset += gap
        if kind == 0:
            batches.append(abort(producer, offset))
        elif kind == 1:
            batches.append(commit(producer, offset))
        elif kind == 2:
            batches.append(marker(producer, offset, ControlType.LEADER_CHANGE))
        else:
            batches.append((plain if kind == 3 else data)(producer, offset, count))
        offset += batches[-1].span
    aborted = [Aborted(producer, first) for producer, first in entries]
    assert visible(batches, aborted) == consumer(batches, aborted)


# ---------------------------------------------------------------- named cases


def test_interleaved_producers_are_told_apart() -> None:
    """Goal: one producer's abort hides nothing of another's, nor its own transaction after it."""
    batches = [
        data(1, 0),
        data(2, 1),
        abort(1, 2),
        data(1, 3),
        data(2, 4),
        commit(2, 5),
        commit(1, 6),
    ]
    assert visible(batches, [Aborted(1, 0, 2)]) == [False, True, False, True, True, False, False]


def test_several_aborts_of_one_producer_end_one_after_another() -> None:
    batches = [
        data(1, 0),
        abort(1, 1),
        data(1, 2),
        commit(1, 3),
        data(1, 4),
        abort(1, 5),
        data(1, 6),
    ]
    for listed in ([Aborted(1, 0, 1), Aborted(1, 4, 5)], [Aborted(1, 4), Aborted(1, 0)]):
        assert visible(batches, listed) == [False, False, True, False, False, False, True]


def test_a_plain_batch_of_an_aborting_producer_stays_visible() -> None:
    """Goal: only transactional batches are filtered, also inside the range of their producer's transaction."""
    batches = [data(1, 0), plain(1, 1), data(1, 2), abort(1, 3)]
    assert visible(batches, [Aborted(1, 0, 3)]) == [False, True, False, False]


def test_a_marker_without_data_changes_nothing() -> None:
    """Goal: an ABORT that ends no listed transaction is a control batch like any other: hidden, without effect."""
    batches = [abort(1, 0), data(1, 1), commit(1, 2), abort(2, 3), data(3, 4)]
    assert visible(batches, []) == [False, True, False, False, True]


def test_a_reader_that_starts_inside_a_transaction_hides_the_rest_of_it() -> None:
    batches = [data(1, 5), data(2, 6), abort(1, 7), data(1, 8)]
    assert visible(batches, [Aborted(1, 0, 7)]) == [False, True, False, True]


def test_a_transaction_without_its_marker_ends_at_its_last_offset() -> None:
    """Goal: with the index's last offset a later transaction is seen; without it (on the wire) only the marker could
    tell, and like Kafka's consumer the reader goes on hiding."""
    batches = [data(1, 0), data(1, 5), commit(1, 6)]
    assert visible(batches, [Aborted(1, 0, 3)]) == [False, True, False]
    assert visible(batches, [Aborted(1, 0)]) == [False, False, False]
    assert consumer(batches, [Aborted(1, 0)]) == [False, False, False]


def test_a_transaction_that_begins_inside_a_batch_of_another_is_taken_up_in_time() -> None:
    """Goal: a batch that spans many offsets takes up every transaction that begins below its end."""
    batches = [data(1, 0, 10), data(2, 10), abort(2, 11), commit(1, 12)]
    assert visible(batches, [Aborted(2, 10, 11)]) == [True, False, False, False]
    assert visible([data(1, 0, 10), abort(1, 10)], [Aborted(1, 9, 10)]) == [False, False]


def test_control_batches_are_never_visible() -> None:
    """Goal: also those that are no markers, and those whose record cannot be read."""
    batches = [marker(1, 0, ControlType.LEADER_CHANGE), Batch(1, 1, 1, CONTROL, -2), commit(1, 2)]
    assert visible(batches, []) == [False, False, False]


def test_nothing_in_nothing_out() -> None:
    assert visible([], []) == []
    assert visible([], [Aborted(1, 0, 3)]) == []
    assert visible([data(1, 0)], []) == [True]


def test_a_hundred_thousand_aborted_producers_are_kept_apart() -> None:
    """Goal: the set grows with the list, ids that collide in it are told apart, and removal breaks no chain.
    Method: ids that are multiples of a large power of two, all open at once, ended in another order."""
    count = 100_000
    ids = [number << 20 for number in range(count)]
    batches = [data(producer, number) for number, producer in enumerate(ids)]
    batches += [abort(producer, count + number) for number, producer in enumerate(reversed(ids))]
    batches += [data(producer, 2 * count + number) for number, producer in enumerate(ids)]
    listed = [
        Aborted(producer, number, 2 * count - 1 - number) for number, producer in enumerate(ids)
    ]
    found = visible(batches, listed[::-1])
    assert found == [False] * (2 * count) + [True] * count


def test_offsets_at_the_end_of_their_range_do_not_wrap() -> None:
    """Goal: a header that lies about its offsets gives a wrong answer at worst.
    Method: base offsets whose batches would end past 2^63."""
    top = 2**63 - 1
    batches = [data(1, top - 1, 1), data(1, top, 2**31 - 1), abort(1, top)]
    assert len(visible(batches, [Aborted(1, top - 1, top), Aborted(-(2**63), 0)])) == 3


@pytest.mark.parametrize("swapped", [False, True])
def test_rows_of_another_type_are_refused(swapped: bool) -> None:
    rows, listed = np.zeros(1, HEADER_DTYPE), np.zeros(1, ABORTED_DTYPE)
    wrong = np.zeros(1, np.int64)
    with pytest.raises(TypeError, match="are needed"):
        visible_batches(*((wrong, listed) if swapped else (rows, wrong)))
