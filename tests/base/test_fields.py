"""Fields of Kafka's messages: what is written is read, what is hostile is refused at its byte."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.base.errors import CorruptRecordError
from oncelog.base.fields import FieldReader, compact_string, string, tagged_fields, uvarint


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_a_varint_has_seven_bits_a_byte(value: int, data: str) -> None:
    assert uvarint(value).hex() == data
    reader = FieldReader(bytes.fromhex(data), "it")
    assert reader.uvarint("a number") == value
    reader.finish()


@pytest.mark.parametrize("data", ["ffffffff10", "ffffffff7f", "8080808080", "808080808001"])
def test_a_varint_ends_at_32_bits(data: str) -> None:
    with pytest.raises(CorruptRecordError, match="the varint of a number has more than 32 bits"):
        FieldReader(bytes.fromhex(data), "it").uvarint("a number")


@given(st.text(max_size=200))
def test_a_text_survives_in_both_forms(text: str) -> None:
    for data, flexible in ((string(text), False), (compact_string(text), True)):
        reader = FieldReader(data, "it")
        assert reader.string("a text", flexible=flexible) == text
        reader.finish()


def test_null_is_not_the_empty_text() -> None:
    assert FieldReader(b"\xff\xff", "it").string("a text", flexible=False) is None
    assert FieldReader(b"\x00\x00", "it").string("a text", flexible=False) == ""
    assert FieldReader(b"\x00", "it").string("a text", flexible=True) is None
    assert FieldReader(b"\x01", "it").string("a text", flexible=True) == ""
    with pytest.raises(CorruptRecordError, match="a text is null"):
        FieldReader(b"\x00", "it").required_string("a text", flexible=True)


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="needs -2 bytes"):
        FieldReader(b"\xff\xfeab", "it").string("a text", flexible=False)
    with pytest.raises(CorruptRecordError, match="cannot have -2 entries"):
        FieldReader(b"\xff\xff\xff\xfe", "it").count("a list", 1, flexible=False)


def test_a_count_is_believed_as_far_as_the_bytes_go() -> None:
    data = struct.pack(">i", 3) + bytes(12)
    assert FieldReader(data, "it").count("a list", 4, flexible=False) == 3
    with pytest.raises(CorruptRecordError, match="cannot have 3 entries with 11 bytes left"):
        FieldReader(data[:-1], "it").count("a list", 4, flexible=False)
    assert FieldReader(b"\xff\xff\xff\xff", "it").count("a list", 4, flexible=False) == -1
    assert FieldReader(b"\x00", "it").count("a list", 4, flexible=True) == -1


@given(st.dictionaries(st.integers(0, 2**32 - 1), st.binary(max_size=200), max_size=4))
def test_tagged_fields_survive(fields: dict[int, bytes]) -> None:
    reader = FieldReader(tagged_fields(sorted(fields.items())), "it")
    assert reader.tagged_fields() == fields
    reader.finish()


@pytest.mark.parametrize("tags", ["02 0500 0400", "02 0500 0500"])
def test_tags_rise(tags: str) -> None:
    with pytest.raises(CorruptRecordError, match="follows tag 5"):
        FieldReader(bytes.fromhex(tags), "it").tagged_fields()


def test_an_error_names_the_message_the_byte_and_the_field() -> None:
    reader = FieldReader(b"\x00\x01\x02", "the value of a group", file="a.log")
    assert reader.integer(2, "the version") == 1
    with pytest.raises(CorruptRecordError) as caught:
        reader.integer(8, "the time")
    assert str(caught.value).startswith(
        "the value of a group is damaged at byte 2 of 3: the time needs 8 bytes and 1 are left (a.log)"
    )
