"""Builds docs/FORMAT.md from the docstrings of the modules that own a format: one home per fact.

Run it after a change of those docstrings; a test compares the file with what this would write.
"""  # noqa: INP001

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs/FORMAT.md"
# In the order of the document; a module that owns another file joins here.
OWNERS = (
    "engine/segment/batch.py",
    "engine/segment/compression.py",
    "engine/segment/offset_index.py",
    "engine/segment/time_index.py",
    "engine/segment/txn_index.py",
    "engine/partition/producer_snapshot.py",
    "engine/log/checkpoint.py",
    "engine/broker/metadata_log.py",
    "engine/broker/txn_records.py",
    "engine/broker/group_records.py",
    "engine/broker/group_protocol.py",
    "engine/broker/cluster_metadata.py",
)
HEAD = """# Format

Every byte that oncelog reads and writes, as Apache Kafka lays it out. All integers are big-endian.
This file is made from the docstrings of the modules named below by `python docs/build_format.py`.
"""
RULE = re.compile(r"=+(?: +=+)+$")
LABEL = re.compile(r"([A-Z][a-z]+)  +(\S.*)$")


def escaped(line: str) -> str:
    """Code in Markdown's quotes, and no ``<name>`` that it would take for HTML."""
    parts = line.replace("``", "`").split("`")
    return "`".join(
        part if index % 2 else part.replace("<", "\\<") for index, part in enumerate(parts)
    )


def table(lines: list[str]) -> list[str]:
    """A simple table of reStructuredText (columns under rules of ``=``) in Markdown."""
    starts = [match.start() for match in re.finditer("=+", lines[0])]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    rules = [index for index, line in enumerate(lines) if RULE.match(line)]
    rows: list[list[str]] = []
    for line in lines[rules[-2] + 1 : rules[-1]]:
        cells = [line[start:end].strip() for start, end in spans]
        if rows and not cells[0]:  # a cell that goes on in the next line
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
        else:
            rows.append(cells)
    has_head = len(rules) == 3
    head = [lines[1][start:end].strip() for start, end in spans] if has_head else [""] * len(spans)
    return [escaped(f"| {' | '.join(row)} |") for row in (head, ["---"] * len(spans), *rows)]


def paragraph(lines: list[str]) -> list[str]:
    """A paragraph as it is; lines that start with a label become a list."""
    if any(line.startswith("    ") for line in lines):
        return definitions(lines)
    lines = [escaped(line) for line in lines]
    matches = [LABEL.match(line) for line in lines]
    if not all(matches):
        return lines
    return [f"- **{match[1]}**: {match[2]}" for match in matches if match]


def definitions(lines: list[str]) -> list[str]:
    """Names with indented lines about them, as a list."""
    made: list[str] = []
    names: list[str] = []
    for line in lines:
        if not line.startswith(" "):
            names += [name.strip() for name in line.split(",") if name.strip()]
        elif names:
            quoted = [re.sub(r"^[^ ]+", r"`\g<0>`", name) for name in names]
            made.append(escaped(f"- {', '.join(quoted)}: {line.strip()}"))
            names = []
        else:
            made[-1] += " " + escaped(line.strip())
    return made


def section(path: str) -> str:
    """One module's docstring in Markdown."""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text())) or path
    title, _, body = docstring.partition("\n")
    name, _, about = title.rstrip(".").partition(":")
    name, _, rest = (name, "", "") if about else name.partition(",")
    about = about.strip() or rest.strip()
    parts = [f"## {name}", f"`{path}`: {about}."]
    for block in body.strip("\n").split("\n\n"):
        lines = block.splitlines()
        parts.append("\n".join(table(lines) if RULE.match(lines[0]) else paragraph(lines)))
    return "\n\n".join(parts)


def build() -> str:
    """The whole document."""
    return "\n".join([HEAD, *("\n".join([section(path), ""]) for path in OWNERS)])


if __name__ == "__main__":
    TARGET.write_text(build())
