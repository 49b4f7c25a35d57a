"""Memory: how much is held, for how long, and by whom; and what threads may do meanwhile."""

from __future__ import annotations

import gc
import mmap
import resource
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from oncelog._native.batch import Encoder
from oncelog._native.checksum import crc32c
from oncelog.base.disk import map_file
from oncelog.base.errors import BatchError
from oncelog.client.arrow import record_batch
from oncelog.segment import batch
from oncelog.segment.batch import Codec

from .memory_probe import MIB, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CODECS = [codec.name.lower() for codec in Codec]

# ---------------------------------------------------------------- how much


@pytest.mark.usefixtures("honest_memory")
def test_the_probe_sees_what_is_allocated() -> None:
    """Goal: the limits below can be missed.
    Method: hold 64 MiB, and hold nothing."""
    held, nothing = map(
        int,
        run(
            """
            with Peak() as held:
                b"x" * (64 << 20)
            with Peak() as nothing:
                pass
            print(held.bytes, nothing.bytes)
            """
        ),
    )
    # The kernel counts in batches of pages: a little is always missing, or too much.
    assert 63 * MIB < held < 66 * MIB
    assert nothing < MIB


# Batches of 8 MiB each: 128 records of 64 KiB, of words that repeat, so that every codec shrinks them.
BATCHES, BATCH_BYTES = 24, 8 * MIB
SLACK = 3 * MIB
# zstd decompresses through a window of its own, here as large as the batch.
WORKSPACE = {"zstd": BATCH_BYTES + 2 * MIB}
MANY = f"""
import pyarrow as pa
from oncelog.client.arrow import record_batch
from oncelog.segment import batch

value = b"".join(b"%d %d;" % (i % 97, i % 89) for i in range(20000))[: 64 << 10]

def log(codec):
    one = batch.encode([value] * 128, compression=codec, batch_size=16 << 20)
    parts = []
    for i in range({BATCHES}):
        batch.restamp(one, base_offset=128 * i)
        parts.append(bytes(one))
    return b"".join(parts)

def warm(codec):
    small = bytes(batch.encode([b"v" * 100] * 10, compression=codec))
    for views in (False, True):
        for columns in batch.decode(small, views=views):
            record_batch(columns)
    list(batch.records(small))
"""


@pytest.mark.usefixtures("honest_memory")
@pytest.mark.parametrize("codec", CODECS)
def test_draining_holds_one_decompressed_batch_beside_the_output(codec: str) -> None:
    """Goal: whoever decodes chunk by chunk and lets go needs memory for a chunk and a batch, however
    long the log; Python records need the batch alone.
    Method: 24 batches of 8 MiB, drained in chunks of one batch; how far memory rises."""
    program = f"""
data = log({codec!r})
warm({codec!r})
for views in (False, True):
    with Peak() as peak:
        count = 0
        for columns in batch.decode(data, views=views, bytes_max=1):
            count += len(columns)
            del columns
    assert count == {BATCHES} * 128
    print(peak.bytes)
with Peak() as peak:
    for record in batch.records(data):
        pass
print(peak.bytes)
"""
    contiguous, views, records = map(int, run(MANY + program))
    decompressed = 0 if codec == "none" else BATCH_BYTES
    beside = decompressed + WORKSPACE.get(codec, 0) + SLACK
    assert contiguous < BATCH_BYTES + beside
    assert views < (0 if codec == "none" else BATCH_BYTES) + beside
    assert records < beside


@pytest.mark.usefixtures("honest_memory")
@pytest.mark.parametrize("codec", CODECS)
def test_one_large_result_holds_one_decompressed_batch_beside_it(codec: str) -> None:
    """Goal: beside input and output no more than one decompressed batch, also where all records go
    into one set of columns.
    Method: the same log, decoded at once."""
    program = f"""
data = log({codec!r})
warm({codec!r})
for views in (False, True):
    with Peak() as peak:
        (columns,) = batch.decode(data, views=views, bytes_max=1 << 40)
    assert len(columns) == {BATCHES} * 128
    print(peak.bytes)
    del columns
"""
    contiguous, views = map(int, run(MANY + program))
    output, decompressed = BATCHES * BATCH_BYTES, 0 if codec == "none" else BATCH_BYTES
    beside = decompressed + WORKSPACE.get(codec, 0) + SLACK
    assert output - MIB < contiguous < output + beside
    assert views < (0 if codec == "none" else output) + beside


