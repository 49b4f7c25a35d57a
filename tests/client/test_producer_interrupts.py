"""A person presses Ctrl-C while a producer works: at no line does that make close() hang, or a record come twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncelog.base.errors import OncelogError
from oncelog.client.client import Log

from ..broker.test_interrupts import interrupted, within

if TYPE_CHECKING:
    from pathlib import Path

CODE = ("sender.py", "client/producer.py", "transaction_manager.py")
# Lines of a finally clause, between a return and the next call.
SAFE = r".*\.release\(\)|if not queue\.waiting or .*|if pending is None:|queue\.in_flight\.append.*"


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("linger_ms", [0, 5])
def test_an_interrupted_send_or_flush_leaves_a_producer_that_closes(
    tmp_path: Path, linger_ms: int, durability: str
) -> None:
    with Log(tmp_path, durability=durability) as log:
        log.create_topic("orders")
        for at in range(1000):
            producer = log.producer(linger_ms=linger_ms)
            value = b"%d" % at

            def call(producer=producer, value=value) -> None:  # type: ignore[no-untyped-def]
                producer.send("orders", value)
                producer.flush()

            was_interrupted = interrupted(call, at, CODE, SAFE)
            within(5, producer.close)
            if not was_interrupted:
                break
        else:
            pytest.fail("no call got through")
        found = [record.value for record in log.read("orders")]
        assert len(found) == len(set(found))
        assert found[-1] == value


@pytest.mark.parametrize("version", [1, 2])
def test_an_interrupted_transaction_is_seen_whole_or_not_at_all(
    tmp_path: Path, version: int
) -> None:
    with Log(tmp_path) as log:
        log.create_topic("orders")
        for at in range(3000):
            producer = log.producer(
                transactional_id="teller", linger_ms=0, _transaction_version=version
            )
            producer.init_transactions()
            first, second = b"%d a" % at, b"%d b" % at

            def call(producer=producer, first=first, second=second) -> None:  # type: ignore[no-untyped-def]
                with producer.transaction():
                    producer.send("orders", first)
                    producer.send("orders", second)

            was_interrupted = interrupted(call, at, CODE, SAFE)

            def end(producer=producer) -> None:  # type: ignore[no-untyped-def]
                try:
                    producer.close()
                except OncelogError:
                    producer.close(0)

            within(5, end)
            if not was_interrupted:
                break
        else:
            pytest.fail("no call got through")
        with log.producer(transactional_id="teller") as producer, producer.transaction():
            producer.send("orders", b"last")
        found = [record.value for record in log.read("orders")]
        assert found[-1] == b"last"
        pairs = found[:-1]
        assert len(pairs) % 2 == 0
        for one, other in zip(pairs[::2], pairs[1::2], strict=True):
            assert (one or b"").split()[0] == (other or b"").split()[0]
        assert len(found) == len(set(found))
