"""The data directories that a real broker wrote (tests/golden), and what Kafka said about them."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json.gz"))

# A key or value as expected.json has it: long ones by size and hash.
Seen = bytes | None | tuple[int, str]
SEEN_BYTES_MAX = 1024


@functools.cache
def expected(case: str) -> dict[str, Any]:
    """expected.json of one case."""
    document: dict[str, Any] = json.loads(
        gzip.decompress((GOLDEN / case / "expected.json.gz").read_bytes())
    )
    return document


@dataclass(frozen=True)
class GoldenLog:
    """One .log file and the batches that DumpLogSegments saw in it (None: it was not asked)."""

    case: str
    partition: str
    path: Path

    def __str__(self) -> str:
        return f"{self.case}/{self.partition}/{self.path.name}"

    @property
    def batches(self) -> list[dict[str, Any]] | None:
        document = expected(self.case)
        files = document.get("afterKill", document["partitions"]).get(self.partition, {})
        found: list[dict[str, Any]] | None = files.get("batches", {}).get(self.path.name)
        return found

    def read(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class GoldenPartition:
    """One partition that a consumer has read, and its files in the order of their offsets."""

    case: str
    name: str

    def __str__(self) -> str:
        return f"{self.case}/{self.name}"

    @property
    def expected(self) -> dict[str, Any]:
        found: dict[str, Any] = expected(self.case)["partitions"][self.name]
        return found

    @property
    def logs(self) -> list[GoldenLog]:
        folder = GOLDEN / self.case / "data" / self.name
        return [GoldenLog(self.case, self.name, path) for path in sorted(folder.glob("*.log"))]


LOGS = [
    GoldenLog(case, path.parent.name, path)
    for case in CASES
    for path in sorted((GOLDEN / case / "data").glob("*/*.log"))
]
PARTITIONS = [
    GoldenPartition(case, name)
    for case in CASES
    for name, said in expected(case)["partitions"].items()
    if "readUncommitted" in said
]


def seen(value: bytes | None) -> Seen:
    """A value as expected.json would show it."""
    if value is None or len(value) <= SEEN_BYTES_MAX:
        return value
    return len(value), hashlib.sha256(value).hexdigest()


def expected_seen(value: Any) -> Seen:
    """A value of expected.json."""
    if value is None:
        return None
    if isinstance(value, str):
        return base64.b64decode(value)
    return int(value["length"]), str(value["sha256"])
