"""A cleaned segment takes the place of others whole, or not at all, wherever a crash interrupts it."""

from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from oncelog.base.disk import Disk
from oncelog.base.errors import KafkaStorageError
from oncelog.log.log import Log, LogOptions
from oncelog.partition.cleaner import clean
from oncelog.segment.names import CLEANED, DELETED, SWAP
from oncelog.segment.segment import SegmentOptions

from ..partition.histories import DAY_MS, History

if TYPE_CHECKING:
    from pathlib import Path

CHANGES = (
    "open",
    "write",
    "truncate",
    "sync",
    "sync_file",
    "sync_directory",
    "rename",
    "remove",
    "shorten",
)
SEGMENT = SegmentOptions(index_interval_bytes=64)


class Crash(BaseException):
    """The process is gone: nothing catches this."""


class FailingDisk(Disk):
    """Does ``allowed`` changes; the next one raises, and with a Crash so do all after it."""

    def __init__(self, allowed: int, error: type[BaseException] = Crash) -> None:
        self.allowed = allowed
        self.error = error
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in CHANGES:
            return super().__getattribute__(name)
        method = super().__getattribute__(name)

        def changed(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) == self.allowed + 1 or (
                len(self.calls) > self.allowed and self.error is Crash
            ):
                raise self.error() if self.error is Crash else self.error(errno.EIO, "no")
            return method(*args, **kwargs)

        return changed


def written(path: Path) -> History:
    """Three sealed segments with a transaction over two of them that was aborted, one that was committed, and
    values that replace each other; an active segment after them."""
    history = History(path, segment=SEGMENT)
    history.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    history.txn(7, (b"a", b"never"), (b"d", b"never"))
    history.roll()
    history.txn(8, (b"b", b"2"))
    history.txn(7, (b"e", b"never"))
    history.abort(7)
    history.roll()
    history.put((b"f", b"1"), (b"a", None))
    history.commit(8)
    history.put((b"f", b"2"), producer=9)
    history.roll()
    history.put((b"g", b"1"))
    return history


State = tuple[list[tuple[int, bytes]], list[tuple[int, int, int]], list[tuple[int, bytes | None]]]


def state_of(history: History) -> State:
    """Every byte of every segment, the transaction indexes, and the reader's view."""
    parts = [
        (segment.base_offset, bytes(segment.view())) for segment in history.partition.log.segments
    ]
    return parts, history.index_entries(), history.committed()


def read_only_state(path: Path) -> list[tuple[int, bytes, int]]:
    log = Log(str(path), LogOptions(segment=SEGMENT))
    found = [
        (segment.base_offset, bytes(segment.view()), len(segment.txn_index))
        for segment in log.segments
    ]
    log.close()
    return found


def run_clean(history: History) -> None:
    clean(
        history.partition,
        first_dirty=0,
        end=2**63 - 1,
        delete_retention_ms=DAY_MS,
        now_ms=history.now_ms,
    )


def crashed(source: Path, target: Path, allowed: int, segment: SegmentOptions) -> int | None:
    """Cleans a copy of a directory until the crash; None if it came to its end."""
    shutil.copytree(source, target)
    disk = FailingDisk(2**31)
    history = History(target, disk=disk, segment=segment)
    disk.calls.clear()
    disk.allowed = allowed
    try:
        run_clean(history)
    except Crash:
        return len(disk.calls)
    return None


@pytest.fixture
def source(tmp_path: Path) -> Path:
    history = written(tmp_path / "source")
    history.partition.close()
    return tmp_path / "source"


