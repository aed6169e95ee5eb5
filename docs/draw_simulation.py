"""Draws the pictures of the pages on known situations: docs/simulation-NAME.png of the scenario NAME.

python docs/draw_simulation.py              all of them
python docs/draw_simulation.py burst lazy   these
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from PIL import Image

from warren.simulation import Result, simulate
from warren.simulation.compare import compare
from warren.simulation.plots import draw
from warren.simulation.toml_file import load_scenario

DOCS: Final = Path(__file__).parent
PICTURES: Final = {
    "slow-consumer": "overview",
    "consumer-outage": "overview",
    "burst": "overview",
    "two-queues": "target",
    "unlimited-prefetch": "overview",
}
"""Of one run: which of its pictures."""
PAIRS: Final = {
    "lazy": ("lazy", "not-lazy"),
    "embedded": ("embedded", "not-embedded"),
    "idle-queues": ("wake-idle-queues", "idle-queues"),
}
"""Two runs side by side: left and right."""
WIDTH: Final = 1200


def main(names: list[str]) -> None:
    """Draw those, or all."""
    for name in names or [*PICTURES, *PAIRS]:
        with tempfile.TemporaryDirectory() as folder:
            if name in PAIRS:
                left, right = (run(each) for each in PAIRS[name])
                keep(compare(left, right, folder).paths[0], name)
            else:
                draw(run(name), folder)
                keep(Path(folder) / f"{PICTURES[name]}.png", name)


def run(name: str) -> Result:
    """An example's result."""
    return simulate(load_scenario(name))


def keep(path: Path, name: str) -> None:
    """Put a picture into docs/, as wide as a page, with as many colours as it needs."""
    image = Image.open(path).convert("RGB")
    image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
    few = image.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=4, dither=Image.Dither.NONE)
    few.save(DOCS / f"simulation-{name}.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
