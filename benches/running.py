"""Runs the questions one after another, so that what one of them lacks costs the others nothing.

Skipped  a package, Java or room on the disk that is missing is said in one line, and the next question runs.
Stopped  an interrupt ends the run between two calls; what was measured until then is still shown, and kept nowhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fnmatch
import importlib
import importlib.util
import itertools
import os
import signal
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from . import document, files
from .harness import load_targets, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from .harness import Case, Result, Settings

QUESTIONS: Final = (
    *("encode", "decode", "scan", "codecs", "crc"),
    *("append", "fetch", "txn_index", "abort_filter", "recovery", "open", "sequence"),
    *("send", "poll", "ack", "commit", "groups", "startup", "idle", "spark"),
)
# What `oncelog bench` asks: Python packages alone, about a minute.
SHORT: Final = {
    **{name: (f"{name}.*.100B",) for name in ("encode", "decode", "fetch")},
    **{name: (f"{name}.*",) for name in ("crc", "append", "send", "poll")},
    "ack": ("ack.*.1",),
    "commit": ("commit.os.one", "commit.fsync.one", "commit.fsync.threads"),
}
WITHOUT_FILES: Final = ("encode", "decode", "scan", "codecs", "crc", "abort_filter", "sequence")
# Packages without which a question has nobody to compare, and where they come from.
PACKAGES: Final = {"spark": (("pyspark", "pandas"), "pip install 'oncelog[spark]'")}
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
DISK_BYTES: Final = 1 << 30  # beside the logs
QUICK_DISK_BYTES: Final = 64 << 20


@dataclasses.dataclass
class Run:
    """What was measured, what was not, and why."""

    results: list[Result] = dataclasses.field(default_factory=list)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    questions: list[str] = dataclasses.field(default_factory=list)
    growth: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    was_interrupted: bool = False

    def as_json(self, about: dict[str, Any]) -> dict[str, Any]:
        """All of it, as it is kept."""
        told = [one for name in self.questions if (one := document.question_of(name)) is not None]
        return {
            **about,
            "questions": [one.as_json() for one in told],
            "skipped": self.skipped,
            "results": [result.as_json() for result in self.results],
            "growth": self.growth,
        }


def meant_by(pattern: str) -> dict[str, tuple[str, ...]]:
    """The questions that can have a case of such a name: "codec.*" is one of bench_codecs."""
    head = pattern.partition(".")[0]
    is_open = bool(set("*?[") & set(head))
    return {name: (pattern,) for name in QUESTIONS if is_open or name.startswith(head)}


def _cases(name: str, settings: Settings, patterns: Sequence[str]) -> Iterator[Case]:
    """The cases of a question that fit, and no more than that: the next one may take long to prepare."""
    left = set(patterns)
    for case in importlib.import_module(f"{__package__}.bench_{name}").cases(settings):
        if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns):
            yield case
            left.discard(case.name)
            if not left:
                return


def all_cases(settings: Settings, pattern: str = "*") -> Iterator[Case]:
    """The cases of every question, built one by one."""
    asked = meant_by(pattern).items()
    return itertools.chain.from_iterable(
        _cases(name, settings, patterns) for name, patterns in asked
    )


# ---------------------------------------------------------------- what can be lacking


def lacking(name: str, settings: Settings) -> str:
    """Why a question cannot be asked here, in one line; nothing if it can."""
    packages, remedy = PACKAGES.get(name, ((), ""))
    absent = [one for one in packages if one in settings.without or not is_installed(one)]
    if absent:
        return (
            f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed: {remedy}"
        )
    if name in WITHOUT_FILES:
        return ""
    need = QUICK_DISK_BYTES if settings.quick else 3 * settings.log_bytes + DISK_BYTES
    return files.lacking_room(need)


def is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # it was taken out of sys.modules by half
        return False


def _sentence(error: Exception) -> str:
    """What went wrong in one line; an error that is a bug is raised again."""
    package = str(__package__).partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith(package):
        return f"{error.name} is not installed"
    if isinstance(error, OSError) and error.errno in FULL:
        return f"no room left on the disk of {files.work_directory()}"
    raise error


# ---------------------------------------------------------------- the run


class Watch:
    """Tells how far it is: a bar on a terminal, a line for each question elsewhere. It is drawn between two cases and
    never by itself: a thread that draws would be measured, too."""

    def __init__(self, talk: Console, total: int) -> None:
        self._talk = talk
        columns = (
            TextColumn("{task.fields[question]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        self._bar = Progress(*columns, console=talk, transient=True, auto_refresh=False)
        self._task = self._bar.add_task("", total=total, question="")

    def __enter__(self) -> Watch:
        if self._talk.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._talk.is_terminal:
            self._bar.stop()

    def _draw(self, **news: Any) -> None:
        self._bar.update(self._task, refresh=self._talk.is_terminal, **news)

    def begins(self, question: str) -> None:
        self._draw(question=question, description="")

    def did(self, title: str) -> None:
        self._draw(description=title)

    def ended(self, line: str) -> None:
        self._draw(advance=1)
        if not self._talk.is_terminal:
            self._talk.print(line, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _ending_as_an_interrupt_does() -> Iterator[None]:
    """A request to end ends the run as Ctrl-C does: with its files taken away."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread, which alone hears signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def measured(
    asked: Mapping[str, Sequence[str]],
    settings: Settings,
    talk: Console,
    *,
    with_growth: bool = False,
) -> Run:
    """Asks the questions, of each the cases that fit its patterns, and then how costs grow."""
    # Called at the end of the process, after all that comes later: what is made last goes first.
    weakref.finalize(measured, _leave_nothing)
    done = Run()
    promises = growths() if with_growth else 0
    with _ending_as_an_interrupt_does(), Watch(talk, len(asked) + promises) as watch:
        try:
            for name, patterns in asked.items():
                _answer(name, patterns, settings, done, watch)
            if with_growth:
                _grow(settings, done, watch)
        except KeyboardInterrupt:
            done.was_interrupted = True
    return done


