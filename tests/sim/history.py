"""A small history that meets every kind of write, told to a partition and remembered as what must be seen.

Each step is one call; a step that was refused is told again, as a client would. The ledger knows what was
acknowledged, what was tried, and how each transaction was meant to end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oncelog.base.errors import KafkaStorageError
from tests.partition.logs import (
    ABORT,
    COMMIT,
    KEY,
    TOPIC_ID,
    UNCOMMITTED,
    Writer,
    open_directory,
    options,
    read,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncelog.base.disk import Disk
    from oncelog.partition.data_directory import DataDirectory
    from oncelog.partition.partition import Partition

PATIENCE = 4  # how often a refused step is told again
SMALL = options(segment_bytes=1200, index_bytes=96, interval=200)


@dataclass
class Ledger:
    """What a reader may, must and must not see."""

    acknowledged: set[bytes] = field(default_factory=set)  # plain or of a committed transaction
    possible: set[bytes] = field(default_factory=set)  # tried, never acknowledged
    aborted: set[bytes] = field(default_factory=set)
    offsets: dict[bytes, int] = field(default_factory=dict)  # of everything acknowledged, by value

    def check(self, partition: Partition) -> None:
        visible = read(partition)
        seen = {value for _, value in visible if value is not None}
        assert len(seen) == len(visible), "a record is there twice"
        # An open transaction hides what comes after it, as it must; that it is there is checked below.
        stable = partition.last_stable_offset
        due = {value for value in self.acknowledged if self.offsets[value] < stable}
        assert due <= seen, f"lost: {sorted(due - seen)}"
        assert not seen & self.aborted, f"aborted and seen: {sorted(seen & self.aborted)}"
        assert seen <= self.acknowledged | self.possible
        everything = {value: offset for offset, value in read(partition, UNCOMMITTED)}
        for value, offset in self.offsets.items():
            assert everything.get(value) == offset, f"{value!r} was acknowledged at {offset}"
        check_contiguous(partition)


def check_contiguous(partition: Partition) -> None:
    """Nothing is compacted here, so every offset between start and end belongs to a batch."""
    following = None
    for segment in partition.log.segments:
        assert following is None or segment.base_offset == following
        following = segment.base_offset
        for rows in segment.rows(check_crc=True):
            for base, delta in zip(
                rows["base_offset"].tolist(), rows["last_offset_delta"].tolist(), strict=True
            ):
                assert base == following, f"offset {base} where {following} is expected"
                following = base + delta + 1
    assert following in (None, partition.log.end_offset)


class Teller:
    """Tells the history to a partition, step by step, and keeps the ledger."""

    def __init__(self, turns: int = 6, *, syncs: bool = False, generation: int = 0) -> None:
        self.ledger = Ledger()
        self.turns = turns
        self._generation = generation  # of writers to one directory; each brings its own producers
        self._syncs = syncs

    def steps(self, partition: Partition) -> Iterator[Callable[[], None]]:
        ledger = self.ledger
        own = self._generation * 10
        plain, first, second = (Writer(partition, own + number) for number in (7, 8, 9))

        pending: dict[bytes, int] = {}

        def commit() -> None:
            partition.sync_to(partition.log_end_offset)

        def settle() -> None:
            """What was written counts as acknowledged: at once, or with the sync that follows."""
            if self._syncs:
                partition.sync_to(partition.log_end_offset)
            ledger.offsets.update(pending)
            pending.clear()

        def send(writer: Writer, what: list[bytes], *, transactional: bool) -> Callable[[], None]:
            def step() -> None:
                if not transactional:
                    ledger.possible.update(what)
                done = writer.send(what, transactional=transactional)
                pending.update({value: done.base_offset + at for at, value in enumerate(what)})
                if not transactional or not self._syncs:
                    settle()
                if not transactional:
                    ledger.acknowledged.update(what)

            return step

        def end(writer: Writer, what: list[bytes], *, commits: bool) -> Callable[[], None]:
            def step() -> None:
                (ledger.possible if commits else ledger.aborted).update(what)
                writer.end(COMMIT if commits else ABORT)
                settle()
                if commits:
                    ledger.acknowledged.update(what)

            return step

        for turn in range(self.turns):
            name = f"{self._generation}.{turn}"
            kept = [f"kept {name}.{number}".encode() for number in range(3)]
            gone = [f"gone {name}.{number}".encode() for number in range(4)]
            yield send(first, kept[:1], transactional=True)
            yield send(second, gone[:2], transactional=True)
            yield send(plain, [f"plain {name}".encode()], transactional=False)
            yield send(first, kept[1:], transactional=True)
            yield end(first, kept, commits=True)
            yield send(second, gone[2:], transactional=True)
            yield end(second, gone, commits=False)
            yield partition.sync if turn % 2 else commit


def tell(teller: Teller, path: Path, disk: Disk) -> tuple[DataDirectory, int]:
    """Tells all of it, each refused step again, until the partition goes offline. Returns how many were."""
    refused = 0

    def insist(step: Callable[[], Any]) -> Any:
        nonlocal refused
        for _ in range(PATIENCE):
            try:
                return step()
            except KafkaStorageError:  # any other error is one too many
                refused += 1
        return step()

    directory = insist(lambda: open_directory(path, SMALL, disk=disk))
    partition = insist(lambda: directory.create(KEY, TOPIC_ID))
    try:
        for step in teller.steps(partition):
            insist(step)
        insist(directory.checkpoint)
    except KafkaStorageError:
        assert partition.is_offline
    return directory, refused
