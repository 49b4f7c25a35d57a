"""An error about a batch says where the batch lies, in words and in fields."""

from __future__ import annotations

import pickle

import pytest

from oncelog.base.errors import (
    BatchError,
    CorruptRecordError,
    InvalidRecordError,
    OncelogError,
    RecordBatchTooLargeError,
    Remedy,
    TruncatedBatchError,
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
