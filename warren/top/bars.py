"""Bars: a queue's messages list by list, and a node's memory against its limit.

A queue's bar runs from its newest message (left) to the next one out (right): Q1, Q2, delta, Q3, Q4, as broad as their
shares; a list that has any message has at least one column. Green is in memory, yellow on the way from or to the disk,
blue on disk only. Without colours, a letter stands for each list. The length of a bar is the logarithm of the number of
messages, so that ten messages and ten million both show.
"""

from __future__ import annotations

import math
from typing import Any, Final

from rich.text import Text

from warren.top.snapshots import LISTS, Row

STYLES: Final = {"q1": "green", "q2": "yellow", "delta": "blue", "q3": "yellow", "q4": "green"}
LETTERS: Final = {"q1": "1", "q2": "2", "delta": "d", "q3": "3", "q4": "4"}
NAMES: Final = {"q1": "Q1", "q2": "Q2", "delta": "delta", "q3": "Q3", "q4": "Q4"}
_BLOCK: Final = "▆"
_TRACK: Final = "─"


def shares(counts: list[int], width: int) -> list[int]:
    """Return how many of ``width`` cells each count gets: in proportion, and at least one unless it is 0."""
    total = sum(counts)
    if not total:
        return [0] * len(counts)
    cells = [max(1, count * width // total) if count else 0 for count in counts]
    while sum(cells) != width:  # add or remove the cells that rounding left over where it shows least
        step = 1 if sum(cells) < width else -1
        most = max(range(len(cells)), key=lambda index: (counts[index] * width / total - cells[index]) * step)
        if cells[most] + step < 1:
            most = max(range(len(cells)), key=lambda index: cells[index])
        cells[most] += step
    return cells


def bar(row: Row, width: int, capacity: int, *, coloured: bool) -> Text:
    """A queue from its newest message to the next one out; ``capacity`` messages fill the width."""
    counts = [row[name] for name in LISTS]
    total = sum(counts)
    length = round(width * math.log10(1 + total) / math.log10(1 + max(capacity, total, 1)))
    cells = shares(counts, max(length, sum(map(bool, counts))))
    text = Text()
    for name, count in zip(LISTS, cells, strict=True):
        text.append((_BLOCK if coloured else LETTERS[name]) * count, STYLES[name])
    return text.append(_TRACK * (width - sum(cells)), "bright_black")


def memory_bar(memory: dict[str, Any], width: int, *, coloured: bool) -> Text:
    """Memory against its limit, with a mark where paging begins."""
    limit = max(1, memory["limit_bytes"])
    used = min(width, round(memory["used_bytes"] / limit * width))
    mark = min(width - 1, round(memory["paging_bytes"] / limit * width))
    style = memory_style(memory)
    text = Text()
    for cell in range(width):
        if cell == mark:
            text.append("┃", "bold" if cell < used else "white")
        elif cell < used:
            text.append(_BLOCK if coloured else "#", style)
        else:
            text.append(_TRACK, "bright_black")
    return text


def memory_style(memory: dict[str, Any]) -> str:
    if memory["used_bytes"] > memory["limit_bytes"]:
        return "red"
    return "yellow" if memory["used_bytes"] > memory["paging_bytes"] else "green"
