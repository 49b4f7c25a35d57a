"""How fast is oncelog beside Apache Kafka, a real broker and its own tools, on this machine?

python -m benches.kafka [--records N] [--parts NAMES] [--jars DIR] [--json PATH] [--check]   (make bench-kafka)

perf          kafka-producer-perf-test and kafka-consumer-perf-test beside oncelog perf (kafka_perf.py)
transactions  transactions of one record, one after another (kafka_perf.py)
spark         Spark's Kafka source and sink beside ours (kafka_spark.py)
commits       a synchronous commit of one offset (kafka_commits.py)

Talk goes to stderr as it comes; at the end stdout has the lines of both tools side by side, one table with the verdicts
on the targets, and what was skipped. Needs Java 17 and, the first time, Maven for the jars; Spark's part needs pyspark,
the commits confluent-kafka. What is missing is said in one line, costs that part alone, and is no failure: without
Kafka ours still runs. Nothing stays but the jars.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from interop.kafka import KafkaError

from .files import ROOT
from .harness import Settings, surroundings
from .kafka_cases import OURS, Answer, side_by_side, table
from .kafka_commits import commits
from .kafka_ground import Ground, ended_by_signals, sentence
from .kafka_perf import perf, transactions
from .running import Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .harness import Result

PARTS: Final = ("perf", "transactions", "spark", "commits")
RESULTS: Final = Path(__file__).with_name("results") / "kafka.json"
EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    records: int = 10_000_000  # that Spark reads
    sink_records: int = 10_000_000  # that Spark writes in a round
    perf_records: int = 5_000_000  # that a perf tool sends in a round
    transactions: int = 1_500  # that Kafka commits in a round
    rounds: int = 3
    quick: bool = False


QUICK: Final = Sizes(20_000, 10_000, 20_000, 40, 1, quick=True)


class Comparison:
    """One run: its parts one after another, so that what one of them lacks costs the others nothing."""

    def __init__(self, ground: Ground, sizes: Sizes, talk: Console) -> None:
        self.ground, self.sizes = ground, sizes
        self.run = Run()
        self.answers: dict[str, Answer] = {}
        self.failed: list[str] = []
        self._talk = talk
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=talk, transient=True, disable=not talk.is_terminal)

    def do(self, parts: Sequence[str]) -> None:
        """Runs the parts, and says of each in one line what it lacks; ended by a signal, it keeps what it has."""
        try:
            with self._bar:
                for part in parts:
                    self._try(part)
        except KeyboardInterrupt:
            self.run.was_interrupted = True

    def _try(self, part: str) -> None:
        task = self._bar.add_task(part, total=self._steps(part))
        began = set(self.answers)
        try:
            for line in self._lines(part):
                self.say(line)
                self._bar.advance(task)
        except KafkaError as error:
            self.run.skipped[part] = sentence(error)
            self.say(f"{part}: skipped, {self.run.skipped[part]}")
        except Exception as error:  # noqa: BLE001 - told with its traceback
            # What the other parts have measured for minutes is not lost; the exit status tells.
            self.failed.append(part)
            self.run.skipped[part] = f"it failed: {sentence(error)}"
            self.say(traceback.format_exc())
        finally:
            for name in [one for one in self.answers if one not in began]:
                self._judge(part, self.answers[name])

    def _judge(self, part: str, answer: Answer) -> None:
        if OURS in answer.seconds:
            self.run.results.append(answer.result(counts=not self.sizes.quick))
        if answer.missing:
            self.run.skipped[f"Kafka's side of {part}"] = answer.missing

    def _lines(self, part: str) -> Iterator[str]:
        """Runs a part; a line for each of its steps."""
        sizes, answers = self.sizes, self.answers
        if part == "perf":
            yield from perf(self.ground, sizes.perf_records, sizes.rounds, answers)
        elif part == "transactions":
            yield from transactions(self.ground, sizes.transactions, sizes.rounds, answers)
        elif part == "spark":
            from .kafka_spark import spark_rounds  # which nobody else needs

            counts = (sizes.records, sizes.sink_records, sizes.rounds)
            yield from spark_rounds(self.ground, *counts, answers)
        else:
            self.run.results += commits(self.ground, quick=sizes.quick)
            yield f"{part}: measured"

    def _steps(self, part: str) -> int:
        """How many lines a part has, which is how far it is told to be."""
        rounds = self.sizes.rounds
        steps = {"perf": 6 * rounds, "transactions": 2 * rounds, "spark": 5 * (rounds + 1) + 2}
        return steps.get(part, 1)

    def say(self, line: str) -> None:
        self._talk.print(line, highlight=False, markup=False, soft_wrap=True)

    # ------------------------------------------------------------ what it comes to

    def show(self, page: Console) -> None:
        """Both tools' lines side by side, the table, what was skipped."""
        for line in side_by_side(self.answers):
            page.print(line, highlight=False, markup=False, soft_wrap=True)
        if self.run.results:
            made = table(self.run.results, self.ground.version)
            page.width = max(page.width, Console(width=1000).measure(made).maximum)
            page.print(made)
            for line in self._notes():
                page.print(line, highlight=False, markup=False, soft_wrap=True)
        for line in skipped_in_words(self.run.skipped):
            page.print(line, highlight=False, markup=False, soft_wrap=True)

    def _notes(self) -> list[str]:
        """What must be known to read the table."""
        machine = self.about["machine"]
        rounds = f"best and median of {self.sizes.rounds} rounds, in turn"
        return [
            f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']:.1f} at the end; {rounds}.",
            "Each perf tool by its own clock; one partition, the defaults of both sides, nobody waits for the device.",
            "Spark in local[2], four partitions; its Kafka sink is at least once, ours exactly once.",
            targets_in_one_line(self.run.results),
        ]

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """Machine, versions, seed and commit, as of the first that asks."""
        sizes = self.sizes
        found: dict[str, Any] = surroundings(Settings(rounds=sizes.rounds, quick=sizes.quick))
        return {**found, "versions": {**found["versions"], "kafka": self.ground.version}}

    def as_json(self, command: str) -> dict[str, Any]:
        about = {**self.about, "command": command}
        about["sizes"] = dataclasses.asdict(self.sizes)
        about["told"] = {name: answer.lines for name, answer in self.answers.items()}
        return self.run.as_json(about)


