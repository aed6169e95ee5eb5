"""The command ``warren consume``: messages out of a queue onto stdout.

A message is acked once it is written out: what a kill interrupts comes again. With ``--json`` a line is what
:mod:`warren.salvage.export` writes of a message.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from binascii import hexlify
from collections.abc import Callable, Iterable
from typing import Annotated, Final

import typer

from warren.commands.opening import AdoptOption, NodePath, UsageError, VhostOption, opened_node, vhost_of
from warren.consumer import Consumer, Delivery
from warren.queue import Queue
from warren.salvage.message_json import FLAGS, MessageJson
from warren.salvage.names import to_json

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

    Exit code 0, whether there were any or not. Ctrl-C ends it; what was written is taken.
    """
    if follow and timeout is not None:
        raise UsageError("either --follow or --timeout")
    with opened_node(path, adopt=adopt) as node:
        handle = vhost_of(node, vhost).queue(queue, passive=True)
        lines = _json_lines(vhost, queue) if as_json else _body_lines
        try:
            with _Interrupted() as interrupted:
                if follow or timeout is not None:
                    _wait_for(handle, lines, count, timeout, ack=ack, interrupted=interrupted)
                else:
                    _drain(handle, lines, count, ack=ack, interrupted=interrupted)
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


def _drain(queue: Queue, lines: Lines, count: int | None, *, ack: bool, interrupted: _Interrupted) -> None:
    """What is there now, and no more."""
    left = len(queue) if count is None else count
    while left and not interrupted and (deliveries := queue.get_many(min(left, _BATCH))):
        _put(b"".join(piece for delivery in deliveries for piece in lines(delivery)))
        left -= len(deliveries)
        if ack:
            queue.ack(deliveries)
    if ack:
        queue.sync()


def _wait_for(
    queue: Queue, lines: Lines, count: int | None, timeout: float | None, *, ack: bool, interrupted: _Interrupted
) -> None:
    """What is there and what comes, each at once."""
    # With a count one by one: what was delivered beyond it would come back as redelivered.
    prefetch = (1 if count else _PREFETCH) if ack else count or 0
    written = 0
    with queue.consume(prefetch) as consumer:
        while (delivery := _next(consumer, timeout, interrupted)) is not None:
            _put(b"".join(lines(delivery)))
            written += 1
            if written == count:
                consumer.cancel()
            if ack:
                delivery.ack()
            if written == count:
                break
    if ack:
        queue.sync()


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


def _put(data: bytes) -> None:
    """Write it out, before anything of it is acked."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _body_lines(delivery: Delivery) -> Iterable[bytes]:
    return delivery.body, b"\n"


def _json_lines(vhost: str, queue: str) -> Lines:
    shapes = MessageJson()
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
        return shapes.line(start, known.encoded, b'"}\n')[1]

    return lines
