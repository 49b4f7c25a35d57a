"""A timeline as one page to zoom into: everything is in the file, and nothing is asked of any network.

Rows travel as typed arrays in base64, a few bytes each, and are drawn on a canvas. Of rows that fall on the same pixel
only the first is drawn, so that a million of them still follow the mouse.
"""

from __future__ import annotations

import base64
import html
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ..partition.timeline import Outcome
from .plotting import COLOURS
from .timeline_cells import lanes_of
from .timeline_text import summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ..partition.timeline import Timeline


def write_html(timelines: Sequence[Timeline], names: Mapping[int, str], lanes_max: int) -> bytes:
    """The page."""
    panels = [_panel(timeline, names, lanes_max) for timeline in timelines]
    topic = timelines[0].key.topic if timelines else ""
    data = json.dumps(
        {
            "panels": panels,
            "outcomes": [outcome.label for outcome in Outcome],
            "colours": [COLOURS[outcome] for outcome in Outcome],
        },
        separators=(",", ":"),
    ).replace("<", "\\u003c")  # names are the user's: none may end the script
    page = PAGE.replace("@TITLE@", html.escape(f"Transactions of {topic}"))
    return page.replace("@DATA@", data).encode()


def _packed(values: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode()


def _panel(timeline: Timeline, names: Mapping[int, str], lanes_max: int) -> dict[str, Any]:
    lanes = lanes_of(timeline, names, lanes_max)
    title, detail = summary(timeline).split("\n")
    transactions, runs, markers = timeline.transactions, timeline.runs, timeline.markers
    return {
        "title": title,
        "detail": detail,
        "lanes": [lane.label for lane in lanes.rows],
        "start": timeline.start_offset,
        "stable": timeline.last_stable_offset,
        "watermark": timeline.high_watermark,
        "end": timeline.end_offset,
        "transactions": {
            "lane": _packed(lanes.of(transactions["producer_id"]), "<i4"),
            "first": _packed(transactions["first_offset"], "<f8"),
            "last": _packed(transactions["last_offset"], "<f8"),
            "records": _packed(transactions["records"], "<f8"),
            "began": _packed(transactions["first_timestamp"], "<f8"),
            "ended": _packed(transactions["last_timestamp"], "<f8"),
            "epoch": _packed(transactions["producer_epoch"], "<i2"),
            "outcome": _packed(transactions["outcome"], "<i1"),
        },
        "runs": {
            "lane": _packed(lanes.of(runs["producer_id"]), "<i4"),
            "first": _packed(runs["first_offset"], "<f8"),
            "last": _packed(runs["last_offset"], "<f8"),
            "records": _packed(runs["records"], "<f8"),
            "transaction": _packed(runs["transaction"], "<i4"),
            "outcome": _packed(runs["outcome"], "<i1"),
        },
        "markers": {
            "lane": _packed(lanes.of(markers["producer_id"]), "<i4"),
            "first": _packed(markers["offset"], "<f8"),
            "commit": _packed(markers["is_commit"], "<i1"),
        },
    }


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>@TITLE@</title>
<style>
  :root { --ink: #212529; --soft: #868e96; --paper: #fff; --band: #f1f3f5; color-scheme: light dark; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #e9ecef; --soft: #909296; --paper: #1a1b1e; --band: #25262b; }
  }
  body { margin: 2rem auto; max-width: 1400px; padding: 0 1rem; background: var(--paper); color: var(--ink);
         font: 14px/1.4 system-ui, sans-serif; }
  h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 1.5rem 0 0; } p { margin: .2rem 0 .5rem; color: var(--soft); }
  canvas { width: 100%; display: block; cursor: grab; touch-action: none; outline-offset: 4px; }
  #legend span { margin-right: 1.2em; white-space: nowrap; }
  #legend i { display: inline-block; width: .9em; height: .9em; margin-right: .4em; vertical-align: -.1em; }
  #tip { position: fixed; pointer-events: none; background: var(--ink); color: var(--paper); padding: .4em .6em;
         border-radius: 4px; font-size: 12px; white-space: pre; display: none; z-index: 2; }
</style>
<h1>@TITLE@</h1>
<p id="legend"></p>
<p>Wheel or + and &minus; to zoom, drag or arrows to move, double-click or 0 for everything.</p>
<div id="panels"></div>
<div id="tip"></div>
<script>
"use strict";
const DATA = @DATA@;
const LANE = 26, TOP = 34, LEFT = 190, RIGHT = 16;
const TYPES = { i4: Int32Array, f8: Float64Array, i2: Int16Array, i1: Int8Array };
const SHAPES = { lane: "i4", first: "f8", last: "f8", records: "f8", began: "f8", ended: "f8", epoch: "i2",
                 outcome: "i1", transaction: "i4", commit: "i1" };
const tip = document.getElementById("tip");
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = value => value.toLocaleString("en-US", { maximumFractionDigits: 0 });
// Timestamps are a producer's: any number, of which few are dates.
const moment = value => Math.abs(value) <= 8.64e15 ? new Date(value).toISOString() : `timestamp ${value}`;

