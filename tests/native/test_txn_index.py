"""Lookups in a transaction index are those of Kafka's linear scan, whatever the order of first offsets."""

from __future__ import annotations

import random
import struct
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._native.txn_index import ENTRY_DTYPE, TxnIndex
from oncelog.base.errors import CorruptRecordError, TruncatedBatchError

ENTRY = struct.Struct(">hqqqq")
FAN = 16


class Txn(NamedTuple):
    """One aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode(txns: list[Txn]) -> bytes:
    return b"".join(ENTRY.pack(0, *txn) for txn in txns)


def linear(txns: list[Txn], fetch_offset: int, upper_bound: int) -> tuple[list[int], bool]:
    """Kafka's rule, entry by entry: (which ones, is complete)."""
    found = []
    for number, txn in enumerate(txns):
        if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound:
            found.append(number)
        if txn.last_stable_offset >= upper_bound:
            return found, True
    return found, False


def require_lookup(index: TxnIndex, txns: list[Txn], fetch_offset: int, upper_bound: int) -> None:
    rows, numbers, is_complete = index.collect_aborted_txns(fetch_offset, upper_bound)
    assert (numbers.tolist(), is_complete) == linear(txns, fetch_offset, upper_bound)
    assert [Txn(*row.tolist()) for row in rows] == [txns[number] for number in numbers]


