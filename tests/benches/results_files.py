"""Files of results as a run would have written them, with numbers of the test's choice."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from benches.document import Document

if TYPE_CHECKING:
    from pathlib import Path


def contestant(name: str, role: str, seconds: float, **more: Any) -> dict[str, Any]:
    """One that took so long for one record in its best round, and a percent more in the middle one."""
    return {
        "name": name,
        "role": role,
        "value": seconds * 1e9,
        "median": seconds * 1.01e9,
        "ratio": None,
        "seconds_min": seconds,
        "seconds_median": seconds * 1.01,
        "seconds_iqr": seconds * 0.01,
        "rounds": 25,
        **more,
    }


def case(name: str, *contestants: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "case": name,
        "title": f"title of {name}",
        "unit": "ns/record",
        "work": 1,
        "contestants": list(contestants),
        "targets": [],
        **more,
    }


def promise(against: str, ratio: float, achieved: float | None, met: bool | None) -> dict[str, Any]:
    return {
        "against": against, "ratio": ratio, "achieved": achieved, "met": met, "why": "a <reason> & more",
    }  # fmt: skip


ABOUT: dict[str, Any] = {
    "machine": {"cpu": "A & B <CPU>", "cores": 2, "load": 0.5, "crc32c_kernels": ["portable"]},
    "versions": {"python": "3.11", "oncelog": "0.1", "numpy": "2.0"},
    "commit": "abc",
    "dirty": False,
    "command": "python -m benches",
    "settings": {
        "seed": 1, "rounds": 25, "round_seconds": 0.1, "log_bytes": 1 << 20, "quick": False,
    },
}  # fmt: skip

CURVE: dict[str, Any] = {
    "name": "segments.fetch",
    "title": "fetch & segments",
    "caption": "One fetch from a log of so many segments.",
    "x_label": "segments",
    "unit": "s/fetch",
    "points": [[1, 1e-5], [10, 1.1e-5], [100, 1.1e-5], [1000, 1.2e-5]],
    "fitted": 3,
    "slope": 0.02,
    "expected": 0.0,
    "margin": 0.25,
    "met": True,
}


def results(*cases: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**copy.deepcopy(ABOUT), "results": list(cases), "skipped": {}, "growth": [], **more}


def a_run(ours: float = 20e-9, **more: Any) -> dict[str, Any]:
    """Cases of several questions and units, a missing peer, one target met and one missed, a curve."""
    cases = [
        case(
            f"send.{kind}.100B",
            contestant("oncelog", "ours", ours),
            contestant("confluent-kafka", "peer", 200e-9, version="2.16", ratio=200e-9 / ours),
            {"name": "aiokafka", "role": "peer", "missing": "not\ninstalled"},
            contestant("C floor", "limit", 10e-9, ratio=ours / 10e-9),
            targets=[
                promise("confluent-kafka", 2, 200e-9 / ours, True),
                promise("C floor", 1.5, ours / 10e-9, False),
            ],
        )
        for kind in ("python", "arrow")
    ]
    cases.append(case("commit.os.one", contestant("oncelog", "ours", 2e-5)))
    cases.append(case("crc.c.1MiB", contestant("oncelog", "ours", 1e-9), unit="GB/s"))
    cases.append(
        case("commit.fsync.syncs", contestant("oncelog", "ours", 2e-9), unit="syncs/commit")
    )
    return results(*cases, growth=[CURVE], **more)


def document(data: dict[str, Any]) -> Document:
    return Document.of(json.loads(json.dumps(data)))


def written(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(json.dumps(data))
    return path
