"""``oncelog transactions`` and ``oncelog producers``: what they say of a real broker's directory is what Kafka said."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import oncelog
from tests.cli.running import Command
from tests.golden_cases import GOLDEN, expected

if TYPE_CHECKING:
    from pathlib import Path

MIXED = GOLDEN / "txn-mixed" / "data"
PICTURE = """\
side-0: offsets 0 to 16, last stable offset 16, high watermark 16
2 producers, 4 transactions: 1 committed, 3 aborted, 0 open

           0     2     4     6     8     10    12    14
                               high watermark, all stable ▼
mix-2 (2)  ░░░░░░░░░A──██████C──
mix-1 (1)                       ░░░░░░░░░░░░A──░░░░░░░░░A──

█ committed  ░ aborted  ▚ both  ▒ open  ▬ no transaction  ─ waits for its end  C A markers  an offset is 3 wide
"""
TRANSACTIONS, PRODUCERS = Command("transactions"), Command("producers")


def rows_of(command: Command, *arguments: str | Path) -> list[dict[str, Any]]:
    result = command.run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_list_agrees_with_kafka() -> None:
    found = {row["transactionalId"]: row for row in rows_of(TRANSACTIONS, "list", "--data", MIXED)}
    for told in expected("txn-mixed")["transactions"]:
        row = found.pop(told["transactionalId"])
        assert (row["producerId"], row["state"]) == (told["producerId"], told["state"])
    assert not found


def test_list_filters_by_state_and_pattern() -> None:
    ongoing = rows_of(TRANSACTIONS, "list", "--state", "Ongoing", "--data", MIXED)
    assert [row["transactionalId"] for row in ongoing] == ["mix-1"]
    matched = rows_of(TRANSACTIONS, "list", "--id-pattern", "mix-[02]", "--data", MIXED)
    assert [row["transactionalId"] for row in matched] == ["mix-0", "mix-2"]
    wrong = TRANSACTIONS.run("list", "--state", "Openish", "--data", MIXED)
    assert wrong.exit_code == 2
    assert "there is no transaction state 'Openish', only Empty, Ongoing" in wrong.stderr


def test_describe_agrees_with_kafka() -> None:
    told = expected("txn-mixed")["transactions"]
    names = [row["transactionalId"] for row in told]
    found = rows_of(TRANSACTIONS, "describe", *names, "--data", MIXED)
    for row in found:
        is_open = row["state"] == "Ongoing"
        assert (row.pop("openMs") is not None) == is_open
    assert found == told


def test_describe_of_an_unknown_id_says_so_and_shows_the_others() -> None:
    result = TRANSACTIONS.run("describe", "mix-1", "nobody", "--data", MIXED)
    assert result.exit_code == 2
    assert "mix-1" in result.stdout
    assert "transactional id 'nobody' is not known" in result.stderr


@pytest.mark.parametrize("partition", ["mixed-0", "side-0", "side-1"])
def test_producers_are_those_that_kafka_describes(partition: str) -> None:
    topic, number = partition.rsplit("-", 1)
    found = rows_of(PRODUCERS, "describe", topic, "--partition", number, "--data", MIXED)
    told = expected("txn-mixed")["partitions"][partition]["activeProducers"]
    for row in found:
        assert row.pop("topic") == topic
        assert row.pop("partition") == int(number)
    assert found == told


def test_find_hanging_finds_the_one_that_was_left_open() -> None:
    (row,) = rows_of(TRANSACTIONS, "find-hanging", "--data", MIXED)
    assert (row["topic"], row["partition"], row["startOffset"]) == ("mixed", 0, 704)
    assert (row["producerId"], row["producerEpoch"], row["transactionalId"]) == (1, 15, "mix-1")
    years = str(10 * 365 * 24 * 60)
    assert (
        rows_of(TRANSACTIONS, "find-hanging", "--max-transaction-timeout", years, "--data", MIXED)
        == []
    )


# ---------------------------------------------------------------- abort


def leave_open(path: Path) -> None:
    """A directory whose writer died within a transaction."""
    log = oncelog.open(path)
    log.create_topic("orders")
    producer = log.producer(transactional_id="teller-1")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"half")
    producer.flush()
    log.broker.abandon()


def test_abort_by_id_lets_readers_go_on(tmp_path: Path) -> None:
    leave_open(tmp_path)
    with oncelog.open(tmp_path, read_only=True) as log:
        assert log.partition("orders", 0).last_stable_offset == 0
    result = TRANSACTIONS.run("abort", "--transactional-id", "teller-1", "--data", tmp_path)
    assert result.exit_code == 0, result.output
    with oncelog.open(tmp_path, read_only=True) as log:
        partition = log.partition("orders", 0)
        assert partition.last_stable_offset == partition.high_watermark == 2
        assert list(log.read("orders")) == []


def test_abort_at_an_offset_refuses_what_a_coordinator_will_end(tmp_path: Path) -> None:
    leave_open(tmp_path)
    where = ("--topic", "orders", "--start-offset")
    known = TRANSACTIONS.run("abort", *where, "0", "--data", tmp_path)
    assert known.exit_code == 2
    assert "belongs to transactional id 'teller-1'" in known.stderr
    nowhere = TRANSACTIONS.run("abort", *where, "1", "--data", tmp_path)
    assert nowhere.exit_code == 2
    assert "'oncelog transactions find-hanging' lists those that are" in nowhere.stderr
    assert "no open transaction that starts at offset 1" in nowhere.stderr


def test_abort_wants_to_know_which() -> None:
    result = TRANSACTIONS.run("abort", "--topic", "orders", "--data", MIXED)
    assert result.exit_code == 2
    assert "--start-offset" in result.stderr


# ---------------------------------------------------------------- the picture


def test_the_picture_of_a_small_partition() -> None:
    """Goal: the text picture stays as it is. Method: golden lines of side-0, whose transactions Kafka wrote."""
    result = TRANSACTIONS.run(
        "timeline", "side", "--partition", "0", "--width", "59", "--data", MIXED
    )
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines == PICTURE.splitlines()


def test_the_picture_shows_how_far_readers_see() -> None:
    result = TRANSACTIONS.run("timeline", "mixed", "--data", MIXED)
    assert "last stable offset ▼" in result.stdout
    assert "high watermark ▼" in result.stdout
    lane = next(line for line in result.stdout.splitlines() if line.startswith("mix-1 (1)"))
    assert "▒" in lane


def test_a_range_of_offsets_is_drawn_alone() -> None:
    result = TRANSACTIONS.run(
        "timeline", "mixed", "--from-offset", "690", "--to-offset", "760", "--data", MIXED
    )
    assert (
        "mixed-0: offsets 690 to 760, last stable offset 704, high watermark 823" in result.stdout
    )
    assert "high watermark ▼" not in result.stdout
    nothing = TRANSACTIONS.run("timeline", "mixed", "--from-offset", "900", "--data", MIXED)
    assert nothing.exit_code == 2
    assert "has offsets 0 to 823" in nothing.stderr


def test_an_unknown_topic_is_named_with_those_there_are() -> None:
    result = TRANSACTIONS.run("timeline", "nope", "--data", MIXED)
    assert result.exit_code == 2
    assert "no topic 'nope'" in result.stderr
    assert "mixed" in result.stderr


def test_offsets_that_are_not_there_are_told() -> None:
    words = ("timeline", "mixed", "--data", MIXED)
    swapped = TRANSACTIONS.run(*words, "--from-offset", "50", "--to-offset", "10")
    assert swapped.exit_code == 2
    assert "Nothing lies from offset 50 up to and without 10." in swapped.stderr
    beyond = TRANSACTIONS.run(*words, "--from-offset", "9000")
    assert beyond.exit_code == 2
    assert "mixed-0 has offsets 0 to 823: none is there to draw." in beyond.stderr


def test_the_json_has_the_aborted_transactions_of_kafkas_indexes() -> None:
    (document,) = rows_of(TRANSACTIONS, "timeline", "mixed", "--data", MIXED)
    aborted = sorted(
        (row["producerId"], row["firstOffset"], row["lastOffset"])
        for row in document["transactions"]
        if row["outcome"] == "aborted"
    )
    told = expected("txn-mixed")["partitions"]["mixed-0"]["txnindex"]
    entries = sorted(
        (entry["producerId"], entry["firstOffset"], entry["lastOffset"])
        for entries in told.values()
        for entry in entries
    )
    assert aborted == entries


def test_the_page_needs_no_network_and_holds_every_transaction(tmp_path: Path) -> None:
    page = tmp_path / "mixed.html"
    result = TRANSACTIONS.run("timeline", "mixed", "--html", page, "--data", MIXED)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    text = page.read_text()
    assert not re.search(r"https?://|//cdn|<link|src=", text)
    import base64

    import numpy as np

    data = json.loads(re.search(r"const DATA = (.*);\n", text)[1])  # type: ignore[index]
    (panel,) = data["panels"]
    firsts = np.frombuffer(base64.b64decode(panel["transactions"]["first"]), "<f8")
    (document,) = rows_of(TRANSACTIONS, "timeline", "mixed", "--data", MIXED)
    assert firsts.tolist() == [row["firstOffset"] for row in document["transactions"]]
    assert "mix-1 (1)" in panel["lanes"]


STAGE = r"""
// As much of a browser as the page needs; counts what is drawn, and lets events be sent.
const drawn = { rects: 0, texts: [] }, listeners = {};
const pen = new Proxy({}, { get: (own, name) => name === "fillRect" ? () => { drawn.rects++; }
  : name === "fillText" ? text => drawn.texts.push(String(text)) : name in own ? own[name] : () => {},
  set: (own, name, value) => { own[name] = value; return true; } });