@pytest.mark.parametrize("segment_bytes", [1 << 20, 300], ids=["one-group", "many-groups"])
def test_a_crash_at_any_step_of_a_swap_leaves_the_log_before_or_after_it(
    source: Path, tmp_path: Path, segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: never a mix of old and new, and no aborted record comes back.
    Method: the n-th change of a file is the last one, for every n; then open the directory for writing and look
    at every byte. With several groups each of them is before or after, the older ones first."""
    segment = SegmentOptions(index_interval_bytes=64, segment_bytes=segment_bytes)
    history = History(source, segment=segment)
    history.partition.log.options = LogOptions(segment=segment)
    valid = [state_of(history)]
    committed = history.latest()
    history.partition.close()

    done = tmp_path / "done"
    shutil.copytree(source, done)
    history = History(done, segment=segment)
    before = history.partition.replace_segments

    def noted(*args: Any) -> None:
        before(*args)
        valid.append(state_of(history))

    monkeypatch.setattr(history.partition, "replace_segments", noted)
    run_clean(history)
    history.partition.close()
    assert len(valid) > (1 if segment_bytes > 300 else 2)

    seen = set()
    for allowed in range(1000):
        target = tmp_path / f"crash-{allowed}"
        calls = crashed(source, target, allowed, segment)
        view = read_only_state(target)
        reopened = History(target, segment=segment)
        state = state_of(reopened)
        assert state in valid, f"after {allowed} changes"
        assert [(base, data) for base, data, _ in view] == state[0], "a reader sees the same"
        assert sum(count for _, _, count in view) == len(state[1])
        assert reopened.latest() == committed
        assert not [
            name for name in reopened.names() if name.endswith((CLEANED, SWAP, DELETED, ".tmp"))
        ]
        seen.add(valid.index(state))
        reopened.partition.close()
        shutil.rmtree(target)
        if calls is None:
            break
    assert seen == set(range(len(valid))), "each state was reached"


def test_a_crash_while_loading_completes_a_swap_is_completed_by_the_next(
    source: Path, tmp_path: Path
) -> None:
    """Goal: the loader may die as well.
    Method: every crash of a swap, then every crash of the loading after it, then a loading that goes through."""
    history = History(source, segment=SEGMENT)
    valid = [state_of(history)]
    history.partition.close()
    shutil.copytree(source, tmp_path / "done")
    history = History(tmp_path / "done", segment=SEGMENT)
    run_clean(history)
    valid.append(state_of(history))
    history.partition.close()
    interrupted = 0
    for allowed in range(1000):
        first = tmp_path / "first"
        calls = crashed(source, first, allowed, SEGMENT)
        names = {path.name for path in first.iterdir()}
        for also in range(1000 if any(name.endswith((SWAP, CLEANED)) for name in names) else 0):
            target = tmp_path / "second"
            shutil.copytree(first, target)
            try:
                Log(str(target), LogOptions(segment=SEGMENT), FailingDisk(also)).close()
                is_done = True
            except Crash:
                is_done = False
                interrupted += 1
            view = read_only_state(target)
            reopened = History(target, segment=SEGMENT)
            state = state_of(reopened)
            assert state in valid, f"after {allowed} changes and {also} of loading"
            assert [(base, data) for base, data, _ in view] == state[0]
            assert sum(count for _, _, count in view) == len(state[1])
            reopened.partition.close()
            shutil.rmtree(target)
            if is_done:
                break
        shutil.rmtree(first)
        if calls is None:
            break
    assert interrupted > 50


def test_an_error_at_any_step_of_a_swap_is_typed_and_loses_nothing(
    source: Path, tmp_path: Path
) -> None:
    """Goal: EIO at the n-th change is a KafkaStorageError; the log stays usable, or goes offline and is whole again
    when it is opened anew.
    Method: one failing call for every n, then read, and open again."""
    history = History(source, segment=SEGMENT)
    valid = [state_of(history)[0]]
    committed = history.latest()
    history.partition.close()
    shutil.copytree(source, tmp_path / "done")
    history = History(tmp_path / "done", segment=SEGMENT)
    run_clean(history)
    valid.append(state_of(history)[0])
    history.partition.close()
    usable = offline = 0
    for allowed in range(1000):
        target = tmp_path / f"error-{allowed}"
        shutil.copytree(source, target)
        disk = FailingDisk(2**31, OSError)
        history = History(target, disk=disk, segment=SEGMENT)
        disk.calls.clear()
        disk.allowed = allowed
        try:
            run_clean(history)
            is_done = len(disk.calls) <= allowed
        except KafkaStorageError:
            is_done = False
        disk.allowed = 2**31
        assert history.latest() == committed, f"after {allowed} changes, in the same process"
        if history.partition.is_offline:
            offline += 1
        else:
            usable += 1
            assert not [name for name in history.names() if name.endswith((CLEANED, SWAP))]
            history.put((b"h", b"1"))
        history.partition.close()
        reopened = History(target, segment=SEGMENT)
        assert {key: value for key, value in reopened.latest().items() if key != b"h"} == committed
        assert state_of(reopened)[0][0] in (valid[0][0], valid[1][0])
        reopened.partition.close()
        shutil.rmtree(target)
        if is_done:
            break
    assert usable > 10
    assert offline > 3


def rename(path: Path, name: str, ending: str) -> None:
    (path / name).rename(path / f"{name}{ending}")


def test_what_a_broker_left_of_its_swap_is_completed(source: Path, tmp_path: Path) -> None:
    """Goal: a broker renames .log first; a .txnindex.swap that it did not come to must not be lost.
    Method: bring a finished directory into the states between a broker's steps, and open each, for reading alone
    and for writing."""
    shutil.copytree(source, tmp_path / "done")
    history = History(tmp_path / "done", segment=SEGMENT)
    run_clean(history)
    state = state_of(history)
    history.partition.close()
    base = "00000000000000000000"
    kinds = [".log", ".index", ".timeindex", ".txnindex"]
    assert (tmp_path / "done" / f"{base}.txnindex").exists()
    for renamed in range(len(kinds) + 1):
        target = tmp_path / f"broker-{renamed}"
        shutil.copytree(tmp_path / "done", target)
        for kind in kinds[renamed:]:
            rename(target, base + kind, SWAP)
        if renamed == 0:  # the old segments are still there, the last of them with its index
            for path in source.glob("*.*index"):
                if not (target / path.name).exists():
                    shutil.copy(path, target)
        view = read_only_state(target)
        assert [(at, data) for at, data, _ in view] == state[0], kinds[renamed:]
        assert sum(count for _, _, count in view) == len(state[1])
        reopened = History(target, segment=SEGMENT)
        assert state_of(reopened) == state
        reopened.partition.close()


def test_an_index_of_the_old_segment_is_not_taken_for_the_new_one(
    source: Path, tmp_path: Path
) -> None:
    """Goal: a cleaned segment without aborts has no .txnindex; the old one of the same name must go with its log.
    Method: a broker's crash after the old .log became .deleted, and before its .txnindex did."""
    target = tmp_path / "target"
    history = History(target, segment=SEGMENT)
    history.txn(7, (b"a", b"never"))
    history.abort(7)
    history.put((b"a", b"1"))
    history.roll()
    history.partition.close()
    stale = (target / "00000000000000000000.txnindex").read_bytes()
    assert stale
    history = History(target, segment=SEGMENT)
    history.partition.need_state().table.remove(7)
    run_clean(history)
    history.clean(roll=False)
    expected = state_of(history)
    assert not expected[1]
    history.partition.close()
    for kind in (".log", ".index", ".timeindex"):
        rename(target, f"00000000000000000000{kind}", SWAP)
    (target / "00000000000000000000.txnindex").write_bytes(stale)
    assert [count for _, _, count in read_only_state(target)] == [0, 0]
    reopened = History(target, segment=SEGMENT)
    assert state_of(reopened) == expected
    assert "00000000000000000000.txnindex" not in reopened.names()
    reopened.partition.close()