@pytest.mark.usefixtures("honest_memory")
@pytest.mark.parametrize("codec", ["none", "snappy", "lz4", "zstd"])
def test_encoding_holds_one_batch_beside_the_output(codec: str) -> None:
    """Goal: the encoder holds what it has built, and one batch before and after it is packed.
    Method: 96 MiB of values from Arrow, in batches of 8 MiB."""
    program = f"""
table = pa.table({{"value": [value] * (12 * 128)}}).combine_chunks()
warm({codec!r})
with Peak() as peak:
    encoded = batch.encode_arrow(table, compression={codec!r}, batch_size={BATCH_BYTES})
print(peak.bytes, len(encoded))
"""
    grown, size = map(int, run(MANY + program))
    packing = 0 if codec == "none" else 2 * BATCH_BYTES
    assert grown < size + packing + WORKSPACE.get(codec, 0) + SLACK


@pytest.mark.usefixtures("honest_memory")
def test_nothing_leaks() -> None:
    """Goal: thousands of calls leave memory as it was, also those that fail.
    Method: each operation in rounds; resident memory, Python's blocks and Arrow's pool between rounds."""
    program = """
        import pyarrow as pa
        from oncelog._native.batch import Encoder, arrow_schema
        from oncelog.base.errors import BatchError
        from oncelog.client.arrow import record_batch
        from oncelog.segment import batch

        values = [b"value %d" % i for i in range(300)]
        headers = [[("name", b"x" * 20), ("name", None)]] * 300
        table = pa.table({"key": values, "value": values, "timestamp": list(range(300)),
                          "headers": [[{"key": "k", "value": b"v"}]] * 300})
        logs = [bytes(batch.encode(values, keys=values, headers=headers, compression=codec, batch_size=2000))
                for codec in ("none", "gzip", "snappy", "lz4", "zstd")]
        bad = bytearray(logs[0]); bad[-1] ^= 1; bad = bytes(bad)
        bad_gzip = bytearray(logs[1]); bad_gzip[-9] ^= 1; bad_gzip = bytes(bad_gzip)

        def attempt(function):
            try:
                function()
            except (BatchError, ValueError, TypeError):
                return
            raise AssertionError("should have failed")

        def once():
            batch.encode(values, keys=values, headers=headers, compression="zstd")
            batch.encode_arrow(table, compression="lz4", batch_size=999)
            batch.encode_arrow(table.to_batches()[0])
            for log in logs:
                rows = batch.scan(log)
                batch.scan_prefix(log)
                for views in (False, True):
                    for columns in batch.decode(log, rows, views=views, bytes_max=5000):
                        columns.__arrow_c_array__()
                        columns.__arrow_c_schema__()
                        columns._arrow_array_address()
                        arrow = record_batch(columns)
                        pa.record_batch(columns)
                        arrow["key"], columns.offsets, columns.timestamps
                for record in batch.records(log):
                    pass
                next(batch.records(log))
            arrow_schema(True)
            for data in (bad, bad_gzip, logs[2][:-1]):
                attempt(lambda: list(batch.decode(data)))
                attempt(lambda: list(batch.decode(data, views=True, check_crc=data is not bad_gzip)))
                attempt(lambda: list(batch.records(data)))
            attempt(lambda: batch.encode([b"a", "b"]))
            attempt(lambda: batch.encode(values, timestamps=[-5] * 300))
            attempt(lambda: batch.encode_arrow(pa.table({"value": [1]})))
            attempt(lambda: batch.encode_arrow(pa.table({"value": [b"v"], "timestamp": [-5]})))

        def rounds(count):
            for _ in range(count):
                once()

        rounds(150)
        before = resident(), sys.getallocatedblocks(), pa.total_allocated_bytes()
        rounds(450)
        after = resident(), sys.getallocatedblocks(), pa.total_allocated_bytes()
        print(*(b - a for a, b in zip(before, after)))
    """
    grown, blocks, pool = map(int, run(program))
    # 450 rounds: even one forgotten column, capsule or pin a round would be far more than this.
    assert grown < 2 * MIB
    assert blocks < 200
    assert pool == 0


