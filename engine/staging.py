"""oncelog.staging: records encoded by many processes, committed by one, exactly once.

Tasks write staged files with StagingWriter and report what finish() gave them; one process collects the reports and
calls commit_staged(). A Token makes the commit repeatable: a batch that is in the log is not written again.
"""

from __future__ import annotations

from .client.staged_commit import (
    Committed,
    Token,
    commit_staged,
    is_committed,
    open_log,
    read_token,
)
from .client.staging import (
    StagedFile,
    StagedReader,
    StagingFolder,
    StagingWriter,
    TopicLayout,
    make_root,
    sweep,
    topic_layouts,
)

__all__ = [
    "Committed",
    "StagedFile",
    "StagedReader",
    "StagingFolder",
    "StagingWriter",
    "Token",
    "TopicLayout",
    "commit_staged",
    "is_committed",
    "make_root",
    "open_log",
    "read_token",
    "sweep",
    "topic_layouts",
]
