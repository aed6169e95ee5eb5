"""Write messages to stdout as they come, and handle the two ways in which that ends early.

*Ctrl-C*, and a *reader of a pipe that goes away*, are noted while messages are written and settled, so that nothing
comes in between; while a command only waits, they take effect at once. A reader that goes away is noticed even if
nothing is written: a thread waits for it. So ``… -f | head -3`` ends when ``head`` has its three lines.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Final, Generic, NamedTuple, TypeVar

import typer

from warren.actors.runtime.signal_watch import SignalWatch
from warren.commands.message_lines import Lines
from warren.commands.output import report_error
from warren.commands.running import EXIT_INTERRUPTED
from warren.commands.taken_output import TakenOutput
from warren.storage.errors import MessageError

M = TypeVar("M")

MANY: Final = 256
"""The most messages that are written at a time."""


class Stop:
    """Whether to stop, and why. A context manager for the main thread."""

    def __init__(self, *, watches: bool) -> None:
        """``watches``: the command may wait for long, and is to see meanwhile that a pipe's reader has gone."""
        self.output = TakenOutput()
        self.interrupted = False
        self._waits = False
        self._watches = watches
        self._watch: SignalWatch | None = None
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.interrupted or self.output.is_gone

    def __enter__(self) -> Stop:
        self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._note_interrupt)
        if self._watches:
            self._before[signal.SIGPIPE] = signal.signal(signal.SIGPIPE, self._note_reader)
            self._watch = SignalWatch(self.output.number, self.__bool__)
        return self

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note_interrupt(self, number: int, _: FrameType | None) -> None:
        self.interrupted = True
        signal.signal(number, self._before[number])  # the second one is meant
        self._strike()

    def _note_reader(self, _: int, frame: FrameType | None) -> None:
        """Note that the reader has gone; or only wake this thread, so that another signal's handler is called."""
        if self._watch is not None and self._watch.is_reader_gone:
            self.output.is_gone = True
            self._strike()

    def _strike(self) -> None:
        if self._waits:
            self._waits = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A block that only waits, and takes nothing that is not given back by itself: it ends with a noted event."""
        try:
            self._waits = True
            if self:
                self._strike()
            yield
        except KeyboardInterrupt:
            if not self:
                raise
        finally:
            self._waits = False

    def end(self, *, has_unreadable: bool = False) -> None:
        """Raise the error with which the command ends, if there is one."""
        if self.interrupted:
            raise typer.Exit(EXIT_INTERRUPTED)
        if self.output.is_gone:
            raise BrokenPipeError
        if has_unreadable:
            raise typer.Exit(1)


class Written(NamedTuple, Generic[M]):
    """What became of messages that were written."""

    taken: Sequence[M]
    """Written, and read if that can be seen."""
    left: Sequence[M]
    unreadable: Sequence[M]
    """Their content is not a valid message."""

    @property
    def goes_on(self) -> bool:
        """Whether the reader may want more."""
        return not self.left


class MessageOutput:
    """Writes messages out."""

    def __init__(self, lines: Lines, stop: Stop, tell: Callable[[Any, MessageError], str] | None = None) -> None:
        """``tell``: returns the text for stderr about a message that cannot be read."""
        self._lines = lines
        self.stop = stop
        self._tell = tell or (lambda _, error: str(error))
        self.has_unreadable = False

    @property
    def batch(self) -> int:
        """The number to write first: into a pipe one, because its reader may not want more."""
        return 1 if self.stop.output.is_pipe else MANY

    def write(self, messages: Sequence[M]) -> Written[M]:
        """Write these, and wait until a pipe's reader has them."""
        readable, unreadable, pieces = list[M](), list[M](), list[bytes]()
        for message in messages:
            try:
                pieces.append(b"".join(self._lines(message)))
            except MessageError as error:
                self.has_unreadable = True
                report_error(self._tell(message, error))
                unreadable.append(message)
            else:
                readable.append(message)
        remaining_bytes = self.stop.output.write(b"".join(pieces), self.stop.__bool__)
        taken_count = 0
        while taken_count < len(pieces) and (remaining_bytes := remaining_bytes - len(pieces[taken_count])) >= 0:
            taken_count += 1
        return Written(readable[:taken_count], readable[taken_count:], unreadable)
