"""Any history, cleaned at any time: what a read_committed reader holds of each key never changes, except that
tombstones expire."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import event, given
from hypothesis import strategies as st

from oncelog.partition.cleaner import CleanerOptions
from oncelog.partition.partition import Isolation
from oncelog.segment.segment import SegmentOptions

from .histories import History

RETENTION_MS = 1000
TRANSACTIONAL = (1, 2, 3)
IDEMPOTENT = (11, 12)
KEYS = (b"a", b"b", b"c", b"d", b"e", b"f", b"\x00\x00\x00\x00", None)

pairs = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from([b"v", b"w" * 40, None])),
    min_size=1,
    max_size=4,
)
codecs = st.sampled_from(["none", "none", "zstd"])


class Step(NamedTuple):
    kind: str
    producer: int
    records: list[tuple[bytes | None, bytes | None]]
    codec: str
    number: int


def step(
    kind: str,
    producers: tuple[int, ...] = (-1,),
    records: st.SearchStrategy[list[tuple[bytes | None, bytes | None]]] | None = None,
    number: st.SearchStrategy[int] | None = None,
) -> st.SearchStrategy[Step]:
    return st.builds(
        Step,
        st.just(kind),
        st.sampled_from(producers),
        st.just([]) if records is None else records,
        st.just("none") if records is None else codecs,
        st.just(0) if number is None else number,
    )


steps = st.lists(
    st.one_of(
        step("put", (-1, *IDEMPOTENT), pairs),
        step("txn", TRANSACTIONAL, pairs),
        step("whole", TRANSACTIONAL, pairs, st.integers(0, 1)),
        step("commit", TRANSACTIONAL),
        step("abort", TRANSACTIONAL),
        step("roll"),
        step("wait", number=st.integers(1, 1500)),
        step("expire", (*TRANSACTIONAL, *IDEMPOTENT)),
        step("clean", number=st.integers(0, 3)),
        step("clean", number=st.integers(0, 3)),
        step("reopen", number=st.integers(0, 2)),
    ),
    min_size=15,
    max_size=40,
)


class Model:
    """What was written, who ended how, and when each offset was first cleaned."""

    def __init__(self) -> None:
        self.written: dict[int, tuple[bytes | None, bytes | None, int]] = {}
        self.open: dict[int, list[int]] = {}
        self.aborted: set[int] = set()
        self.cleaned_ms: dict[int, int] = {}

    def put(self, history: History, step: Step, *, transactional: bool) -> None:
        base = history.put(
            *step.records,
            producer=step.producer,
            transactional=transactional,
            compression=step.codec,
        )
        for index, (key, value) in enumerate(step.records):
            self.written[base + index] = (key, value, history.now_ms + index)
        if transactional:
            self.open.setdefault(step.producer, []).extend(range(base, base + len(step.records)))

    def end(self, producer: int, *, commit: bool) -> None:
        offsets = self.open.pop(producer, [])
        if not commit:
            self.aborted.update(offsets)

    def last_committed(self, below: int) -> dict[bytes, int]:
        """The offset of the newest committed record of each key."""
        return {
            key: offset
            for offset, (key, _, _) in sorted(self.written.items())
            if key is not None and offset < below and offset not in self.aborted
        }


def check(history: History, model: Model) -> None:
    stable = history.partition.last_stable_offset
    committed = history.seen()
    everything = history.seen(Isolation.READ_UNCOMMITTED)
    for record in everything:
        assert model.written[record.offset] == (record.key, record.value, record.timestamp)
    visible = {record.offset for record in committed}
    assert model.aborted.isdisjoint(visible), "an aborted record shows"
    assert all(offset < stable for offset in visible)
    untouched = min(stable, history.partition.log.active.base_offset)
    assert {record.offset for record in everything if record.offset >= untouched} == {
        offset for offset in model.written if offset >= untouched
    }
    for offset in model.last_committed(stable).values():
        if model.written[offset][1] is not None:
            assert offset in visible, "the newest value of a key is gone"
        elif offset not in visible:
            assert history.now_ms >= model.cleaned_ms[offset] + RETENTION_MS, (
                "a tombstone went early"
            )
    last = {record.key: record.offset for record in committed if record.key is not None}
    for key, offset in model.last_committed(stable).items():
        assert last.get(key, offset) == offset, "an older value of a key came back"


def producers_of(history: History) -> dict[int, tuple[int, ...]]:
    fields = ("producer_epoch", "last_sequence", "last_offset", "offset_delta")
    return {
        int(row["producer_id"]): (
            *(int(row[field]) for field in fields),
            int(row["current_txn_first_offset"]),
        )
        for row in history.partition.need_state().table.snapshot()
    }


def clean(history: History, model: Model, choice: int) -> None:
    """All of it, without a roll, up to some offset, or with a map that is too small for all keys."""
    producers, end = producers_of(history), history.partition.log_end_offset
    options = CleanerOptions(dedupe_buffer_size=24 * 5) if choice == 3 else None
    limit = end // 2 if choice == 2 else 2**63 - 1
    if choice != 1:
        history.roll()
    # A limit inside a batch is none that the schedule would give: take the next segment's start.
    limit = min([base for base in bases(history) if base >= limit], default=2**63 - 1)
    done = history.clean(
        delete_retention_ms=RETENTION_MS,
        end=limit,
        options=options,
        roll=False,
    )
    event(f"cleaned {min(done.segments_before, 3)} or more segments")
    for offset in model.written:
        if offset < done.end_offset:
            model.cleaned_ms.setdefault(offset, history.now_ms)
    assert producers_of(history) == producers
    assert history.partition.log_end_offset == end


def bases(history: History) -> list[int]:
    return [segment.base_offset for segment in history.partition.log.segments]


def reopen(history: History, choice: int) -> None:
    """After a clean stop, from the logs alone, or by recovery of everything."""
    producers, end = producers_of(history), history.partition.log_end_offset
    history.partition.close()
    if choice == 1:
        for path in history.path.glob("*.snapshot"):
            path.unlink()
    history.open(is_clean=choice != 2)
    found = producers_of(history)
    assert {key: found[key] for key in producers} == producers
    for expired in found.keys() - producers.keys():  # the log still speaks of them
        history.partition.need_state().table.remove(expired)
    assert history.partition.log_end_offset == end
    assert history.partition.damage == []


@given(steps, st.sampled_from([1 << 20, 600]), st.booleans())
def test_cleaning_never_changes_what_a_read_committed_reader_holds(
    plan: list[Step], segment_bytes: int, bump: bool
) -> None:
    """Goal: offsets, timestamps and the newest value of each key stay, nothing aborted ever shows, nothing undecided is
    touched, producers are known as before, also after reopening from the log alone.
    Method: histories of plain, idempotent and transactional batches under both transaction versions, cleaned at
    random points with a clock that moves by hand, against a model that only remembers."""
    with tempfile.TemporaryDirectory() as folder:
        segment = SegmentOptions(segment_bytes=segment_bytes, index_interval_bytes=64)
        history = History(Path(folder) / "compact-0", segment=segment)
        model = Model()
        current: dict[
            int, int
        ] = {}  # an id that expired does not come back: the next one follows it
        for planned in plan:
            step = planned._replace(producer=current.get(planned.producer, planned.producer))
            match step.kind:
                case "put":
                    model.put(history, step, transactional=False)
                case "txn":
                    model.put(history, step, transactional=True)
                case "whole" | "commit" | "abort":
                    if step.kind == "whole":
                        model.put(history, step, transactional=True)
                    is_commit = step.kind == "commit" or step.number == 1
                    history.end(step.producer, commit=is_commit, bump=bump)
                    model.end(step.producer, commit=is_commit)
                case "roll":
                    history.roll()
                case "wait":
                    history.now_ms += step.number
                case "expire":
                    if step.producer not in model.open:
                        history.partition.need_state().table.remove(step.producer)
                        current[planned.producer] = step.producer + 100
                case "clean":
                    clean(history, model, step.number)
                    check(history, model)
                case "reopen":
                    reopen(history, step.number)
        clean(history, model, 0)
        check(history, model)
        reopen(history, 1)
        check(history, model)
        history.partition.close()
