"""The pictures of one result: ``overview.png`` with the main panels, and a PNG file for each aspect.

The overview shows the fullest queue. The others show up to :data:`~warren.simulation.picture_data.MOST_QUEUES` queues
and say how many they leave out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
from matplotlib.figure import Figure

from warren.simulation.panels import column_of, node_panels, queue_panels
from warren.simulation.picture_data import View, view_of
from warren.simulation.picture_style import (
    WIDE_INCHES,
    Column,
    Panel,
    compose,
    save_png,
    style,
)
from warren.simulation.picture_words import (
    count_text,
    short,
)
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


@attrs.frozen
class Picture:
    """One picture to be drawn: its name, what it shows, and what it says below."""

    name: str
    title: str
    column: Column
    note: str = ""

    def figure(self, *, title: str = "", width_inches: float = WIDE_INCHES) -> Figure:
        """Within :func:`~warren.simulation.picture_style.style`."""
        note = self.note if title else ""  # a report says both itself
        return compose([self.column], title=title, note=note, width_inches=width_inches)


def pictures_of(view: View) -> Iterator[Picture]:
    """One for each of :data:`TITLES` that there is something to draw for."""
    of_node = node_panels(view)
    of_queues = [queue_panels(queue) for queue in view.queues]
    for name, title in TITLES.items():
        if name in of_node:
            panels = of_node[name]
            if name == "memory" and view.node["waiting_messages"].any():
                panels = [*panels, *of_node["waiting"]]
            yield Picture(name, title, column_of(view, panels))
        elif of_queues:
            only = view.queues[0] if len(view.queues) == 1 and not view.left_out else None
            yield Picture(
                name, title, column_of(view, [one[name] for one in of_queues], queue=only), left_out_text(view)
            )


def left_out_text(view: View) -> str:
    """What a picture of queues does not show."""
    if not view.left_out:
        return ""
    many = "1 more queue is" if view.left_out == 1 else f"{view.left_out:,} more queues are"
    what = (
        f"at most {count_text(view.left_out_ready)} messages were ready in"
        if view.left_out_ready
        else "no backlog was in"
    )
    return f"{many} not drawn: {what} {'it' if view.left_out == 1 else 'them'}."


def overview_of(view: View) -> Picture:
    """All panels on one axis of time, of the queue that held most."""
    of_node = node_panels(view)
    panels: list[Panel] = [*of_node["memory"]]
    if view.queues:
        of_queue = queue_panels(view.queues[0])
        panels += [of_queue["states"], of_queue["target"]]
    panels += of_node["disk"][:1]
    if view.queues:
        panels.append(queue_panels(view.queues[0])["latency"])
    note = left_out_text(attrs.evolve(view, left_out=view.left_out + max(len(view.queues) - 1, 0)))
    return Picture("overview", view.name, column_of(view, panels), note)


def draw(result: Result, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the pictures of a result as PNG into ``folder``, which is made where it is missing; answer their paths.

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
