"""The report of a result: one HTML file without scripts, for a screen, a phone and paper, in light and dark.

Each picture is in it twice, as SVG: for the width of a screen and for that of a phone. The colours of the SVG are
variables of the page's style, so they follow the theme. Names of queues come from scenarios, so all text is escaped.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warren.salvage.names import printable
from warren.simulation.pictures.style import (
    BLUE,
    GREEN,
    GRID,
    INK,
    LINE,
    MINT,
    NARROW_INCHES,
    PALE,
    PAPER,
    PLUM,
    RED,
    SKY,
    WIDE_INCHES,
    style,
    svg_text,
)
from warren.simulation.pictures.view import View, view_of
from warren.simulation.pictures.words import bytes_text, count_text, share_text, short, time_text
from warren.simulation.plots import Picture, pictures_of
from warren.simulation.result import Result, of_queues

REPORT_FILE: Final = "report.html"
MOST_ROWS: Final = 20
"""The most rows of the tables of queues and of moments."""
_FEW_COLUMNS: Final = 5
"""The number of columns that fit on a phone. A wider table has its column names on one line, scrolls, and says so."""

EXPLAINED: Final = {
    "memory": "Above the watermark publishers are blocked (shaded); above the lower line queues page. Green, dashed: "
    "it is over.",
    "states": "Consumers take from below (Q4), publishers add on top (Q1). Q4 and Q1 are in RAM as a whole, of Q3 and "
    "Q2 the bodies may be on disk, and of delta nothing is in RAM.",
    "target": "A queue pages what is above its target. The strip at the top is as high as the share of the time "
    "in which there is no limit.",
    "disk": "Written above, read below.",
    "latency": "From when a message was to be published until a consumer received it: half of them within p50, all but "
    "one in a hundred within p99. A gap: none was delivered.",
    "flow": "What was published, what was handed to consumers, what they acked.",
}

_VARIABLES: Final = {
    INK: "ink", PALE: "pale", LINE: "line", GRID: "grid", PAPER: "paper", BLUE: "blue", SKY: "sky", GREEN: "green",
    MINT: "mint", RED: "red", PLUM: "plum",
}  # fmt: skip
"""What the page's style says for light and for dark."""


def write_report(result: Result, folder: str | os.PathLike[str]) -> Path:
    """Write ``report.html`` into ``folder``, which is made if it is missing. Returns its path.

    The same result gives the same bytes.
    """
    view = view_of(result)
    sections = [_cards(cards_of(result.summary, view)), _queues(result.summary, view)]
    with style():
        sections += [_section(picture, number) for number, picture in enumerate(pictures_of(view))]
    sections.append(_moments(result, view))
    return write_page(folder, view.name, subtitle_of(result.summary), sections)


def write_page(
    folder: str | os.PathLike[str], title: str, subtitle: str, sections: Sequence[str], *, name: str = REPORT_FILE
) -> Path:
    """Write a page of sections, which are HTML already. Returns its path."""
    os.makedirs(folder, exist_ok=True)
    path = Path(folder) / name
    header, line = html.escape(printable(title)), html.escape(printable(subtitle))
    text = f"{_HEAD.replace('{title}', header)}<h1>{header}</h1><p class=sub>{line}</p>{''.join(sections)}{_TAIL}"
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def subtitle_of(summary: Mapping[str, Any]) -> str:
    """Return what was simulated, in a line."""
    facts = f"{time_text(summary['length_s'])} simulated, seed {summary['seed']}"
    return f"{summary['description']} · {facts}" if summary.get("description") else facts


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def cards_of(summary: Mapping[str, Any], view: View) -> list[tuple[str, str, str]]:
    """Return the node in a few numbers: for each what it is, the number, and a note."""
    node = summary["node"]
    limit, queues = node["limit_bytes"], summary["queues"].values()
    ratio = node["max_ratio"]
    paged = node["first_paging_s"] is not None
    alarms = node["alarms"]
    worst = of_queues(summary, "latency_p99_s", max)
    return [
        (
            "most memory used",
            bytes_text(node["max_used_bytes"]),
            f"{'' if ratio is None else f'{share_text(ratio)} of '}{bytes_text(limit)} allowed",
        ),
        (
            "queues page from",
            view.scale.moment_text(node["first_paging_s"]) if paged else "never",
            f"above {bytes_text(node['paging_from_bytes'])}",
        ),
        (
            "publishers blocked",
            time_text(node["alarm_s"]) if node["alarm_s"] else "never",
            f"{alarms} alarm{'s' * (alarms != 1)} of memory"
            + (f", first at {view.scale.moment_text(node['first_alarm_s'])}" if alarms else ""),
        ),
        (
            "ready at most",
            count_text(max((queue["max_ready"] for queue in queues), default=0)),
            f"{count_text(sum(queue['published'] for queue in queues))} published in all",
        ),
        ("p99 of latency", "–" if worst is None else time_text(worst), "of the slowest queue"),
        (
            "disk at work",
            share_text(round(node["disk_busy"], 4)),
            f"{bytes_text(node['disk_write_bytes'])} written, {bytes_text(node['disk_read_bytes'])} read",
        ),
    ]


