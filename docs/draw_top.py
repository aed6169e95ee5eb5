"""Draw docs/top.svg and docs/top-queue.svg: the list and a queue's page of ``warren top``.

Both show a node that really runs, in another process, and that ``warren top`` is attached to.

python docs/draw_top.py
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

import warren
from warren.top.attached import attached
from warren.top.picture import picture
from warren.top.queue_page import queue_page

WIDTH: Final = 100
RUN_S: Final = 4.0
OUT: Final = Path(__file__).parent
BODY: Final = b"x" * 1000


def run_node(path: str) -> None:
    """The other process: queues that fall behind, one that keeps up, one at rest; until stdin ends."""
    settings: dict[str, Any] = {
        "vm_memory_calculation_strategy": "allocated",
        "vm_memory_high_watermark": 60_000_000,
        "memory_monitor_interval": 250,
        "queue_ram_report_interval_ms": 250,
        "hibernate_after_ms": 200,
    }
    with warren.open(path, **settings) as node:
        night = node.queue("nightly-report")
        night.set_mode("lazy")
        night.publish_many([BODY] * 3000).wait()
        orders, emails, thumbnails = (node.queue(name) for name in ("orders", "emails", "thumbnails"))
        node.queue("returns")
        thumbnails.publish_many([BODY] * 9000).wait()
        orders.publish_many([BODY] * 30_000).wait()
        busy = orders.consume(prefetch=200)
        print("ready", flush=True)
        os.set_blocking(sys.stdin.fileno(), False)
        while sys.stdin.buffer.read() is None:
            orders.publish_many([BODY] * 160)
            for _ in range(40):
                if (delivery := busy.receive(0)) is not None:
                    delivery.ack()
            emails.publish_many([BODY] * 20)
            emails.ack(emails.get_many(20))
            thumbnails.publish(BODY)
            time.sleep(0.04)


def draw(path: str) -> dict[str, str]:
    """The list, and the page of the queue ``orders``, with the rates of a second."""
    with attached(path) as node:
        time.sleep(RUN_S)
        node.snapshot()
        time.sleep(1)
        shot = node.snapshot()
        time.sleep(1)
        page = node.queue("/", "orders")
    for found in (shot, page):
        found["path"] = "/srv/shop/data"
    return {
        "top.svg": _svg("$ warren top /srv/shop/data", picture(shot, WIDTH)),
        "top-queue.svg": _svg("$ warren top /srv/shop/data   (⏎ on orders)", Group(*queue_page(page, WIDTH))),
    }


def _svg(typed: str, frame: RenderableType) -> str:
    """A frame below the line that was typed, as SVG that fetches nothing."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(Text(typed, "dim"))
    console.print(frame)
    svg = console.export_svg(title="warren top")
    return re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")


def main() -> None:
    if len(sys.argv) > 1:
        run_node(sys.argv[1])
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        child = subprocess.Popen([sys.executable, __file__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            if child.stdout is None or child.stdout.readline() != b"ready\n":
                raise RuntimeError("the node did not start")
            for name, svg in draw(path).items():
                (OUT / name).write_text(svg, encoding="utf-8")
        finally:
            child.communicate()


if __name__ == "__main__":
    main()
