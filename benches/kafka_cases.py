"""The cases of ``make bench-kafka``: who takes part in each, what they took, and the table they end in.

Rates    more is better, and what Kafka's tools print: records, or transactions, per second. The JSON has times, as all
         results here have.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from pytest_benchmark.stats import Stats
from rich import box
from rich.table import Table

from .harness import Case, Contestant, Result, Role, Unit, load_targets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .harness import Verdict

SUITE: Final = "kafka"
OURS: Final = "oncelog"
KAFKA: Final = "Kafka"
READY: Final = "ready-made batches"

PRODUCE: Final = "kafka.perf.produce"
PRODUCE_ARROW: Final = "kafka.perf.produce.arrow"
CONSUME: Final = "kafka.perf.consume"
CONSUME_ARROW: Final = "kafka.perf.consume.arrow"
TRANSACTIONS: Final = "kafka.transactions"
READ: Final = "kafka.spark.read"
SINK: Final = "kafka.spark.sink"

TITLES: Final = {
    PRODUCE: "produce 100 B, Python objects one by one",
    PRODUCE_ARROW: "produce 100 B, from Arrow",
    CONSUME: "consume 100 B, Python records",
    CONSUME_ARROW: "consume 100 B, Arrow columns",
    TRANSACTIONS: "transactions of one record",
    READ: "Spark reads 100 B, read_committed",
    SINK: "Spark writes 100 B",
}
OTHERS: Final[Mapping[str, tuple[tuple[str, Role], ...]]] = {
    READ: ((KAFKA, Role.PEER), (READY, Role.LIMIT)),
}


@dataclasses.dataclass
class Answer:
    """One case while it is measured: the seconds that each took for one record, round after round."""

    name: str
    work: int = 1  # records of one round
    version: str = ""  # Kafka's
    missing: str = ""  # why Kafka does not take part
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    lines: dict[str, str] = dataclasses.field(default_factory=dict)  # of the best round of each

    def add(self, who: str, per_second: float, line: str = "") -> None:
        """A round of one of them, with what its tool has printed."""
        took = self.seconds.setdefault(who, [])
        took.append(1 / per_second)
        if line and took[-1] == min(took):
            self.lines[who] = line

    @property
    def case(self) -> Case:
        sides = ((OURS, Role.OURS), *OTHERS.get(self.name, ((KAFKA, Role.PEER),)))
        contestants = [
            Contestant(
                name,
                role,
                (lambda: None) if name in self.seconds else None,
                missing=self.missing,
                version=self.version if name == KAFKA else "",
            )
            for name, role in sides
        ]
        unit = Unit.NS_PER_CALL if self.name == TRANSACTIONS else Unit.NS_PER_RECORD
        return Case(self.name, TITLES[self.name], unit, self.work, contestants)

    def result(self, *, counts: bool = True) -> Result:
        """Judged by the targets, unless the sizes are those of a smoke run."""
        new_stats: Any = Stats  # comes without types
        stats = {}
        for who, took in self.seconds.items():
            stats[who] = new_stats()
            for seconds in took:
                stats[who].update(seconds * self.work)
        found = Result(self.case, stats)
        found.judge(load_targets(suite=SUITE), counts=counts)
        return found


def cases() -> list[Case]:
    """All of them, with nobody measured: so that a target can be proven to speak of one."""
    return [Answer(name).case for name in TITLES]


# ---------------------------------------------------------------- the table

TOOLS: Final = {
    "produce": {OURS: PRODUCE, f"{OURS} --arrow": PRODUCE_ARROW, KAFKA: PRODUCE},
    "consume": {OURS: CONSUME, f"{OURS} --arrow": CONSUME_ARROW, KAFKA: CONSUME},
    "transactions of one record": {OURS: TRANSACTIONS, KAFKA: TRANSACTIONS},
}
COLUMNS: Final = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)


def side_by_side(answers: Mapping[str, Answer]) -> Iterator[str]:
    """What the tools have printed in the best round of each, one below the other."""
    for title, rows in TOOLS.items():
        told = {
            who: answers[name].lines[who.partition(" ")[0]]
            for who, name in rows.items()
            if name in answers and who.partition(" ")[0] in answers[name].lines
        }
        if told:
            yield f"{title}, best of the rounds"
        if told and title == "consume":
            yield f"  {'':<16}{COLUMNS}"
        yield from (f"  {who:<16}{line}" for who, line in told.items())


def _rate(result: Result, seconds: float) -> str:
    work = result.case.work if result.case.unit is Unit.NS_PER_RECORD else 1
    return f"{work / seconds:,.0f}"


def _verdict(verdict: Verdict) -> str:
    style = {True: "green", False: "bold red", None: "yellow"}[verdict.met]
    return f"[{style}]{verdict}[/]"


def _row(result: Result, one: Contestant) -> tuple[str, ...]:
    """Who, rates, by how much ours is faster, the target and the verdict."""
    stats: Any = result.stats.get(one.name)
    if not stats:
        return (f"{one.name}: not measured", "", "", "", "", "")
    figures = (one.name, _rate(result, stats.min), _rate(result, stats.median))
    if one.role is Role.OURS:
        return (*figures, "", "", "")
    ours: Any = result.stats.get(result.case.ours.name)
    ratio = f"{stats.min / ours.min:.2f}x" if ours else "-"
    judged = [verdict for verdict in result.verdicts if verdict.target.against == one.name]
    # Against a limit the target says how much longer ours may take; here all are ratios of rates.
    asked = [
        verdict.target.ratio if one.role is Role.PEER else 1 / verdict.target.ratio
        for verdict in judged
    ]
    return (
        *figures,
        ratio,
        "\n".join(f"{value:.3g}x" for value in asked),
        "\n".join(map(_verdict, judged)),
    )


def table(results: Iterable[Result], version: str) -> Table:
    """A line for each contestant of each case."""
    made = Table(
        box=box.SIMPLE_HEAD,
        title=f"oncelog beside Apache Kafka {version}".rstrip(),
        title_justify="left",
        pad_edge=False,
    )
    made.add_column("case", no_wrap=True)
    made.add_column("who", no_wrap=True)
    made.add_column("best, per second", justify="right", no_wrap=True)
    made.add_column("median", justify="right", no_wrap=True)
    made.add_column("ours is", justify="right", no_wrap=True)
    made.add_column("target", justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    for result in results:
        last = len(result.case.contestants) - 1
        for number, one in enumerate(result.case.contestants):
            title = "" if number else result.case.title
            made.add_row(title, *_row(result, one), end_section=number == last)
    return made
