"""One process with one open store that nobody uses: what it takes of the machine, as JSON on stdout.

python -P benches/idle_process.py STORE DIRECTORY SECONDS

Imports nothing before it is asked to, so that what the first opening takes includes the library, and what the second
takes is the store alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

RECORD = b"x" * 100


def private_kib() -> int:
    """Memory that nobody shares with this process: what would be free if it ended."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def wake_ups() -> int:
    """How often a thread of this process was given the processor after it had waited."""
    total = 0
    for task in os.scandir("/proc/self/task"):
        status = (Path(task.path) / "status").read_text(encoding="ascii")
        (line,) = (line for line in status.splitlines() if line.startswith("voluntary_ctxt"))
        total += int(line.split()[1])
    return total


def _oncelog(path: str) -> Any:
    import oncelog

    log = oncelog.open(path)
    log.create_topic("events")
    producer = log.producer()
    producer.send("events", RECORD).result()
    return log, producer


def _lmdb(path: str) -> Any:
    import lmdb

    environment = lmdb.open(path, map_size=1 << 30)
    with environment.begin(write=True) as transaction:
        transaction.put(b"0", RECORD)
    return environment


def _sqlite(path: str) -> Any:
    import sqlite3

    database = sqlite3.connect(f"{path}/log.db", isolation_level=None)
    database.execute("pragma journal_mode = wal")
    database.execute("create table log (number integer primary key, value blob)")
    database.execute("insert into log (value) values (?)", (RECORD,))
    return database


def _rocksdb(path: str) -> Any:
    import rocksdict

    database = rocksdict.Rdict(path, rocksdict.Options(raw_mode=True))
    database.put(b"0", RECORD)
    return database


def _nothing(path: str) -> Any:
    return path


def _numpy(path: str) -> Any:
    import numpy as np

    return np, path


STORES = {
    "oncelog": _oncelog,
    "LMDB": _lmdb,
    "SQLite": _sqlite,
    "RocksDB": _rocksdb,
    "a Python that sleeps": _nothing,
    "import numpy": _numpy,
}


def main(store: str, path: str, seconds: float) -> None:
    opening = STORES[store]
    places = [f"{path}/{name}" for name in ("first", "second")]
    for place in places:
        Path(place).mkdir()
    before = private_kib()
    kept = [opening(places[0])]
    opened = private_kib()
    time.sleep(min(seconds, 0.5))  # what opening has set going comes to rest
    woken, used = wake_ups(), time.process_time()
    time.sleep(seconds)
    woken, used = wake_ups() - woken, time.process_time() - used
    threads = len(list(os.scandir("/proc/self/task")))
    alone = private_kib()
    kept.append(opening(places[1]))
    found = {
        "memory": opened - before,
        "log": max(private_kib() - alone, 0),
        "threads": threads,
        "wake_ups": max(woken - 1, 0) / seconds,  # the one that ends this pause is not the store's
        "cpu": used / seconds * 1e6,
    }
    print(json.dumps(found), flush=True)
    os._exit(0)  # closing is not what is asked about


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
