"""Java's String.hashCode, as Kafka places transactional ids and groups by it."""

from __future__ import annotations

import pytest

from oncelog.base.java_hash import INT_MIN, java_hash, partition_of

# From a Java 17 shell.
KNOWN = {
    "": 0,
    "a": 97,
    "mix-0": 103908607,
    "bumper": -1377900445,
    "my-transactional-id": -959806496,
    "zażółć gęślą jaźń": 481240412,
    "\U0001f600": 1772899,
    "polygenelubricants": INT_MIN,
}


@pytest.mark.parametrize(("text", "value"), KNOWN.items())
def test_the_hash_is_javas(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_the_smallest_int_counts_as_zero() -> None:
    """Goal: abs of the smallest int overflows in Java; Kafka takes 0 for it."""
    assert java_hash("polygenelubricants") == INT_MIN
    assert partition_of("polygenelubricants", 7) == 0


def test_a_negative_hash_counts_by_its_size() -> None:
    value = java_hash("bumper")
    assert value < 0
    assert partition_of("bumper", 50) == -value % 50


def test_half_a_surrogate_pair_has_a_hash_as_in_java() -> None:
    assert java_hash("\ud83d") == 0xD83D
