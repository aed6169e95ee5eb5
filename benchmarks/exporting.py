"""Export: a directory read out as JSON lines, beside a bare read of its files."""

from __future__ import annotations

import os

from benchmarks.figures import Bar, Figure, Spread, ratios
from benchmarks.measure import Tick, seconds_of
from benchmarks.recovery import files_below, read_bare
from warren.salvage.export import Selection, export_source
from warren.salvage.source import open_source


def export(directory: str) -> int:
    """Export everything to nowhere; returns the messages."""
    with open(os.devnull, "wb") as nowhere, open_source(directory) as source:
        exported = export_source(source, Selection(), nowhere.write, lambda problem: None)
    return exported.messages


def exporting(directory: str, v2_directory: str, *, messages: int, repeats: int, tick: Tick) -> list[Figure]:
    """Speed of an export of ``directory``, in bytes of the files that it reads; and, message by message, beside it that
    of ``v2_directory``, where a classic queue v2 holds the same messages."""
    size = sum(os.path.getsize(path) for path in files_below(directory)) / 1e6
    ours: list[float] = []
    bare: list[float] = []
    v1: list[float] = []
    v2: list[float] = []
    if {export(directory), export(v2_directory)} != {messages}:
        raise RuntimeError("export gave another number of messages than were published")
    for _ in range(repeats):
        seconds = seconds_of(lambda: export(directory))
        ours.append(size / seconds)
        bare.append(size / seconds_of(lambda: read_bare(directory)))
        v1.append(messages / seconds)
        v2.append(messages / seconds_of(lambda: export(v2_directory)))
        tick()
    return [
        Figure(
            group="export",
            title=f"export to nowhere: {messages:,} × 128 B",
            unit="MB/s",
            ours=Spread.of(ours),
            counterpart=Spread.of(bare),
            counterpart_name="bare read",
            ratio=ratios(ours, bare),
            bar=Bar("at least", 50.0, of="value"),
            note=f"{size:,.0f} MB of files, in the page cache",
        ),
        Figure(
            group="export",
            title=f"export to nowhere, classic queue v2: {messages:,} × 128 B",
            unit="messages/s",
            ours=Spread.of(v2),
            counterpart=Spread.of(v1),
            counterpart_name="the same in v1",
            ratio=ratios(v2, v1),
        ),
    ]
