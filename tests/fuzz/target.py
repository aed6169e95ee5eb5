"""What is fuzzed, and what it may do: a parser, whole inputs to begin with, and bounds.

Whatever its bytes are, a parser ends within :data:`HANGS_AFTER_S`, takes no more than :attr:`Target.memory_for` says,
and raises :class:`WarrenError` or nothing. That a parser answers at all is what is asked here; that it answers rightly
is for the tests of the formats.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

import attrs

from tests.support.striking import raised_after
from warren.storage.errors import WarrenError

HANGS_AFTER_S: Final = 20.0
"""For inputs of less than a megabyte."""
MEMORY_FACTOR: Final = 100
"""Bytes of Python objects for each byte of input: a list of empty lists is 64 times as large as its bytes."""
MEMORY_BYTES: Final = 24 << 20
"""Whatever the input: windows, tables, what is imported when it is needed."""


class TooLongError(BaseException):
    """It did not end; no parser catches that."""


TEXT_CHARACTERS: Final = 1000
"""The longest text of an error: it must not contain the whole file."""


@attrs.frozen
class Target:
    """A parser, and how it is fuzzed."""

    name: str
    read: Callable[[bytes], object]
    """Give it the bytes."""
    seeds: Callable[[], Sequence[bytes]]
    """Sound inputs, at least one."""
    memory_factor: int = MEMORY_FACTOR
    memory_bytes: int = MEMORY_BYTES
    is_slow: bool = False
    """It takes tens of milliseconds an input."""

    def memory_for(self, data: bytes) -> int:
        """The bytes that Python may allocate while it reads them."""
        return self.memory_bytes + self.memory_factor * len(data)

    def run(self, data: bytes) -> bool:
        """Read; whether it was accepted. Raises what is no error of warren's, or one whose text is no line to read."""
        told = ""
        try:
            self.read(data)
        except WarrenError as error:
            told = str(error) or "?"
        assert len(told) <= TEXT_CHARACTERS, f"{self.name}: an error of {len(told):,} characters"
        return not told

    def run_bounded(self, data: bytes) -> bool:
        """The same; an AssertionError for too much memory, a :class:`TooLongError` for too much time."""
        tracemalloc.start()
        try:
            with ends_within(HANGS_AFTER_S):
                accepted = self.run(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= self.memory_for(data), f"{self.name}: {peak:,} bytes of memory for {len(data):,} of input"
        return accepted


def ends_within(seconds: float) -> AbstractContextManager[None]:
    """Raise :class:`TooLongError` in what takes longer; needs the main thread."""
    return raised_after(seconds, TooLongError(f"not through after {seconds} s"))
