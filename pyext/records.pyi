from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

from numpy.typing import ArrayLike
from typing_extensions import Buffer

@final
class Record:
    topic: Final[str | None]
    partition: Final[int]
    offset: Final[int]
    timestamp: Final[int]
    timestamp_type: Final[int]
    key: Final[bytes | None]
    value: Final[bytes | None]
    headers: Final[tuple[tuple[str, bytes | None], ...]]
    def __init__(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        *,
        timestamp_type: int = 0,
        topic: str | None = None,
        partition: int = -1,
    ) -> None: ...

def content_bytes(records: list[Record]) -> int: ...
def viewed_bytes(views: Buffer, start: int, count: int) -> int: ...

@final
class RecordIterator(Iterator[Record]):
    def __init__(
        self,
        buffer: Buffer,
        positions: ArrayLike,
        *,
        visible: ArrayLike | None = None,
        start_offset: int = 0,
        end_offset: int = 9223372036854775807,
        check_crc: bool = True,
        include_control: bool = False,
        decompress: Callable[[int, memoryview], Buffer] | None = None,
        file: str = "",
        topic: str | None = None,
        partition: int = -1,
    ) -> None: ...
    def __iter__(self) -> RecordIterator: ...
    def __next__(self) -> Record: ...
    def take(self, count: int) -> list[Record]: ...
    @property
    def is_done(self) -> bool: ...
