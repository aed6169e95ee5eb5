"""Export: a directory of a classic queue v2 read out as JSON lines, beside that of the same messages in v1."""

from __future__ import annotations

import os

from benchmarks.figures import Figure, Spread, ratios
from benchmarks.measure import Tick, seconds_of
from warren.salvage.export import Selection, export_source
from warren.salvage.source import open_source


def export(directory: str) -> int:
    """Export everything to nowhere; returns the messages."""
    with open(os.devnull, "wb") as nowhere, open_source(directory) as source:
        exported = export_source(source, Selection(), nowhere.write, lambda problem: None)
    return exported.messages


def exporting(directory: str, v2_directory: str, *, messages: int, repeats: int, tick: Tick) -> list[Figure]:
    """Speed of an export of ``v2_directory``, beside that of ``directory``, where a classic queue v1 holds the same
    messages."""
    v1: list[float] = []
    v2: list[float] = []
    if {export(directory), export(v2_directory)} != {messages}:
        raise RuntimeError("export gave another number of messages than were published")
    for _ in range(repeats):
        v1.append(messages / seconds_of(lambda: export(directory)))
        v2.append(messages / seconds_of(lambda: export(v2_directory)))
        tick()
    return [
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
