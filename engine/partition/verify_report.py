"""What a verification found: damage and notes, each with its place and what to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# What is wrong with one file is told in full this many times; then it is counted.
TOLD_MAX: Final = 5


@dataclass(frozen=True)
class Finding:
    """Something about one file, where in it, and what to do; -1 where there is no such place."""

    file: str
    what: str
    advice: str = ""
    position: int = -1
    offset: int = -1


@dataclass
class Report:
    """All that was found, and how much was looked at."""

    path: str
    is_clean: bool | None = None  # None: nothing here can say
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    damage: list[Finding] = field(default_factory=list)
    damage_count: int = 0
    notes: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.damage_count

    @property
    def damaged_files(self) -> list[str]:
        return list(dict.fromkeys(finding.file for finding in self.damage))

    def add(self, finding: Finding) -> None:
        self.damage_count += 1
        if sum(other.file == finding.file for other in self.damage) < TOLD_MAX:
            self.damage.append(finding)

    def note(self, file: str, what: str) -> None:
        self.notes.append(Finding(file, what))
