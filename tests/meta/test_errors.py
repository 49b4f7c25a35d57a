"""Every error has Kafka's code, a remedy, and a sentence; the flags follow from the remedy."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from oncelog.base import errors
from oncelog.base.errors import OncelogError, Remedy

# Code to exception, as in Kafka's org.apache.kafka.common.protocol.Errors (without "Exception").
# Kafka froze the codes; the names follow its classes, so that a person finds the same word.
KAFKA = {
    -1: "UnknownServer",
    1: "OffsetOutOfRange",
    2: "CorruptRecord",
    3: "UnknownTopicOrPartition",
    4: "InvalidFetchSize",
    5: "LeaderNotAvailable",
    6: "NotLeaderOrFollower",
    7: "Timeout",
    8: "BrokerNotAvailable",
    9: "ReplicaNotAvailable",
    10: "RecordTooLarge",
    11: "ControllerMoved",
    12: "OffsetMetadataTooLarge",
    13: "Network",
    14: "CoordinatorLoadInProgress",
    15: "CoordinatorNotAvailable",
    16: "NotCoordinator",
    17: "InvalidTopic",
    18: "RecordBatchTooLarge",
    19: "NotEnoughReplicas",
    20: "NotEnoughReplicasAfterAppend",
    21: "InvalidRequiredAcks",
    22: "IllegalGeneration",
    23: "InconsistentGroupProtocol",
    24: "InvalidGroupId",
    25: "UnknownMemberId",
    26: "InvalidSessionTimeout",
    27: "RebalanceInProgress",
    28: "InvalidCommitOffsetSize",
    29: "TopicAuthorization",
    30: "GroupAuthorization",
    31: "ClusterAuthorization",
    32: "InvalidTimestamp",
    33: "UnsupportedSaslMechanism",
    34: "IllegalSaslState",
    35: "UnsupportedVersion",
    36: "TopicExists",
    37: "InvalidPartitions",
    38: "InvalidReplicationFactor",
    39: "InvalidReplicaAssignment",
    40: "InvalidConfiguration",
    41: "NotController",
    42: "InvalidRequest",
    43: "UnsupportedForMessageFormat",
    44: "PolicyViolation",
    45: "OutOfOrderSequence",
    46: "DuplicateSequence",
    47: "InvalidProducerEpoch",
    48: "InvalidTxnState",
    49: "InvalidPidMapping",
    50: "InvalidTxnTimeout",
    51: "ConcurrentTransactions",
    52: "TransactionCoordinatorFenced",
    53: "TransactionalIdAuthorization",
    54: "SecurityDisabled",
    55: "OperationNotAttempted",
    56: "KafkaStorage",
    57: "LogDirNotFound",
    58: "SaslAuthentication",
    59: "UnknownProducerId",
    60: "ReassignmentInProgress",
    61: "DelegationTokenDisabled",
    62: "DelegationTokenNotFound",
    63: "DelegationTokenOwnerMismatch",
    64: "UnsupportedByAuthentication",
    65: "DelegationTokenAuthorization",
    66: "DelegationTokenExpired",
    67: "InvalidPrincipalType",
    68: "GroupNotEmpty",
    69: "GroupIdNotFound",
    70: "FetchSessionIdNotFound",
    71: "InvalidFetchSessionEpoch",
    72: "ListenerNotFound",
    73: "TopicDeletionDisabled",
    74: "FencedLeaderEpoch",
    75: "UnknownLeaderEpoch",
    76: "UnsupportedCompressionType",
    77: "StaleBrokerEpoch",
    78: "OffsetNotAvailable",
    79: "MemberIdRequired",
    80: "PreferredLeaderNotAvailable",
    81: "GroupMaxSizeReached",
    82: "FencedInstanceId",
    83: "EligibleLeadersNotAvailable",
    84: "ElectionNotNeeded",
    85: "NoReassignmentInProgress",
    86: "GroupSubscribedToTopic",
    87: "InvalidRecord",
    88: "UnstableOffsetCommit",
    89: "ThrottlingQuotaExceeded",
    90: "ProducerFenced",
    91: "ResourceNotFound",
    92: "DuplicateResource",
    93: "UnacceptableCredential",
    94: "InconsistentVoterSet",
    95: "InvalidUpdateVersion",
    96: "FeatureUpdateFailed",
    97: "PrincipalDeserialization",
    98: "SnapshotNotFound",
    99: "PositionOutOfRange",
    100: "UnknownTopicId",
    101: "DuplicateBrokerRegistration",
    102: "BrokerIdNotRegistered",
    103: "InconsistentTopicId",
    104: "InconsistentClusterId",
    105: "TransactionalIdNotFound",
    106: "FetchSessionTopicId",
    107: "IneligibleReplica",
    108: "NewLeaderElected",
    109: "OffsetMovedToTieredStorage",
    110: "FencedMemberEpoch",
    111: "UnreleasedInstanceId",
    112: "UnsupportedAssignor",
    113: "StaleMemberEpoch",
    114: "MismatchedEndpointType",
    115: "UnsupportedEndpointType",
    116: "UnknownControllerId",
    117: "UnknownSubscriptionId",
    118: "TelemetryTooLarge",
    119: "InvalidRegistration",
    120: "TransactionAbortable",
    121: "InvalidRecordState",
    122: "ShareSessionNotFound",
    123: "InvalidShareSessionEpoch",
    124: "FencedStateEpoch",
    125: "InvalidVoterKey",
    126: "DuplicateVoter",
    127: "VoterNotFound",
    128: "InvalidRegularExpression",
    129: "RebootstrapRequired",
    130: "StreamsInvalidTopology",
    131: "StreamsInvalidTopologyEpoch",
    132: "StreamsTopologyFenced",
    133: "ShareSessionLimitReached",
}

# Kafka also has a name for each code in that enum. Where its class abbreviates, or would hide a name
# of Python's own, ours is called by that one.
CODE_NAMES = {
    7: "RequestTimedOut",
    36: "TopicAlreadyExists",
    40: "InvalidConfig",
    49: "InvalidProducerIdMapping",
    50: "InvalidTransactionTimeout",
}

CLASSES = [
    member
    for _, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, OncelogError)
]
# A class without a code of its own refines, or gathers, what its parent says.
CODED = [member for member in CLASSES if "code" in vars(member) and member is not OncelogError]


def test_codes_are_unique() -> None:
    codes = [member.code for member in CODED]
    assert sorted(codes) == sorted(set(codes))


@pytest.mark.parametrize("member", CODED)
def test_code_and_name_are_kafkas(member: type[OncelogError]) -> None:
    assert member.__name__ == f"{CODE_NAMES.get(member.code, KAFKA[member.code])}Error"


@pytest.mark.parametrize("member", CLASSES)
def test_every_error_says_what_it_means_and_what_to_do(member: type[OncelogError]) -> None:
    assert inspect.getdoc(member)
    assert "__doc__" in vars(member)
    assert vars(member)["__doc__"], "a docstring of its own, not its parent's"
    assert isinstance(member.remedy, Remedy)
    assert member.took_effect in (True, False, None)
    assert isinstance(member.advice, str)
    if member in CODED:
        assert "remedy" in vars(member), "a code without a remedy of its own"
        assert member.advice, "a sentence on what to do next"


@pytest.mark.parametrize("member", CLASSES)
def test_flags_derive_from_the_remedy(member: type[OncelogError]) -> None:
    """Goal: the three flags of Kafka's clients cannot contradict the remedy.
    Method: nobody but the base defines them, and at most one of them is true."""
    flags = ("retriable", "fatal", "txn_requires_abort")
    if member is not OncelogError:
        assert not set(flags) & set(vars(member))
    error = member("what happened")
    assert error.retriable == (error.remedy is Remedy.RETRY)
    assert error.txn_requires_abort == (error.remedy is Remedy.ABORT)
    assert error.fatal == (error.remedy in (Remedy.REOPEN, Remedy.STOP))
    assert "what happened" in str(error)


@pytest.mark.parametrize("member", CLASSES)
def test_errors_cross_process_boundaries(member: type[OncelogError]) -> None:
    """Goal: an error raised in a worker arrives as itself, and says the same.
    Method: pickle and copy it."""
    error = member("what happened")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
        assert type(twin) is member
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)
