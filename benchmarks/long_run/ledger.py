"""What programs say in lines while they work: what was confirmed, what came out, how long it took.

A *stream* is what one publisher sends to one queue: messages with the numbers 0, 1, 2 …; a message begins with
``STREAM:NUMBER:``.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import attrs

SIZES = (200, 1000, 1000, 5000, 20_000)
"""Sizes of the bodies in bytes, in turn: some in the queue's index, some in the message store."""


def say(*words: object) -> None:
    """One line, whole or not at all, from any thread."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def body_of(stream: str, number: int) -> bytes:
    return f"{stream}:{number}:".encode().ljust(SIZES[number % len(SIZES)], b".")


def say_got(bodies: Iterable[bytes]) -> None:
    """Report bodies before they are acked: a report made twice does no harm, a missing one would be a loss."""
    numbers = defaultdict(list)
    for body in bodies:
        stream, number, _ = body.split(b":", 2)
        numbers[stream.decode()].append(number.decode())
    for name, got in numbers.items():
        say("got", name, *got)


@attrs.define
class Ledger:
    """What all programs of a run have reported."""

    confirmed: dict[str, int] = attrs.Factory(lambda: defaultdict(int))
    """How many of a stream: all below that number."""
    got: dict[str, bytearray] = attrs.Factory(lambda: defaultdict(bytearray))
    """How often each number came, 255 at most."""
    waits: dict[str, list[tuple[float, float]]] = attrs.Factory(lambda: defaultdict(list))
    """Since the last call of :meth:`take_waits`, by program: seconds until a confirm, until the message was there."""

    def hear(self, line: str) -> None:
        match line.split():
            case ["confirmed", stream, count]:
                self.confirmed[stream] = int(count)
            case ["got", stream, *numbers]:
                counts = self.got[stream]
                for number in map(int, numbers):
                    if number >= len(counts):
                        counts.extend(bytes(number + 1000 - len(counts)))
                    counts[number] = min(counts[number] + 1, 255)
            case ["waited", who, confirm_s, there_s]:
                self.waits[who].append((float(confirm_s), float(there_s)))

    def take_waits(self) -> dict[str, dict[str, float]]:
        """Milliseconds by program: the median and the longest of the times measured since the last call."""
        taken, self.waits = self.waits, defaultdict(list)
        return {
            who: {
                "count": len(waits),
                "confirm_ms": statistics.median(confirm for confirm, _ in waits) * 1000,
                "there_ms": statistics.median(there for _, there in waits) * 1000,
                "longest_ms": max(there for _, there in waits) * 1000,
            }
            for who, waits in taken.items()
        }

    def missing(self) -> dict[str, int]:
        """How many confirmed messages of a stream never came out."""
        counts = {
            stream: count - sum(map(bool, self.got[stream][:count]))
            for stream, count in self.confirmed.items()
        }  # fmt: skip
        return {stream: count for stream, count in counts.items() if count}

    def totals(self) -> dict[str, Any]:
        got = sum(sum(map(bool, counts)) for counts in self.got.values())
        again = sum(sum(counts) for counts in self.got.values()) - got
        return {"confirmed": sum(self.confirmed.values()), "got": got, "got_again": again}