def _cards(cards: Sequence[tuple[str, str, str]]) -> str:
    inner = "".join(
        f"<div class=card><div class=what>{html.escape(label)}</div><div class=number>{html.escape(number)}</div>"
        f"<div class=note>{html.escape(note)}</div></div>"
        for label, number, note in cards
    )
    return f"<div class=cards>{inner}</div>"


_QUEUE_COLUMNS: Final[tuple[tuple[str, str, Any], ...]] = (
    ("published", "published", count_text),
    ("delivered", "delivered", count_text),
    ("acked", "acked", count_text),
    ("requeued", "requeued", count_text),
    ("refused", "refused", count_text),
    ("dead-lettered", "dead_lettered", count_text),
    ("dropped", "dropped", count_text),
    ("ready at the end", "ready", count_text),
    ("ready at most", "max_ready", count_text),
    ("in RAM at most", "max_ram_bytes", bytes_text),
    ("latency p50", "latency_p50_s", time_text),
    ("p99", "latency_p99_s", time_text),
    ("publishers held", "publishers_held_s", time_text),
)
_ONLY_WHERE_ANY: Final = {"requeued", "refused", "dead_lettered", "dropped", "publishers_held_s"}


def _queues(summary: Mapping[str, Any], view: View) -> str:
    """Return the table of queues, with those that are drawn first."""
    queues = summary["queues"]
    drawn = [queue.name for queue in view.queues]
    order = drawn + sorted((name for name in queues if name not in drawn), key=lambda name: -queues[name]["max_ready"])
    columns = [
        column
        for column in _QUEUE_COLUMNS
        if column[1] not in _ONLY_WHERE_ANY or any(queue[column[1]] for queue in queues.values())
    ]
    rows = [
        [
            short(name, 48) + (f" ({queues[name]['queues']:,} queues)" if queues[name]["queues"] > 1 else ""),
            *("–" if queues[name][key] is None else text(queues[name][key]) for _, key, text in columns),
        ]
        for name in order[:MOST_ROWS]
    ]
    more = len(order) - len(rows)
    note = f"{more:,} more are in summary.json." if more else ""
    return table_section("Queues", ["queue", *(title for title, _, _ in columns)], rows, note)


def _moments(result: Result, view: View) -> str:
    words = {
        "paging-starts": "paging begins", "paging-ends": "paging is over",
        "memory-alarm": "memory alarm: publishers are blocked", "memory-alarm-ends": "memory alarm is over",
        "disk-alarm": "disk alarm: publishers are blocked", "disk-alarm-ends": "disk alarm is over",
        "event": "begins", "event-ends": "is over",
    }  # fmt: skip
    marks = result.marks
    rows = []
    for mark in marks[:MOST_ROWS]:
        what = f"{printable(mark.text)} {words[mark.kind]}" if mark.kind.startswith("event") else words[mark.kind]
        rows.append([view.scale.moment_text(mark.at_s), what, short(mark.queue or "", 48)])
    if not rows:
        return ""
    note = f"{len(marks) - len(rows):,} more are in summary.json." if len(marks) > len(rows) else ""
    return table_section("Moments", ["when", "what", "queue"], rows, note, numbers=False)


def table_section(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", *, numbers: bool = True
) -> str:
    """Return a table under a heading. The first column is text; the others are numbers if ``numbers``."""
    kind = " class=n" if numbers else ""
    top = "".join(f"<th{kind if n else ''}>{html.escape(heading)}" for n, heading in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{kind if n else ''}>{html.escape(cell)}" for n, cell in enumerate(row)) for row in rows
    )
    more = f"<p class=note>{html.escape(note)}</p>" if note else ""
    scrolls, hint = "scrolls", ""
    if len(head) > _FEW_COLUMNS:
        scrolls, hint = '"scrolls many"', f"<p class=hint>{len(head)} columns: scroll sideways to see them all →</p>"
    area = f'role=region tabindex=0 aria-label="{html.escape(title)}"'
    table = f"{hint}<div class={scrolls} {area}><table><thead><tr>{top}<tbody>{body}</table></div>"
    return f"<section><h2>{html.escape(title)}</h2>{table}{more}</section>"


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _section(picture: Picture, number: int) -> str:
    wide, narrow = (picture.figure(width_inches=inches) for inches in (WIDE_INCHES, NARROW_INCHES))
    pictures = inline(wide, picture.title, f"w{number}", "screen") + inline(
        narrow, picture.title, f"n{number}", "phone"
    )
    return picture_section(picture.title, EXPLAINED.get(picture.name, ""), pictures, picture.note)


