"""Every error oncelog raises: Kafka's code, and the answer to "what do I do now?".

The three flags that Kafka's clients know (``retriable``, ``fatal``, ``txn_requires_abort``) derive from
one value, the remedy. ``took_effect`` says what a caller may assume about the request that failed.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORDS_SHOWN: Final = 8  # of the records at fault, in an error's sentence; its attribute has all


class Remedy(enum.Enum):
    """What the caller should do next."""

    RETRY = "call again"
    ABORT = "abort the transaction"
    REOPEN = "open a new producer"
    FIX = "change the call"
    STOP = "stop and verify the log"


class OncelogError(Exception):
    """Base of all errors; by itself, Kafka's "unknown server error"."""

    code: ClassVar[int] = -1
    remedy: ClassVar[Remedy] = Remedy.STOP
    took_effect: ClassVar[bool | None] = False
    advice: ClassVar[str] = ""

    def __str__(self) -> str:
        sentence = super().__str__()
        return f"{sentence}. {self.advice}" if self.advice else sentence

    @property
    def retriable(self) -> bool:
        return self.remedy is Remedy.RETRY

    @property
    def fatal(self) -> bool:
        return self.remedy in (Remedy.REOPEN, Remedy.STOP)

    @property
    def txn_requires_abort(self) -> bool:
        return self.remedy is Remedy.ABORT


class BatchError(OncelogError):
    """A record batch that cannot be read or written, and where it lies.

    ``file`` is empty for bytes that came from no file; ``position`` is where the batch starts in them,
    ``base_offset`` its first offset and ``record`` the record's index in the batch; -1 where unknown.
    ``records`` holds the index of every record that is at fault, where there may be several.
    """

    def __init__(
        self,
        what: str,
        *,
        file: str = "",
        position: int = -1,
        base_offset: int = -1,
        record: int = -1,
        records: Sequence[int] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.file = file
        self.position = position
        self.base_offset = base_offset
        self.record = record
        self.records = tuple(records) or ((record,) if record >= 0 else ())

    def __str__(self) -> str:
        place = [self.file] if self.file else []
        if self.position >= 0:
            place.append(f"position {self.position}")
        if self.base_offset >= 0:
            place.append(f"base offset {self.base_offset}")
        if len(self.records) > 1:
            shown = ", ".join(map(str, self.records[:RECORDS_SHOWN]))
            more = len(self.records) - RECORDS_SHOWN
            place.append(f"records {shown}{f' and {more} more' if more > 0 else ''} of the batch")
        elif self.record >= 0:
            place.append(f"record {self.record} of the batch")
        sentence = f"{self.what} ({', '.join(place)})" if place else self.what
        return f"{sentence}. {self.advice}" if self.advice else sentence

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what,), self.__dict__)


class CorruptRecordError(BatchError):
    """The bytes are not what was written: bad checksum, impossible size, unknown magic."""

    code = 2
    remedy = Remedy.STOP
    advice = (
        "The bytes are damaged here: what lies before is readable, restore the rest from a copy"
    )


class TruncatedBatchError(CorruptRecordError):
    """The bytes end inside a batch: a torn write, or a read that was cut short."""

    advice = "Wait for the rest if it is still being written; after a crash, cut the file at this position"


class RecordTooLargeError(BatchError):
    """A record is larger than a batch may be."""

    code = 10
    remedy = Remedy.FIX
    advice = "Split the value, or raise the limit"


class RecordBatchTooLargeError(BatchError):
    """A batch is larger, or grows larger when decompressed, than the limit allows."""

    code = 18
    remedy = Remedy.FIX
    advice = "Raise the limit if you trust where the bytes came from"


class InvalidTimestampError(BatchError):
    """A timestamp that cannot stand in a record."""

    code = 32
    remedy = Remedy.FIX
    advice = "Timestamps are milliseconds since 1970, zero or more"


