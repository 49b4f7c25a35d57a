"""Embedded stores that people keep records in today: LMDB, SQLite, RocksDB; and a bare file, which is the limit.

Each is optional; a missing one is said, not fatal. Keys rise, as offsets do, and every commit is as durable as ours in
the same case: the system has it, or the device has. What was stored is read back and compared before the clock starts.
"""

from __future__ import annotations

import importlib
import itertools
import os
import weakref
from typing import TYPE_CHECKING, Any, Final

from .client_peers import absent
from .harness import Contestant, Role, Scratch, version_of
from .peers import NOT_INSTALLED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .harness import Settings

LMDB: Final = "LMDB"
SQLITE: Final = "SQLite"
ROCKSDB: Final = "RocksDB"
MAP_BYTES: Final = 4 << 30


def lmdb(
    settings: Settings, values: Sequence[bytes], per_commit: int, *, synced: bool
) -> Contestant:
    """LMDB with rising keys, appended: what its users do for a queue."""
    missing = absent(LMDB, "lmdb", settings)
    if missing is not None:
        return missing
    scratch = Scratch("lmdb")
    environment: Any = importlib.import_module("lmdb").open(
        str(scratch.path), map_size=MAP_BYTES, sync=synced, metasync=synced
    )
    numbers = itertools.count()

    def call(scratch: Scratch = scratch) -> None:
        for first in range(0, len(values), per_commit):
            with environment.begin(write=True) as transaction:
                transaction.cursor().putmulti(
                    [
                        (next(numbers).to_bytes(8, "big"), value)
                        for value in values[first : first + per_commit]
                    ],
                    append=True,
                )

    def reveal() -> list[bytes]:
        first = next(numbers).to_bytes(8, "big")
        call()
        with environment.begin() as transaction:
            cursor = transaction.cursor()
            cursor.set_range(first)
            return [bytes(value) for value in cursor.iternext(keys=False)]

    return Contestant(LMDB, Role.PEER, call, version=version_of("lmdb"), reveal=reveal)


def sqlite(
    settings: Settings, values: Sequence[bytes], per_commit: int, *, synced: bool
) -> Contestant:
    """SQLite in WAL mode, the rowid for an offset."""
    if SQLITE in settings.without:
        return Contestant(SQLITE, Role.PEER, missing=NOT_INSTALLED)
    import sqlite3

    scratch = Scratch("sqlite")
    database = sqlite3.connect(scratch.path / "log.db", isolation_level=None)
    database.execute("pragma journal_mode = wal")
    database.execute(f"pragma synchronous = {'full' if synced else 'off'}")
    database.execute("create table log (number integer primary key, value blob)")

    def call(scratch: Scratch = scratch) -> None:
        for first in range(0, len(values), per_commit):
            rows = [(value,) for value in values[first : first + per_commit]]
            database.execute("begin")
            database.executemany("insert into log (value) values (?)", rows)
            database.execute("commit")

    def reveal() -> list[bytes]:
        (before,) = database.execute("select coalesce(max(number), 0) from log").fetchone()
        call()
        query = "select value from log where number > ? order by number"
        return [value for (value,) in database.execute(query, (before,))]

    return Contestant(SQLITE, Role.PEER, call, version=sqlite3.sqlite_version, reveal=reveal)


def rocksdb(
    settings: Settings, values: Sequence[bytes], per_commit: int, *, synced: bool
) -> Contestant:
    """RocksDB with rising keys and its write-ahead log, which a commit syncs or leaves to the system."""
    missing = absent(ROCKSDB, "rocksdict", settings)
    if missing is not None:
        return missing
    rocksdict: Any = importlib.import_module("rocksdict")
    scratch = Scratch("rocksdb")
    database = rocksdict.Rdict(str(scratch.path), rocksdict.Options(raw_mode=True))
    weakref.finalize(scratch, database.close)
    how = rocksdict.WriteOptions()
    how.sync = synced
    numbers = itertools.count()

    def one_by_one(scratch: Scratch = scratch) -> None:
        put = database.put
        for value in values:
            put(next(numbers).to_bytes(8, "big"), value, how)

    def in_batches(scratch: Scratch = scratch) -> None:
        for first in range(0, len(values), per_commit):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for value in values[first : first + per_commit]:
                batch.put(next(numbers).to_bytes(8, "big"), value)
            database.write(batch, how)

    call = one_by_one if per_commit == 1 else in_batches

    def reveal() -> list[bytes]:
        first = next(numbers).to_bytes(8, "big")
        call()
        return list(database.values(from_key=first))

    return Contestant(ROCKSDB, Role.PEER, call, version=version_of("rocksdict"), reveal=reveal)


def bare_file(
    values: Sequence[bytes], per_commit: int, *, synced: bool, is_compared: bool = True
) -> Contestant:
    """write() of the values of each commit to the end of a file, and fdatasync() where commits are synced."""
    scratch = Scratch("bare")
    file = os.open(scratch.path / "bytes", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    weakref.finalize(scratch, os.close, file)
    parts = [
        b"".join(values[first : first + per_commit]) for first in range(0, len(values), per_commit)
    ]

    def call(scratch: Scratch = scratch) -> None:
        write, sync = os.write, os.fdatasync
        for part in parts:
            write(file, part)
            if synced:
                sync(file)

    def reveal() -> list[bytes]:
        start, size = os.fstat(file).st_size, len(values[0])
        call()
        data = os.pread(file, os.fstat(file).st_size - start, start)
        return [data[at : at + size] for at in range(0, len(data), size)]

    name = "write() and fdatasync()" if synced else "write()"
    return Contestant(name, Role.LIMIT, call, reveal=reveal if is_compared else None)
