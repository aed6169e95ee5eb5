"""The keys of ``warren top``: the keyboard, and what each key changes in the view.

::

    q            quit                          /text ⏎   only queues and topics with text in their names
    s            sort by the next measure      Esc       all queues again; back from a queue's page
    ↑ ↓ PgUp PgDn Home     select a queue      ⏎         the page of the selected queue

A :class:`View` holds what is shown and does not know the terminal. A :class:`Keyboard` reads single keys from the
terminal, without echo. If stdin is not a terminal, there are no keys.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from typing import Any, Final

import attrs

from warren.top.snapshots import SORTS, Snapshot

HELP: Final = "q quit · s sort · ↑↓ select · ⏎ open · / filter"
PAGE_HELP: Final = "Esc back · ↑↓ scroll · q quit"
_ESCAPES: Final = {"[A": "up", "[B": "down", "[5~": "page up", "[6~": "page down", "[H": "home", "[1~": "home"}
_ENTER: Final = ("\r", "\n")


@attrs.define
class View:
    """The list of queues with its order, filter and selected row, or the page of one queue."""

    sort: str = "messages"
    start: int = 0
    """The number of the first row that is shown."""
    cursor: int = 0
    """The number of the selected row."""
    text: str = ""
    """Only names that contain this are shown."""
    typing: str | None = None
    """What has been typed after ``/``; ``None``: no filter is being typed."""
    opened: tuple[str, str] | None = None
    """Vhost and name of the queue whose page is shown; ``None``: the list is shown."""
    _opening: bool = False
    """Whether the page of the selected queue is to be opened; the next :meth:`cut` opens it."""
    _page: int = 1
    _page_start: int = 0
    """The number of the first line of a queue's page that is shown."""

    def press(self, key: str) -> bool:
        """Take one key. Returns whether to go on."""
        if self.typing is not None:
            self._type(key)
        elif key in ("q", "Q"):
            return False
        elif self.opened is not None:
            self._press_on_page(key)
        elif key == "s":
            orders = list(SORTS)
            self.sort = orders[(orders.index(self.sort) + 1) % len(orders)]
            self._to_top()
        elif key == "/":
            self.typing = ""
        elif key == "escape":
            self.text = ""
            self._to_top()
        elif key in _ENTER:
            self._opening = True
        else:
            self._move(key)
        return True

    def _press_on_page(self, key: str) -> None:
        if key == "escape":
            self.opened = None
        else:
            self._page_start = self._moved(self._page_start, key)

    def _move(self, key: str) -> None:
        self.cursor = self._moved(self.cursor, key)
        if key in ("page up", "page down"):
            self.start = self._moved(self.start, key)

    def _moved(self, number: int, key: str) -> int:
        if key == "home":
            return 0
        steps = {"up": -1, "down": 1, "page up": -self._page, "page down": self._page}
        return max(0, number + steps.get(key, 0))

    def _to_top(self) -> None:
        self.start = self.cursor = 0

    def _type(self, key: str) -> None:
        typed = self.typing or ""
        if key in _ENTER:
            self.text, self.typing = typed, None
            self._to_top()
        elif key == "escape":
            self.typing = None
        elif key in ("\x7f", "\b"):
            self.typing = typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self.typing = typed + key

    # ── what is shown ───────────────────────────────────────────────────────────────────────────────────────────

    def rows_needed(self, room: int) -> int | None:
        """The number of rows to ask for so that ``room`` of them can be shown; ``None``: all."""
        return None if self.text else max(self.start, self.cursor - room + 1) + room

    def filtered(self, snapshot: Snapshot) -> None:
        """Remove the queues and topics whose names do not contain the filter's text."""
        if self.text:
            snapshot["queues"] = [row for row in snapshot["queues"] if self.text in row["name"]]
            snapshot["left_out"] = 0
            if (topics := snapshot.get("topics")) is not None:
                topics["rows"] = [row for row in topics["rows"] if self.text in row["name"]]

    def cut(self, snapshot: Snapshot, room: int) -> None:
        """Keep the ``room`` rows that are shown; the selected row is one of them."""
        rows = snapshot["queues"]
        total = len(rows) + snapshot["left_out"]
        self._page = max(1, room)
        self.cursor = max(0, min(self.cursor, total - 1))
        start = max(0, min(self.start, total - room))
        self.start = min(max(start, self.cursor - room + 1), self.cursor)
        shown = snapshot["queues"] = rows[self.start : self.start + room]
        snapshot["left_out"] = max(0, total - self.start - len(shown))
        if self._opening and shown:
            row = shown[self.selected]
            self.opened, self._page_start = (row["vhost"], row["name"]), 0
        self._opening = False

    @property
    def selected(self) -> int:
        """The number of the selected row among those that are shown."""
        return self.cursor - self.start

    def cut_page(self, lines: list[Any], room: int) -> list[Any]:
        """The ``room`` lines of a queue's page that are shown."""
        self._page = max(1, room)
        self._page_start = max(0, min(self._page_start, len(lines) - room))
        return lines[self._page_start : self._page_start + room]

    def footer(self) -> str:
        """The line below the list or the page: order, filter and keys."""
        if self.typing is not None:
            return f"/{self.typing}▏"
        if self.opened is not None:
            return PAGE_HELP
        parts = [f"by {self.sort}"]
        parts += [f"from {self.start + 1:,} on"] if self.start else []
        parts += [f"with {self.text!r}, Esc: all"] if self.text else []
        return " · ".join([*parts, HELP])


class Keyboard:
    """The keys typed at the terminal that stdin is, if it is one."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[Any] = []

    def __enter__(self) -> Keyboard:
        if self._descriptor is not None:
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def keys(self, timeout_s: float) -> list[str]:
        """The keys typed within that time. Returns as soon as there is any."""
        if self._descriptor is None:
            time.sleep(timeout_s)
            return []
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return []
        return keys_of(os.read(self._descriptor, 1024).decode("utf-8", "replace"))


def keys_of(typed: str) -> list[str]:
    """Split what a terminal sent into keys: single characters, and names of keys that send several."""
    keys = []
    while typed:
        if typed[0] != "\x1b":
            keys.append(typed[0])
            typed = typed[1:]
            continue
        rest = typed[1:].replace("O", "[", 1) if typed[1:2] == "O" else typed[1:]
        sequence = next((sequence for sequence in _ESCAPES if rest.startswith(sequence)), None)
        if sequence is not None:
            keys.append(_ESCAPES[sequence])
            typed = typed[1 + len(sequence) :]
        elif rest.startswith("["):  # another key: the letters of its sequence are no commands
            typed = rest.lstrip("[0123456789;")[1:]
        else:
            keys.append("escape")
            typed = typed[1:]
    return keys