# ---------------------------------------------------------------- how long


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[tuple[mmap.mmap, list[bytes]]]:
    """A mapped log with plain and compressed batches, and its values."""
    values = [b"value %d, long enough to lie outside of a view" % i for i in range(200)]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(
        bytes(batch.encode(values[:100], keys=values[:100], batch_size=1000))
        + bytes(batch.encode(values[100:], keys=values[100:], base_offset=100, compression="zstd"))
    )
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    yield mapping, values
    if not mapping.closed:
        mapping.close()


def test_views_keep_the_mapping_open(mapped: tuple[mmap.mmap, list[bytes]]) -> None:
    """Goal: a column of views cannot outlive the memory that it looks at: the mapping stays.
    Method: try to close it while columns, their Arrow array, or one of its children live; then let go."""
    mapping, values = mapped
    (columns,) = batch.decode(mapping, views=True)
    with pytest.raises(BufferError):
        mapping.close()
    arrow = record_batch(columns)
    del columns
    gc.collect()
    with pytest.raises(BufferError):
        mapping.close()
    keys = arrow["key"]
    del arrow
    gc.collect()
    with pytest.raises(BufferError):
        mapping.close()
    part = keys.slice(50, 100)
    del keys
    gc.collect()
    assert part.to_pylist() == values[50:150]
    with pytest.raises(BufferError):
        mapping.close()
    del part
    gc.collect()
    mapping.close()


def test_contiguous_columns_do_not_hold_the_mapping(
    mapped: tuple[mmap.mmap, list[bytes]],
) -> None:
    """Goal: who copies may close; the columns live on without the file."""
    mapping, values = mapped
    (columns,) = batch.decode(mapping)
    mapping.close()
    assert record_batch(columns)["value"].to_pylist() == values


def test_an_iterator_holds_the_mapping_and_its_records_do_not(
    mapped: tuple[mmap.mmap, list[bytes]],
) -> None:
    mapping, values = mapped
    iterator = batch.records(mapping)
    records = [next(iterator) for _ in range(150)]
    with pytest.raises(BufferError):
        mapping.close()
    del iterator
    gc.collect()
    mapping.close()
    assert [record.value for record in records] == values[:150]


def test_a_scan_and_a_failed_decode_hold_nothing(mapped: tuple[mmap.mmap, list[bytes]]) -> None:
    """Goal: rows are copies, and an error gives the buffer back."""
    mapping, _ = mapped
    rows = batch.scan(mapping)
    for views in (False, True):
        with pytest.raises(BatchError):
            list(batch.decode(memoryview(mapping)[:-1], rows, views=views))
    with pytest.raises(BatchError):
        list(batch.records(memoryview(mapping)[:-1], rows))
    gc.collect()
    mapping.close()
    assert rows["record_count"].sum() == 200


@pytest.mark.parametrize("views", [False, True])
def test_arrow_arrays_outlive_the_columns_and_each_other(views: bool) -> None:
    """Goal: each array that was handed out stands on its own.
    Method: take every child, drop all others and whatever made them, read it; in every order."""
    values = [b"a value that does not fit into a view %d" % i for i in range(50)]
    headers = [[("header name", value)] for value in values]
    for codec in CODECS:
        for keep in ("offset", "timestamp", "timestamp_type", "key", "value", "headers"):
            data = bytearray(
                batch.encode(
                    values, keys=values, headers=headers, compression=codec, timestamp_ms=7
                )
            )
            (columns,) = batch.decode(data, views=views)
            first, second = record_batch(columns), pa.record_batch(columns)
            kept = first[keep]
            del columns, first, second
            gc.collect()
            junk = [bytes(100 + i) for i in range(1000)]  # walks over what was freed too early
            expected: dict[str, list[Any]] = {
                "offset": list(range(50)),
                "timestamp": [7] * 50,
                "timestamp_type": [0] * 50,
                "key": values,
                "value": values,
                "headers": [[{"key": n, "value": v} for n, v in pairs] for pairs in headers],
            }
            shown = kept.cast("int64") if keep == "timestamp" else kept
            assert shown.to_pylist() == expected[keep]
            del shown
            del kept, junk
            gc.collect()
            data.clear()  # refused while anyone still looked at it


