from collections.abc import Callable, Mapping
from typing import TypeVar

_Key = TypeVar("_Key", bound=tuple[str, int])

def offset_records(
    group: str,
    offsets: Mapping[_Key, tuple[int, int, str]],
    commit_ms: int,
    expire_ms: int,
    metadata_max: int,
    topic_id_of: Callable[[str], bytes | None],
) -> tuple[list[bytes], list[bytes | None], list[_Key]]: ...
