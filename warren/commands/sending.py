"""What commands send: bodies from arguments, a file or stdin, with or without keys; and their confirms."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Annotated, Any, Protocol

import attrs
import typer

from warren.commands.options import UsageError
from warren.commands.output import naming_errors, print_json
from warren.salvage.progress_bars import counting_bar

CountOption = Annotated[int, typer.Option(min=1, help="Send each N times.")]


class Confirm(Protocol):
    """Says when what was sent is safe."""

    @property
    def done(self) -> bool: ...

    def wait(self) -> Any: ...


@attrs.frozen(kw_only=True)
class BodyOptions:
    """Where the bodies come from, if no arguments are given."""

    file: Annotated[str | None, typer.Option(metavar="FILE", help="The body, or with --lines the bodies.")] = None
    lines: Annotated[bool, typer.Option("--lines", "-l", help="Each line of the file, or of stdin, is a message.")] = (
        False
    )
    key_delimiter: Annotated[
        str | None,
        typer.Option("--key-delimiter", "-K", metavar="TEXT", help="With --lines: separates the key from the body."),
    ] = None


@attrs.frozen
class Bodies:
    """What is to be sent."""

    bodies: list[bytes]
    """Bodies given as arguments."""
    options: BodyOptions

    @classmethod
    def of(cls, words: list[str], options: BodyOptions) -> Bodies:
        """Raises :class:`UsageError` for what contradicts itself."""
        if words and options.file is not None:
            raise UsageError("either BODY or --file")
        if options.lines and words:
            raise UsageError("--lines needs --file or stdin")
        if options.key_delimiter is not None and not (options.lines and options.key_delimiter):
            raise UsageError("--key-delimiter needs --lines, and cannot be empty")
        return cls([os.fsencode(word) for word in words], options)

    @property
    def count(self) -> int | None:
        """Return the number of messages; ``None`` if it is not known before the end."""
        return len(self.bodies) or (None if self.options.lines else 1)

    def each(self) -> Iterator[tuple[str | None, bytes]]:
        """One after the other, a line without its line end; each with its key, if it has one."""
        delimiter = self.options.key_delimiter
        for body in self._each():
            key, separator, rest = (b"", b"", body) if delimiter is None else body.partition(os.fsencode(delimiter))
            yield (os.fsdecode(key), rest) if separator else (None, body)

    def _each(self) -> Iterator[bytes]:
        file, lines = self.options.file, self.options.lines
        if self.bodies:
            yield from self.bodies
        elif file is None:
            yield from _read(sys.stdin.buffer, lines=lines)
        else:
            with naming_errors(file), open(file, "rb") as source:
                yield from _read(source, lines=lines)


def _read(source: IO[bytes], *, lines: bool) -> Iterator[bytes]:
    if lines:
        for line in source:
            yield line.removesuffix(b"\n").removesuffix(b"\r")
    else:
        yield source.read()


@attrs.define
class Published:
    """What was handed over, and the confirms that are still to come."""

    messages: int = 0
    payload_bytes: int = 0
    message_ids: list[str] | None = None
    """The ids of delayed messages, if they are reported."""
    _open: deque[Confirm] = attrs.Factory(deque)

    def add(self, confirm: Confirm, size: int) -> None:
        """Add a confirm; raises the error of an earlier one."""
        self.messages += 1
        self.payload_bytes += size
        if self.message_ids is not None:
            self.message_ids += getattr(confirm, "message_ids", ())
        if not self._open or self._open[-1] is not confirm:  # messages that go together share one
            self._open.append(confirm)
        while self._open[0].done and len(self._open) > 1:
            self._open.popleft().wait()

    def finish(self) -> None:
        """Wait until all are safe."""
        while self._open:
            self._open.popleft().wait()

    def send_all(
        self, bodies: Bodies, send: Callable[[str | None, bytes], Confirm], count: int, *, shows: bool
    ) -> None:
        """Send each ``count`` times, and wait until all are safe. ``shows``: show a bar if that takes long."""
        total = None if bodies.count is None else bodies.count * count
        with counting_bar("Sending", lambda: total, is_shown=shows and total is not None) as advance_to:
            for key, body in bodies.each():
                for _ in range(count):
                    self.add(send(key, body), len(body))
                    advance_to(self.messages)
            self.finish()

    def say(self, done: str, *, as_json: bool) -> None:
        """Say on stdout how much was sent."""
        if as_json:
            report: dict[str, Any] = {done: self.messages, "bytes": self.payload_bytes}
            print_json(report if self.message_ids is None else report | {"message_ids": self.message_ids})
        else:
            noun = "message" if self.messages == 1 else "messages"
            print(f"{self.messages:,} {noun} {done}, {self.payload_bytes:,} bytes")
