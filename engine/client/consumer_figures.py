"""What a consumer can be measured by, under the names of Kafka's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..segment.names import TopicPartition

FETCHING = "consumer-fetch-manager-metrics"


class Polls:
    """When polls came."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._count = 0
        self._first = self._last = 0.0
        self._longest = 0.0

    def note(self) -> None:
        now = self._monotonic_s()
        if self._count:
            self._longest = max(self._longest, now - self._last)
        else:
            self._first = now
        self._last = now
        self._count += 1

    def metrics(self) -> dict[str, float]:
        if not self._count:
            return {}
        figures = {"last-poll-seconds-ago": self._monotonic_s() - self._last}
        if self._count > 1:
            figures["time-between-poll-avg"] = 1000 * (self._last - self._first) / (self._count - 1)
            figures["time-between-poll-max"] = 1000 * self._longest
        return figures


def fetching_figures(
    consumed: tuple[int, int], distances: Mapping[TopicPartition, tuple[int, int]]
) -> dict[str, dict[str, float]]:
    """From records and bytes that were handed out, and the lag and lead of each partition: groups of figures, those of
    a partition in a group with its name at the end."""
    total: dict[str, float] = {
        "records-consumed-total": consumed[0],
        "bytes-consumed-total": consumed[1],
    }
    groups: dict[str, dict[str, float]] = {FETCHING: total}
    for key, (lag, lead) in distances.items():
        groups[f"{FETCHING}.{key.directory}"] = {"records-lag": lag, "records-lead": lead}
    if distances:
        total["records-lag-max"] = max(lag for lag, _ in distances.values())
        total["records-lead-min"] = min(lead for _, lead in distances.values())
    return groups
