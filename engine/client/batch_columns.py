"""Columns whose values are record batches, and which of their rows a read_committed reader may see.

For engines that hand over Arrow columns, such as Spark: raw batches come from anywhere (files read whole, a dump, a
network capture), in any order, and many at once. Nothing here opens a file but `aborted_index`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from .._native.batch import decode
from .._native.columns import AbortedIndex, scan_column
from ..base.errors import BatchError, CorruptRecordError
from ..base.rows import ABORTED_DTYPE
from ..segment.compression import DECOMPRESSED_BYTES_MAX, decompressor
from .directory import LogDirectory

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from .._native.batch import RecordColumns

CHUNK_BYTES: Final = 4 << 20
TRANSACTIONAL: Final = 0x10
DATA: Final = -1  # the control type of a data batch
ABORT: Final = 0
_END: Final = 2**63 - 1


# ---------------------------------------------------------------- batches in values


class BatchColumn:
    """The batches of a column of binary values: their headers, and which value each lies in."""

    def __init__(
        self, data: Buffer | None, headers: NDArray[np.void], values: NDArray[np.int64],
        starts: NDArray[np.int64], name: Callable[[int], str],
    ) -> None:  # fmt: skip
        self._data = b"" if data is None else data
        self._starts = starts
        self._name = name
        self.headers = headers  # HEADER_DTYPE; positions count from the start of the value
        self.values = values  # the row of the column that holds the batch

    def decode(
        self, rows: NDArray[np.int64], *, bytes_max: int = CHUNK_BYTES
    ) -> Iterator[tuple[RecordColumns, NDArray[np.int64]]]:
        """Records of the batches ``rows``, in chunks, each with the rows it came from; without control records.

        Checksums were proven by the scan. An error names the value and the position in it.
        """
        # Batches without records are not visited: what a chunk holds follows from the counts of its headers.
        control = self.headers["control_type"][rows] != DATA
        rows = rows[~control & (self.headers["record_count"][rows] > 0)]
        positions = self._starts[rows] + self.headers["position"][rows]
        while len(rows):
            try:
                columns = decode(
                    self._data,
                    positions,
                    check_crc=False,
                    bytes_max=bytes_max,
                    decompress=decompressor(DECOMPRESSED_BYTES_MAX),
                )
            except BatchError as error:
                at = int(rows[int((positions == error.position).argmax())])
                error.file = self._name(int(self.values[at]))
                error.position = int(self.headers["position"][at])
                raise
            yield columns, rows[: columns.next_batch]
            rows, positions = rows[columns.next_batch :], positions[columns.next_batch :]
            del columns  # or two chunks would be held while the next one is decoded


def scan_batches(
    values: Any,
    *,
    name: Callable[[int], str] = lambda row: f"row {row}",
    shows_bad_crc: bool = False,
) -> BatchColumn:
    """The batches of an Arrow array of binary or large_binary values, each of which holds whole batches.

    ``name`` says for people what a row of the column is: an error names the value it was found in. Checksums are
    proven, also of batches that will not be decoded: no flag is believed before. With ``shows_bad_crc`` a wrong one
    is no error, and shows in the headers.
    """
    headers, sources, starts, found = scan_column(values, check_crc=True)
    if found is None and not shows_bad_crc and (bad := headers["crc_ok"] != 1).any():
        at = int(bad.argmax())
        error: BatchError = CorruptRecordError(
            "the checksum does not match",
            position=int(headers["position"][at]),
            base_offset=int(headers["base_offset"][at]),
        )
        found = error, int(sources[at])
    if found is not None:
        error, row = found
        error.file = name(row)
        raise error
    return BatchColumn(values.buffers()[-1], headers, sources, starts, name)


# ---------------------------------------------------------------- what was aborted


def aborted_by_file(
    log: LogDirectory,
) -> Iterator[tuple[str, int, str, NDArray[np.void]]]:
    """(topic, partition, file, transactions) of every transaction index of a directory that has entries.

    Entries are held against the log, as for every read: where the two differ, the log wins.
    """
    for topic, numbers in log.topics().items():
        for number in numbers:
            partition = log.partition(topic, number)
            for segment in partition.log.segments:
                found = partition.aborted.between(0, _END, (segment,))
                if len(found):
                    yield topic, number, segment.txn_index.path, found


def aborted_index(path: str | os.PathLike[str]) -> AbortedIndex:
    """The aborted transactions of all partitions of a directory, and how far each partition is stable, as of now."""
    partitions, stable, parts = [], [], []
    with LogDirectory(path) as log:
        for topic, numbers in log.topics().items():
            for number in numbers:
                partition = log.partition(topic, number)
                partitions.append((topic, number))
                # The bound first: what is aborted below it is known by then.
                stable.append(partition.last_stable_offset)
                parts.append(partition.aborted.between(0, stable[-1]))
    places = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    rows = np.concatenate([np.empty(0, ABORTED_DTYPE), *parts])
    return AbortedIndex(partitions, stable, places, rows)


class Ends(NamedTuple):
    """Where transactions begin and end, by producer: what tells which of them were aborted."""

    producer_ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    types: NDArray[np.int16]  # DATA: the first batch of a transaction, else the type of its marker


def transaction_ends(headers: NDArray[np.void]) -> Ends:
    """The first batches and the markers of the transactions in a run of one partition's batches."""
    rows = headers[
        ((headers["attributes"] & TRANSACTIONAL) != 0) & (headers["control_type"] >= DATA)
    ]
    ends = Ends(rows["producer_id"], rows["base_offset"], rows["control_type"])
    return _first_batches(ends, np.zeros(len(rows), np.int64))[0]


def _first_batches(ends: Ends, places: NDArray[np.int64]) -> tuple[Ends, NDArray[np.int64]]:
    """Ends by place, producer and offset, without the batches that follow another of their transaction."""
    order = np.lexsort((ends.offsets, ends.producer_ids, places))
    producers, offsets = ends.producer_ids[order], ends.offsets[order]
    types, places = ends.types[order], places[order]
    follows = np.zeros(len(order), np.bool_)
    follows[1:] = (places[1:] == places[:-1]) & (producers[1:] == producers[:-1])
    follows[1:] &= (types[1:] == DATA) & (types[:-1] == DATA)
    return Ends(producers[~follows], offsets[~follows], types[~follows]), places[~follows]


def index_of_ends(
    partitions: list[tuple[str, int]], places: NDArray[np.int64], ends: Ends
) -> AbortedIndex:
    """The index of batches that came without one, from their own markers; ends may come in any order.

    A transaction without a marker among them is open: nothing from its first offset on is stable.
    """
    ends, places = _first_batches(ends, np.asarray(places, np.int64))
    begins = np.flatnonzero(ends.types == DATA)
    following = np.minimum(begins + 1, max(len(places) - 1, 0))
    ended = following > begins
    ended &= (places[following] == places[begins]) & (
        ends.producer_ids[following] == ends.producer_ids[begins]
    )
    aborted = ended & (ends.types[following] == ABORT)
    rows = np.empty(int(aborted.sum()), ABORTED_DTYPE)
    rows["producer_id"] = ends.producer_ids[begins[aborted]]
    rows["first_offset"] = ends.offsets[begins[aborted]]
    rows["last_offset"] = ends.offsets[following[aborted]]
    rows["last_stable_offset"] = -1
    stable = np.full(len(partitions), _END, np.int64)
    still_open = begins[~ended]
    np.minimum.at(stable, places[still_open], ends.offsets[still_open])
    return AbortedIndex(partitions, stable, places[begins[aborted]], rows)
