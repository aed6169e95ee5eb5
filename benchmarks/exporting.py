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


def exporting(directory: str, *, messages: int, repeats: int, tick: Tick) -> list[Figure]:
    """Speed of an export of ``directory``, in bytes of the files that it reads."""
    size = sum(os.path.getsize(path) for path in files_below(directory)) / 1e6
    ours: list[float] = []
    bare: list[float] = []
    if export(directory) != messages:
        raise RuntimeError("export gave another number of messages than were published")
    for _ in range(repeats):
        ours.append(size / seconds_of(lambda: export(directory)))
        bare.append(size / seconds_of(lambda: read_bare(directory)))
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
        )
    ]
