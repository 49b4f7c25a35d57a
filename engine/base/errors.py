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


class NotLeaderOrFollowerError(OncelogError):
    """This broker does not serve the partition at present."""

    code = 6
    remedy = Remedy.RETRY
    advice = "Ask again who leads the partition"


class RequestTimedOutError(OncelogError):
    """No answer in time: whether the request was carried out cannot be known."""

    code = 7
    remedy = Remedy.RETRY
    took_effect: ClassVar[bool | None] = None
    advice = "Call again: an idempotent producer does not write twice"


class BufferExhaustedError(RequestTimedOutError):
    """The producer's buffer stayed full for max.block.ms: the record was not taken."""

    took_effect = False
    advice = "Send more slowly, or raise buffer.memory or max.block.ms"


class OffsetMetadataTooLargeError(OncelogError):
    """The remark that goes with a committed offset is too long."""

    code = 12
    remedy = Remedy.FIX
    advice = "Shorten it, or raise the broker's offset.metadata.max.bytes"


class CoordinatorLoadInProgressError(OncelogError):
    """The coordinator still reads its state from the log."""

    code = 14
    remedy = Remedy.RETRY
    advice = "Call again in a moment: it is being loaded"


class CoordinatorNotAvailableError(OncelogError):
    """There is no coordinator, or it cannot write its state, at present."""

    code = 15
    remedy = Remedy.RETRY
    advice = "Look the coordinator up again and repeat the call"


class NotCoordinatorError(OncelogError):
    """Another broker coordinates this group or transactional id."""

    code = 16
    remedy = Remedy.RETRY
    advice = "Look the coordinator up again and repeat the call there"


class InvalidTopicError(OncelogError):
    """A topic name that Kafka does not allow."""

    code = 17
    remedy = Remedy.FIX
    advice = "Use 1 to 249 of ASCII letters, digits, '.', '_' and '-'; the broker's own topics are not for changing"


class NotEnoughReplicasError(OncelogError):
    """Fewer replicas in sync than min.insync.replicas asks for; nothing was written."""

    code = 19
    remedy = Remedy.RETRY
    advice = "Wait for replicas to return, or lower min.insync.replicas"


class IllegalGenerationError(OncelogError):
    """A commit from a group generation that has ended: the partitions may be another member's now."""

    code = 22
    remedy = Remedy.ABORT
    advice = "Abort the transaction if there is one, poll to join again, and repeat the work from the committed offsets"


class InconsistentGroupProtocolError(OncelogError):
    """The member has no protocol in common with the others of its group."""

    code = 23
    remedy = Remedy.FIX
    advice = "Give all members of a group the same protocol type and one assignor that all know"


class InvalidGroupIdError(OncelogError):
    """A group id that cannot be used."""

    code = 24
    remedy = Remedy.FIX
    advice = "Give a group id of at least one character"


class UnknownMemberIdError(OncelogError):
    """The group does not know this member: it was removed, most often because it polled too late."""

    code = 25
    remedy = Remedy.ABORT
    advice = "Abort the transaction if there is one, poll to join again, and poll within max.poll.interval.ms"


class InvalidSessionTimeoutError(OncelogError):
    """A session timeout outside of what the broker allows."""

    code = 26
    remedy = Remedy.FIX
    advice = (
        "Keep session.timeout.ms between the broker's group.min.session.timeout.ms and "
        "group.max.session.timeout.ms"
    )


class RebalanceInProgressError(OncelogError):
    """The group is sharing out its partitions anew."""

    code = 27
    remedy = Remedy.RETRY
    advice = "Poll to join again, then repeat the call"


class InvalidCommitOffsetSizeError(OncelogError):
    """A commit of more offsets than one batch can hold."""

    code = 28
    remedy = Remedy.FIX
    advice = "Commit fewer offsets at a time, or raise max.message.bytes"


class UnsupportedVersionError(OncelogError):
    """Bytes or a request of a version that is newer than what is known here."""

    code = 35
    remedy = Remedy.FIX
    advice = "Use a newer oncelog"


