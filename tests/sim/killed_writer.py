"""A process that starts writers and kills them: run with -m, one job per line on standard input.

A job says where to write and when to die: at a call to the disk, or after some time. The writer is a fork, so that
a job takes milliseconds. What it acknowledged comes back through a pipe, and with it the answer to the job.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.partition.logs import ABORT, KEY, TOPIC_ID, Writer, open_directory
from tests.sim.history import SMALL, Teller
from tests.sim.sim_disk import CountingDisk, KillingDisk

if TYPE_CHECKING:
    from collections.abc import Callable

FOREVER = 100_000


def write(job: dict[str, Any], pipe: int) -> None:
    """The writer: ends what an earlier one left open, then tells a history, one acknowledgement per step."""
    at = job.get("at")
    disk = KillingDisk(at, job["when"]) if at is not None else CountingDisk()

    def acknowledge(what: dict[str, Any]) -> None:
        os.write(pipe, json.dumps(what).encode() + b"\n")

    directory = open_directory(job["path"], SMALL, disk=disk)
    partition = directory.create(KEY, TOPIC_ID)
    for producer, _ in partition.need_state().table.open_transactions():
        known = partition.producers.table.get(producer)
        assert known is not None
        Writer(partition, producer, int(known["producer_epoch"])).end(ABORT)
    acknowledge({"opened": partition.log_end_offset})
    teller = Teller(job.get("turns", FOREVER), generation=job["generation"])
    known_offsets = 0
    for step in teller.steps(partition):
        step()
        fresh = list(teller.ledger.offsets.items())[known_offsets:]
        known_offsets += len(fresh)
        acknowledge(
            {
                "offsets": {value.decode(): offset for value, offset in fresh},
                "acknowledged": [value.decode() for value in teller.ledger.acknowledged],
            }
        )
        teller.ledger.acknowledged.clear()
    directory.close()
    acknowledge({"calls": disk.calls})


def run(job: dict[str, Any], work: Callable[[dict[str, Any], int], None] = write) -> dict[str, Any]:
    """Starts a writer, kills it when its time has come, and returns what it said before."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            work(job, writing)
        except BaseException as error:  # noqa: BLE001
            os.write(writing, json.dumps({"error": repr(error)}).encode() + b"\n")
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + job.get("seconds", 30)
    said = bytearray()
    while True:
        ready, _, _ = select.select([reading], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            os.kill(child, signal.SIGKILL)
            deadline = time.monotonic() + 30
            continue
        part = os.read(reading, 1 << 16)
        if not part:
            break
        said += part
    os.close(reading)
    _, status = os.waitpid(child, 0)
    lines = said.split(b"\n")[:-1]  # what was not said to its end was not acknowledged
    return {"said": [json.loads(line) for line in lines], "killed": os.WIFSIGNALED(status)}


class Killer:
    """The other end: hands jobs to the process and takes its answers."""

    def __init__(self, module: str = "tests.sim.killed_writer") -> None:
        import subprocess

        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[2],
            text=True,
        )

    def ask(self, **job: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        errors = [line["error"] for line in answer["said"] if "error" in line]
        assert not errors, errors
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
