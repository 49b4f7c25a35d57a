"""Every option does something, or the reference says that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.base.broker_options import SYNONYMS
from oncelog.base.config import OWNERS, WITHOUT_EFFECT

ENGINE = Path(__file__).resolve().parents[2] / "engine"
REFERENCE = ENGINE.parent / "docs/reference/options.md"
PRODUCING = {"producer.py", "sender.py", "staging.py", "partitioner.py", "transaction_manager.py"}
CLIENT = sorted((ENGINE / "client").glob("*.py"))
# Who may read the options of an owner: the same name may be another's, too.
READERS = {
    "topic": sorted((ENGINE / "broker").glob("*.py")),
    "broker": [
        *sorted((ENGINE / "broker").glob("*.py")),
        ENGINE / "client/client.py",
        ENGINE / "base/config.py",
    ],
    "producer": [
        ENGINE / "segment/compression.py",
        *(path for path in CLIENT if path.name in PRODUCING),
    ],
    "consumer": [path for path in CLIENT if path.name not in PRODUCING],
}
LEVELS = {"compression.gzip.level", "compression.lz4.level", "compression.zstd.level"}


def sources(owner: str) -> str:
    return "\n".join(path.read_text() for path in READERS[owner])


def named(owner: str) -> set[str]:
    """The options that the code names where it may read them; the list of those without effect does not count."""
    text = sources(owner)
    if owner == "broker":
        start = text.index("WITHOUT_EFFECT: Final")
        text = text[:start] + text[text.index("_NAMES_SHOWN: Final") :]
    found = {name for name in OWNERS[owner] if f'"{name}"' in text}
    if owner in ("topic", "producer") and "LEVEL_OPTIONS" in text:
        found |= LEVELS & set(OWNERS[owner])  # by way of segment/compression.py
    if owner == "broker":  # the defaults of topics
        topic = named("topic")
        found |= {
            synonym.name for name in topic & set(SYNONYMS) for synonym in SYNONYMS[name]
        } - set(WITHOUT_EFFECT["broker"])
    return found


@pytest.mark.parametrize("owner", OWNERS)
def test_every_option_is_read_or_said_to_have_no_effect(owner: str) -> None:
    """Goal: nobody sets an option, sees it accepted, and waits for what it never does.
    Method: each name stands in the code that may read it, or in the list that the reference shows, and not in both."""
    read, listed = named(owner), set(WITHOUT_EFFECT[owner])
    assert set(OWNERS[owner]) - read - listed == set()
    assert read & listed == set()
    assert listed <= set(OWNERS[owner])


def test_the_reference_shows_what_has_no_effect() -> None:
    text = REFERENCE.read_text()
    for owner, names in WITHOUT_EFFECT.items():
        for name, reason in names.items():
            assert f"| `{name}` | {owner} | {reason} |" in text