class UnsupportedForMessageFormatError(BatchError):
    """The old message format (magic 0 or 1), which Kafka 4 no longer reads either."""

    code = 43
    remedy = Remedy.FIX
    advice = "This is the old format: let a Kafka 3.x broker rewrite the topic, then read it here"


class UnsupportedCompressionTypeError(BatchError):
    """A compression codec that does not exist."""

    code = 76
    remedy = Remedy.STOP
    advice = "Known codecs are none, gzip, snappy, lz4 and zstd"


class InvalidRecordError(BatchError):
    """A record that breaks its own or its batch's promises, although the checksum may be right."""

    code = 87
    remedy = Remedy.STOP
    advice = "Whoever wrote this batch is at fault: skip to the next batch to go on"


class OffsetOutOfRangeError(OncelogError):
    """An offset below the log's start or past its end."""

    code = 1
    remedy = Remedy.FIX
    advice = "Start from the log's first or last offset instead"


class UnknownTopicOrPartitionError(OncelogError):
    """A topic or partition that does not exist here."""

    code = 3
    remedy = Remedy.FIX
    advice = "List the topics to see what there is"


class InvalidTopicError(OncelogError):
    """A topic name that Kafka does not allow."""

    code = 17
    remedy = Remedy.FIX
    advice = "Use 1 to 249 of ASCII letters, digits, '.', '_' and '-'"


class OutOfOrderSequenceError(OncelogError):
    """A producer's batch does not follow the last one that the log has."""

    code = 45
    remedy = Remedy.ABORT
    advice = "Records before it were lost or refused: abort, and send them again in order"


class InvalidProducerEpochError(OncelogError):
    """A batch or marker with an epoch older than the one known: its producer was fenced."""

    code = 47
    remedy = Remedy.REOPEN
    advice = "A newer producer took over this id: open a new one"


class InvalidTxnStateError(OncelogError):
    """A write that does not fit the transaction's state on this partition."""

    code = 48
    remedy = Remedy.ABORT
    advice = "Abort the transaction and begin a new one"


class TransactionCoordinatorFencedError(OncelogError):
    """A marker from a coordinator that has been replaced."""

    code = 52
    remedy = Remedy.STOP
    advice = "A newer coordinator is in charge of this transaction"


class KafkaStorageError(OncelogError):
    """The disk failed: what was not acknowledged may or may not be there after a restart."""

    code = 56
    remedy = Remedy.STOP
    took_effect = None
    advice = "Check the disk, then open the directory again: recovery decides what was written"


class InconsistentTopicIdError(OncelogError):
    """partition.metadata names another topic id than the one expected."""

    code = 103
    remedy = Remedy.STOP
    advice = "The directory belongs to another topic of the same name"


class UnexpectedAppendOffsetError(OncelogError):
    """A follower's batch does not start at or after the end of its log."""

    remedy = Remedy.STOP
    advice = "Truncate the log to where it agrees with its leader"


class DirectoryLockedError(OncelogError):
    """Another process writes in this directory."""

    remedy = Remedy.FIX
    advice = "Stop it first, or open the directory with read_only=True"


class CorruptFileError(OncelogError):
    """An index, snapshot or checkpoint that is not what was written."""

    remedy = Remedy.STOP
    advice = "The file can be rebuilt from the log"

    def __init__(self, what: str, *, file: str = "", position: int = -1) -> None:
        place = [part for part in (file, f"position {position}" if position >= 0 else "") if part]
        super().__init__(f"{what} ({', '.join(place)})" if place else what)
        self.what = what
        self.file = file
        self.position = position


class CleaningAbortedError(OncelogError):
    """A log was truncated, removed or closed while it was being compacted; it is as it was before."""

    remedy = Remedy.RETRY
    advice = "Clean the log again"


class ClosedError(OncelogError):
    """A log that was closed, or went offline after a disk error."""

    remedy = Remedy.FIX
    advice = "Open the directory again"
