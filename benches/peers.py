"""Other people's libraries that do the same work. Each is optional; a missing one is said, not fatal.

To add one: a class with a name, a version and the two jobs below, and its name in all_of().
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from .harness import Contestant, Role, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .harness import Records, Settings

NOT_INSTALLED: Final = "not installed"
BATCH_BYTES: Final = 1 << 30  # builders refuse records beyond this; the shapes set the size here


class UnavailableError(Exception):
    """The peer cannot take part; the message says why in a few words."""


class RecordBatchPeer(Protocol):
    """A library that builds and reads record batches, record by record from Python."""

    name: ClassVar[str]

    @property
    def version(self) -> str: ...
    def can(self, codec: int) -> bool: ...
    def encode(self, records: Records, codec: int = 0) -> list[bytes | bytearray]: ...
    def touch(self, data: bytes) -> None: ...
    def rows(self, data: bytes) -> list[tuple[Any, ...]]: ...
    def headers(self, data: bytes, check_crc: bool) -> list[tuple[Any, ...]]: ...


CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class _Builders:
    """What aiokafka and kafka-python share: kafka-python's interface of builders and batches."""

    name: ClassVar[str]
    builder: Any  # DefaultRecordBatchBuilder
    memory_records: Any  # MemoryRecords
    codecs: Any  # the module that knows which codecs are there

    @property
    def version(self) -> str:
        return version_of(self.name)

    def can(self, codec: int) -> bool:
        return codec == 0 or bool(getattr(self.codecs, f"has_{CODECS[codec]}")())

    def encode(self, records: Records, codec: int = 0) -> list[bytes | bytearray]:
        """One builder per batch; every batch starts at offset 0, as producers send them."""
        columns = (records.timestamps, records.keys, records.values, records.headers)
        per_batch = records.shape.records
        made = []
        for first in range(0, records.count, per_batch):
            rows = zip(*(column[first : first + per_batch] for column in columns), strict=True)
            builder = self.builder(
                magic=2, compression_type=codec, is_transactional=0, producer_id=-1,
                producer_epoch=-1, base_sequence=-1, batch_size=BATCH_BYTES,
            )  # fmt: skip
            append = builder.append
            for index, (stamp, key, value, headers) in enumerate(rows):
                append(index, stamp, key, value, headers)
            made.append(builder.build())
        return made

    def batches(self, data: bytes) -> Iterator[Any]:
        memory = self.memory_records(data)
        while memory.has_next():
            yield memory.next_batch()

    def touch(self, data: bytes) -> None:
        """Proves every checksum and looks at every field of every record."""
        for batch in self.batches(data):
            if not batch.validate_crc():
                raise AssertionError("checksum")
            for record in batch:
                record.offset  # noqa: B018
                record.timestamp  # noqa: B018
                record.key  # noqa: B018
                record.value  # noqa: B018
                record.headers  # noqa: B018

    def rows(self, data: bytes) -> list[tuple[Any, ...]]:
        return [
            (one.offset, one.timestamp, one.timestamp_type, one.key, one.value, list(one.headers))
            for batch in self.batches(data)
            for one in batch
        ]

    def headers(self, data: bytes, check_crc: bool) -> list[tuple[Any, ...]]:
        return [
            (
                batch.base_offset, batch.last_offset_delta, batch.producer_id, batch.base_sequence,
                batch.attributes, batch.first_timestamp, batch.max_timestamp, batch.crc,
                batch.validate_crc() if check_crc else None,
            )
            for batch in self.batches(data)
        ]  # fmt: skip


class AioKafka(_Builders):
    """aiokafka's Cython; its Python twin, chosen silently where the build failed, is refused."""

    name = "aiokafka"

    def __init__(self) -> None:
        try:
            importlib.import_module("aiokafka")
        except ImportError:
            raise UnavailableError(NOT_INSTALLED) from None
        try:
            native = importlib.import_module("aiokafka.record._crecords.default_records")
            memory = importlib.import_module("aiokafka.record._crecords.memory_records")
        except ImportError:
            raise UnavailableError("installed without its Cython") from None
        for module in (native, memory):
            if str(module.__file__).endswith(".py"):
                raise UnavailableError("installed without its Cython")
        self.builder = native.DefaultRecordBatchBuilder
        self.memory_records = memory.MemoryRecords
        self.codecs = importlib.import_module("aiokafka.codec")


class KafkaPython(_Builders):
    name = "kafka-python"

    def __init__(self) -> None:
        try:
            records = importlib.import_module("kafka.record.default_records")
            memory = importlib.import_module("kafka.record.memory_records")
            self.codecs = importlib.import_module("kafka.codec")
        except ImportError:
            raise UnavailableError(NOT_INSTALLED) from None
        self.builder = records.DefaultRecordBatchBuilder
        self.memory_records = memory.MemoryRecords


RECORD_BATCH_PEERS: Final[tuple[type[AioKafka | KafkaPython], ...]] = (AioKafka, KafkaPython)


@functools.cache
def _made(name: str) -> RecordBatchPeer | str:
    """The peer, or why it is missing."""
    (kind,) = (kind for kind in RECORD_BATCH_PEERS if kind.name == name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a peer's import warns of is not ours to mend
            return kind()
    except UnavailableError as error:
        return str(error)


def contestants(
    settings: Settings,
    call: Callable[[RecordBatchPeer], Callable[[], object]],
    reveal: Callable[[RecordBatchPeer], Callable[[], object]] | None = None,
    *,
    codec: int = 0,
    only: tuple[str, ...] = (),
) -> list[Contestant]:
    """One contestant for each peer, there or not."""
    found = []
    for kind in RECORD_BATCH_PEERS:
        if only and kind.name not in only:
            continue
        peer = NOT_INSTALLED if kind.name in settings.without else _made(kind.name)
        if isinstance(peer, str):
            found.append(Contestant(kind.name, Role.PEER, missing=peer))
        elif not peer.can(codec):
            reason = f"has no {CODECS[codec]} here"
            found.append(Contestant(kind.name, Role.PEER, missing=reason, version=peer.version))
        else:
            found.append(
                Contestant(
                    kind.name,
                    Role.PEER,
                    call(peer),
                    version=peer.version,
                    reveal=None if reveal is None else reveal(peer),
                )
            )
    return found


def rebased(batches: list[bytes | bytearray], per_batch: int) -> bytes:
    """Batches as a log stores them: base offset and leader epoch, which the log assigns and the
    checksum does not cover, are ours (kafka-python writes epoch 0, the others -1)."""
    return b"".join(
        (number * per_batch).to_bytes(8, "big") + batch[8:12] + b"\xff" * 4 + batch[16:]
        for number, batch in enumerate(batches)
    )