const element = tag => ({ tag, style: {}, clientWidth: 1200, append() {}, setPointerCapture() {}, getContext: () => pen,
  addEventListener: (kind, call) => { if (tag === "canvas") listeners[kind] = call; } });
globalThis.document = { getElementById: element, createElement: element, documentElement: {} };
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000" });
globalThis.requestAnimationFrame = call => call();
globalThis.ResizeObserver = class { observe() {} };
globalThis.devicePixelRatio = 1; globalThis.innerWidth = 1200;
"""
ACTS = r"""
const whole = { ...drawn };
listeners.wheel({ preventDefault() {}, deltaX: 0, deltaY: -2000, offsetX: 800 });
const near = [PANELS[0].from, PANELS[0].to];
listeners.pointermove({ offsetX: 800, offsetY: 50, clientX: 0, clientY: 0 });
const held = [];
listeners.pointerdown({ pointerId: 1, offsetX: 800 });
listeners.pointermove({ offsetX: 700 }); held.push(PANELS[0].from);
listeners.pointercancel();
listeners.pointermove({ offsetX: 600, offsetY: 50, clientX: 0, clientY: 0 }); held.push(PANELS[0].from);
for (const key of ["+", "-", "ArrowLeft", "ArrowRight", "x"]) listeners.keydown({ key, preventDefault() {} });
const isInside = PANELS[0].from >= PANELS[0].start && PANELS[0].to <= PANELS[0].end;
PANELS[0].transactions.began[0] = 2 ** 62;  // no date, and a timestamp that a producer may give
const words = PANELS[0].words(0, false);
listeners.dblclick();
console.log(JSON.stringify({ rects: whole.rects, texts: drawn.texts, near, again: [PANELS[0].from, PANELS[0].to],
  held, isInside, words }));
