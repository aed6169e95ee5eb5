"""Bodies alone, and nothing else of a message: each followed by a newline, or each in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Callable

from warren.msg_store.commit_log.commit_log_format import Record
from warren.salvage.classic.orphans import Orphan
from warren.salvage.message_batches import Body, MessageBatch


class Bodies:
    """Hands bodies to ``write``, in order."""

    def __init__(self, write: Callable[[Body], object]) -> None:
        self._write = write

    def messages(self, vhost: bytes, queue: bytes, batch: MessageBatch) -> None:
        """Messages of a queue."""
        for body in batch.mixed().bodies:
            self._write(body)

    def orphan(self, orphan: Orphan) -> None:
        """A stored message that no entry of a queue refers to."""
        self._write(orphan.body)

    def record(self, position: int, record: Record) -> None:
        """A record of a topic."""
        self._write(record.body)

    def flush(self) -> None:
        """Nothing is buffered."""


def body_lines(write: Callable[[bytes], object]) -> Bodies:
    """Each body followed by a newline, as ``kcat -C`` and ``jq -c`` write them."""
    return Bodies(lambda body: write(b"".join((body, b"\n"))))


def body_files(directory: str) -> Bodies:
    """Each body in a file of its own, named by its number: ``00000001``, ``00000002``, …"""
    number = 0

    def write(body: Body) -> None:
        nonlocal number
        number += 1
        with open(os.path.join(directory, f"{number:08}"), "xb") as file:
            file.write(body)

    return Bodies(write)
