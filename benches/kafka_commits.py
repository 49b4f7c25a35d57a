"""What does a synchronous commit of one offset cost beside a real broker of Kafka's?

The case "groups.commit.broker" of bench_groups, on a broker that is started for it; confluent-kafka is its client.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from interop.kafka import KafkaError

from .client_peers import BROKER, CONFLUENT
from .harness import Settings, load_targets, run
from .kafka_ground import BROKER_BYTES, need_room
from .running import all_cases, is_installed

if TYPE_CHECKING:
    from .harness import Result
    from .kafka_ground import Ground

CASE: Final = "groups.commit.broker"


def commits(ground: Ground, *, quick: bool) -> list[Result]:
    """The case, measured and judged."""
    if not is_installed("confluent_kafka"):
        raise KafkaError(f"{CONFLUENT} is not installed: pip install 'oncelog[bench]'")
    need_room(BROKER_BYTES)
    settings = Settings.tiny() if quick else Settings()
    with ground.broker("kafka-commits") as (broker, _):
        broker.start()
        os.environ[BROKER] = broker.address
        try:
            return list(run(all_cases(settings, CASE), settings, load_targets()))
        finally:
            del os.environ[BROKER]
