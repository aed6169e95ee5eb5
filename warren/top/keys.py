"""The keys of ``warren top``: what was typed, and what it changes in the view.

::

    q            ends it                       /text ⏎   only queues and topics with text in their names
    s            the next order                Esc       all of them again
    ↑ ↓ PgUp PgDn Home     scroll

A :class:`View` is what is looked at; it knows no terminal. A :class:`Keyboard` is the terminal's, without waiting for
whole lines and without echo; where there is none, nothing is ever typed.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Final

import attrs

from warren.top.snapshots import SORTS, Snapshot

HELP: Final = "q quit · s sort · ↑↓ scroll · / filter"
_ESCAPES: Final = {"[A": "up", "[B": "down", "[5~": "page up", "[6~": "page down", "[H": "home", "[1~": "home"}
_STEPS: Final = {"up": -1, "down": 1}


@attrs.define
class View:
    """Which queues are looked at, and in which order."""

    sort: str = "messages"
    start: int = 0
    """So many of the first are scrolled away."""
    text: str = ""
    """That names have in them."""
    typing: str | None = None
    """What was typed behind a ``/`` so far; ``None``: no filter is being typed."""
    _page: int = 1

    def press(self, key: str) -> bool:
        """Take one key; whether to go on."""
        if self.typing is not None:
            self._type(key)
        elif key in ("q", "Q"):
            return False
        elif key == "s":
            orders = list(SORTS)
            self.sort, self.start = orders[(orders.index(self.sort) + 1) % len(orders)], 0
        elif key == "/":
            self.typing = ""
        elif key == "escape":
            self.text, self.start = "", 0
        elif key == "home":
            self.start = 0
        elif key in ("page up", "page down"):
            self.start = max(0, self.start + (self._page if key == "page down" else -self._page))
        elif key in _STEPS:
            self.start = max(0, self.start + _STEPS[key])
        return True

    def _type(self, key: str) -> None:
        typed = self.typing or ""
        if key in ("\r", "\n"):
            self.text, self.start, self.typing = typed, 0, None
        elif key == "escape":
            self.typing = None
        elif key in ("\x7f", "\b"):
            self.typing = typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self.typing = typed + key

    def wanted(self, room: int) -> int | None:
        """How many rows to ask for, to show ``room`` of them; ``None``: all."""
        return None if self.text else self.start + room

    def filtered(self, snapshot: Snapshot) -> None:
        """Leave out what is called otherwise."""
        if self.text:
            snapshot["queues"] = [row for row in snapshot["queues"] if self.text in row["name"]]
            snapshot["left_out"] = 0
            if (topics := snapshot.get("topics")) is not None:
                topics["rows"] = [row for row in topics["rows"] if self.text in row["name"]]

    def cut(self, snapshot: Snapshot, room: int) -> None:
        """Leave the queues that there is room for; no further than to the last one."""
        rows = snapshot["queues"]
        total = len(rows) + snapshot["left_out"]
        self._page = max(1, room)
        self.start = max(0, min(self.start, total - room))
        snapshot["queues"] = rows[self.start : self.start + room]
        snapshot["left_out"] = max(0, total - self.start - len(snapshot["queues"]))

    def said(self) -> str:
        """What is to be said of it in a line."""
        if self.typing is not None:
            return f"/{self.typing}▏"
        parts = [f"by {self.sort}"]
        parts += [f"from {self.start + 1:,} on"] if self.start else []
        parts += [f"with {self.text!r}, Esc: all"] if self.text else []
        return " · ".join([*parts, HELP])


class Keyboard:
    """What is typed at the terminal that stdin is, if it is one."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[Any] = []

    def __enter__(self) -> Keyboard:
        if self._descriptor is not None:
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def keys(self, timeout_s: float) -> list[str]:
        """What was typed within that time; as soon as anything is."""
        if self._descriptor is None:
            time.sleep(timeout_s)
            return []
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return []
        return keys_of(os.read(self._descriptor, 1024).decode("utf-8", "replace"))


def keys_of(typed: str) -> list[str]:
    """The keys: single characters, and names of those that send several."""
    keys = []
    while typed:
        if typed[0] != "\x1b":
            keys.append(typed[0])
            typed = typed[1:]
            continue
        behind = typed[1:].replace("O", "[", 1) if typed[1:2] == "O" else typed[1:]
        sent = next((sent for sent in _ESCAPES if behind.startswith(sent)), None)
        if sent is not None:
            keys.append(_ESCAPES[sent])
            typed = typed[1 + len(sent) :]
        elif behind.startswith("["):  # another key, that sends letters which are no commands
            typed = behind.lstrip("[0123456789;")[1:]
        else:
            keys.append("escape")
            typed = typed[1:]
    return keys
