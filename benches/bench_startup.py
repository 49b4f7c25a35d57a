"""How long does it take until a program or a command does something?
Times    a process of its own, from its start to its end: "import": one that imports oncelog; "help": `oncelog --help`;
         "list": `oncelog topics list` of a data directory, a command that only prints text.
Excludes compiling Python's source: all of it was compiled before, into a directory of the run.
Anchor   for "import" the import of other clients; `import numpy` and a Python that does nothing are the limits. Files lie
         in the cache of pages.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import oncelog

from .harness import Case, Contestant, Role, Scratch, Unit, version_of
from .peers import NOT_INSTALLED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_benchmark.fixture import BenchmarkFixture

    from .harness import Settings

TOPIC: Final = "payments"
NUMPY: Final = "import numpy"
NOTHING: Final = "python -c pass"
CLIENTS: Final = {
    "confluent-kafka": "confluent_kafka",
    "kafka-python": "kafka",
    "aiokafka": "aiokafka",
}


class _Python:
    """Processes of this Python, whose compiled files lie in a directory of their own: what is timed does not depend on
    whether they could be, or were, written beside the sources."""

    def __init__(self) -> None:
        self.scratch = Scratch("startup")
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self._environment = {**kept, "PYTHONPYCACHEPREFIX": str(self.scratch.path / "compiled")}

    def ran(self, *words: str) -> str:
        """What it printed; raises where it failed."""
        done = subprocess.run(
            [sys.executable, *words], env=self._environment, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return done.stdout

    def process(self, *words: str) -> Callable[[], str]:
        return functools.partial(self.ran, *words)


def _shows(call: Callable[[], str], word: str) -> Callable[[], bool]:
    return lambda: word in call()


def _case(
    name: str,
    title: str,
    python: _Python,
    words: Sequence[str],
    word: str,
    peers: Sequence[Contestant] = (),
) -> Case:
    call = python.process(*words)
    return Case(
        f"startup.{name}",
        title,
        Unit.MS_PER_CALL,
        1,
        [
            Contestant("oncelog", Role.OURS, call, reveal=_shows(call, word)),
            *peers,
            Contestant(NUMPY, Role.LIMIT, python.process("-c", "import numpy")),
            Contestant(NOTHING, Role.LIMIT, python.process("-c", "pass")),
        ],
    )


def _clients(python: _Python, settings: Settings) -> Iterator[Contestant]:
    for name, module in CLIENTS.items():
        if name in settings.without or importlib.util.find_spec(module) is None:
            yield Contestant(name, Role.PEER, missing=NOT_INSTALLED)
        else:
            call = python.process("-c", f"import {module}; print({module!r})")
            yield Contestant(
                name, Role.PEER, call, reveal=_shows(call, module), version=version_of(name)
            )


def cases(settings: Settings) -> Iterator[Case]:
    python = _Python()
    data = python.scratch.path / "log"
    with oncelog.open(data) as log:
        log.create_topic(TOPIC)
    code = "import oncelog; print(oncelog.__name__)"
    clients = list(_clients(python, settings))
    yield _case("import", "start: import oncelog", python, ["-c", code], "oncelog", clients)
    yield _case("help", "start: oncelog --help", python, ["-m", "oncelog", "--help"], "topics")
    words = ["-m", "oncelog", "topics", "list", "--data", str(data)]
    yield _case("list", "start: oncelog topics list", python, words, TOPIC)


def test_startup(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark(contestant.function())
