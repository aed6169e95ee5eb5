"""The pictures of one result: ``overview.png`` with the main panels, and a PNG file for each aspect.

The overview shows the fullest queue. The others show up to :data:`~warren.simulation.pictures.view.MOST_QUEUES` queues
and say how many they leave out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
from matplotlib.figure import Figure

from warren.simulation.pictures.panels import column_of, node_panels, queue_panels
from warren.simulation.pictures.style import WIDE_INCHES, Column, Panel, compose, save_png, style
from warren.simulation.pictures.view import QueueView, View, view_of
from warren.simulation.pictures.words import count_text, short
from warren.simulation.result import Result

TITLES: Final = {
    "memory": "Memory against the watermark",
    "states": "Where the messages are",
    "target": "In RAM, and what may be",
    "disk": "Disk",
    "latency": "How long messages waited",
    "flow": "Messages a second",
}
"""Pictures of a result, in the order in which they are read."""
OF_NODE: Final = ("memory", "disk")
"""Those of them that show the node as a whole. The others show its queues."""
OVERVIEW: Final = ("memory", "states", "target", "disk", "latency")
"""Those of them that an overview has."""


@attrs.frozen
class Picture:
    """One picture to be drawn: its name, what it shows, and what it says below."""

    name: str
    title: str
    column: Column
    note: str = ""

    def figure(self, *, title: str = "", width_inches: float = WIDE_INCHES) -> Figure:
        """Return the figure. Call it within :func:`~warren.simulation.pictures.style.style`."""
        note = self.note if title else ""  # a report says both itself
        return compose([self.column], title=title, note=note, width_inches=width_inches)


def column_for(
    view: View, names: Sequence[str], *, most: int | None = None, waiting: bool = False, queue: QueueView | None = None
) -> Column:
    """Return the panels of some pictures, one below the other, for at most ``most`` queues.

    If there are several pictures, each has only its first panel of the node. ``waiting``: a panel below the memory has
    the messages that publishers hold back. ``queue``: the ribbon is that of this queue.
    """
    panels_by_name = node_panels(view)
    panels: list[Panel] = []
    for name in names:
        if name in panels_by_name:
            panels += panels_by_name[name] if len(names) == 1 else panels_by_name[name][:1]
            panels += panels_by_name["waiting"] if name == "memory" and waiting else []
        else:
            panels += [queue_panels(queue_view)[name] for queue_view in view.queues[:most]]
    return column_of(view, panels, queue=queue)


def pictures_of(view: View) -> Iterator[Picture]:
    """Return a picture for each of :data:`TITLES` that there is something to draw for."""
    only = view.queues[0] if len(view.queues) == 1 and not view.left_out else None
    for name, title in TITLES.items():
        if name in OF_NODE:
            yield Picture(name, title, column_for(view, (name,), waiting=bool(view.node["waiting_messages"].any())))
        elif view.queues:
            yield Picture(name, title, column_for(view, (name,), queue=only), left_out_text(view))


def left_out_text(view: View) -> str:
    """Return what a picture of queues does not show, or an empty text."""
    if not view.left_out:
        return ""
    many = "1 more queue is" if view.left_out == 1 else f"{view.left_out:,} more queues are"
    backlog = (
        f"at most {count_text(view.left_out_ready)} messages were ready in"
        if view.left_out_ready
        else "no backlog was in"
    )
    return f"{many} not drawn: {backlog} {'it' if view.left_out == 1 else 'them'}."


def overview_of(view: View) -> Picture:
    """Return a picture with all panels on one axis of time, of the queue that held most."""
    note = left_out_text(attrs.evolve(view, left_out=view.left_out + max(len(view.queues) - 1, 0)))
    return Picture("overview", view.name, column_for(view, OVERVIEW, most=1), note)


def draw(result: Result, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the pictures of a result as PNG into ``folder``, which is made if it is missing. Returns their paths.

    The overview is the first. The same result gives the same bytes.
    """
    view = view_of(result)
    os.makedirs(folder, exist_ok=True)
    paths = []
    with style():
        for picture in [overview_of(view), *pictures_of(view)]:
            title = short(view.name, 60)
            title = title if picture.name == "overview" else f"{title}: {picture.title[0].lower()}{picture.title[1:]}"
            path = Path(folder) / f"{picture.name}.png"
            paths.append(save_png(picture.figure(title=title), path))
    return paths
