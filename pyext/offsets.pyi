from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, final

from numpy.typing import ArrayLike
from typing_extensions import Buffer

@final
class CommittedOffset:
    offset: Final[int]
    commit_ms: Final[int]
    expire_ms: Final[int]
    record_offset: Final[int]
    leader_epoch: Final[int]
    metadata: Final[str]
    topic_id: Final[bytes]
    def __init__(
        self,
        offset: int,
        leader_epoch: int = -1,
        metadata: str = "",
        commit_ms: int = -1,
        expire_ms: int = -1,
        topic_id: bytes = b"",
        *,
        record_offset: int = -1,
    ) -> None: ...

@final
class TopicOffsets:
    def __len__(self) -> int: ...
    def __contains__(self, partition: int, /) -> bool: ...
    def __iter__(self) -> Iterator[int]: ...
    def items(self) -> list[tuple[int, CommittedOffset]]: ...
    def get(self, partition: int) -> CommittedOffset | None: ...

@final
class OffsetTable:
    groups: Final[Mapping[str, Mapping[str, TopicOffsets]]]
    pending: Final[Mapping[int, Mapping[str, Mapping[str, TopicOffsets]]]]
    open: Final[Mapping[str, AbstractSet[int]]]
    def __init__(
        self,
        decode_other: Callable[
            [bytes, bytes | None, int], tuple[str, str, int, CommittedOffset | None]
        ],
    ) -> None: ...
    def apply(
        self,
        buffer: Buffer,
        positions: ArrayLike,
        *,
        start_offset: int = 0,
        decompress: Callable[[int, memoryview], Buffer] | None = None,
        file: str = "",
    ) -> list[tuple[bytes, bytes | None]]: ...
    def apply_one(self, buffer: Buffer, base_offset: int) -> bool: ...
    def end(self, producer_id: int, committed: bool) -> None: ...
    def is_pending(self, group: str, topic: str, partition: int) -> bool: ...
