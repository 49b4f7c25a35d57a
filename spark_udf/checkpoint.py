"""Where files lie, and what a streaming query's checkpoint says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlparse


def local_path(path: str, option: str) -> str:
    """A path of the file system, also where it is written as a file: address; any other address is refused."""
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", path):
        address = urlparse(path)
        if address.scheme.lower() != "file" or address.netloc not in ("", "localhost"):
            raise ValueError(
                f"option {option}: {path} is no path of a file system: mount it where the driver and all executors see "
                "it, and give that path"
            )
        path = unquote(address.path)
    return str(Path(path).absolute())


def query_id(checkpoint: str | None) -> str | None:
    """The id that a query keeps over all its restarts, from its checkpoint; None where that cannot be seen."""
    if checkpoint is None:
        return None
    try:
        folder = local_path(checkpoint, "checkpointLocation")
        found = json.loads((Path(folder) / "metadata").read_text().splitlines()[-1])["id"]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None
    return str(found)
