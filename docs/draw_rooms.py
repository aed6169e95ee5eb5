"""Draw docs/rooms.svg: the rooms of the project and what they import, read from the code.

python docs/draw_rooms.py

A room is a folder of modules. Below its name stand its packages and the libraries that it imports. An arrow leads to a
room that it imports. ``tests/test_docs.py`` compares the file with what this script makes of today's code.
"""

from __future__ import annotations

import ast
import functools
import sys
from html import escape
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).parent.parent
OUT: Final = Path(__file__).parent / "rooms.svg"

PURPOSES: Final = {
    "warren": "what users import and run",
    "actors": "concurrency: actors on a pool of threads",
    "queue_index": "where a message stands",
    "msg_store": "where a body lies",
    "storage": "file systems, errors, settings, byte formats of Erlang and Java",
}
PLACES: Final = {
    "warren": (20, 20, 860, 112),
    "actors": (190, 178, 520, 96),
    "queue_index": (110, 322, 320, 114),
    "msg_store": (470, 322, 320, 114),
    "storage": (20, 482, 860, 86),
}
"""Of each room: left, top, width, height."""
ARROWS: Final = {
    ("warren", "actors"): 450,
    ("warren", "queue_index"): 150,
    ("warren", "msg_store"): 750,
    ("warren", "storage"): 60,
    ("actors", "queue_index"): 310,
    ("actors", "msg_store"): 590,
    ("actors", "storage"): 450,
    ("queue_index", "storage"): 270,
    ("msg_store", "storage"): 630,
}
"""Where each arrow stands. There is no place for any other: it would lead up, or between ``queue_index`` and
``msg_store``."""
FILLS: Final = {
    "warren": "#fdf0da", "actors": "#dbe9f4", "queue_index": "#dff1e8", "msg_store": "#dff1e8", "storage": "#eceff1",
}  # fmt: skip


def modules(room: str) -> list[Path]:
    """A room's source files; those of the other rooms stand beside ``warren``, which has links to them."""
    folder = PROJECT / room
    links = {PROJECT / "warren" / other for other in PURPOSES}
    return sorted(path for path in folder.rglob("*.py") if not links & set(path.parents))


def packages(room: str) -> list[str]:
    """The packages inside a room, as far as one level."""
    links = set(PURPOSES)
    found = (path.parent.name for path in (PROJECT / room).glob("*/__init__.py"))
    return sorted(name for name in found if name not in links)


@functools.cache
def imports(room: str) -> set[str]:
    """The full names of what a room imports at any place, type checking included."""
    names: set[str] = set()
    for path in modules(room):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(name: str) -> str | None:
    """The room of an imported name; ``None``: it is a library's."""
    first, _, rest = name.partition(".")
    if first != "warren":
        return None
    second = rest.partition(".")[0]
    return second if second in PURPOSES else "warren"


def edges() -> set[tuple[str, str]]:
    """Which room imports which."""
    found = {(room, room_of(name)) for room in PURPOSES for name in imports(room)}
    return {(room, other) for room, other in found if other is not None and other != room}


def libraries(room: str) -> list[str]:
    """The libraries that a room imports, beside Python's own."""
    first = {name.partition(".")[0] for name in imports(room) if room_of(name) is None}
    return sorted(first - set(sys.stdlib_module_names))


def draw() -> str:
    """The picture. Raises ``KeyError`` for an import that has no place in it."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 588" font-family="DejaVu Sans, Verdana, sans-serif">',
        '<rect width="900" height="588" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#6b7780"/></marker></defs>',
    ]
    for start, end in sorted(edges()):
        x, top, bottom = ARROWS[start, end], PLACES[start][1] + PLACES[start][3], PLACES[end][1]
        parts.append(
            f'<path d="M{x} {top}V{bottom - 2}" stroke="#6b7780" stroke-width="1.5" marker-end="url(#tip)">'
            f"<title>{start} imports {end}</title></path>"
        )
    for room, (left, top, width, height) in PLACES.items():
        box = f'x="{left}" y="{top}" width="{width}" height="{height}"'
        parts.append(f'<rect {box} rx="8" fill="{FILLS[room]}" stroke="#c9d0d4"/>')
        parts.append(_text(left + 16, top + 28, f"{room}/", 17, "#1f2a30", bold=True))
        parts.append(_text(left + 16, top + 48, PURPOSES[room], 13, "#1f2a30"))
        below = [f"packages: {', '.join(packages(room))}"] if packages(room) else []
        below += _lines(f"libraries: {', '.join(libraries(room))}", width - 32)
        parts += [_text(left + 16, top + 68 + 16 * number, line, 11, "#56626a") for number, line in enumerate(below)]
    return "\n".join([*parts, "</svg>", ""])


def _lines(text: str, width: int) -> list[str]:
    """``text`` in lines of so many pixels."""
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) > width / 6.6:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _text(x: int, y: int, text: str, size: int, colour: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}"{weight}>{escape(text)}</text>'


if __name__ == "__main__":
    OUT.write_text(draw(), encoding="utf-8")