@st.composite
def histories(draw: st.DrawFn, max_size: int = 60) -> list[Txn]:
    """Aborts in the order of their markers; first offsets lie anywhere before. The stable offset may stand still, and
    never passes the beginning of a transaction that ends later."""
    spans: list[tuple[int, int]] = []
    last = 0
    for _ in range(draw(st.integers(0, max_size))):
        last += draw(st.integers(1, 4))
        first = draw(
            st.one_of(st.integers(last // 2, last - 1), st.just(last - 1), st.integers(0, last))
        )
        spans.append((first, last))
        last += draw(st.integers(0, 3))
    txns = []
    stable = 0
    for number, (first, last) in enumerate(spans):
        highest = min([last + 1, *(later for later, _ in spans[number + 1 :])])
        stable = draw(st.sampled_from([stable, highest, (stable + highest) // 2]))
        txns.append(Txn(draw(st.integers(0, 3)), first, last, stable))
    return txns


def any_history(seed: int, count: int, long_open: bool = False) -> list[Txn]:
    """A large one: most are short, some long; with ``long_open`` one that is never listed holds the stable offset."""
    source = random.Random(seed)
    txns = []
    for number in range(count):
        last = 10 * number + 9
        first = last - source.randint(1, 8 if source.random() < 0.9 else 400)
        txns.append(Txn(number % 97, max(first, 3), last, 3))
    begins_later = 10 * count
    for number in [] if long_open else reversed(range(count)):
        txn = txns[number]
        txns[number] = txn._replace(last_stable_offset=min(begins_later, txn.last_offset + 1))
        begins_later = min(begins_later, txn.first_offset)
    return txns


def any_small(source: random.Random) -> list[Txn]:
    """Few entries; the stable offset anywhere that it may be."""
    lasts = sorted(source.sample(range(1, 50), source.choice([0, 1, 2, 5, 17, 18])))
    firsts = [source.randint(0, last) for last in lasts]
    txns = []
    stable = 0
    for number, last in enumerate(lasts):
        stable = source.choice(
            [stable, source.randint(stable, min([last + 1, *firsts[number + 1 :]]))]
        )
        txns.append(Txn(source.randint(0, 2), firsts[number], last, stable))
    return txns


@given(histories(), st.data())
def test_a_lookup_finds_what_a_linear_scan_finds(txns: list[Txn], data: st.DataObject) -> None:
    """Goal: the tree of minima leaves nothing out and adds nothing.
    Method: random histories, many ranges each, against Kafka's rule."""
    index = TxnIndex(encode(txns))
    end = txns[-1].last_offset + 3 if txns else 3
    for _ in range(20):
        fetch_offset = data.draw(st.integers(0, end))
        upper_bound = data.draw(st.integers(0, end + 2))
        require_lookup(index, txns, fetch_offset, upper_bound)


@pytest.mark.parametrize("seed", range(12))
def test_every_range_of_a_small_index_is_answered_right(seed: int) -> None:
    """Goal: no corner is missed. Method: all pairs of fetch offset and upper bound, also reversed and outside."""
    source = random.Random(seed)
    txns = any_small(source)
    last = txns[-1].last_offset if txns else 0
    index = TxnIndex(encode(txns))
    for fetch_offset in range(-1, last + 3):
        for upper_bound in range(-1, last + 3):
            require_lookup(index, txns, fetch_offset, upper_bound)


@pytest.mark.parametrize("long_open", [False, True])
@pytest.mark.parametrize("power", [1, 2, 3])
def test_sizes_around_the_edges_of_blocks_lose_no_entry(power: int, long_open: bool) -> None:
    """Goal: the first and last entry of a block, and of a block of blocks, are found.
    Method: sizes one off each power of the fan-out; ranges around every edge and random ones."""
    source = random.Random(power)
    for count in (FAN**power - 1, FAN**power, FAN**power + 1, FAN**power + FAN):
        txns = any_history(count, count, long_open)
        index = TxnIndex(encode(txns))
        edges = {0, 1, 15, 16, 17, 255, 256, 257, count - 2, count - 1, count}
        ranges = [
            (10 * edge + shift, 10 * edge + shift + width)
            for edge in edges
            for shift in (-10, -1, 0, 1)
            for width in (0, 1, 12, 200)
        ]
        ranges += [
            (source.randint(0, 10 * count), source.randint(0, 10 * count)) for _ in range(20)
        ]
        for fetch_offset, upper_bound in ranges:
            require_lookup(index, txns, fetch_offset, upper_bound)


@given(histories(max_size=80), st.lists(st.integers(0, 80), max_size=6))
def test_growing_in_steps_gives_the_index_of_all_at_once(txns: list[Txn], steps: list[int]) -> None:
    """Goal: an index that was extended with each abort answers as one that was loaded whole."""
    data = encode(txns)
    index = TxnIndex()
    for size in [*sorted(min(step, len(txns)) for step in steps), len(txns)]:
        index.extend(data[: size * ENTRY.size])
        assert len(index) == size
        known = txns[:size]
        for fetch_offset, upper_bound in ((0, 2**62), (5, 9), (0, 1)):
            require_lookup(index, known, fetch_offset, upper_bound)
    whole = TxnIndex(data)
    end = txns[-1].last_offset + 2 if txns else 2
    for upper_bound in range(0, end, max(1, end // 25)):
        for fetch_offset in range(0, end, max(1, end // 25)):
            found, expected = (
                each.collect_aborted_txns(fetch_offset, upper_bound) for each in (index, whole)
            )
            assert found[0].tolist() == expected[0].tolist()
            assert found[1].tolist() == expected[1].tolist()
            assert found[2] == expected[2]


@pytest.mark.parametrize("count", [63, 64, 65, 127, 128, 129, 1000])
def test_more_hits_than_fit_the_stack_are_all_returned(count: int) -> None:
    """Goal: hits are found 64 at a time; none is lost or repeated between two such steps."""
    txns = [Txn(7, number, 2 * number + 1, 0) for number in range(count)]
    require_lookup(TxnIndex(encode(txns)), txns, 0, 2**62)
    require_lookup(TxnIndex(encode(txns)), txns, 1, count // 2)


def test_every_field_stands_in_its_place() -> None:
    """Goal: 34 big-endian bytes; each field has a wide value of its own."""
    txn = Txn(0x0102030405060708, 0x1112131415161718, 0x3132333435363738, 0x2122232425262728)
    data = bytes(2) + bytes(byte + 16 * field for field in (0, 1, 3, 2) for byte in range(1, 9))
    assert data == encode([txn])
    index = TxnIndex(data, 5, "a.txnindex")
    assert (len(index), index.base_offset, index.file) == (1, 5, "a.txnindex")
    rows, numbers, is_complete = index.collect_aborted_txns(0, 2**63 - 1)
    assert Txn(*rows[0].tolist()) == txn
    assert (numbers.tolist(), is_complete) == ([0], False)
    assert index.entries()[0].tolist() == (0, *txn)
    assert ENTRY_DTYPE.itemsize == ENTRY.size == 34


# ---------------------------------------------------------------- what cannot be believed

SOUND = [Txn(4, 100, 110, 105), Txn(5, 105, 120, 115), Txn(4, 115, 130, 131)]


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (ENTRY.pack(1, *SOUND[1]), "unknown version"),
        (ENTRY.pack(-1, *SOUND[1]), "unknown version"),
        (ENTRY.pack(256, *SOUND[1]), "unknown version"),  # two bytes, not one
        (ENTRY.pack(0, -1, 105, 120, 121), "negative producer id"),
        (ENTRY.pack(0, 5, -1, 120, 121), "ends before it begins"),
        (ENTRY.pack(0, 5, 121, 120, 121), "ends before it begins"),
        (ENTRY.pack(0, 5, 105, 110, 121), "do not rise"),
        (ENTRY.pack(0, 5, 105, 109, 121), "do not rise"),
        (bytes(34), "do not rise"),
        (ENTRY.pack(0, 5, 112, 120, 104), "stable offset falls"),
        (ENTRY.pack(0, 5, 104, 120, 121), "begins below an earlier"),
        (ENTRY.pack(0, 5, 105, 120, 122), "past the transaction's end"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_entry_that_breaks_an_invariant_is_named_with_its_place(entry: bytes, what: str) -> None:
    """Goal: nothing is guessed; the error says which file and where, so that the log can be asked instead."""
    data = encode(SOUND[:1]) + entry + encode(SOUND[2:])
    with pytest.raises(CorruptRecordError, match=what) as caught:
        TxnIndex(data, 100, "00.txnindex")
    assert (caught.value.file, caught.value.position) == ("00.txnindex", 34)


def test_an_entry_that_ends_below_the_segment_is_refused() -> None:
    """Goal: the marker lies in the segment, so no last offset is below its base; first offsets may be."""
    assert len(TxnIndex(encode(SOUND), 110)) == 3
    with pytest.raises(CorruptRecordError, match="from the segment's base") as caught:
        TxnIndex(encode(SOUND), 111, "f")
    assert caught.value.position == 0


def test_every_cut_inside_an_entry_is_found() -> None:
    """Goal: a torn write is seen for every size; a cut between entries is a shorter index."""
    data = encode(SOUND)
    for size in range(len(data) + 1):
        if size % 34 == 0:
            assert len(TxnIndex(data[:size])) == size // 34
            continue
        with pytest.raises(TruncatedBatchError) as caught:
            TxnIndex(data[:size], 0, "cut")
        assert (caught.value.file, caught.value.position) == ("cut", size // 34 * 34)


def test_a_bad_extension_leaves_the_index_as_it_was() -> None:
    """Goal: after an error the known entries still answer, and a good extension is taken."""
    index = TxnIndex(encode(SOUND[:2]))
    with pytest.raises(CorruptRecordError):
        index.extend(encode(SOUND[:2]) + ENTRY.pack(0, 4, 115, 120, 131))
    require_lookup(index, SOUND[:2], 0, 1000)
    with pytest.raises(ValueError, match="shorter than what is known"):
        index.extend(encode(SOUND[:1]))
    require_lookup(index, SOUND[:2], 0, 1000)
    index.extend(encode(SOUND))
    require_lookup(index, SOUND, 0, 1000)


def test_results_outlive_the_index_and_its_mapping() -> None:
    """Goal: rows are copies; entries() holds the buffer it lies over."""
    index = TxnIndex(bytearray(encode(SOUND)))
    rows, numbers, _ = index.collect_aborted_txns(0, 1000)
    entries = index.entries()
    del index
    assert [Txn(*row.tolist()) for row in rows] == SOUND
    assert numbers.tolist() == [0, 1, 2]
    assert entries["last_offset"].tolist() == [110, 120, 130]
    assert rows.flags.owndata
    assert not np.shares_memory(rows, entries)


# ---------------------------------------------------------------- cost and threads


@pytest.mark.parametrize("long_open", [False, True])
def test_a_lookup_in_a_thousand_times_more_entries_is_not_slower(long_open: bool) -> None:
    """Goal: logarithmic in the entries, also while one long transaction holds the stable offset, and when the only
    early first offset lies at the very end. The benchmark has the exact ratio; this catches a scan.
    Method: the best of several runs at 1,000 and 1,000,000 entries, ten hits each."""
    best = {}
    for count in (1_000, 1_000_000):
        numbers = np.arange(count, dtype=np.int64)
        entries = np.zeros(count, ENTRY_DTYPE)
        entries["producer_id"] = numbers % 97
        entries["first_offset"] = 10 * numbers + 1
        entries["last_offset"] = 10 * numbers + 9
        entries["last_stable_offset"] = 0 if long_open else 10 * numbers + 10
        if long_open:
            entries[-1]["first_offset"] = 0  # the long one, aborted last
        index = TxnIndex(entries.tobytes())
        middle = 10 * (count // 2)
        hits = 10 + (1 if long_open else 0)
        assert len(index.collect_aborted_txns(middle + 5, middle + 100)[0]) == hits
        runs = []
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(50):
                index.collect_aborted_txns(middle + 5, middle + 100)
            runs.append(time.perf_counter() - start)
        best[count] = min(runs)
    assert best[1_000_000] < 20 * best[1_000]


def test_lookups_go_on_while_another_thread_extends() -> None:
    """Goal: a reader never sees half an extension, nor memory that the writer has given back.
    Method: one thread appends entry by entry, two others look up all the time; answers only ever grow."""
    txns = any_history(1, 4000, long_open=True)
    data = encode(txns)
    index = TxnIndex()
    is_done = threading.Event()
    errors: list[BaseException] = []

    def look() -> None:
        seen = 0
        try:
            while not is_done.is_set():
                rows, numbers, _ = index.collect_aborted_txns(0, 2**62)
                assert numbers.tolist() == list(range(len(rows)))
                assert len(rows) >= seen
                if len(rows):
                    assert Txn(*rows[-1].tolist()) == txns[len(rows) - 1]
                seen = len(rows)
        except BaseException as error:  # noqa: BLE001 (told to the main thread)
            errors.append(error)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for size in range(1, len(txns) + 1, 7):
            index.extend(data[: size * ENTRY.size])
    finally:
        is_done.set()
        for reader in readers:
            reader.join()
    assert not errors
