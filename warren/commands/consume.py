"""The commands ``warren consume`` and ``warren tail``: messages of a queue, or the last ones of a topic, onto stdout.

A message that ``consume`` takes is acked once it is written out and, into a pipe, read there. If the command is killed,
or the reader of the pipe goes away, the others are redelivered. ``tail`` takes nothing.
:mod:`warren.commands.message_lines` says how a message is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from warren.actors.engines.errors import NotFoundError
from warren.commands.message_lines import FormatOption, Lines, chosen_format, queue_lines, topic_lines
from warren.commands.message_output import MANY, MessageOutput, WaitOptions, opened_output
from warren.commands.opening import opened_node, vhost_of
from warren.commands.options import FollowOption, NodePath, WhereOption
from warren.commands.vhosts import VhostOptions
from warren.handles.consumer import Delivery
from warren.handles.node import Node
from warren.handles.queue import Queue
from warren.storage.errors import MessageError
from warren.verbs.selecting import test_of

Test = Callable[[Any], bool]

_PREFETCH: Final = 200


# ── consume ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def consume(
    path: NodePath,
    queue: Annotated[str, typer.Argument(metavar="QUEUE")],
    *,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="At most N messages; default: all that are there.")
    ] = None,
    wait: WaitOptions,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Ack them, or requeue all at the end.")] = True,
    format: FormatOption = None,
    options: VhostOptions,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, as export writes them.")] = False,
) -> None:
    """Write the messages of a queue to stdout, each body on a line, and take them off the queue.

    Exit code 0, whether there were any or not; 1 where the reader of a pipe goes away. Ctrl-C ends it with 130; what
    was written and, from a pipe, read is taken.
    """
    lines = queue_lines(chosen_format(format, as_json=as_json), options.vhost, queue)
    with options.opened_queue(path, queue, share=wait.follow) as handle:
        try:
            with opened_output(lines, watches=wait.waits, tell=_unreadable(ack=ack)) as output:
                writer = _Writer(handle, output, ack=ack)
                if wait.waits:
                    writer.wait_for(count, wait.timeout)
                else:
                    writer.drain(count)
                if ack:
                    handle.sync()
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


# ── tail ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def tail(
    path: NodePath,
    name: Annotated[str, typer.Argument(metavar="QUEUE|TOPIC", help="A queue, or a topic.")],
    *,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="The last N messages.")] = 10,
    follow: FollowOption = False,
    where: WhereOption = None,
    format: FormatOption = None,
    options: VhostOptions,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Write the last messages of a queue or topic to stdout; with -f, also new ones. Nothing is consumed.

    Of a queue, those that consumers have too. Ctrl-C ends it with 130.
    """
    line_format = chosen_format(format, as_json=as_json)
    # Raise what is wrong with the format before anything is opened.
    topic_lines(line_format), queue_lines(line_format, options.vhost, name)
    with opened_node(path, adopt=options.adopt, share=follow) as node:
        messages, test, lines = _messages_of(node, options.vhost, name, count, line_format, where, follow=follow)
        with opened_output(lines, watches=follow) as output:
            try:
                output.write_all(filter(test, messages), 1 if follow else MANY)
            finally:
                messages.close()


def _messages_of(  # noqa: PLR0917
    node: Node, vhost: str, name: str, count: int, line_format: str, where: str | None, *, follow: bool
) -> tuple[Any, Test, Lines]:
    """The messages, as an iterator that waits for more or does not; which of them are meant; how they are written."""
    timeout = None if follow else 0.0
    try:
        queue = vhost_of(node, vhost).queue(name, passive=True)
    except NotFoundError as error:
        if name not in node.topics():
            raise NotFoundError(f"{error}, and no topic") from error
        return node.topic(name).tail(count, timeout=timeout), _test_of_topic(where), topic_lines(line_format)
    return queue.tail(count, timeout=timeout), test_of(where), queue_lines(line_format, vhost, name)


def _test_of_topic(where: str | None) -> Test:
    if where is None:
        return lambda _: True
    from warren.where import RECORD_FIELDS, compile_where

    return compile_where(where, RECORD_FIELDS)
