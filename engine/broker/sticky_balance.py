"""Balance among members that read different topics, moving as little as possible.

What somebody has stays with it as far as balance allows; what is free goes to whoever has least among those who read
its topic; then partitions move from members that have at least two more than another who reads the topic. The order
of the moves is that of Kafka's sticky assignor. It asks before each partition whether all is balanced and looks at all
members each time; here a heap per set of readers knows who has least.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from ..segment.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Partitions = dict[str, list[TopicPartition]]
Pair = tuple[str, str]


def balance(
    wanted: Mapping[str, Sequence[str]],
    counts: Mapping[str, int],
    owned: Mapping[str, Iterable[TopicPartition]],
    previous: Mapping[TopicPartition, str],
) -> Partitions:
    """A balanced assignment. ``wanted``: the topics of each member, all of which are there; ``previous``: owners of a
    generation that is over, who get their partitions back first."""
    return _Balance(wanted, counts, owned, previous).build()


class _Readers:
    """Members that read the same topics, by how many partitions they have."""

    def __init__(
        self, members: Sequence[str], sizes: dict[str, int], order: dict[str, bytes]
    ) -> None:
        self.members = members
        self._sizes = sizes
        self._order = order
        self._heap = [(sizes[member], order[member], member) for member in members]
        heapq.heapify(self._heap)

    def least(self) -> str:
        """The member that has least, the first of several; entries that are out of date are dropped on the way."""
        while self._heap[0][0] != self._sizes[self._heap[0][2]]:
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def note(self, member: str) -> None:
        """A member has another number of partitions."""
        heapq.heappush(self._heap, (self._sizes[member], self._order[member], member))


class _Balance:
    def __init__(
        self,
        wanted: Mapping[str, Sequence[str]],
        counts: Mapping[str, int],
        owned: Mapping[str, Iterable[TopicPartition]],
        previous: Mapping[TopicPartition, str],
    ) -> None:
        order = {member: member.encode("utf-16-be", "surrogatepass") for member in wanted}
        self._wanted = {member: frozenset(topics) for member, topics in wanted.items()}
        self._previous = previous
        self._is_revoking = False
        self._owner: dict[TopicPartition, str] = {}
        for member in sorted(wanted, key=order.__getitem__):
            for key in owned.get(member, ()):
                if key.topic in self._wanted[member]:
                    self._owner[key] = member
                else:
                    self._is_revoking = True
        self._sizes = dict.fromkeys(wanted, 0)
        for member in self._owner.values():
            self._sizes[member] += 1
        self._make_readers(order)
        # Topics that few read come first, as there is the least choice.
        topics = sorted(
            self._readers,
            key=lambda topic: (len(self._readers[topic].members), topic.encode("utf-16-be")),
        )
        self._all = [TopicPartition(topic, n) for topic in topics for n in range(counts[topic])]
        self._moved: dict[TopicPartition, Pair] = {}
        self._moves: dict[str, dict[Pair, dict[TopicPartition, None]]] = {}

    def _make_readers(self, order: dict[str, bytes]) -> None:
        """Topics with the same readers share one heap."""
        by_topic: dict[str, list[str]] = {}
        for member in sorted(self._wanted, key=order.__getitem__):
            for topic in self._wanted[member]:
                by_topic.setdefault(topic, []).append(member)
        shared: dict[tuple[str, ...], _Readers] = {}
        self._readers: dict[str, _Readers] = {}
        self._heaps: dict[str, list[_Readers]] = {member: [] for member in self._wanted}
        for topic, members in by_topic.items():
            readers = shared.get(tuple(members))
            if readers is None:
                readers = shared[tuple(members)] = _Readers(members, self._sizes, order)
                for member in members:
                    self._heaps[member].append(readers)
            self._readers[topic] = readers

    def build(self) -> Partitions:
        free = [key for key in self._all if key not in self._owner]
        for key in free:
            self._give(key, self._readers[key.topic].least())
        if not self._is_revoking:  # what nobody had moves first
            self._reassign([key for key in free if len(self._readers[key.topic].members) > 1])
        self._reassign([key for key in self._all if len(self._readers[key.topic].members) > 1])
        assignment: Partitions = {member: [] for member in self._wanted}
        for key in self._all:
            assignment[self._owner[key]].append(key)
        return assignment

    def _give(self, key: TopicPartition, member: str) -> None:
        before = self._owner.get(key)
        self._owner[key] = member
        self._sizes[member] += 1
        if before is not None:
            self._sizes[before] -= 1
            for readers in self._heaps[before]:
                readers.note(before)
        for readers in self._heaps[member]:
            readers.note(member)

    def _reassign(self, keys: Sequence[TopicPartition]) -> None:
        """Moves partitions until no move makes a pair of members more even, which each of them does."""
        is_moving = True
        while is_moving:
            is_moving = False
            for key in keys:
                target = self._target(key)
                if target is not None:
                    self._move(key, target)
                    is_moving = True

    def _target(self, key: TopicPartition) -> str | None:
        """Who should have a partition instead: its owner of before, or whoever has least."""
        limit = self._sizes[self._owner[key]] - 1
        before = self._previous.get(key)
        if before is not None and self._sizes[before] < limit and key.topic in self._wanted[before]:
            return before
        least = self._readers[key.topic].least()
        return least if self._sizes[least] < limit else None

    def _move(self, key: TopicPartition, target: str) -> None:
        """Moves a partition; if one of its topic came the other way before, that one goes back instead."""
        source = self._owner[key]
        pairs = self._moves.setdefault(key.topic, {})
        origin = self._moved[key][0] if key in self._moved else source
        returning = next(iter(pairs.get((target, origin), ())), None)
        if returning is not None and self._sizes[origin] > self._sizes[target] + 1:
            key, source = returning, origin
        self._give(key, target)
        old = self._moved.pop(key, None)
        if old is not None:
            pairs[old].pop(key, None)
            source = old[0]
        if source != target:
            self._moved[key] = (source, target)
            pairs.setdefault((source, target), {})[key] = None
