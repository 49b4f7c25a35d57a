"""An error about a batch says where the batch lies, in words and in fields."""

from __future__ import annotations

import inspect
import pickle

import pytest

from oncelog.base import errors
from oncelog.base.errors import (
    BatchError,
    BufferExhaustedError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRecordError,
    InvalidTransactionTimeoutError,
    NotCoordinatorError,
    OncelogError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordBatchTooLargeError,
    Remedy,
    RequestTimedOutError,
    TransactionAbortableError,
    TruncatedBatchError,
    UnknownProducerIdError,
    UnsupportedForMessageFormatError,
)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({}, "what"),
        ({"file": "a.log"}, "what (a.log)"),
        ({"position": 0}, "what (position 0)"),
        ({"position": 5, "base_offset": 0}, "what (position 5, base offset 0)"),
        ({"record": 0}, "what (record 0 of the batch)"),
        (
            {"file": "a.log", "position": 61, "base_offset": 7, "record": 2},
            "what (a.log, position 61, base offset 7, record 2 of the batch)",
        ),
        ({"file": "a.log", "position": -1, "base_offset": -1, "record": -1}, "what (a.log)"),
    ],
)
def test_the_place_stands_behind_the_sentence(place: dict[str, int | str], words: str) -> None:
    """Goal: what is known is said, what is not known is not.
    Method: every subset that occurs; the advice follows."""
    error = InvalidRecordError("what", **place)  # type: ignore[arg-type]
    assert str(error) == f"{words}. {InvalidRecordError.advice}"
    for name in ("file", "position", "base_offset", "record"):
        assert getattr(error, name) == place.get(name, "" if name == "file" else -1)
    assert error.what == "what"


def test_the_place_survives_pickling() -> None:
    """Goal: an error from a worker process names the same file and position."""
    error = CorruptRecordError("what", file="a.log", position=61, base_offset=7, record=2)
    twin = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(twin) is CorruptRecordError
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)


def test_a_cut_batch_is_a_kind_of_damage() -> None:
    """Goal: who handles corruption handles a torn write, too; who asks can tell them apart."""
    assert issubclass(TruncatedBatchError, CorruptRecordError)
    assert TruncatedBatchError.code == CorruptRecordError.code == 2
    assert TruncatedBatchError.advice != CorruptRecordError.advice
    for kind in (CorruptRecordError, InvalidRecordError, RecordBatchTooLargeError):
        assert issubclass(kind, BatchError)
        assert issubclass(kind, OncelogError)


def test_the_old_format_is_the_callers_to_fix() -> None:
    error = UnsupportedForMessageFormatError("message format 0 or 1")
    assert (error.code, error.remedy) == (43, Remedy.FIX)
    assert [error.retriable, error.fatal, error.txn_requires_abort] == [False] * 3
    assert "Kafka 3" in str(error)


# The codes whose exceptions Kafka derives from RetriableException.
KAFKA_RETRIES = {
    2,
    3,
    5,
    6,
    7,
    9,
    13,
    14,
    15,
    16,
    19,
    20,
    41,
    51,
    56,
    70,
    71,
    72,
    74,
    75,
    78,
    80,
    83,
    84,
}
KAFKA_RETRIES |= {88, 89, 100, 103, 106, 122, 123, 133}
# Kafka asks another replica, or waits for news of the topic to spread; here is one replica, and no news to wait for.
FINAL_HERE = {2, 3, 56, 103}
# Kafka's consumer repeats these by itself, without its own classes saying so.
REPEATED_BY_CONSUMERS = {27, 79, 111, 113}


def test_an_error_is_retriable_where_kafkas_is() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    coded = [kind for kind in kinds if issubclass(kind, OncelogError) and kind.code > 0]
    retriable = {kind.code for kind in coded if kind.remedy is Remedy.RETRY}
    known = {kind.code for kind in coded}
    assert retriable - REPEATED_BY_CONSUMERS == (KAFKA_RETRIES & known) - FINAL_HERE


@pytest.mark.parametrize(
    ("kind", "flag"),
    [
        (NotCoordinatorError, "retriable"),
        (CoordinatorNotAvailableError, "retriable"),
        (CoordinatorLoadInProgressError, "retriable"),
        (ConcurrentTransactionsError, "retriable"),
        (RequestTimedOutError, "retriable"),
        (InvalidProducerIdMappingError, "txn_requires_abort"),
        (UnknownProducerIdError, "txn_requires_abort"),
        (TransactionAbortableError, "txn_requires_abort"),
        (InvalidProducerEpochError, "fatal"),
        (ProducerFencedError, "fatal"),
        (InvalidTransactionTimeoutError, None),
    ],
)
def test_a_producer_reacts_as_kafkas_does(kind: type[OncelogError], flag: str | None) -> None:
    """Goal: repeat what passes, abort what only this transaction suffers from, stop when fenced; a wrong timeout
    is the caller's to change."""
    error = kind("what")
    flags = {name for name in ("retriable", "fatal", "txn_requires_abort") if getattr(error, name)}
    assert flags == ({flag} if flag else set())


def test_a_full_buffer_is_a_timeout_of_which_nothing_was_sent() -> None:
    assert issubclass(BufferExhaustedError, RequestTimedOutError)
    assert RequestTimedOutError.took_effect is None
    assert BufferExhaustedError.took_effect is False


def test_an_unknown_producer_is_a_kind_of_gap() -> None:
    """Goal: who handles a gap in the sequence handles a producer that was forgotten, as with Kafka's classes."""
    assert issubclass(UnknownProducerIdError, OutOfOrderSequenceError)
