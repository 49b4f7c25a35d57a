"""The report: one page that needs nothing else, made from a file of results alone.

Order    where and with what; what a stranger asks first; the targets; every question with its charts; growth; what
         did not run. No chart without a caption that says what was measured and what is in the clock.
Offline  styles and charts are in the page; nothing is fetched, and no script runs.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final
from xml.etree.ElementTree import Element, SubElement, tostring

from . import charts, glance
from .document import missing_lines, times
from .report import targets_in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .document import Document, Line, Promise, Question

ROWS_MAX: Final = 32  # of one chart
STYLE: Final = """
body { margin: 0 auto; max-width: 1020px; padding: 24px; color: #22262e; background: #ffffff;
  font: 15px/1.5 system-ui, 'DejaVu Sans', sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 20px; margin: 40px 0 8px; }
h3 { font-size: 16px; margin: 28px 0 4px; }
p, figcaption { max-width: 880px; } figcaption { color: #4b5563; font-size: 13px; margin-top: 4px; }
figure { margin: 14px 0 26px; } svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 13px; } th, td { text-align: left; padding: 4px 12px 4px 0;
  border-bottom: 1px solid #e5e7eb; vertical-align: top; } th { color: #6b7280; font-weight: 600; }
td.number { text-align: right; white-space: nowrap; } td.term { color: #6b7280; white-space: nowrap; }
.met { color: #0b7a75; } .missed { color: #c92a2a; font-weight: 700; } .unknown { color: #b7791f; }
.quiet { color: #6b7280; } code { font-family: ui-monospace, 'DejaVu Sans Mono', monospace; font-size: 12px; }
.warning { background: #fff4e5; border-left: 4px solid #d19a1c; padding: 8px 12px; }
.growth { display: flex; flex-wrap: wrap; gap: 12px 20px; } .growth figure { width: 470px; margin: 0; }
"""


def write(path: Path, document: Document) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(document), encoding="utf-8")


def page(document: Document) -> str:
    """All of it, well formed as XML as well."""
    root = Element("html", lang="en")
    head = SubElement(root, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width")
    _add(head, "title", "oncelog benchmarks")
    _add(head, "style", STYLE)
    body = SubElement(root, "body")
    _add(body, "h1", "oncelog benchmarks")
    _surroundings(body, document)
    _at_a_glance(body, document)
    _targets(body, document)
    _questions(body, document)
    _growth(body, document)
    _missing(body, document)
    return f"<!DOCTYPE html>\n{tostring(root, encoding='unicode')}\n"


def _add(parent: Element, tag: str, text: str = "", **attributes: str) -> Element:
    named = {name.rstrip("_"): value for name, value in attributes.items()}
    made = SubElement(parent, tag, named)
    made.text = text or None
    return made


def _figure(parent: Element, chart: Element, caption: Sequence[tuple[str, str]]) -> None:
    """A chart and, below it, labelled sentences."""
    figure = SubElement(parent, "figure")
    figure.append(chart)
    told = SubElement(figure, "figcaption")
    last: Element | None = None
    for label, text in caption:
        if not text:
            continue
        if last is not None:
            last.tail = f"{last.tail} "
        last = _add(told, "b", f"{label}:")
        last.tail = f" {_ended(text)}"


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


# ---------------------------------------------------------------- where and with what


def _surroundings(body: Element, document: Document) -> None:
    about = document.about
    machine, settings = about["machine"], about["settings"]
    if document.is_quick:
        _add(
            body, "p", "A smoke run on tiny data: it shows that everything runs. Its times mean nothing.",
            class_="warning",
        )  # fmt: skip
    rows = SubElement(SubElement(body, "table"), "tbody")
    commit = about.get("commit") or "not a checkout"
    if about.get("dirty"):
        commit += ", with changes"
    kernels = machine.get("crc32c_kernels") or ["?"]
    facts = {
        "machine": f"{machine['cpu']}, {machine['cores']} cores, load {machine.get('load', 0):.1f} at the end",
        "system": machine.get("system", ""),
        "disk": machine.get("disk", ""),
        "CRC-32C kernel": kernels[0],
        "versions": ", ".join(f"{name} {found}" for name, found in about["versions"].items()),
        "commit": commit,
        "seed": str(settings["seed"]),
        "settings": f"{settings['rounds']} interleaved rounds, logs of {settings['log_bytes'] >> 20:,} MiB, warm cache",
        "when": _moment(about.get("when")),
        "command": about.get("command", ""),
    }
    for term, fact in facts.items():
        if fact:
            row = SubElement(rows, "tr")
            _add(row, "td", term, class_="term")
            _add(row, "td", fact)


def _moment(when: Any) -> str:
    if when is None:
        return ""
    return f"{dt.datetime.fromtimestamp(float(when), dt.UTC):%Y-%m-%d %H:%M} UTC"


# ---------------------------------------------------------------- first questions


def _at_a_glance(body: Element, document: Document) -> None:
    found = glance.panels(document)
    if not found:
        return
    _add(body, "h2", "At a glance")
    for panel, shown in found:
        cases = ", ".join(dict.fromkeys(row.case for row in panel.rows if document.line(row.case)))
        _figure(
            body,
            charts.bars(panel, shown),
            [
                ("Measured", panel.told(document)),
                ("Shown", f"the best round of each; cases {cases}"),
            ],
        )


# ---------------------------------------------------------------- targets


def _targets(body: Element, document: Document) -> None:
    if not document.promises:
        return
    _add(body, "h2", "Targets")
    _add(body, "p", targets_in_one_line(document))
    table = SubElement(body, "table")
    head = SubElement(SubElement(table, "thead"), "tr")
    for name in ("", "case", "promise", "achieved", "why"):
        _add(head, "th", name)
    rows = SubElement(table, "tbody")
    # What is missed comes first: it is what a reader looks for.
    order = {False: 0, None: 1, True: 2}
    for line, promise in sorted(document.promises, key=lambda pair: order[pair[1].met]):
        _target(SubElement(rows, "tr"), line, promise)


def _target(row: Element, line: Line, promise: Promise) -> None:
    kind = {True: "met", False: "missed", None: "unknown"}[promise.met]
    _add(row, "td", promise.verdict, class_=kind)
    case = _add(row, "td", line.title)
    SubElement(case, "br")
    _add(case, "code", line.case, class_="quiet")
    _add(row, "td", str(promise))
    _add(row, "td", times(promise.achieved), class_="number")
    _add(row, "td", promise.why)


# ---------------------------------------------------------------- questions


def _questions(body: Element, document: Document) -> None:
    for head, lines in _by_head(document.lines):
        shown = [line for line in lines if line.ours.value is not None]
        if not shown:
            continue
        question = document.question(shown[0])
        _add(body, "h2", question.asks if question else head, id=head)
        for number, part in enumerate(_parts(shown)):
            caption = _clock(document, part, question, is_first=number == 0)
            _figure(body, charts.dots(part), caption)


def _by_head(lines: Sequence[Line]) -> Iterator[tuple[str, list[Line]]]:
    heads = dict.fromkeys(line.head for line in lines)
    for head in heads:
        yield head, [line for line in lines if line.head == head]


def _parts(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Lines of one unit and few enough rows for one chart; a family of cases stays together."""
    families: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        families.setdefault((line.unit, line.family), []).append(line)
    part: list[Line] = []
    for (unit, _), family in families.items():
        rows = sum(len(line.sides) for line in [*part, *family])
        if part and (part[0].unit != unit or rows > ROWS_MAX):
            yield part
            part = []
        part += family
    if part:
        yield part


def _clock(
    document: Document, lines: Sequence[Line], question: Question | None, *, is_first: bool
) -> list[tuple[str, str]]:
    """What was measured, in the words of the file that asks; they are not repeated below its first chart."""
    works = dict.fromkeys(line.work_in_words for line in lines if line.work_in_words)
    rounds = f"best of up to {document.about['settings']['rounds']} interleaved rounds"
    shown = f"{rounds}, the line reaches to the median; {', '.join(line.case for line in lines)}"
    if len(works) == 1:
        shown += f"; {next(iter(works))}"
    titles = ", ".join(line.title for line in lines)
    if question is None:
        return [("Measured", titles), ("Shown", shown)]
    if not is_first:
        return [("Measured", titles), ("In the clock", "as above"), ("Shown", shown)]
    return [
        ("In the clock", question.times),
        ("Not in the clock", question.excludes),
        ("Beside it", question.anchor),
        ("Shown", shown),
    ]


# ---------------------------------------------------------------- growth, and the rest


def _growth(body: Element, document: Document) -> None:
    if not document.growth:
        return
    _add(body, "h2", "How costs grow")
    worse = [curve["title"] for curve in document.growth if curve["met"] is False]
    told = (
        "A smoke run: slopes are not judged."
        if all(curve["met"] is None for curve in document.growth)
        else f"Worse than promised: {', '.join(worse)}."
        if worse
        else "No curve is steeper than promised."
    )
    _add(
        body, "p",
        f"{told} Both axes are logarithmic: a slope of 0 is flat, 1 is linear. The dashed line has the slope that was "
        "promised; the slope is judged where it begins and beyond.",
        class_="missed" if worse else "quiet",
    )  # fmt: skip
    place = SubElement(body, "div", {"class": "growth"})
    for curve in document.growth:
        _figure(place, charts.growth(curve), [("Measured", curve["caption"])])


def _missing(body: Element, document: Document) -> None:
    lines = missing_lines(document)
    _add(body, "h2", "What did not run")
    if not lines:
        _add(body, "p", "Everything ran.")
        return
    place = SubElement(body, "ul")
    for line in lines:
        _add(place, "li", line)