def _leave_nothing() -> None:
    """Takes away the directory for files where it is of our choice, and is empty by now."""
    if not os.environ.get(files.PLACE) and not (files.ROOT / "pyproject.toml").exists():
        with contextlib.suppress(OSError):
            files.work_directory().rmdir()


def _answer(
    name: str, patterns: Sequence[str], settings: Settings, done: Run, watch: Watch
) -> None:
    """One question; why it has no answer is noted."""
    watch.begins(name)
    began, before = time.monotonic(), len(done.results)
    reason = lacking(name, settings)
    if not reason:
        try:
            for result in run(_cases(name, settings, patterns), settings, load_targets()):
                done.results.append(result)
                watch.did(result.case.title)
        except (ModuleNotFoundError, OSError) as error:
            reason = _sentence(error)
    count = len(done.results) - before
    if count:
        done.questions.append(name)
    if reason:
        done.skipped[name] = reason
    told = f"skipped, {reason}" if reason else f"{count} cases, {time.monotonic() - began:.0f} s"
    watch.ended(f"{name}: {told}")


def growths() -> int:
    from . import growth

    return len(growth.meant())


def _grow(settings: Settings, done: Run, watch: Watch) -> None:
    """The curves, with as many rounds as they need; a smoke run makes tiny ones."""
    from . import growth

    chosen = (
        settings if settings.quick else dataclasses.replace(growth.SETTINGS, seed=settings.seed)
    )
    watch.begins("growth")
    reason = files.lacking_room(QUICK_DISK_BYTES if settings.quick else DISK_BYTES)
    try:
        if not reason:
            for curve in growth.curves(chosen, begin=lambda one: watch.did(one.title)):
                done.growth.append(curve.as_json())
                watch.ended(f"growth: {curve.name}, slope {curve.slope:.2f}, {curve}")
    except OSError as error:
        reason = _sentence(error)
    if reason:
        done.skipped["growth"] = reason
        watch.ended(f"growth: skipped, {reason}")
