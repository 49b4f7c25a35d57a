"""Putting a cleaned segment in the place of others, so that a crash leaves all of the old or all of the new.

==  ==================================================  =====================================================
    step                                                a crash after it
==  ==================================================  =====================================================
 1  the new files are written as .cleaned and synced    they are removed: the old segments count
 2  .cleaned becomes .swap, file by file; synced        while one .cleaned is left, as after 1; then as after 3
 3  the old files become .deleted                       the rest of them are removed, step 4 is done
 4  .swap becomes the final name: .index first,         what is left is renamed
    .log last; synced
 5  .deleted files are removed                          loading removes them
==  ==================================================  =====================================================

The order is Kafka's, and so is the reading of what a crash left: a broker's directory is completed in the same
way, and a broker completes ours. One segment is swapped at a time. That .index goes first and .log last tells
files that were renamed already from those of the old segment: while .index.swap is there, no name is final.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ..base.disk import exists, list_files
from ..segment.names import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    parse_file,
)
from ..segment.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..base.disk import Disk
    from ..segment.segment import SegmentOptions

Kind = TypeVar("Kind", bound=Segment)
RENAME_ORDER: Final = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX, LOG)
REMOVE_ORDER: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)


def start_cleaned(directory: str, base_offset: int, options: SegmentOptions, disk: Disk) -> Segment:
    """An empty segment with .cleaned files, to be filled, and finished with finish_cleaned()."""
    segment = Segment(directory, base_offset, 0, options, disk, CLEANED)
    remove_cleaned(segment, disk)
    try:
        segment.create()
    except BaseException:
        discard_cleaned(segment, disk)
        raise
    return segment


def finish_cleaned(segment: Segment) -> None:
    """Everything of a cleaned segment on the device, its files closed."""
    segment.seal()
    segment.sync()
    segment.close()


def discard_cleaned(segment: Segment, disk: Disk) -> None:
    """Takes back a cleaned segment that will not be used; what cannot be removed now, the next loading removes."""
    with contextlib.suppress(OSError):
        segment.give_up()
    with contextlib.suppress(OSError):
        remove_cleaned(segment, disk)


def remove_cleaned(segment: Segment, disk: Disk) -> None:
    for path in segment.files():
        disk.remove(path)


def to_swap(segment: Segment, disk: Disk) -> None:
    """Step 2. When it returns the new segment counts; if it fails it does not."""
    try:
        for path in segment.files():
            if exists(path):
                disk.rename(path, path.removesuffix(CLEANED) + SWAP)
        disk.sync_directory(segment.directory)
    except OSError:
        _take_back(segment, disk)
        raise


def _take_back(segment: Segment, disk: Disk) -> None:
    """Undoes step 2: one .cleaned file is there until no .swap file is left to be believed."""
    log, *rest = segment.files()
    if exists(log.removesuffix(CLEANED) + SWAP):
        disk.rename(log.removesuffix(CLEANED) + SWAP, log)
        disk.sync_directory(segment.directory)
    for path in rest:
        disk.remove(path.removesuffix(CLEANED) + SWAP)
    disk.sync_directory(segment.directory)
    remove_cleaned(segment, disk)


def put_in_place(
    directory: str, base_offset: int, old: Sequence[Segment], options: SegmentOptions, disk: Disk
) -> Segment:
    """Steps 3 to 5: the segment under its final name. Old segments are detached: their readers go on."""
    gone = []
    for segment in old:
        segment.detach()
        for suffix in REMOVE_ORDER:
            path = segment.path(suffix)
            if exists(path):
                disk.rename(path, path + DELETED)
                gone.append(path + DELETED)
    _to_final(directory, base_offset, disk)
    for path in gone:
        disk.remove(path)
    size = list_files(directory)[file_name(base_offset, LOG)]
    return Segment(directory, base_offset, size, options, disk)


def _to_final(directory: str, base_offset: int, disk: Disk) -> None:
    for suffix in RENAME_ORDER:
        path = f"{directory}/{file_name(base_offset, suffix)}"
        if exists(path + SWAP):
            disk.rename(path + SWAP, path)
    disk.sync_directory(directory)


class _Found(NamedTuple):
    """What a directory holds of swaps: base offsets by suffix."""

    swaps: dict[int, set[str]]  # that count
    invalid: list[str]  # names of swaps that were not complete
    cleaned: list[str]


_NOTHING: Final = _Found({}, [], [])


def _find(names: Iterable[str]) -> _Found:
    swaps: dict[int, set[str]] = {}
    cleaned: dict[str, int] = {}
    for name in names:
        if not name.endswith((SWAP, CLEANED)):
            continue
        for ending in (SWAP, CLEANED):
            parsed = parse_file(name.removesuffix(ending)) if name.endswith(ending) else None
            if parsed and ending == SWAP:
                swaps.setdefault(parsed[0], set()).add(parsed[1])
            elif parsed:
                cleaned[name] = parsed[0]
    if not swaps and not cleaned:  # as nearly always
        return _NOTHING
    lowest = min(cleaned.values(), default=2**63)
    invalid = [
        file_name(base, suffix) + SWAP
        for base in swaps
        if base >= lowest
        for suffix in sorted(swaps[base])
    ]
    valid = {base: found for base, found in swaps.items() if base < lowest}
    return _Found(valid, invalid, list(cleaned))


def _is_under_way(base_offset: int, suffixes: set[str], names: Iterable[str]) -> bool:
    """Whether names are being made final: the old log is gone, and so is the first of the .swap files."""
    return OFFSET_INDEX not in suffixes and file_name(base_offset, LOG) not in names


def _replaced(
    directory: str, found: _Found, names: dict[str, int], options: SegmentOptions
) -> set[int]:
    """Base offsets of the old segments that swapped ones stand for."""
    if not found.swaps:
        return set()
    bases = {parsed[0] for parsed in map(parse_file, names) if parsed and parsed[1] != SNAPSHOT}
    replaced: set[int] = set()
    for base, suffixes in found.swaps.items():
        if LOG not in suffixes or _is_under_way(base, suffixes, names):
            continue
        # Read without a disk: an index that has to be made anew must not become a file.
        segment = Segment(directory, base, names[file_name(base, LOG) + SWAP], options, None, SWAP)
        end = segment.next_offset()
        segment.close()
        replaced |= {old for old in bases if base <= old < end or old == base}
    return replaced


def settle(
    directory: str, options: SegmentOptions, names: dict[str, int], disk: Disk
) -> dict[str, int]:
    """Completes or takes back what a crash has interrupted, and may itself be interrupted at any point.

    Takes and returns the names and sizes of the directory's files.
    """
    found = _find(names)
    if not found.swaps and not found.cleaned and not found.invalid:
        return names
    for name in found.invalid:
        disk.remove(f"{directory}/{name}")
    for name in found.cleaned:
        disk.remove(f"{directory}/{name}")
    for base in sorted(_replaced(directory, found, names, options)):
        for suffix in REMOVE_ORDER:
            disk.remove(f"{directory}/{file_name(base, suffix)}")
        if base not in found.swaps:
            disk.remove(f"{directory}/{file_name(base, SNAPSHOT)}")
    disk.sync_directory(directory)
    for base, suffixes in sorted(found.swaps.items()):
        if LOG in suffixes or file_name(base, LOG) in names:
            _to_final(directory, base, disk)
    return list_files(directory)


def settled_view(
    directory: str, options: SegmentOptions, names: dict[str, int], kind: type[Kind]
) -> dict[int, Kind]:
    """The segments by base offset as settle() would leave them, for a reader that may change nothing."""
    found = _find(names)
    replaced = _replaced(directory, found, names, options)
    segments: dict[int, Kind] = {}
    for name, size in names.items():
        parsed = parse_file(name) if name.endswith(LOG) else None
        if parsed and parsed[1] == LOG and parsed[0] not in replaced:
            segments[parsed[0]] = kind(directory, parsed[0], size, options)
    for base, suffixes in found.swaps.items():
        if LOG in suffixes:
            size = names[file_name(base, LOG) + SWAP]
            segments[base] = kind(directory, base, size, options, None, SWAP)
        segment = segments.get(base)
        if segment is None:
            continue
        is_under_way = LOG not in suffixes or _is_under_way(base, suffixes, names)
        for index, suffix in (
            (segment.offset_index, OFFSET_INDEX),
            (segment.time_index, TIME_INDEX),
            (segment.txn_index, TXN_INDEX),
        ):
            is_final = is_under_way and suffix not in suffixes
            index.path = f"{directory}/{file_name(base, suffix)}{'' if is_final else SWAP}"
    return segments