class TopicAlreadyExistsError(OncelogError):
    """There is a topic of this name already."""

    code = 36
    remedy = Remedy.FIX
    advice = "Use it as it is, choose another name, or delete it first"


class TopicDeletionDisabledError(OncelogError):
    """Topics are not to be deleted here."""

    code = 73
    remedy = Remedy.FIX
    advice = "Open the log with delete.topic.enable=true if it shall be possible"


class InvalidPartitionsError(OncelogError):
    """A partition count that is not possible: below one, or not above the present count."""

    code = 37
    remedy = Remedy.FIX
    advice = "Give a count of at least one; partitions can be added, never taken away"


class InvalidReplicationFactorError(OncelogError):
    """A replication factor that this broker cannot provide."""

    code = 38
    remedy = Remedy.FIX
    advice = "Use 1, or -1 for the default: an embedded log has one replica"


class InvalidConfigError(OncelogError):
    """An option that does not exist, or a value that it does not allow."""

    code = 40
    remedy = Remedy.FIX
    advice = "docs/reference/options.md lists every option with its limits"


class InvalidRequestError(OncelogError):
    """A request whose parts do not fit together."""

    code = 42
    remedy = Remedy.FIX
    advice = "Change the arguments as the sentence says"


class PolicyViolationError(OncelogError):
    """What a topic's options do not allow."""

    code = 44
    remedy = Remedy.FIX
    advice = "Change what the sentence names, if it may be"


class OutOfOrderSequenceError(OncelogError):
    """A producer's batch does not follow the last one that the log has."""

    code = 45
    remedy = Remedy.ABORT
    advice = "Records before it were lost or refused: abort, and send them again in order"


class DuplicateSequenceError(OncelogError):
    """A batch that the log has already, although it no longer remembers at which offset."""

    code = 46
    remedy = Remedy.FIX
    took_effect = True
    advice = "The records are in the log: treat the send as done"


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


class InvalidProducerIdMappingError(OncelogError):
    """The coordinator has another producer id, or none any more, for this transactional id."""

    code = 49
    remedy = Remedy.ABORT
    advice = "Abort the transaction: the producer then takes a new producer id by itself"


class InvalidTransactionTimeoutError(OncelogError):
    """transaction.timeout.ms is not positive, or larger than the broker allows."""

    code = 50
    remedy = Remedy.FIX
    advice = "Lower transaction.timeout.ms, or raise the broker's transaction.max.timeout.ms"


class ConcurrentTransactionsError(OncelogError):
    """The transactional id's last transaction is still being completed."""

    code = 51
    remedy = Remedy.RETRY
    advice = "Call again in a moment: its markers are being written"


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


class UnknownProducerIdError(OutOfOrderSequenceError):
    """The log no longer knows this producer: its records were deleted, or it was idle for too long."""

    code = 59
    remedy = Remedy.ABORT
    advice = "Abort, and send the records again: the producer starts a new sequence"


class GroupNotEmptyError(OncelogError):
    """The group has members."""

    code = 68
    remedy = Remedy.FIX
    advice = "Stop its consumers first, and wait until their sessions have ended"


class GroupIdNotFoundError(OncelogError):
    """There is no such group."""

    code = 69
    remedy = Remedy.FIX
    advice = "List the groups to see what there is"


class FencedLeaderEpochError(OncelogError):
    """The caller's leader epoch is older than the partition's."""

    code = 74
    remedy = Remedy.RETRY
    advice = (
        "Ask again who leads the partition, and check that the offset still holds the same record"
    )


class UnknownLeaderEpochError(OncelogError):
    """The caller's leader epoch is newer than the partition's."""

    code = 75
    remedy = Remedy.RETRY
    advice = "Call again in a moment: this broker has yet to hear of the new leader"


class MemberIdRequiredError(OncelogError):
    """The member must join again under the id that it was given."""

    code = 79
    remedy = Remedy.RETRY
    advice = "Join again with the member id of this error"

    def __init__(self, what: str, *, member_id: str = "") -> None:
        super().__init__(what)
        self.member_id = member_id


