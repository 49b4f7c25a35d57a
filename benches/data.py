"""The records that are measured: the same for the same seed, as Python objects and as Arrow columns."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

SEED: Final = 20_261_116
FIRST_TIMESTAMP_MS: Final = 1_794_787_200_000


@dataclasses.dataclass(frozen=True)
class Shape:
    """How many records of which sizes."""

    name: str
    value_bytes: int
    records: int = 1_000  # of one batch
    batches: int = 1
    key_bytes: int = 16
    headers: int = 0  # of one record

    def __str__(self) -> str:
        size = (
            f"{self.value_bytes} B" if self.value_bytes < 1000 else f"{self.value_bytes // 1000} KB"
        )
        headers = f" + {self.headers} headers" if self.headers else ""
        many = f", {self.batches} batches" if self.batches > 1 else ""
        return f"{size}{headers}{many}"


MAIN: Final = Shape("100B", 100)
SHAPES: Final = (
    MAIN,
    Shape("10B", 10),
    Shape("1KB", 1_000),
    Shape("headers", 100, headers=2),
    Shape("100batches", 100, batches=100),
)

Header = tuple[str, bytes]


@dataclasses.dataclass(frozen=True)
class Records:
    """The same records as Python objects and as Arrow columns."""

    shape: Shape
    keys: list[bytes]
    values: list[bytes]
    timestamps: list[int]
    headers: list[list[Header]]

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def data_bytes(self) -> int:
        """Bytes of keys, values and headers."""
        headers = sum(len(k) + len(v) for pairs in self.headers for k, v in pairs)
        return sum(map(len, self.keys)) + sum(map(len, self.values)) + headers

    @functools.cached_property
    def arrow(self) -> Any:
        """One pyarrow record batch."""
        columns = {
            "key": pa.array(self.keys, pa.binary()),
            "value": pa.array(self.values, pa.binary()),
            "timestamp": pa.array(self.timestamps, pa.timestamp("ms", "UTC")),
        }
        if self.shape.headers:
            pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
            rows = [[{"key": k, "value": v} for k, v in pairs] for pairs in self.headers]
            columns["headers"] = pa.array(rows, pa.list_(pair))
        return pa.record_batch(columns)

    def rows(self) -> list[tuple[int, int, bytes, bytes, list[Header]]]:
        """What every decoder must give back."""
        offsets = range(self.count)
        return list(
            zip(offsets, self.timestamps, self.keys, self.values, self.headers, strict=True)
        )


def random_values(rng: np.random.Generator, count: int, size: int) -> list[bytes]:
    """Values that no codec can shrink: what is timed does not depend on them."""
    block = rng.bytes(count * size)
    return [block[at : at + size] for at in range(0, count * size, size)]


def text_values(rng: np.random.Generator, count: int, size: int) -> list[bytes]:
    """Events as JSON: a few fields, few distinct words, some digits; they shrink about threefold."""
    pages = ["/", "/cart", "/checkout", "/search?q=shoes", "/product/8812", "/account/orders"]
    events = ["view", "click", "scroll", "purchase"]
    made = []
    for user, page, event in zip(
        rng.integers(0, 10**7, count), rng.choice(pages, count), rng.choice(events, count),
        strict=True,
    ):  # fmt: skip
        text = f'{{"user":{user},"event":"{event}","page":"{page}","agent":"Mozilla/5.0 (X11)"'
        made.append((text + " " * size)[: size - 1].encode() + b"}")
    return made


def make_records(
    shape: Shape,
    seed: int = SEED,
    values: Callable[[np.random.Generator, int, int], list[bytes]] = random_values,
) -> Records:
    """The records of a shape; the same for the same seed, everywhere."""
    rng = np.random.default_rng(seed)
    count = shape.records * shape.batches
    return Records(
        shape=shape,
        keys=random_values(rng, count, shape.key_bytes),
        values=values(rng, count, shape.value_bytes),
        timestamps=[FIRST_TIMESTAMP_MS + index for index in range(count)],
        headers=[
            [(f"header-{number}", rng.bytes(8)) for number in range(shape.headers)]
            for _ in range(count)
        ],
    )
