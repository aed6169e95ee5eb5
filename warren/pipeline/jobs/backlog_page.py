"""The backlog as one page: a few numbers, six plots, three tables. One file that needs nothing from elsewhere.

The plots are drawn by matplotlib as SVG and stand in the page as data. Names come from queues and publishers: in the
page they are escaped, in plots they are never taken for formulas, and long ones lose their middle.
"""

from __future__ import annotations

import base64
import html
import io
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from warren.pipeline.jobs.backlog_plots import PLOTS, age_text, bytes_text, count_text, queue_name
from warren.salvage.names import Json

_ROWS: Final = 40
"""The most rows of a table on the page; the files have all of them."""

Row = Mapping[str, Any]
Tables = Mapping[str, pa.Table]


def page(tables: Tables, summary: Mapping[str, Json]) -> str:
    """The page as HTML."""
    rows = {name: table.to_pylist() for name, table in tables.items()}
    parts = [
        _HEAD,
        f"<h1>Backlog</h1><p class=sub>{_subtitle(rows, summary)}</p>",
        _cards(summary),
        *(_figure(plot, rows) for plot in PLOTS),
        *_tables(rows),
        "</main></body></html>\n",
    ]
    return "".join(parts)


def _subtitle(rows: Mapping[str, Sequence[Row]], summary: Mapping[str, Any]) -> str:
    nodes = list(dict.fromkeys(str(row["node"]) for row in rows["queues"]))
    names = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3:,} more" if len(nodes) > 3 else "")
    return html.escape(names or f"{summary['nodes']} nodes, and nothing waits")


def _cards(summary: Mapping[str, Any]) -> str:
    repeated = summary["repeated"]
    untimed = summary["messages"] - summary["timed"]
    cards = [
        ("messages", count_text(summary["messages"]), f"in {summary['queues']:,} queues of {summary['nodes']:,} nodes"),
        ("bytes", bytes_text(summary["bytes"]), ""),
        ("oldest", age_text(summary), f"{untimed:,} messages tell no time" if untimed else ""),
        (
            "repeated bodies",
            bytes_text(repeated["bytes"]),
            f"{repeated['messages']:,} messages repeat one of {repeated['bodies']:,} bodies",
        ),
    ]
    if summary["lag"]:
        cards.append(("lag of consumer groups", count_text(summary["lag"]), "messages, over all groups"))
    inner = "".join(
        f"<div class=card><div class=what>{html.escape(label)}</div><div class=number>{html.escape(number)}</div>"
        f"<div class=note>{html.escape(note)}</div></div>"
        for label, number, note in cards
    )
    return f"<div class=cards>{inner}</div>"


def _figure(plot: Callable[[Mapping[str, Sequence[Row]]], Any], rows: Mapping[str, Sequence[Row]]) -> str:
    figure = plot(rows)
    if figure is None:
        return ""
    svg = io.BytesIO()
    with warnings.catch_warnings():  # a letter that the font lacks becomes a box
        warnings.simplefilter("ignore")
        figure.savefig(svg, format="svg", metadata={"Date": None}, bbox_inches="tight", pad_inches=0.05)
    data = base64.b64encode(svg.getvalue()).decode("ascii")
    title = html.escape(str(figure.get_label()))
    return f'<section><img alt="{title}" src="data:image/svg+xml;base64,{data}"></section>'


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tables(rows: Mapping[str, Sequence[Row]]) -> Iterable[str]:
    queues: list[tuple[str, ...]] = [
        (
            row["node"],
            queue_name(row),
            count_text(row["messages"]),
            bytes_text(row["bytes"]),
            bytes_text(row["median_bytes"]),
            bytes_text(row["largest_bytes"]),
            age_text(row),
        )
        for row in rows["queues"][:_ROWS]
    ]
    heads: tuple[str, ...] = ("node", "queue", "messages", "bytes", "median", "largest", "oldest")
    yield _table("Queues", heads, queues, len(rows["queues"]), text_columns=2)
    groups: list[tuple[str, ...]] = [
        (
            row["node"],
            row["group"],
            f"{row['queue']} / {row['queue_id']}",
            count_text(row["lag"]),
            bytes_text(row["lag_bytes"]),
            age_text(row),
        )
        for row in rows["groups"][:_ROWS]
    ]
    heads = ("node", "group", "topic / queue", "lag", "bytes", "oldest")
    yield _table("Consumer groups", heads, groups, len(rows["groups"]), text_columns=3)
    repeated: list[tuple[str, ...]] = [
        (
            row["body_sha256"][:16],
            f"{row['queue']}" + (f" and {row['queues'] - 1:,} more" if row["queues"] > 1 else ""),
            count_text(row["messages"]),
            bytes_text(row["bytes"]),
            bytes_text(row["repeated_bytes"]),
        )
        for row in rows["repeated"][:_ROWS]
    ]
    heads = ("SHA-256 begins", "queue", "messages", "body", "repeated")
    yield _table("Bodies that are there more than once", heads, repeated, len(rows["repeated"]), text_columns=2)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], count: int, *, text_columns: int) -> str:
    if not rows:
        return ""
    head = "".join(
        f"<th{'' if n < text_columns else ' class=n'}>{html.escape(heading)}" for n, heading in enumerate(heads)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{'' if n < text_columns else ' class=n'}>{html.escape(str(cell))}" for n, cell in enumerate(row))
        for row in rows
    )
    note = f"<p class=note>{count - len(rows):,} more are in the table's file.</p>" if count > len(rows) else ""
    return f"<section><h2>{html.escape(title)}</h2><table><tr>{head}{body}</table>{note}</section>"


_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Backlog</title><style>
body { margin: 0; background: #f6f5f1; color: #22302a; font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { margin: 0; font-size: 30px; } h2 { margin: 0 0 10px; font-size: 18px; }
.sub { margin: 2px 0 20px; color: #66726b; overflow-wrap: anywhere; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin-bottom: 16px; }
.card, section { background: #fff; border: 1px solid #e3e0d8; border-radius: 8px; }
.card { flex: 1 1 180px; padding: 12px 16px; } section { padding: 16px 18px; margin-bottom: 16px; overflow-x: auto; }
.what { color: #66726b; font-size: 13px; } .number { font-size: 26px; font-weight: 600; }
.note { color: #66726b; font-size: 12px; min-height: 1em; } img { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; color: #66726b; font-weight: 500; border-bottom: 1px solid #cfcbc0; }
th, td { padding: 4px 10px 4px 0; vertical-align: top; overflow-wrap: anywhere; }
td { border-bottom: 1px solid #eeece6; } .n { text-align: right; white-space: nowrap; padding-right: 4px; }
</style></head><body><main>
"""
