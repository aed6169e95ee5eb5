"""The command ``warren consume``: messages out of a queue onto stdout.

A message is acked once it is written out and, into a pipe, read there. If the command is killed, or the reader of the
pipe goes away, the others are redelivered. :mod:`warren.commands.message_lines` says how a message is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from warren.commands.message_lines import FormatOption, chosen_format, queue_lines
from warren.commands.message_output import MANY, MessageOutput, Stop
from warren.commands.opening import opened_node, vhost_of
from warren.commands.options import AdoptOption, FollowOption, NodePath, UsageError, VhostOption
from warren.handles.consumer import Delivery
from warren.handles.queue import Queue
from warren.storage.errors import MessageError

_PREFETCH: Final = 200


def consume(
    path: NodePath,
    queue: Annotated[str, typer.Argument(metavar="QUEUE")],
    *,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="At most N messages; default: all that are there.")
    ] = None,
    follow: FollowOption = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Wait up to S seconds for each further message.")
    ] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Ack them, or requeue all at the end.")] = True,
    format: FormatOption = None,
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, as export writes them.")] = False,
) -> None:
    """Write the messages of a queue to stdout, each body on a line, and take them off the queue.

    Exit code 0, whether there were any or not; 1 where the reader of a pipe goes away. Ctrl-C ends it with 130; what
    was written and, from a pipe, read is taken.
    """
    if follow and timeout is not None:
        raise UsageError("either --follow or --timeout")
    lines = queue_lines(chosen_format(format, as_json=as_json), vhost, queue)
    waits = follow or timeout is not None
    with opened_node(path, adopt=adopt, share=follow) as node:
        handle = vhost_of(node, vhost).queue(queue, passive=True)
        try:
            with Stop(watches=waits) as stop:
                writer = _Writer(handle, MessageOutput(lines, stop, _unreadable(ack=ack)), ack=ack)
                if waits:
                    writer.wait_for(count, timeout)
                else:
                    writer.drain(count)
            if ack:
                handle.sync()
            stop.end(has_unreadable=writer.output.has_unreadable)
        finally:
            handle.release()


def _unreadable(*, ack: bool) -> Callable[[Delivery, MessageError], str]:
    outcome = "taken off the queue" if ack else "left in the queue"
    return lambda delivery, error: f"seq_id {delivery.stored.seq_id}: {error}; {outcome}"


class _Writer:
    """Writes messages out, and acks those that were taken."""

    def __init__(self, queue: Queue, output: MessageOutput, *, ack: bool) -> None:
        self._queue = queue
        self._ack = ack
        self.output = output

    def _write(self, deliveries: Sequence[Delivery]) -> bool:
        """Write these, and settle them; whether all were taken. What cannot be read is rejected where all are taken."""
        written = self.output.write(deliveries)
        if self._ack:
            self._queue.ack(written.taken)
            self._queue.nack(written.left)
            self._queue.nack(written.unreadable, requeue=False)
        return written.goes_on

    def drain(self, count: int | None) -> None:
        """What is there now, and no more."""
        remaining, batch, stop = len(self._queue) if count is None else count, self.output.batch, self.output.stop
        while remaining and not stop and (deliveries := self._queue.get_many(min(remaining, batch))):
            if not self._write(deliveries):
                return
            remaining -= len(deliveries)
            batch = min(2 * batch, MANY)

    def wait_for(self, count: int | None, timeout: float | None) -> None:
        """What is there and what comes, each at once; until none comes for ``timeout`` seconds."""
        # With a count one by one: what was delivered beyond it would come back as redelivered.
        prefetch = (1 if count else _PREFETCH) if self._ack else count or 0
        written, stop = 0, self.output.stop
        with self._queue.consume(prefetch) as consumer:
            while not stop:
                delivery = None
                with stop.waiting():
                    delivery = consumer.receive(timeout)
                if delivery is None or stop:
                    return
                written += 1
                if written == count:
                    consumer.cancel()
                if not self._write([delivery]) or written == count:
                    return
