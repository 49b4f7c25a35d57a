"""The options that ours are compared with are Kafka's; run with ONCELOG_INTEROP=1."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from interop.kafka import Kafka, missing

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.environ.get("ONCELOG_INTEROP") != "1", reason="ONCELOG_INTEROP is not 1")
def test_the_stored_definitions_are_what_kafka_prints() -> None:
    """Goal: tests/base/kafka_configs.json was not made up, and a new Kafka shows its changes.
    Method: run interop/java/Configs.java again."""
    if lacks := missing():
        pytest.skip(", ".join(lacks))
    kafka = Kafka(Path(os.environ.get("INTEROP_JARS") or ROOT / "build/interop/jars"))
    printed, _ = kafka.tool("Configs")
    stored = (ROOT / "tests/base/kafka_configs.json").read_text()
    assert json.loads(printed) == json.loads(stored)
