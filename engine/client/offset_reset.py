"""Where a consumer starts that has no position, or one that the log no longer has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ..broker.broker import Broker
    from ..partition.partition import Isolation
    from ..segment.names import TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2
BY_DURATION: Final = "by_duration:"
# The option's own pattern has refused everything else.
_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d*))?S)?)?", re.IGNORECASE
)


class OffsetReset(NamedTuple):
    """The option auto.offset.reset: earliest, latest, none, or by_duration:<ISO 8601 duration>."""

    name: str
    age_ms: int = -1  # of by_duration

    @classmethod
    def of(cls, text: str) -> OffsetReset:
        if text.startswith(BY_DURATION):
            return cls(text, _duration_ms(text.removeprefix(BY_DURATION)))
        return cls(text)

    @property
    def is_none(self) -> bool:
        return self.name == "none"

    def offset(self, broker: Broker, key: TopicPartition, isolation: Isolation) -> int | None:
        """The offset to start from; None where the policy is to ask the user."""
        if self.is_none:
            return None
        if self.age_ms >= 0:
            listed = broker.list_offsets(key, max(broker.now_ms() - self.age_ms, 0), isolation)
            if listed.offset >= 0:
                return listed.offset
        end = EARLIEST if self.name == "earliest" else LATEST
        return broker.list_offsets(key, end, isolation).offset


def _duration_ms(text: str) -> int:
    match = _DURATION.fullmatch(text)
    assert match is not None
    days, hours, minutes, seconds = (int(match[group] or 0) for group in (1, 2, 3, 4))
    thousandths = int((match[5] or "0").ljust(3, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + thousandths
