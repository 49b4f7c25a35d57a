"""Records and batch options as hypothesis draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from oncelog.segment.batch import Codec

from .oracle import OracleBatch, OracleRecord, build_split

NOW = 1_794_787_200_000

Headers = tuple[tuple[str, bytes | None], ...]

# Sizes around where a view stops being inline (12) and a varint grows (64, 8192).
sizes = st.one_of(st.integers(0, 20), st.sampled_from([31, 63, 64, 65, 127, 128, 300, 8191, 8192]))
blobs = st.one_of(
    st.binary(max_size=24),
    st.builds(lambda size, byte: bytes([byte]) * size, sizes, st.integers(0, 255)),
)
optional_blobs = st.one_of(st.none(), blobs)
names = st.one_of(
    st.sampled_from(["", "a", "trace-id", "Größe", "鍵", "a\0b"]), st.text(max_size=8)
)
header_lists = st.lists(st.tuples(names, optional_blobs), max_size=4).map(tuple)
timestamps = st.one_of(
    st.integers(NOW, NOW + 1000),
    st.integers(NOW - 10**9, NOW + 10**9),
    st.sampled_from([-1, 0, 1, NOW, 2**31, 2**40, 2**62]),
)


@dataclass(frozen=True)
class Records:
    """Columns of records; None where a column is not given."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    timestamps: list[int] | None
    headers: list[Headers] | None

    def __len__(self) -> int:
        return len(self.values)

    def oracle_records(self, base_offset: int, default_timestamp: int) -> list[OracleRecord]:
        return [
            OracleRecord(
                base_offset + index,
                default_timestamp if self.timestamps is None else self.timestamps[index],
                None if self.keys is None else self.keys[index],
                value,
                ()
                if self.headers is None
                else tuple((name.encode(), blob) for name, blob in self.headers[index]),
            )
            for index, value in enumerate(self.values)
        ]


@st.composite
def records(draw: st.DrawFn, min_size: int = 0, max_size: int = 24) -> Records:
    count = draw(st.integers(min_size, max_size))

    def column(elements: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(elements, min_size=count, max_size=count))

    return Records(
        values=column(optional_blobs),
        keys=column(optional_blobs) if draw(st.booleans()) else None,
        timestamps=column(timestamps) if draw(st.booleans()) else None,
        headers=column(header_lists) if draw(st.booleans()) else None,
    )


codecs = st.sampled_from(list(Codec))
batch_sizes = st.sampled_from([1, 61, 75, 130, 400, 2000, 16384, 2**31 - 1])


@st.composite
def options(draw: st.DrawFn, codec: st.SearchStrategy[Codec] = codecs) -> dict[str, Any]:
    """Keyword arguments of encode(); each field has its own, wide value."""
    chosen: dict[str, Any] = {
        "compression": draw(codec),
        "batch_size": draw(batch_sizes),
        "base_offset": draw(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**62 - 1])),
        "timestamp_ms": draw(st.sampled_from([-1, 0, NOW])),
    }
    if draw(st.booleans()):
        chosen["partition_leader_epoch"] = draw(st.sampled_from([0, 7, 2**31 - 1]))
    if draw(st.booleans()):
        chosen["producer_id"] = draw(st.sampled_from([0, 4711, 2**63 - 1]))
        chosen["producer_epoch"] = draw(st.sampled_from([0, 3, 2**15 - 1]))
        chosen["base_sequence"] = draw(
            st.one_of(st.integers(0, 10), st.integers(2**31 - 30, 2**31 - 1))
        )
        chosen["transactional"] = draw(st.booleans())
    if draw(st.booleans()):
        chosen["log_append_time_ms"] = draw(st.sampled_from([0, NOW + 5]))
    if draw(st.booleans()):
        chosen["delete_horizon_ms"] = draw(st.sampled_from([0, NOW + 86_400_000]))
    return chosen


def oracle_batches(given: Records, chosen: dict[str, Any]) -> list[OracleBatch]:
    """What encode() must build from these, uncompressed but for the codec bits."""
    attributes = int(chosen["compression"])
    fields: dict[str, int] = {
        name: chosen[name]
        for name in ("partition_leader_epoch", "producer_id", "producer_epoch", "base_sequence")
        if name in chosen
    }
    if chosen.get("transactional"):
        attributes |= 0x10
    if "log_append_time_ms" in chosen:
        attributes |= 0x08
        fields["max_timestamp"] = chosen["log_append_time_ms"]
    if "delete_horizon_ms" in chosen:
        attributes |= 0x40
        fields["base_timestamp"] = chosen["delete_horizon_ms"]
    return build_split(
        given.oracle_records(chosen["base_offset"], chosen["timestamp_ms"]),
        batch_size=chosen["batch_size"],
        attributes=attributes,
        **fields,
    )