def skipped_in_words(skipped: Mapping[str, str]) -> list[str]:
    """One line for each reason, however many parts it has cost."""
    parts: dict[str, list[str]] = {}
    for part, reason in skipped.items():
        parts.setdefault(reason, []).append(part)
    return [f"bench-kafka: skipped {', '.join(names)}: {why}" for why, names in parts.items()]


def targets_in_one_line(results: Sequence[Result]) -> str:
    verdicts = [verdict.met for result in results for verdict in result.verdicts]
    met, missed = verdicts.count(True), verdicts.count(False)
    return f"Targets: {met} met, {missed} missed, {len(verdicts) - met - missed} not measured."


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benches.kafka", description="Compares oncelog with Apache Kafka."
    )
    add = parser.add_argument
    add("--records", type=int, help="of all parts: that Spark reads and writes, that a tool sends")
    add("--spark-records", type=int, help=f"that Spark reads, {Sizes.records:,} unless told")
    add("--sink-records", type=int, help=f"that Spark writes, {Sizes.sink_records:,} unless told")
    add("--perf-records", type=int, help=f"that a tool sends, {Sizes.perf_records:,} unless told")
    add("--transactions", type=int, help=f"of Kafka's, {Sizes.transactions:,} unless told")
    add("--rounds", type=int, help=f"of each part, {Sizes.rounds} unless told")
    add("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    add("--quick", action="store_true", help="tiny data, one round: only to see that it runs")
    add("--jars", type=Path, default=ROOT / "build/interop/jars", help="Kafka's; fetched if new")
    add("--json", type=Path, help="where to write the results, benches/results/kafka.json if whole")
    add("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args(words)
    options.parts = [name for name in options.parts.split(",") if name]
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    numbers = (options.records, options.spark_records, options.sink_records, options.perf_records)
    if any(number is not None and number < 1 for number in (*numbers, options.transactions, options.rounds)):  # fmt: skip
        parser.error("sizes and rounds are at least 1")
    return options


def _sizes(options: argparse.Namespace) -> Sizes:
    """What was asked for, over the usual."""
    asked = {
        "records": options.spark_records or options.records,
        "sink_records": options.sink_records or options.records,
        "perf_records": options.perf_records or options.records,
        "transactions": options.transactions,
        "rounds": options.rounds,
    }
    usual = QUICK if options.quick else Sizes()
    return dataclasses.replace(usual, **{name: size for name, size in asked.items() if size})


def main(words: Sequence[str] | None = None) -> int:
    options = _arguments(words)
    sizes = _sizes(options)
    talk = Console(stderr=True)
    compared = Comparison(Ground(options.jars), sizes, talk)
    with ended_by_signals():
        compared.do(options.parts)
        compared.show(Console())
    if compared.run.was_interrupted:
        compared.say("interrupted: this is what was measured until then, and nothing was written")
        return EXIT_INTERRUPTED
    # A part, or a run of other sizes, is no result to keep.
    path = options.json or (
        RESULTS if sizes == Sizes() and set(options.parts) == set(PARTS) else None
    )
    if path is not None and compared.run.results:
        given = list(sys.argv[1:] if words is None else words)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = compared.as_json(" ".join(["python", "-m", "benches.kafka", *given]))
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        compared.say(f"results: {path}")
    verdicts = [verdict.met for result in compared.run.results for verdict in result.verdicts]
    return EXIT_FAILED if compared.failed or (options.check and False in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
