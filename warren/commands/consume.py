"""The commands ``warren consume`` and ``warren tail``: messages of a queue, or the last ones of a topic, onto stdout.

A message that ``consume`` takes is acked once it is written out and, into a pipe, read there. If the command is killed,
or the reader of the pipe goes away, the others are redelivered. ``tail`` takes nothing.
:mod:`warren.commands.message_lines` says how a message is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from warren.actors.engines.errors import NotFoundError
from warren.commands.message_lines import FormatOption, Lines, chosen_format, queue_lines, topic_lines
from warren.commands.message_output import MANY, MessageOutput, WaitOptions, Written, opened_output
from warren.commands.opening import VhostOptions, opened_node, vhost_of
from warren.commands.options import FollowOption, JsonLinesOption, NodePath, QueueArgument, RawBodiesOption, WhereOption
from warren.handles.consumer import Consumer, Delivery
from warren.handles.node import Node
from warren.storage.errors import MessageError
from warren.verbs.selecting import test_of

Test = Callable[[Any], bool]

_PREFETCH: Final = 200


# ── consume ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def consume(
    path: NodePath,
    queue: QueueArgument,
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

        def settle(written: Written[Delivery]) -> None:
            if ack:
                handle.ack(written.taken)
                handle.nack(written.left)
                handle.nack(written.unreadable, requeue=False)

        try:
            with opened_output(lines, watches=wait.waits, tell=_unreadable(ack=ack)) as output:
                if not wait.waits:
                    output.write_batches(handle.get_many, settle, len(handle) if count is None else count)
                else:
                    # With a count one by one: what was delivered beyond it would come back as redelivered.
                    prefetch = (1 if count else _PREFETCH) if ack else count or 0
                    with handle.consume(prefetch) as consumer:
                        _write_each(consumer, output, settle, count, wait.timeout)
                if ack:
                    handle.sync()
        finally:
            handle.release()


def _unreadable(*, ack: bool) -> Callable[[Delivery, MessageError], str]:
    outcome = "taken off the queue" if ack else "left in the queue"
    return lambda delivery, error: f"seq_id {delivery.stored.seq_id}: {error}; {outcome}"


def _write_each(
    consumer: Consumer,
    output: MessageOutput,
    settle: Callable[[Written[Delivery]], None],
    count: int | None,
    timeout: float | None,
) -> None:
    """Write what is there and what comes, each at once; until none comes for ``timeout`` seconds."""
    written_count, stop = 0, output.stop
    while not stop:
        delivery = None
        with stop.waiting():
            delivery = consumer.receive(timeout)
        if delivery is None or stop:
            return
        written_count += 1
        if written_count == count:
            consumer.cancel()
        written = output.write([delivery])
        settle(written)
        if not written.goes_on or written_count == count:
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
    raw_bodies: RawBodiesOption = False,
    options: VhostOptions,
    as_json: JsonLinesOption = False,
) -> None:
    """Write the last messages of a queue or topic to stdout; with -f, also new ones. Nothing is consumed.

    Of a queue, those that consumers have too. Ctrl-C ends it with 130.
    """
    line_format = chosen_format(format, as_json=as_json)
    # Raise what is wrong with the format before anything is opened.
    line_forms = topic_lines(line_format, raw_bodies=raw_bodies), queue_lines(line_format, options.vhost, name)
    with opened_node(path, adopt=options.adopt, share=follow) as node:
        messages, test, lines = _messages_of(
            node, options.vhost, name, line_forms, count=count, where=where, follow=follow
        )
        with opened_output(lines, watches=follow) as output:
            try:
                output.write_all(filter(test, messages), 1 if follow else MANY)
            finally:
                messages.close()


def _messages_of(
    node: Node, vhost: str, name: str, line_forms: tuple[Lines, Lines], *, count: int, where: str | None, follow: bool
) -> tuple[Any, Test, Lines]:
    """The messages, as an iterator that waits for more or does not; which of them are meant; how they are written."""
    timeout = None if follow else 0.0
    try:
        queue = vhost_of(node, vhost).queue(name, passive=True)
    except NotFoundError as error:
        if name not in node.topics():
            raise NotFoundError(f"{error}, and no topic") from error
        return node.topic(name).tail(count, timeout=timeout), _test_of_topic(where), line_forms[0]
    return queue.tail(count, timeout=timeout), test_of(where), line_forms[1]


def _test_of_topic(where: str | None) -> Test:
    if where is None:
        return lambda _: True
    from warren.where import RECORD_FIELDS, compile_where

    return compile_where(where, RECORD_FIELDS)
