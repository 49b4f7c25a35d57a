"""Who reads what: Kafka's assignors range, roundrobin, sticky and cooperative-sticky, on plain data.

Whoever leads a group runs one of them over everybody's subscription. The results are those of Kafka's assignors for
members and partitions without racks; where those depend on the order of a Java hash map, members are taken by their
ids here. The growth is that of sorting, also where subscriptions differ, for which Kafka's takes the square.

Texts are ordered as Java orders them: by UTF-16 units.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ..base.errors import InvalidConfigError
from ..segment.names import TopicPartition
from .sticky_balance import balance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NO_GENERATION: Final = -1

Partitions = dict[str, list[TopicPartition]]


class MemberSubscription(NamedTuple):
    """What a member asks for, and what it had in which generation."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    instance_id: str | None = None


Members = dict[str, MemberSubscription]


class Claims(NamedTuple):
    """What members had, each partition with one owner at most; ``disputed`` are those that two had at a time."""

    owned: Partitions
    previous: dict[TopicPartition, str]  # owners of a generation that is over
    disputed: set[TopicPartition]


def java_order(text: str) -> bytes:
    """A key that sorts texts as Java does."""
    return text.encode("utf-16-be", "surrogatepass")


def _member_order(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Static members by their instance ids, then the others by their own."""

    def key(member_id: str) -> tuple[bool, bytes]:
        instance_id = members[member_id].instance_id
        return instance_id is None, java_order(member_id if instance_id is None else instance_id)

    return sorted(members, key=key)


def _known(members: Members, counts: Mapping[str, int]) -> list[str]:
    """The topics that somebody subscribes to and that are there, in order."""
    wanted = {topic for member in members.values() for topic in member.topics}
    return sorted((topic for topic in wanted if counts.get(topic, 0) > 0), key=java_order)


def assign_range(members: Members, counts: Mapping[str, int]) -> Partitions:
    """Of each topic a run of partitions to each member; the first ones get one more where it does not come out even."""
    assignment: Partitions = {member_id: [] for member_id in members}
    subscribers: dict[str, list[str]] = {}
    for member_id in _member_order(members):
        for topic in dict.fromkeys(members[member_id].topics):
            subscribers.setdefault(topic, []).append(member_id)
    for topic in _known(members, counts):
        readers = subscribers[topic]
        each, more = divmod(counts[topic], len(readers))
        start = 0
        for index, member_id in enumerate(readers):
            end = start + each + (index < more)
            assignment[member_id] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return assignment


def assign_round_robin(members: Members, counts: Mapping[str, int]) -> Partitions:
    """All partitions of all topics in turn; a member that does not read a topic is passed over."""
    assignment: Partitions = {member_id: [] for member_id in members}
    order = _member_order(members)
    topics = {member_id: frozenset(member.topics) for member_id, member in members.items()}
    at = 0
    for topic in _known(members, counts):
        # The turns among those who read the topic, beginning with the one whose turn it is.
        turns = [
            index for index in (*range(at, len(order)), *range(at)) if topic in topics[order[index]]
        ]
        for number in range(counts[topic]):
            index = turns[number % len(turns)]
            assignment[order[index]].append(TopicPartition(topic, number))
            at = (index + 1) % len(order)
    return assignment


# ---------------------------------------------------------------- sticky


def assign_sticky(members: Members, counts: Mapping[str, int]) -> Partitions:
    """As even as can be, and among the even ones that which moves least."""
    return _sticky(members, counts)[0]


def assign_cooperative_sticky(members: Members, counts: Mapping[str, int]) -> Partitions:
    """The same, in two steps: a partition that moves is assigned to nobody until its old owner has given it up."""
    assignment, disputed = _sticky(members, counts)
    given_up = {
        key
        for member_id, member in members.items()
        for key in set(member.owned).difference(assignment[member_id])
    }
    for member_id, keys in assignment.items():
        owned = set(members[member_id].owned)
        assignment[member_id] = [
            key for key in keys if key not in disputed and (key in owned or key not in given_up)
        ]
    return assignment


def _sticky(members: Members, counts: Mapping[str, int]) -> tuple[Partitions, set[TopicPartition]]:
    if not members:
        return {}, set()
    topics = _known(members, counts)
    claims = _claims(members, {topic: counts[topic] for topic in topics})
    subscriptions = {frozenset(member.topics) for member in members.values()}
    if len(subscriptions) == 1:
        return _assign_alike(claims, topics, counts), claims.disputed
    wanted = {
        member_id: tuple(topic for topic in topics if topic in set(member.topics))
        for member_id, member in members.items()
    }
    return balance(wanted, counts, claims.owned, claims.previous), claims.disputed


def _claims(members: Members, counts: Mapping[str, int]) -> Claims:
    """Settles who owned what: the later generation does; two of the same generation both lose."""
    newest = max(member.generation for member in members.values())
    owners: dict[TopicPartition, str] = {}
    previous: dict[TopicPartition, str] = {}
    disputed: set[TopicPartition] = set()
    for member_id in sorted(members, key=java_order):
        member = members[member_id]
        for key in dict.fromkeys(member.owned):
            if not 0 <= key.partition < counts.get(key.topic, 0):
                continue
            other = owners.get(key)
            generation = NO_GENERATION if other is None else members[other].generation
            if other is None or member.generation > generation:
                owners[key] = member_id
                disputed.discard(key)
            elif member.generation == generation:
                disputed.add(key)
            if member.generation < newest:
                before = previous.get(key)
                if before is None or member.generation > members[before].generation:
                    previous[key] = member_id
    owned: Partitions = {member_id: [] for member_id in sorted(members, key=java_order)}
    for key, member_id in owners.items():
        if key not in disputed:
            owned[member_id].append(key)
    return Claims(owned, previous, disputed)


def _assign_alike(claims: Claims, topics: list[str], counts: Mapping[str, int]) -> Partitions:
    """All members read the same topics, so that each gets the same number, or one more."""
    total = sum(counts[topic] for topic in topics)
    least, more = divmod(total, len(claims.owned))
    assignment: Partitions = {}
    short: deque[str] = deque()  # below the least number
    even: deque[str] = deque()  # with just that, and room for one more
    taken: set[TopicPartition] = set()
    for member_id, owned in claims.owned.items():
        keep = sorted(owned, key=lambda key: (key.partition, java_order(key.topic)))
        if len(keep) < least:
            short.append(member_id)
        elif len(keep) > least and more > 0:
            more -= 1
            keep = keep[: least + 1]
        else:
            keep = keep[:least]
            even.append(member_id)
        assignment[member_id] = keep
        taken.update(keep)
    free = [
        key
        for topic in topics
        for key in map(TopicPartition, [topic] * counts[topic], range(counts[topic]))
        if key not in taken
    ]
    for key in free:
        # In turn until all have the least number; then one more each, beginning with the first.
        member_id = short.popleft() if short else even.popleft()
        assignment[member_id].append(key)
        if len(assignment[member_id]) < least:
            short.append(member_id)
        elif len(assignment[member_id]) == least:
            even.append(member_id)
    return assignment


ASSIGNORS: Final[Mapping[str, Callable[[Members, Mapping[str, int]], Partitions]]] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_cooperative_sticky,
}


def assignor(name: str) -> Callable[[Members, Mapping[str, int]], Partitions]:
    """The assignor of that name."""
    found = ASSIGNORS.get(name)
    if found is None:
        raise InvalidConfigError(f"there is no assignor {name!r}; there are {', '.join(ASSIGNORS)}")
    return found