def test_numpy_columns_outlive_the_columns() -> None:
    """Goal: offsets and timestamps as numpy arrays keep their memory, and cannot be written."""
    (columns,) = batch.decode(batch.encode([b"v"] * 100, timestamp_ms=9, base_offset=5))
    offsets, timestamps = columns.offsets, columns.timestamps
    del columns
    gc.collect()
    assert offsets.tolist() == list(range(5, 105))
    assert timestamps.tolist() == [9] * 100
    with pytest.raises(ValueError, match="read-only"):
        offsets[0] = 1


def test_columns_of_no_records_are_arrow_arrays_too() -> None:
    """Goal: nothing found is an empty table, not a null pointer."""
    from oncelog._native.batch import decode

    for views in (False, True):
        columns = decode(b"", [], views=views)
        arrow = record_batch(columns)
        arrow.validate(full=True)
        assert (arrow.num_rows, len(columns), columns.next_batch) == (0, 0, 0)
        assert columns.offsets.tolist() == columns.timestamps.tolist() == []
        assert columns.data_bytes == 0


def test_columns_of_a_large_chunk_are_used_again() -> None:
    """Goal: whoever reads 2 MiB at a time, as Spark's tasks do, gets its pages from the kernel once.
    Method: 50 MB, each chunk dropped before the next; those after the first two touch hardly a page that is new."""
    log = bytes(batch.encode([b"v" * 100] * 400_000, keys=[b"k" * 16] * 400_000))
    faults = []
    for columns in batch.decode(log, batch.scan(log), bytes_max=2 << 20):
        del columns
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    assert len(faults) > 10
    assert faults[-2] - faults[1] < 1000  # all of them anew would be ten thousand


def test_data_bytes_is_what_the_columns_hold_themselves() -> None:
    """Goal: views of plain batches hold nothing; copies and decompressed records count."""
    value = b"v" * 1000
    plain = bytes(batch.encode([value] * 10, keys=[b"k" * 20] * 10, headers=[[("h", b"xx")]] * 10))
    packed = bytes(batch.encode([value] * 10, keys=[b"k" * 20] * 10, compression="lz4"))
    (copied,) = batch.decode(plain)
    (viewed,) = batch.decode(plain, views=True)
    (unpacked,) = batch.decode(packed, views=True)
    assert copied.data_bytes == 10 * (1000 + 20 + 3)
    assert viewed.data_bytes == 10 * 3
    assert unpacked.data_bytes == 10 * 1020


def test_views_reach_beyond_two_gibibytes(tmp_path: Path) -> None:
    """Goal: a view has 31 bits of offset; what lies further gets a window of its own.
    Method: batches at both ends of a sparse file of more than 6 GiB, in and out of order."""
    path = tmp_path / "sparse.log"
    places = [0, (2 << 30) - 200, 3 << 30, (6 << 30) + 5]
    values = [b"a value that needs a buffer, number %d" % index for index in range(4)]
    with path.open("wb") as file:
        for place, value in zip(places, values, strict=True):
            file.seek(place)
            file.write(batch.encode([value] * 3, keys=[value] * 3))
    mapping = map_file(path)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        rows = np.concatenate([batch.scan_prefix(mapping, places[i])[0][:1] for i in order])
        (columns,) = batch.decode(mapping, rows, views=True)
        arrow = record_batch(columns)
        arrow.validate(full=True)
        expected = [values[i] for i in order for _ in range(3)]
        assert arrow["value"].to_pylist() == arrow["key"].to_pylist() == expected
        del columns, arrow


# ---------------------------------------------------------------- by whom


