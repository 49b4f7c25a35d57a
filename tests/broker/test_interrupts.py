"""A person presses Ctrl-C in the middle of a verb: at no line does that leave a lock held or an id that nobody can use.

Method: a trace raises KeyboardInterrupt at the first line of the broker's code, then at the second, and so on, until a
call gets through. After each one another producer takes the id over, commits, and a reader gets past everything.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oncelog._native.crew import GroupCommit
from oncelog._native.syncing import sync_partitions
from oncelog.segment.names import TopicPartition

from .brokers import ORDERS, VerbProducer, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

CODE = (
    "txn_coordinator.py",
    "txn_endings.py",
    "txn_markers.py",
    "txn_metadata.py",
    "txn_states.py",
    "transaction_verbs.py",
    "group_commit.py",
)


def interrupted(
    call: Callable[[], object], at: int, files: tuple[str, ...] = CODE, safe: str = "$"
) -> bool:
    """Calls, and interrupts at a line of some files by its number in the order of execution; False if it got through.

    ``safe`` matches further lines that Python cannot be interrupted at, as no call has returned right before.
    """
    left = at

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(files):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # Python looks for signals at none of these: a plain return, a try, a with statement's way out of its block.
        if event == "line" and not re.fullmatch(rf"return [\w.]+|try:|with .*|{safe}", line):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def within(seconds: float, call: Callable[[], object]) -> None:
    """Calls in a thread of its own, and fails if it hangs."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize(
    ("verb", "version", "durability"),
    [
        *(
            (verb, version, "os")
            for verb in ("init", "send", "commit", "abort")
            for version in (1, 2)
        ),
        *((verb, 2, "fsync") for verb in ("send", "commit")),
    ],
)
def test_an_interrupted_verb_leaves_the_id_usable(
    tmp_path: Path, verb: str, version: int, durability: str
) -> None:
    with opened(tmp_path, topics={"orders": 1}, durability=durability) as broker:
        for at in range(1000):
            name = f"{verb}-{at}"
            producer = VerbProducer(broker, name, version)
            producer.send(ORDERS, b"a")
            if verb == "send":
                producer.commit()

            def call(producer: VerbProducer = producer, name: str = name) -> None:
                if verb == "init":
                    VerbProducer(broker, name, version)
                elif verb == "send":
                    producer.send(ORDERS, b"b")
                else:
                    producer.end(committed=verb == "commit")

            was_interrupted = interrupted(call, at)

            def go_on(name: str = name) -> None:
                broker.transactions.retry_markers()
                after = VerbProducer(broker, name, version)
                after.send(ORDERS, b"c")
                after.commit()

            within(5, go_on)
            partition = broker.partition(ORDERS)
            assert partition.last_stable_offset == partition.log_end_offset, f"line {at}"
            if not was_interrupted:
                assert at > 10
                return
        pytest.fail("no call got through")


def test_an_interrupted_first_send_still_times_out(tmp_path: Path) -> None:
    """Goal: a transaction that was begun is on the list of those that time out, wherever its beginning was cut."""
    with opened(tmp_path, topics={"orders": 1}) as broker:
        for at in range(1000):
            producer = VerbProducer(broker, f"t-{at}")
            send = functools.partial(producer.send, ORDERS, b"a")
            was_interrupted = interrupted(send, at)
            within(5, send)
            assert broker.transactions.knows(producer.producer_id), f"line {at}"
            producer.commit()
            if not was_interrupted:
                return
        pytest.fail("no call got through")


def opened_below(path: Path) -> int:
    """How many descriptors this process has for files of a directory."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += link.readlink().is_relative_to(path)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
def test_an_interrupted_sync_of_many_partitions_leaves_no_turn_taken(tmp_path: Path) -> None:
    """Goal: nobody waits for ever for a partition, and no descriptor is left, wherever a sync of two was cut."""
    with opened(tmp_path, topics={"orders": 2}, durability="fsync") as broker:
        keys = [TopicPartition("orders", number) for number in range(2)]
        producers = [VerbProducer(broker, f"t-{number}") for number in range(2)]
        partitions = [broker.partition(key) for key in keys]
        for at in range(1000):
            for producer, key in zip(producers, keys, strict=True):
                producer.send(key, b"a")
            if at % 3 == 0:
                for partition in partitions:
                    partition.roll(broker.now_ms())  # names have to reach the device, too
                    producers[partition.key.partition].send(partition.key, b"b")
            before = opened_below(tmp_path)
            ends = {partition: partition.log_end_offset for partition in partitions}
            was_interrupted = interrupted(
                functools.partial(sync_partitions, ends), at, ("partition.py", "log.py")
            )
            for partition in partitions:
                assert partition._commits.begin(2**62), f"line {at}"
                partition.give_up_sync()
            assert opened_below(tmp_path) == before, f"line {at}"
            if not was_interrupted:
                assert at > 5
                return
        pytest.fail("no call got through")


def test_an_interrupted_wait_for_the_device_leaves_the_turn_to_the_next() -> None:
    written = 0

    def sync(_: int) -> int:
        on_the_device = written
        return on_the_device  # noqa: RET504 (a second line to be interrupted at)

    commits = GroupCommit(sync)
    for at in range(100):
        written += 1
        reach = functools.partial(commits.reach, written)
        was_interrupted = interrupted(reach, at, ("test_interrupts.py",))
        within(5, reach)
        if not was_interrupted:
            return
    pytest.fail("no call got through")
