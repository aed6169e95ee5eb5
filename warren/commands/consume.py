"""The command ``warren consume``: messages out of a queue onto stdout.

A message is acked once it is written out and, into a pipe, read there: what a kill interrupts, or a reader leaves in
the pipe as it goes away, comes again. With ``--json`` a line is what :mod:`warren.salvage.export` writes of a message.
"""

from __future__ import annotations

import math
import signal
import time
from binascii import hexlify
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final

import typer

from warren.commands.opening import opened_node, vhost_of
from warren.commands.options import AdoptOption, NodePath, UsageError, VhostOption
from warren.commands.taken_output import TakenOutput
from warren.consumer import Consumer, Delivery
from warren.queue import Queue
from warren.salvage.envelopes import Envelopes
from warren.salvage.json_lines import FLAGS, json_line
from warren.salvage.names import to_json
from warren.storage.errors import MessageError

_BATCH: Final = 256
_PREFETCH: Final = 200
_LOOK_UP_S: Final = 0.2
"""How long an interrupt may have to wait."""

Lines = Callable[[Delivery], Iterable[bytes]]
"""What is written of a message, in pieces."""


def consume(
    path: NodePath,
    queue: Annotated[str, typer.Argument(metavar="QUEUE")],
    *,
    count: Annotated[int | None, typer.Option(min=1, help="At most so many; otherwise all that are there.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, for ever.")] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Wait for more, at most so many seconds for each.")
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Take them; or give all back to the queue at the end.")
    ] = True,
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object on a line for each message, as export writes them.")
    ] = False,
) -> None:
    """Write the messages of a queue to stdout, each body on a line, and take them off the queue.

    Exit code 0, whether there were any or not; 1 where the reader of a pipe goes away. Ctrl-C ends it; what was written
    and, from a pipe, read is taken.
    """
    if follow and timeout is not None:
        raise UsageError("either --follow or --timeout")
    with opened_node(path, adopt=adopt) as node:
        handle = vhost_of(node, vhost).queue(queue, passive=True)
        lines = _json_lines(vhost, queue) if as_json else _body_lines
        try:
            with _Interrupted() as interrupted:
                writer = _Writer(lines, ack=ack, interrupted=interrupted)
                if follow or timeout is not None:
                    _wait_for(handle, writer, count, timeout)
                else:
                    _drain(handle, writer, count)
            if ack:
                handle.sync()
            if writer.is_reader_gone:
                raise BrokenPipeError
            if writer.has_unreadable:
                raise typer.Exit(1)
        finally:
            handle.release()


class _Interrupted:
    """Ctrl-C, noted and not raised: between writing a message and acking it nothing comes in between."""

    def __init__(self) -> None:
        self._noted = False

    def __bool__(self) -> bool:
        return self._noted

    def _note(self, number: int, _: object) -> None:
        self._noted = True
        signal.signal(number, self._before)  # the second one is meant

    def __enter__(self) -> _Interrupted:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)


class _Writer:
    """Writes messages out, and acks those that were taken."""

    def __init__(self, lines: Lines, *, ack: bool, interrupted: _Interrupted) -> None:
        self._lines = lines
        self._output = TakenOutput()
        self.ack = ack
        self.interrupted = interrupted
        self.has_unreadable = False

    @property
    def is_reader_gone(self) -> bool:
        return self._output.is_gone

    @property
    def batch(self) -> int:
        """How many to write first: into a pipe one, for its reader may want no more."""
        return 1 if self._output.is_pipe else _BATCH

    def write(self, queue: Queue, deliveries: Sequence[Delivery]) -> bool:
        """Write these, and settle them; whether all were taken."""
        deliveries, pieces = self._readable(queue, deliveries)
        left = self._output.write(b"".join(pieces), self.interrupted.__bool__)
        taken = 0
        while taken < len(pieces) and (left := left - len(pieces[taken])) >= 0:
            taken += 1
        if self.ack:
            queue.ack(deliveries[:taken])
            queue.nack(deliveries[taken:])
        return taken == len(pieces)

    def _readable(self, queue: Queue, deliveries: Sequence[Delivery]) -> tuple[list[Delivery], list[bytes]]:
        """Those that can be written, and what to write; the others are told of, and rejected where all are taken."""
        readable, pieces = [], []
        for delivery in deliveries:
            try:
                pieces.append(b"".join(self._lines(delivery)))
            except MessageError as error:
                self.has_unreadable = True
                what = "taken off the queue" if self.ack else "left where it is"
                typer.echo(f"warren: seq_id {delivery.stored.seq_id}: {error}; {what}", err=True)
                if self.ack:
                    queue.nack([delivery], requeue=False)
            else:
                readable.append(delivery)
        return readable, pieces


def _drain(queue: Queue, writer: _Writer, count: int | None) -> None:
    """What is there now, and no more."""
    left, batch = len(queue) if count is None else count, writer.batch
    while left and not writer.interrupted and (deliveries := queue.get_many(min(left, batch))):
        if not writer.write(queue, deliveries):
            return
        left -= len(deliveries)
        batch = min(2 * batch, _BATCH)


def _wait_for(queue: Queue, writer: _Writer, count: int | None, timeout: float | None) -> None:
    """What is there and what comes, each at once."""
    # With a count one by one: what was delivered beyond it would come back as redelivered.
    prefetch = (1 if count else _PREFETCH) if writer.ack else count or 0
    written = 0
    with queue.consume(prefetch) as consumer:
        while (delivery := _next(consumer, timeout, writer.interrupted)) is not None:
            written += 1
            if written == count:
                consumer.cancel()
            if not writer.write(queue, [delivery]) or written == count:
                return


def _next(consumer: Consumer, timeout: float | None, interrupted: _Interrupted) -> Delivery | None:
    """The next message; ``None`` after ``timeout`` seconds without one, when no more will come, or at an interrupt."""
    deadline_s = time.monotonic() + (math.inf if timeout is None else timeout)
    while not interrupted:
        left_s = max(0.0, deadline_s - time.monotonic())
        delivery = consumer.receive(min(left_s, _LOOK_UP_S))
        if delivery is not None:
            return delivery
        if consumer.ended or not left_s:
            return None
    return None


def _body_lines(delivery: Delivery) -> Iterable[bytes]:
    return delivery.body, b"\n"


def _json_lines(vhost: str, queue: str) -> Lines:
    envelopes = Envelopes()
    head = b'{"vhost": %b, "queue": %b, "seq_id": ' % (to_json(vhost), to_json(queue))

    def lines(delivery: Delivery) -> Iterable[bytes]:
        known = delivery.stored
        start = (
            head,
            b"%d" % known.seq_id,
            b', "msg_id": "',
            hexlify(known.msg_id),
            FLAGS[delivery.persistent, delivery.redelivered],
            b"%d" % known.expiry_us if known.expiry_us else b"null",
        )
        return json_line(start, *envelopes.split(known.encoded), b'"}\n')

    return lines
