"""The command ``warren publish``: messages from the command line, a file or stdin into a queue or an exchange."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import IO, Annotated, Any, Final

import attrs
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from warren.actors.engines.errors import NotFoundError
from warren.actors.future import Confirm
from warren.commands.opening import opened_node, vhost_of
from warren.commands.options import AdoptOption, JsonOption, NodePath, UsageError, VhostOption, pairs
from warren.commands.output import print_json
from warren.messages import PublishArguments
from warren.node import Vhost
from warren.storage.errors import StorageError

PATIENCE_S: Final = 60.0
"""A store that takes nothing for so long, for want of memory or disk, is an error."""

_MANY: Final = 10_000
"""From so many messages on, a terminal gets a progress bar."""

Send = Callable[[bytes], Confirm]


def publish(
    path: NodePath,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE [BODY]...", help="Where to, and one message for each BODY; none: from stdin."),
    ] = None,
    *,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="The body, or with --lines the bodies.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of the file, or of stdin, is a message.")] = False,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=TEXT", help="A header; several times.")] = None,
    expiration: Annotated[float | None, typer.Option(metavar="S", help="Dead after so many seconds.")] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=255, help="In a queue with priorities.")] = None,
    delay: Annotated[float | None, typer.Option(metavar="S", help="Comes after so many seconds.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Comes then: 2030-01-31T08:00, or seconds since 1970.")
    ] = None,
    transient: Annotated[bool, typer.Option("--transient", help="Need not survive a stop.")] = False,
    exchange: Annotated[
        str | None, typer.Option(metavar="NAME", help="Publish to this exchange; QUEUE is left out then.")
    ] = None,
    routing_key: Annotated[str, typer.Option(metavar="KEY", help="With --exchange.")] = "",
    declare: Annotated[
        bool, typer.Option("--declare", help="Make the queue, durable, where it is missing; and the directory too.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="Publish each so many times.")] = 1,
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Publish messages, and come back when they are safe."""
    queue, bodies = _said(words or [], exchange, file)
    if exchange is None and routing_key:
        raise UsageError("--routing-key goes with --exchange; without one the key is the queue's name")
    if exchange is not None and declare:
        raise UsageError("--declare makes queues; an exchange is declared with `warren definitions --import`")
    if lines and bodies:
        raise UsageError("--lines is for --file and for stdin")
    properties: PublishArguments = {
        "headers": pairs("--header", header, "NAME=TEXT", may_be_empty=True) or None,
        "persistent": not transient,
        "expiration": expiration,
        "priority": priority,
    }
    properties |= _when(delay, at)
    with opened_node(path, adopt=adopt, make=declare) as node:
        send = _sender(vhost_of(node, vhost), queue, exchange, routing_key, properties, declare=declare)
        published = _Published()
        known = len(bodies) * count if bodies else count if not lines else None
        with _Progress(None if as_json else known) as step:
            for body in _bodies(bodies, file, lines=lines):
                for _ in range(count):
                    published.add(send(body), len(body))
                    step()
            published.finish()
    if as_json:
        said: dict[str, Any] = {"published": published.messages, "bytes": published.payload_bytes}
        if delay is not None or at is not None:
            said["message_ids"] = published.message_ids
        print_json(said)
    else:
        noun = "message" if published.messages == 1 else "messages"
        print(f"{published.messages:,} {noun} published, {published.payload_bytes:,} bytes")


def _when(delay: float | None, at: str | None) -> PublishArguments:
    """What says when they come."""
    if delay is not None and at is not None:
        raise UsageError("either --delay or --at")
    if delay is not None:
        return {"delay": delay}
    if at is None:
        return {}
    try:
        return {"at": float(at)}
    except ValueError:
        pass
    try:
        return {"at": datetime.fromisoformat(at)}
    except ValueError:
        raise UsageError(f"--at {at}: wants a time as 2030-01-31T08:00, or seconds since 1970") from None


def _said(words: list[str], exchange: str | None, file: str | None) -> tuple[str, list[bytes]]:
    """Queue and bodies; an exchange is in place of a queue."""
    if exchange is None and not words:
        raise UsageError("to which QUEUE? Or to which --exchange?")
    queue, bodies = ("", words) if exchange is not None else (words[0], words[1:])
    if bodies and file is not None:
        raise UsageError("either BODY or --file")
    return queue, [os.fsencode(body) for body in bodies]


def _sender(
    vhost: Vhost, queue: str, exchange: str | None, routing_key: str, properties: PublishArguments, *, declare: bool
) -> Send:
    if exchange is not None:
        target = vhost.exchange(exchange)
        return lambda body: target.publish(body, routing_key, mandatory=True, timeout=PATIENCE_S, **properties)
    try:
        handle = vhost.queue(queue, passive=True)
    except NotFoundError as error:
        if not declare:
            raise NotFoundError(f"{error}; --declare makes it") from error
        handle = vhost.queue(queue)
    return lambda body: handle.publish(body, timeout=PATIENCE_S, **properties)


def _bodies(said: list[bytes], file: str | None, *, lines: bool) -> Iterator[bytes]:
    """What is to be published, one after the other; a line without its line end."""
    if said:
        yield from said
    elif file is None:
        yield from _read(sys.stdin.buffer, lines=lines)
    else:
        try:
            with open(file, "rb") as source:
                yield from _read(source, lines=lines)
        except OSError as error:
            raise StorageError(f"{file}: {error.strerror or error}") from error


def _read(source: IO[bytes], *, lines: bool) -> Iterator[bytes]:
    if lines:
        for line in source:
            yield line.removesuffix(b"\n").removesuffix(b"\r")
    else:
        yield source.read()


@attrs.define
class _Published:
    """What was handed over, and the confirms that are still to come."""

    messages: int = 0
    payload_bytes: int = 0
    message_ids: list[str] = attrs.Factory(list)
    """Of those that come later."""
    _open: deque[Confirm] = attrs.Factory(deque)

    def add(self, confirm: Confirm, size: int) -> None:
        """One more; raises what became of an earlier one."""
        self.messages += 1
        self.payload_bytes += size
        self.message_ids += getattr(confirm, "message_ids", ())
        if not self._open or self._open[-1] is not confirm:  # messages that go together share one
            self._open.append(confirm)
        while self._open[0].done and len(self._open) > 1:
            self._open.popleft().wait()

    def finish(self) -> None:
        """Wait until all are safe."""
        while self._open:
            self._open.popleft().wait()


class _Progress:
    """A bar on stderr, where that is a terminal and there is something to wait for; gives what moves it on."""

    def __init__(self, total: int | None) -> None:
        console = Console(stderr=True)
        shown = total is not None and total >= _MANY and console.is_terminal
        columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self._bars = Progress(*columns, console=console, disable=not shown)
        self._task = self._bars.add_task("", total=total)

    def __enter__(self) -> Callable[[], None]:
        self._bars.start()
        if self._bars.disable:
            return lambda: None
        return lambda: self._bars.advance(self._task)

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
