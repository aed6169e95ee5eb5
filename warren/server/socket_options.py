"""Options of sockets that an event loop has, which need not be sockets of Python's own."""

from __future__ import annotations

import os
import socket


def set_option(number: int, level: int, option: int, value: int) -> None:
    """Set an option of the socket with that file descriptor. Raises ``OSError``."""
    with socket.socket(fileno=os.dup(number)) as duplicate:
        duplicate.setsockopt(level, option, value)
