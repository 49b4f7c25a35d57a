"""A person presses Ctrl-C between any two steps of the interpreter: no lock of a sender stays taken for it."""

from __future__ import annotations

import dis
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from oncelog._native.attempt import Attempt
from oncelog.client.client import Log
from oncelog.client.sender import PartitionQueue, Sender

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType

# The steps after which the interpreter looks whether somebody has pressed Ctrl-C.
LOOKS = ("CALL", "RESUME")  # and a jump back


class _Interrupt:
    """Raises after the n-th step of a function at which the interpreter looks."""

    def __init__(self, code: CodeType, at: int) -> None:
        self._code = code
        self._left = at
        self._names = {step.offset: step.opname for step in dis.get_instructions(code)}
        self._last = 0
        self.was_raised = False

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is not self._code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            last, self._last = self._last, frame.f_lasti
            if self._names[last].startswith(LOOKS) or frame.f_lasti < last:
                self._left -= 1
                if self._left < 0 and not self.was_raised:
                    self.was_raised = True
                    raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("name", ["_drain", "_settle", "_run_callbacks"])
def test_no_interrupt_leaves_a_lock_of_the_sender_taken(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = getattr(Sender, name).__code__
    queues: list[PartitionQueue] = []
    open_batch = Sender.open_batch

    def noted_open_batch(sender: Sender, queue: PartitionQueue, *rest: int) -> None:
        queues.append(queue)
        open_batch(sender, queue, *rest)

    monkeypatch.setattr(Sender, "open_batch", noted_open_batch)

    def note(delivered: list[object], *found: object) -> None:
        delivered.append(found)

    log = Log(tmp_path, durability="fsync")
    log.create_topic("orders")
    for at in range(1000):
        producer = log.producer(linger_ms=1000)
        delivered: list[object] = []
        producer.send("orders", b"v", on_delivery=partial(note, delivered))
        interrupt = _Interrupt(code, at)
        sys.settrace(interrupt)
        try:
            producer.flush()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        # Whoever holds one of them now is the background, and gives it back.
        for lock in (queues[-1].lock, queues[-1].settling, producer._sender._calling):
            assert lock.acquire(timeout=5), f"taken for ever after step {at}"
            lock.release()
        producer.close()
        assert len(delivered) == 1
        if not interrupt.was_raised:
            assert at > 3
            break
    log.close()


def test_an_attempt_takes_a_free_lock_and_leaves_a_taken_one_alone() -> None:
    lock = threading.Lock()
    with Attempt(lock) as is_taken:
        assert is_taken
        assert lock.locked()
        with Attempt(lock) as again:
            assert not again
        assert lock.locked()
    assert not lock.locked()
    with pytest.raises(ValueError, match="why"), Attempt(lock, blocking=True):
        raise ValueError("why")
    assert not lock.locked()


def test_flush_waits_for_a_slow_callback_of_another_thread(tmp_path: Path) -> None:
    """Goal: flush returns when callbacks were called, however long another thread takes over one of them."""
    began, done = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        began.set()
        time.sleep(1.2)
        done.set()

    with Log(tmp_path) as log:
        log.create_topic("orders")
        with log.producer(linger_ms=1000) as producer:
            producer.send("orders", b"v", on_delivery=slow)
            other = threading.Thread(target=producer.flush)
            other.start()
            assert began.wait(5)
            producer.flush()
            assert done.is_set()
            other.join()