def in_thread(function: Callable[[], Any]) -> None:
    errors: list[BaseException] = []

    def body() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_arrays_may_be_released_on_another_thread() -> None:
    """Goal: the last reference may fall anywhere; the pinned buffer is given back all the same.
    Method: hand arrays over to threads that drop them, many at once."""
    data = bytearray(batch.encode([b"a value that is seen through a view"] * 100))
    for _ in range(20):
        (columns,) = batch.decode(data, views=True)
        held = [record_batch(columns), columns, record_batch(columns)["value"], columns.offsets]
        del columns
        with pytest.raises(BufferError):
            data.append(0)
        threads = [threading.Thread(target=held.pop) for _ in range(len(held))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    in_thread(gc.collect)
    data.append(0)


BIG_VALUE = b"0123456789abcdef" * 4096
BIG = 400


@pytest.fixture(scope="module")
def big_log() -> bytes:
    """25 MiB in batches of 4 MiB."""
    return bytes(batch.encode([BIG_VALUE] * BIG, batch_size=4 << 20))


@pytest.fixture
def nobody_is_interrupted() -> Iterator[None]:
    """Threads change only where the GIL is given away, never because time is up."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("nobody_is_interrupted")
@pytest.mark.parametrize(
    "work",
    ["scan", "scan_prefix", "decode", "views", "records", "encode", "encode_arrow", "crc32c"],
)
def test_another_thread_runs_meanwhile(work: str, big_log: bytes) -> None:
    """Goal: the GIL is given away over long work.
    Method: no thread is interrupted for its time slice, so a second one that waits for the GIL runs
    only if the work lets go of it. A few tries: it also has to wake up in time."""
    table = pa.table({"value": [BIG_VALUE] * BIG}).combine_chunks()
    values = [BIG_VALUE] * BIG
    works: dict[str, Callable[[], object]] = {
        "scan": lambda: batch.scan(big_log),
        "scan_prefix": lambda: batch.scan_prefix(big_log),
        "decode": lambda: list(batch.decode(big_log, rows, bytes_max=1 << 40)),
        "views": lambda: list(batch.decode(big_log, rows, views=True, bytes_max=1 << 40)),
        "records": lambda: next(batch.records(big_log, rows[-1:])),
        "encode": lambda: batch.encode(values, batch_size=1 << 30),
        "encode_arrow": lambda: batch.encode_arrow(table, batch_size=1 << 30),
        "crc32c": lambda: crc32c(big_log),
    }
    rows = batch.scan(big_log, check_crc=False)
    function = works[work]
    for _ in range(200):
        gate, ran = threading.Lock(), threading.Event()
        gate.acquire()

        def second(gate: threading.Lock = gate, ran: threading.Event = ran) -> None:
            with gate:
                ran.set()

        thread = threading.Thread(target=second)
        thread.start()
        gate.release()  # it may run now, but for the GIL
        function()
        happened = ran.is_set()
        thread.join()
        if happened:
            return
    pytest.fail(f"{work} never let go of the GIL")


@pytest.mark.usefixtures("nobody_is_interrupted")
def test_that_way_of_looking_can_tell() -> None:
    """Goal: the test above is able to fail.
    Method: the same with work that holds the GIL."""
    for _ in range(20):
        gate, ran = threading.Lock(), threading.Event()
        gate.acquire()

        def second(gate: threading.Lock = gate, ran: threading.Event = ran) -> None:
            with gate:
                ran.set()

        thread = threading.Thread(target=second)
        thread.start()
        gate.release()
        sum(range(200_000))
        assert not ran.is_set()
        thread.join()


def test_an_encoder_refuses_a_second_thread() -> None:
    """Goal: two threads in one encoder are an error, not a torn batch.
    Method: the first waits inside its codec; the second tries every door."""
    from ..segment import oracle

    inside, leave = threading.Event(), threading.Event()

    def compress(records: memoryview) -> bytes:
        inside.set()
        assert leave.wait(60)
        return oracle.zstd_raw(bytes(records))

    encoder = Encoder(attributes=int(Codec.ZSTD), compress=compress, batch_bytes=200)
    first = threading.Thread(target=lambda: encoder.add(None, [b"v" * 50] * 10))
    first.start()
    assert inside.wait(60)
    table = pa.table({"value": [b"v"]})
    for attempt in (
        lambda: encoder.add(None, [b"intruder"]),
        lambda: encoder.add_arrow(table),
        lambda: encoder.add_arrow(table.to_batches()[0]),
        encoder.finish,
    ):
        with pytest.raises(RuntimeError, match="another thread"):
            attempt()
    leave.set()
    first.join()
    assert [record.value for record in batch.records(encoder.finish())] == [b"v" * 50] * 10


def test_an_iterator_refuses_a_second_thread() -> None:
    """Goal: two threads in one iterator are an error, not memory that was freed.
    Method: the first waits inside the codec of the second batch."""
    from oncelog._native.records import RecordIterator

    from ..segment import oracle

    inside, leave = threading.Event(), threading.Event()

    def decompress(codec: int, payload: memoryview) -> bytes:
        inside.set()
        assert leave.wait(60)
        return oracle.decompress(codec, bytes(payload))

    data = bytes(batch.encode([b"one", b"two"], compression="gzip"))
    iterator = RecordIterator(data, [0], decompress=decompress)
    found: list[bytes | None] = []
    first = threading.Thread(target=lambda: found.append(next(iterator).value))
    first.start()
    assert inside.wait(60)
    with pytest.raises(RuntimeError, match="another thread"):
        next(iterator)
    leave.set()
    first.join()
    assert found == [b"one"]
    assert next(iterator).value == b"two"


def test_many_threads_share_a_log(big_log: bytes) -> None:
    """Goal: readers of one buffer do not know each other.
    Method: scan, decode and encode the same bytes in several threads at once."""
    rows = batch.scan(big_log)
    failures: list[object] = []

    def reader(index: int) -> None:
        for _ in range(3):
            if not (batch.scan(big_log) == rows).all():
                failures.append("scan")
            part = rows[index % 3 :: 3]
            count = sum(map(len, batch.decode(big_log, part, views=index % 2 == 0)))
            if count != part["record_count"].sum():
                failures.append("decode")

    threads = [threading.Thread(target=reader, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_lists_may_change_while_they_are_encoded() -> None:
    """Goal: what the caller does to its lists after the call began has no effect, and frees nothing.
    Method: the codec function, which is called in the midst of it, empties and overwrites them all."""
    from ..segment import oracle

    count = 2000
    values: list[Any] = [b"value %d" % i for i in range(count)]
    keys: list[Any] = [bytearray(b"key %d" % i) for i in range(count)]
    headers: list[Any] = [[(f"name {i}", b"header %d" % i)] for i in range(count)]
    stamps = list(range(count))
    expected = [
        (b"value %d" % i, b"key %d" % i, ((f"name {i}", b"header %d" % i),), i)
        for i in range(count)
    ]

    def compress(records: memoryview) -> bytes:
        for pairs in headers:
            pairs.clear()
        for column in (values, keys, headers, stamps):
            column.clear()
        gc.collect()
        values.extend(b"other %d" % i for i in range(5000))
        return oracle.zstd_raw(bytes(records))

    encoder = Encoder(attributes=int(Codec.ZSTD), compress=compress, batch_bytes=20_000)
    encoder.add(keys, values, stamps, headers)
    data = encoder.finish()
    assert data.batch_count > 1
    found = [(r.value, r.key, r.headers, r.timestamp) for r in batch.records(data)]
    # Header lists of later blocks were emptied before they were looked at: those records have none.
    blank = [(value, key, (), stamp) for value, key, _, stamp in expected]
    assert len(found) == count
    for index, row in enumerate(found):
        assert row in (expected[index], blank[index])
    assert found[0] == expected[0]


def test_bytes_that_change_under_a_reader_do_not_crash_it() -> None:
    """Goal: whoever writes into the buffer that is being read gets an error or nonsense, not a crash.
    Method: overwrite the rest of a batch after its first record, with every byte."""
    pristine = bytes(batch.encode([b"v" * 30] * 20, headers=[[("h", b"x")]] * 20))
    for byte in range(256):
        data = bytearray(pristine)
        iterator = batch.records(data)
        first = next(iterator)
        data[110:] = bytes([byte]) * (len(data) - 110)
        try:
            rest = list(iterator)
        except (BatchError, AssertionError):
            continue
        assert len(rest) < 1000
        assert first.value == b"v" * 30