def picture_section(title: str, explained: str, pictures: str, note: str = "") -> str:
    """Return a picture under its heading, with an explanation."""
    more = f"<p class=note>{html.escape(note)}</p>" if note else ""
    explanation = f"<p class=how>{html.escape(explained)}</p>" if explained else ""
    return f"<section><h2>{html.escape(title)}</h2>{explanation}{pictures}{more}</section>"


def inline(figure: Any, title: str, prefix: str, kind: str) -> str:
    """Return a figure as an element of a page. Its ids begin with ``prefix``, and its inks are the page's."""
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg_text(figure), flags=re.DOTALL)
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r"(url\(|href=\")#", rf"\g<1>#{prefix}", text)
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    text = re.sub(r"font: ([0-9.]+px|(?:[a-z0-9]+ )*[0-9.]+px) [^;\"]*", r"font: \1 var(--font)", text)
    text = re.sub(r"\n\s*", "\n", text)
    view_box = re.search(r'viewBox="[^"]*"', text)
    opening = f'<svg class={kind} {view_box[0] if view_box else ""} role="img" aria-label="{html.escape(title)}">'
    return re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1)


_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title><style>
:root { --ink: #1f2a30; --pale: #6b7780; --line: #c9d0d4; --grid: #e9edef; --paper: #fff; --page: #f3f5f6;
  --edge: #dfe4e7; --shade: #1f2a3055; --blue: #0a6ab0; --sky: #7cc0ea; --green: #0b7f5f; --mint: #8fd3b6;
  --red: #c9371c; --plum: #9b5f8d; --font: system-ui, "DejaVu Sans", Verdana, sans-serif; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4eaed; --pale: #9aa7ae; --line: #4b575e; --grid: #2b343a;
  --paper: #182026; --page: #10161a; --edge: #2a343a; --shade: #000c; --blue: #3f9be0; --sky: #a5d6f3;
  --green: #2bab85; --mint: #a9dfc7; --red: #ee6a4d; --plum: #c58bb8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.45 var(--font); }
main { max-width: 1080px; margin: 0 auto; padding: 28px 18px 60px; }
h1 { margin: 0; font-size: 28px; overflow-wrap: anywhere; } h2 { margin: 0 0 4px; font-size: 17px; }
.sub { margin: 2px 0 20px; color: var(--pale); overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 10px; margin-bottom: 14px; }
.card, section { background: var(--paper); border: 1px solid var(--edge); border-radius: 8px; }
.card { padding: 10px 14px; } section { padding: 14px 16px; margin-bottom: 14px; }
.what { color: var(--pale); font-size: 13px; } .number { font-size: 23px; font-weight: 600; }
.note, .how { color: var(--pale); font-size: 13px; margin: 0; } .how { margin-bottom: 8px; max-width: 100ch; }
section .note { margin-top: 6px; }
svg, img { width: 100%; height: auto; display: block; }
.phone { display: none; } h3 { margin: 10px 0 2px; font-size: 15px; }
/* A shadow at an edge behind which there is more of a table: the covers scroll with it, the shadows do not. */
.scrolls { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 40%, transparent) left / 48px 100% no-repeat local,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 48px 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 18px 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / 18px 100% no-repeat scroll; }
.hint { display: none; color: var(--pale); font-size: 13px; margin: 0 0 4px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { max-width: 10em; text-align: left; color: var(--pale); font-weight: 500;
  border-bottom: 1px solid var(--line); }
th, td { padding: 4px 12px 4px 0; vertical-align: bottom; } td { border-bottom: 1px solid var(--grid); }
td:first-child { overflow-wrap: anywhere; min-width: 9em; }
.n { text-align: right; padding-right: 0; padding-left: 12px; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; }
@media (max-width: 640px) { main { padding: 16px 8px 40px; } section { padding: 12px 10px; } h1 { font-size: 23px; }
  .cards { grid-template-columns: 1fr 1fr; } .n { padding-left: 8px; } td:first-child { min-width: 7em; }
  .many th { white-space: nowrap; } .hint { display: block; } .screen { display: none; } .phone { display: block; } }
@media print { body, .scrolls { background: none; } .hint { display: none; }
  section, .card { break-inside: avoid; } }
</style></head><body><main>
"""
_TAIL: Final = "</main></body></html>\n"