function unpack(table) {
  const columns = {};
  for (const name in table) {
    const bytes = Uint8Array.from(atob(table[name]), letter => letter.charCodeAt(0));
    columns[name] = new TYPES[SHAPES[name]](bytes.buffer);
  }
  return columns;
}

// The first row whose offset is at least this; rows are in the order of their first offsets.
function lowerBound(offsets, offset) {
  let low = 0, high = offsets.length;
  while (low < high) { const middle = (low + high) >> 1; if (offsets[middle] < offset) low = middle + 1; else high = middle; }
  return low;
}

// Of rows that may overlap: the largest last offset up to each row, so that a search finds those that reach in.
function reaches(last) {
  const result = new Float64Array(last.length);
  let most = -1;
  for (let row = 0; row < last.length; row++) result[row] = most = Math.max(most, last[row]);
  return result;
}

class Panel {
  constructor(data) {
    Object.assign(this, data);
    this.transactions = unpack(data.transactions); this.runs = unpack(data.runs); this.markers = unpack(data.markers);
    this.transactions.reach = reaches(this.transactions.last); this.runs.reach = reaches(this.runs.last);
    const root = document.getElementById("panels");
    root.append(Object.assign(document.createElement("h2"), { textContent: data.title }));
    root.append(Object.assign(document.createElement("p"), { textContent: data.detail }));
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    root.append(this.canvas);
    this.reset();
    this.listen();
  }
  reset() { this.from = this.start; this.to = Math.max(this.end, this.start + 1); this.redraw(); }
  redraw() { if (!this.waiting) { this.waiting = true; requestAnimationFrame(() => { this.waiting = false; this.draw(); }); } }
  x(offset) { return LEFT + (offset - this.from) / (this.to - this.from) * this.width; }
  offset(x) { return this.from + (x - LEFT) / this.width * (this.to - this.from); }
  view(from, to) {
    const whole = Math.max(this.end - this.start, 1), size = Math.min(Math.max(to - from, Math.min(8, whole)), whole);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - size / 2, this.start), this.start + whole - size);
    this.to = this.from + size;
    this.redraw();
  }
  zoom(factor, x) {
    const at = this.offset(x ?? LEFT + this.width / 2);
    this.view(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }
  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", event => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX); else this.zoom(Math.exp(event.deltaY * 0.002), event.offsetX);
    }, { passive: false });
    canvas.addEventListener("pointerdown", event => { canvas.setPointerCapture(event.pointerId); this.held = event.offsetX; canvas.style.cursor = "grabbing"; });
    for (const end of ["pointerup", "pointercancel"])
      canvas.addEventListener(end, () => { this.held = null; canvas.style.cursor = "grab"; });
    canvas.addEventListener("pointermove", event => {
      if (this.held != null) { this.pan(this.held - event.offsetX); this.held = event.offsetX; tip.style.display = "none"; }
      else this.tell(event);
    });
    canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
    canvas.addEventListener("dblclick", () => this.reset());
    canvas.addEventListener("keydown", event => {
      const step = this.width / 8;
      const act = { "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1.4), "0": () => this.reset(),
                    ArrowLeft: () => this.pan(-step), ArrowRight: () => this.pan(step) }[event.key];
      if (act) { act(); event.preventDefault(); }
    });
    new ResizeObserver(() => this.redraw()).observe(canvas);
  }
  pan(pixels) { const by = pixels / this.width * (this.to - this.from); this.view(this.from + by, this.to + by); }
  draw() {
    const canvas = this.canvas, ratio = devicePixelRatio || 1, height = TOP + this.lanes.length * LANE + 8;
    const wide = canvas.clientWidth;
    canvas.style.height = height + "px"; canvas.width = wide * ratio; canvas.height = height * ratio;
    this.width = Math.max(wide - LEFT - RIGHT, 50);
    const pen = this.pen = canvas.getContext("2d");
    pen.scale(ratio, ratio); pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
    this.lanes.forEach((name, lane) => {
      pen.fillStyle = style("--band");
      if (lane % 2 === 0) pen.fillRect(LEFT, TOP + lane * LANE, this.width, LANE);
      pen.fillStyle = style("--ink"); pen.textAlign = "right";
      pen.fillText(name, LEFT - 10, TOP + (lane + 0.5) * LANE, LEFT - 14);
    });
    this.ruler();
    pen.save(); pen.beginPath(); pen.rect(LEFT, 0, this.width + 1, height); pen.clip();
    if (this.stable < this.end) {
      pen.globalAlpha = 0.1; pen.fillStyle = DATA.colours[3];
      pen.fillRect(this.x(this.stable), TOP, this.x(this.end) - this.x(this.stable), this.lanes.length * LANE);
      pen.globalAlpha = 1;
    }
    this.bars(this.transactions, 0.46, 0.08, 0.6);
    this.bars(this.runs, 0.18, 0.64, 1);
    this.marks();
    this.bound(this.stable, "last stable offset"); if (this.watermark !== this.stable) this.bound(this.watermark, "high watermark");
    pen.restore();
  }
  ruler() {
    const pen = this.pen, about = (this.to - this.from) / Math.max(this.width / 110, 1);
    const power = 10 ** Math.floor(Math.log10(Math.max(about, 1)));
    const step = [1, 2, 5, 10].map(digit => digit * power).find(size => size >= about) || power * 10;
    pen.fillStyle = style("--soft"); pen.textAlign = "center";
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      pen.fillText(number(at), this.x(at), 10); pen.fillRect(this.x(at), TOP - 6, 1, 4);
    }
  }
  bars(rows, inset, size, alpha) {
    const pen = this.pen, drawn = this.lanes.map(() => -1);
    pen.globalAlpha = alpha;
    for (let row = lowerBound(rows.reach, this.from); row < rows.first.length && rows.first[row] < this.to; row++) {
      const right = this.x(rows.last[row] + 1), lane = rows.lane[row];
      if (right <= drawn[lane]) continue;                   // the pixel is taken
      const left = Math.max(this.x(rows.first[row]), LEFT - 2), wide = Math.max(right - left - (right - left > 4 ? 1 : 0), 1);
      pen.fillStyle = DATA.colours[rows.outcome[row]];
      pen.fillRect(left, TOP + (lane + inset) * LANE, wide, size * LANE);
      drawn[lane] = Math.floor(left + wide);
    }
    pen.globalAlpha = 1;
  }
  marks() {
    const pen = this.pen, rows = this.markers, drawn = this.lanes.map(() => -99), ink = style("--paper");
    for (let row = lowerBound(rows.first, this.from - 1); row < rows.first.length && rows.first[row] < this.to; row++) {
      const x = this.x(rows.first[row] + 0.5), lane = rows.lane[row], y = TOP + (lane + 0.5) * LANE;
      if (x - drawn[lane] < 7) continue;
      drawn[lane] = x;
      pen.fillStyle = DATA.colours[rows.commit[row] ? 1 : 2]; pen.strokeStyle = ink; pen.lineWidth = 1;
      pen.beginPath(); pen.arc(x, y, 5.5, 0, 7); pen.fill(); pen.stroke();
      pen.fillStyle = "#fff"; pen.textAlign = "center"; pen.font = "bold 8px system-ui"; pen.fillText(rows.commit[row] ? "C" : "A", x, y + 0.5);
    }
    pen.font = "12px system-ui, sans-serif";
  }
  bound(offset, text) {
    if (offset < this.from || offset > this.to) return;
    const pen = this.pen, x = this.x(offset);
    pen.strokeStyle = style("--ink"); pen.setLineDash([4, 3]); pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(x, TOP - 4); pen.lineTo(x, TOP + this.lanes.length * LANE); pen.stroke(); pen.setLineDash([]);
    pen.fillStyle = style("--ink"); pen.textAlign = x > LEFT + 160 ? "right" : "left";
    pen.fillText(` ${text} ${number(offset)} `, x, TOP - 12);
  }
  tell(event) {
    const lane = Math.floor((event.offsetY - TOP) / LANE), offset = this.offset(event.offsetX);
    let words = "";
    for (const [rows, isRun] of [[this.runs, true], [this.transactions, false]]) {
      for (let row = lowerBound(rows.reach, offset - 1); !words && row < rows.first.length && rows.first[row] <= offset; row++)
        if (rows.lane[row] === lane && offset < rows.last[row] + 1) words = this.words(row, isRun);
    }
    tip.style.display = words && event.offsetX > LEFT ? "block" : "none";
    tip.textContent = words; tip.style.left = Math.min(event.clientX + 14, innerWidth - 260) + "px"; tip.style.top = event.clientY + 14 + "px";
  }
  words(row, isRun) {
    const lines = [];
    if (isRun) {
      const runs = this.runs;
      lines.push(`${this.lanes[runs.lane[row]]}`, `offsets ${number(runs.first[row])} to ${number(runs.last[row])}, ${number(runs.records[row])} records`);
      if (runs.transaction[row] < 0) return [...lines, "outside of transactions"].join("\\n");
      row = runs.transaction[row];
    }
    const own = this.transactions;
    if (!isRun) lines.push(this.lanes[own.lane[row]]);
    lines.push(`transaction ${DATA.outcomes[own.outcome[row]]}, epoch ${own.epoch[row]}`,
      `from offset ${number(own.first[row])} to ${number(own.last[row])}, ${number(own.records[row])} records`,
      moment(own.began[row]), moment(own.ended[row]));
    return lines.join("\\n");
  }
}

const legend = document.getElementById("legend");
for (const [colour, text] of [[1, "committed"], [2, "aborted"], [3, "open"], [0, "no transaction"]]) {
  const entry = document.createElement("span"), box = document.createElement("i");
  box.style.background = DATA.colours[colour];
  entry.append(box, text); legend.append(entry);
}
legend.append("C and A: markers");
const PANELS = DATA.panels.map(data => new Panel(data));
</script>
</html>
"""