"""


def test_the_page_draws_zooms_and_goes_back(tmp_path: Path) -> None:
    """Goal: the script works. Method: run it in node on a stage that stands for a browser."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to run the page with")
    page = tmp_path / "mixed.html"
    assert TRANSACTIONS.run("timeline", "mixed", "--html", page, "--data", MIXED).exit_code == 0
    script = re.search(r"<script>(.*)</script>", page.read_text(), re.DOTALL)
    assert script is not None
    done = subprocess.run(
        [node, "-"], input=STAGE + script[1] + ACTS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["rects"] > 37 + 153  # a bar for each transaction and each stretch
    assert "mix-1 (1)" in said["texts"]
    assert " last stable offset 704 " in said["texts"]
    start, end = said["near"]
    assert 0 < start < end < 823
    assert end - start < 100
    assert said["again"] == [0, 823]
    assert said["held"][0] == said["held"][1] > start  # dragged, until the hand was taken off
    assert said["isInside"]
    assert "timestamp 4611686018427388000" in said["words"]


def test_a_crowded_picture_is_not_empty(tmp_path: Path) -> None:
    """Goal: where there are too many stretches for bars, there is an image. Method: count coloured pixels."""
    pytest.importorskip("matplotlib")
    import io

    from matplotlib import image

    from oncelog.cli import timeline_png
    from oncelog.partition.timeline import read_timeline

    with oncelog.open(MIXED, read_only=True) as log:
        timeline = read_timeline(log.partition("mixed", 0))
    bars = image.imread(io.BytesIO(timeline_png.draw_png([timeline], {}, 24)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_png, "BARS_MAX", 0)
        crowded = image.imread(io.BytesIO(timeline_png.draw_png([timeline], {}, 24)))

    def red(pixels: Any) -> int:
        return int(((pixels[..., 0] > 0.8) & (pixels[..., 1] < 0.3)).sum())

    assert red(bars) > 1000
    assert 0.5 < red(crowded) / red(bars) < 2


def test_a_name_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    with oncelog.open(tmp_path / "data") as log:
        log.create_topic("orders")
        with log.producer(transactional_id="</script><b>") as producer, producer.transaction():
            producer.send("orders", b"v")
    page = tmp_path / "orders.html"
    assert (
        TRANSACTIONS.run(
            "timeline", "orders", "--html", page, "--data", tmp_path / "data"
        ).exit_code
        == 0
    )
    assert "</script><b>" not in page.read_text()


def test_the_picture_file_is_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = []
    for number in range(2):
        path = tmp_path / f"{number}.svg"
        result = TRANSACTIONS.run("timeline", "mixed", "--png", path, "--data", MIXED)
        assert result.exit_code == 0, result.output
        pictures.append(path.read_bytes())
    assert pictures[0] == pictures[1]
    assert b"mix-1 (1)" in pictures[0] or b"<svg" in pictures[0]
    path = tmp_path / "mixed.png"
    assert TRANSACTIONS.run("timeline", "mixed", "--png", path, "--data", MIXED).exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_way_to_get_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    result = TRANSACTIONS.run("timeline", "mixed", "--png", tmp_path / "x.png", "--data", MIXED)
    assert result.exit_code == 2
    assert "pip install 'oncelog[plot]'" in result.stderr
