"""Write messages to stdout as they come, and handle the two ways in which that ends early.

*Ctrl-C*, and a *reader of a pipe that goes away*, are noted while messages are written and settled, so that nothing
comes in between; while a command only waits, they take effect at once. A reader that goes away is noticed even if
nothing is written: a thread waits for it. So ``… -f | head -3`` ends when ``head`` has its three lines.

What is written into a pipe is not read yet: its buffer holds thousands of small messages when the reader goes away, as
``head`` does. So a command that acks what it has written first asks :class:`TakenOutput` how much of it was taken. A
pipe tells how many bytes wait in it; a file has taken what was written.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import io
import itertools
import os
import select
import signal
import stat
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

import attrs
import typer

from warren.actors.runtime.signal_watch import SignalWatch
from warren.commands.message_lines import Lines
from warren.commands.options import EXIT_DAMAGE, FollowOption, UsageError
from warren.commands.output import report_error
from warren.commands.running import EXIT_INTERRUPTED
from warren.storage.errors import MessageError

M = TypeVar("M")

MANY: Final = 256
"""The most messages that are written at a time."""
_FIRST_PAUSE_S: Final = 20e-6
_LONGEST_PAUSE_S: Final = 2e-3


@attrs.frozen(kw_only=True)
class WaitOptions:
    """How long to wait for further messages. Raises :class:`UsageError`."""

    follow: FollowOption = False
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Wait up to S seconds for each further message.")
    ] = None

    def __attrs_post_init__(self) -> None:
        if self.follow and self.timeout is not None:
            raise UsageError("either --follow or --timeout")

    @property
    def waits(self) -> bool:
        """Whether to wait at all, instead of taking what is there."""
        return self.follow or self.timeout is not None


# ── what ends it early ───────────────────────────────────────────────────────────────────────────────────────────────


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

    def end(self) -> None:
        """Raise the error with which the command ends, if it was ended early."""
        if self.interrupted:
            raise typer.Exit(EXIT_INTERRUPTED)
        if self.output.is_gone:
            raise BrokenPipeError


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
        self.is_incomplete = False
        """Whether to end with exit code 1: a message could not be read, or a command misses one."""

    def write(self, messages: Sequence[M]) -> Written[M]:
        """Write these, and wait until a pipe's reader has them."""
        readable, unreadable, pieces = list[M](), list[M](), list[bytes]()
        for message in messages:
            try:
                pieces.append(b"".join(self._lines(message)))
            except MessageError as error:
                self.is_incomplete = True
                report_error(self._tell(message, error))
                unreadable.append(message)
            else:
                readable.append(message)
        remaining_bytes = self.stop.output.write(b"".join(pieces), self.stop.__bool__)
        taken_count = 0
        while taken_count < len(pieces) and (remaining_bytes := remaining_bytes - len(pieces[taken_count])) >= 0:
            taken_count += 1
        return Written(readable[:taken_count], readable[taken_count:], unreadable)

    def write_all(self, messages: Iterator[Any], at_once: int = MANY) -> None:
        """Write messages that are only looked at, ``at_once`` at a time, until they end or the output does."""
        while not self.stop:
            batch: list[Any] = []
            with self.stop.waiting():
                batch = list(itertools.islice(messages, at_once))
            if not batch or self.stop or not self.write(batch).goes_on:
                return

    def write_batches(
        self, read: Callable[[int], Sequence[M]], settle: Callable[[Written[M]], object], count: int | None
    ) -> None:
        """Write and settle what ``read`` returns for a number of messages, until that is nothing, or ``count`` were."""
        batch = 1 if self.stop.output.is_pipe else MANY  # a pipe's reader may not want more than one
        while not self.stop and count != 0 and (messages := read(batch if count is None else min(batch, count))):
            written = self.write(messages)
            settle(written)
            if not written.goes_on:
                return
            count = None if count is None else count - len(messages)
            batch = min(2 * batch, MANY)


@contextlib.contextmanager
def opened_output(
    lines: Lines, *, watches: bool = False, tell: Callable[[Any, MessageError], str] | None = None
) -> Iterator[MessageOutput]:
    """Write messages to stdout in a block, and end the command as that ends: :class:`Stop`, :class:`MessageOutput`."""
    with Stop(watches=watches) as stop:
        output = MessageOutput(lines, stop, tell)
        yield output
    stop.end()
    if output.is_incomplete:
        raise typer.Exit(EXIT_DAMAGE)


# ── what was taken ───────────────────────────────────────────────────────────────────────────────────────────────────


class TakenOutput:
    """Standard output, for messages that a command acks afterwards."""

    def __init__(self) -> None:
        self._descriptor = _pipe_of_stdout()
        self.is_gone = False
        """The reader has gone away; nothing more can be written."""

    @property
    def number(self) -> int:
        """The pipe's descriptor, -1 if it is not a pipe."""
        return -1 if self._descriptor is None else self._descriptor

    @property
    def is_pipe(self) -> bool:
        return self._descriptor is not None

    def write(self, data: bytes, is_interrupted: Callable[[], object]) -> int:
        """Write ``data``; return how many bytes of it were taken: all, unless the reader goes away or an interrupt
        ends the wait. Raises ``OSError`` if a file cannot be written."""
        if self._descriptor is None:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return len(data)
        written = 0
        while written < len(data) and not self.is_gone:
            try:
                written += os.write(self._descriptor, data[written:])
            except BrokenPipeError:
                self.is_gone = True
        return max(written - self._wait(self._descriptor, is_interrupted), 0)

    def _wait(self, descriptor: int, is_interrupted: Callable[[], object]) -> int:
        """Wait until the pipe is empty or its reader gone; return the number of bytes that are left in it."""
        pause_s = _FIRST_PAUSE_S
        closed = select.poll()
        closed.register(descriptor, select.POLLERR)
        while _waiting_bytes(descriptor) and not self.is_gone and not is_interrupted():
            self.is_gone = bool(closed.poll(0))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return _waiting_bytes(descriptor)  # again: the reader may have taken it just before the interrupt


def _pipe_of_stdout() -> int | None:
    with contextlib.suppress(OSError, io.UnsupportedOperation):
        sys.stdout.flush()
        descriptor = sys.stdout.fileno()
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            _waiting_bytes(descriptor)
            return descriptor
    return None


def _waiting_bytes(descriptor: int) -> int:
    buffer = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, buffer)
    return buffer[0]
