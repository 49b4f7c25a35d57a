"""What does a synchronous commit of one offset cost beside a real broker of Kafka's?

python -m benches.kafka_commits [--jars DIR]   (make bench-kafka)

Starts a broker, runs the case "groups.commit.broker" of bench_groups on it, stops it. Needs Java 17, and Maven for
Kafka's jars. What is missing is said in one line, and is no failure. Nothing stays but the jars.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from interop.kafka import Broker, Kafka, KafkaError, missing

from . import __main__ as benches
from .client_peers import BROKER
from .harness import ROOT, Scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

CASE: Final = "groups.commit.broker"


def measure(jars: Path, words: Sequence[str]) -> int:
    """Runs the case on a broker of its own; returns what ``python -m benches`` would."""
    scratch = Scratch("kafka-commits")
    broker = Broker(Kafka(jars), scratch.path / "broker")
    try:
        broker.start()
        os.environ[BROKER] = broker.address
        return benches.main(["--only", CASE, "--json", str(scratch.path / "results.json"), *words])
    finally:
        os.environ.pop(BROKER, None)
        broker.kill()
        shutil.rmtree(scratch.path, ignore_errors=True)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.kafka_commits")
    parser.add_argument(
        "--jars", type=Path, default=ROOT / "build/interop/jars", help="Kafka's jars"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if the target is missed")
    options = parser.parse_args(words)
    if lacks := missing():
        print(f"bench-kafka: commits skipped, {', '.join(lacks)}")
        return 0
    try:
        return measure(options.jars, ["--check"] if options.check else [])
    except KafkaError as error:
        print(f"bench-kafka: commits skipped, {error}")
        return 0


if __name__ == "__main__":
    sys.exit(main())
