"""What of a command's output its reader has taken, when an interrupt ends the wait."""

from __future__ import annotations

import os
import sys

import pytest

from warren.commands.message_output import TakenOutput


@pytest.mark.parametrize(("read", "taken"), [(3, 3), (2, 2), (0, 0)])
def test_what_is_read_just_before_an_interrupt_is_taken(monkeypatch: pytest.MonkeyPatch, read: int, taken: int) -> None:
    reading, writing = os.pipe()

    def read_and_interrupt() -> bool:
        """Between the look into the pipe and the look for an interrupt."""
        if read:
            os.read(reading, read)
        return True

    with open(reading, "rb", buffering=0), open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert TakenOutput().write(b"abc", read_and_interrupt) == taken
