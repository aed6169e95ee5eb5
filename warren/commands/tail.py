"""The command ``warren tail``: the end of a queue or a topic onto stdout, and what comes; nothing is taken."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import typer

from warren.actors.engines.errors import NotFoundError
from warren.commands.message_lines import FormatOption, Lines, chosen_format, queue_lines, topic_lines
from warren.commands.message_output import MANY, MessageOutput, Stop
from warren.commands.opening import opened_node, vhost_of
from warren.commands.options import AdoptOption, FollowOption, NodePath, VhostOption, WhereOption
from warren.handles.node import Node
from warren.verbs.selecting import test_of

Test = Callable[[Any], bool]
_NAME: Final = "QUEUE|TOPIC"


def tail(
    path: NodePath,
    name: Annotated[str, typer.Argument(metavar=_NAME, help="A queue, or a topic.")],
    *,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="The last N messages.")] = 10,
    follow: FollowOption = False,
    where: WhereOption = None,
    format: FormatOption = None,
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Write the last messages of a queue or topic to stdout; with -f, also new ones. Nothing is consumed.

    Of a queue, those that consumers have too. Ctrl-C ends it with 130.
    """
    line_format = chosen_format(format, as_json=as_json)
    # Raise what is wrong with the format before anything is opened.
    topic_lines(line_format), queue_lines(line_format, vhost, name)
    with opened_node(path, adopt=adopt, share=follow) as node:
        messages, test, lines = _messages_of(node, vhost, name, count, line_format, where, follow=follow)
        with Stop(watches=follow) as stop:
            output = MessageOutput(lines, stop)
            try:
                _write(filter(test, messages), output, 1 if follow else MANY)
            finally:
                messages.close()
        stop.end(has_unreadable=output.has_unreadable)


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


def _write(messages: Iterator[Any], output: MessageOutput, at_once: int) -> None:
    stop = output.stop
    while not stop:
        batch: list[Any] = []
        with stop.waiting():
            batch = list(itertools.islice(messages, at_once))
        if not batch or stop or not output.write(batch).goes_on:
            return
