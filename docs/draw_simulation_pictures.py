"""Draws the pictures of docs/simulation.md: one run, and the same beside a larger node.

python docs/draw_simulation_pictures.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import attrs
from PIL import Image

from warren.simulation import ConsumerSpec, Event, NodeSpec, PublisherSpec, QueueSpec, Scenario, simulate
from warren.simulation.compare import compare
from warren.simulation.plots import draw

DOCS: Final = Path(__file__).parent
OUTAGE: Final = Scenario(
    name="A consumer outage, and the catch-up",
    length="8min",
    node=NodeSpec(memory="200MB"),
    queues=[QueueSpec(name="orders")],
    publishers=[PublisherSpec(queue="orders", rate=400, body="3kB")],
    consumers=[ConsumerSpec(queue="orders", rate=1000)],
    events=[Event(what="consumers-down", at="1min", until="4min", queue="orders")],
)


def main() -> None:
    """Draw them all."""
    with tempfile.TemporaryDirectory() as folder:
        small = simulate(OUTAGE)
        overview, *_ = draw(small, folder)
        keep(overview, "simulation-pictures.png")
        large = simulate(attrs.evolve(OUTAGE, node=NodeSpec(memory="300MB")))
        comparison = compare(small, large, folder, names=("200 MB", "300 MB"))
        keep(comparison.paths[0], "simulation-compare.png")


def keep(path: Path, name: str) -> None:
    """Put a picture into docs/, with no more colours than it needs."""
    image = Image.open(path).convert("RGB")
    few = image.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=4, dither=Image.Dither.NONE)
    few.save(DOCS / name, optimize=True)


if __name__ == "__main__":
    main()
