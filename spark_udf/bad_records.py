"""What a permissive read has left out, as files that Spark reads: one for each task that met damage, a line a place.

Crash   a file appears whole or not at all. An attempt that is made again writes the file of the one before, so that
        nothing is counted twice.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncelog import Damage

    from .source_options import Key


def note_bad_records(
    folder: str, key: Key, span: tuple[int, int], damages: Iterable[Damage]
) -> None:
    """Writes the damage that the task of one span of offsets has met."""
    topic, partition = key
    start, end = span
    lines = [
        json.dumps({"topic": topic, "partition": partition, **damage._asdict()})
        for damage in damages
    ]
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    new = place / f"_{uuid.uuid4().hex}"  # names that begin so are no data to Spark
    new.write_text("\n".join([*lines, ""]))
    new.replace(place / f"{topic}-{partition}-{start}-{end}.json")