class GroupMaxSizeReachedError(OncelogError):
    """The group has as many members as it may have."""

    code = 81
    remedy = Remedy.FIX
    advice = "Stop a member, or raise the broker's group.max.size"


class FencedInstanceIdError(OncelogError):
    """Another member took over this group.instance.id."""

    code = 82
    remedy = Remedy.REOPEN
    advice = "Give each running member a group.instance.id of its own"


class ElectionNotNeededError(OncelogError):
    """The partition has the leader that was asked for."""

    code = 84
    remedy = Remedy.RETRY
    advice = "Nothing is left to do"


class GroupSubscribedToTopicError(OncelogError):
    """The group still reads this topic."""

    code = 86
    remedy = Remedy.FIX
    advice = "Unsubscribe its consumers from the topic first"


class UnstableOffsetCommitError(OncelogError):
    """An open transaction is about to commit this offset."""

    code = 88
    remedy = Remedy.RETRY
    advice = "Call again once the transaction has ended"


class ProducerFencedError(OncelogError):
    """A newer producer opened this transactional id, or its transaction timed out."""

    code = 90
    remedy = Remedy.REOPEN
    advice = "Close this producer; open a new one only if no other is meant to work in its place"


class UnknownTopicIdError(OncelogError):
    """No topic has this id: it was deleted, or deleted and made anew."""

    code = 100
    remedy = Remedy.RETRY
    advice = "Look the topic up by its name again"


class InconsistentTopicIdError(OncelogError):
    """partition.metadata names another topic id than the one expected."""

    code = 103
    remedy = Remedy.STOP
    advice = "The directory belongs to another topic of the same name"


class TransactionalIdNotFoundError(OncelogError):
    """The coordinator has never heard of this transactional id, or has forgotten it."""

    code = 105
    remedy = Remedy.FIX
    advice = "List the transactions to see which ids there are"


class UnreleasedInstanceIdError(OncelogError):
    """The group.instance.id belongs to a member that has not left yet."""

    code = 111
    remedy = Remedy.RETRY
    advice = "Call again once that member has left"


class StaleMemberEpochError(OncelogError):
    """The member's epoch is not the group's."""

    code = 113
    remedy = Remedy.RETRY
    advice = "Call again once the member has heard of its new epoch"


class TransactionAbortableError(OncelogError):
    """The transaction cannot go on, its producer can."""

    code = 120
    remedy = Remedy.ABORT
    advice = "Abort the transaction and begin it again"


class InvalidRegularExpressionError(OncelogError):
    """A pattern that is no regular expression."""

    code = 128
    remedy = Remedy.FIX
    advice = "Correct the pattern at the place that the sentence names"


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


class IllegalStateError(OncelogError):
    """Calls in a wrong order, such as a commit without a begin."""

    remedy = Remedy.FIX
    advice = "Change the order of the calls as the sentence says"


class NoOffsetForPartitionError(OncelogError):
    """A partition that a consumer has no position in, and no policy to find one."""

    remedy = Remedy.FIX
    advice = "Seek to an offset first, or set auto_offset_reset to 'earliest' or 'latest'"


class LogTruncationError(OffsetOutOfRangeError):
    """The log was cut below a consumer's position and written anew from there on.

    ``offset`` is the first one that may differ from what was read.
    """

    advice = "Seek to the named offset, and undo what came of the records from there on"

    def __init__(self, what: str, *, offset: int = -1) -> None:
        super().__init__(what)
        self.offset = offset


class WakeupError(OncelogError):
    """Somebody called wakeup() while a consumer was polling, or was about to."""

    remedy = Remedy.RETRY
    advice = "Nothing is lost: poll again, or close the consumer"


class TransactionAbortedError(OncelogError):
    """A record that was not sent before its transaction was aborted, and never will be."""

    remedy = Remedy.RETRY
    advice = "Send it again in a new transaction"


class StagingError(OncelogError):
    """Staged records that are not there, or not what was staged."""

    remedy = Remedy.RETRY
    advice = "Nothing of the batch was committed: run it again, and its tasks stage it anew"


class CommitTokenError(OncelogError):
    """A batch that does not follow the last one that its application has committed."""

    remedy = Remedy.FIX
