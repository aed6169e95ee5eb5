"""The commands ``warren topic append`` and ``consume``: messages into a topic, and out of it for a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from warren.commands.message_lines import FormatOption, chosen_format, topic_lines
from warren.commands.message_output import MANY, MessageOutput, Stop
from warren.commands.opening import opened_node
from warren.commands.options import FollowOption, JsonOption, NodePath, TopicArgument, UsageError, pairs
from warren.commands.sending import (
    Bodies,
    CountOption,
    FileOption,
    KeyDelimiterOption,
    LinesOption,
    Published,
)
from warren.commands.topic_sources import NoTopicError, topic_of
from warren.verbs.publishing import PATIENCE_S

if TYPE_CHECKING:
    from warren.handles.topic_reader import Reader, TopicRecord
    from warren.verbs.reader_verbs import ReaderArguments


def append(
    path: NodePath,
    topic: TopicArgument,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[BODY]...", help="One message each; default: from stdin.")
    ] = None,
    *,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", "-k", metavar="K", help="A key, which also chooses the queue. Can be repeated."),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="T", help="The tag.")] = None,
    property: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TEXT", help="A property. Can be repeated.")
    ] = None,
    queue_id: Annotated[
        int | None, typer.Option("--queue-id", metavar="I", min=0, help="Into this queue of the topic.")
    ] = None,
    delay: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Deliver after this delay, rounded up to a delay level.")
    ] = None,
    file: FileOption = None,
    lines: LinesOption = False,
    key_delimiter: KeyDelimiterOption = None,
    declare: Annotated[
        bool, typer.Option("--declare", help="Create the topic, and the directory, if missing.")
    ] = False,
    queues: Annotated[int | None, typer.Option(metavar="N", min=1, help="With --declare: at least N queues.")] = None,
    count: CountOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Append messages to a topic, and return when they are safe."""
    bodies = Bodies.of(words or [], file, lines=lines, key_delimiter=key_delimiter)
    if key and key_delimiter is not None:
        raise UsageError("either --key or --key-delimiter")
    if queues is not None and not declare:
        raise UsageError("--queues needs --declare")
    properties = pairs("--property", property, "NAME=TEXT", may_be_empty=True) or None
    with opened_node(path, make=declare) as node:
        try:
            topic_handle = node.topic(topic, queues=queues) if declare else topic_of(node, topic)
        except NoTopicError as error:
            raise NoTopicError(f"{error}; --declare creates it") from error
        published = Published()
        published.send_all(
            bodies,
            lambda body_key, body: topic_handle.append(
                body,
                key=key or body_key,
                tag=tag,
                properties=properties,
                queue=queue_id,
                delay=delay,
                timeout=PATIENCE_S,
            ),
            count,
            shows=not as_json,
        )
    published.say("appended", as_json=as_json)


def consume(
    path: NodePath,
    topic: TopicArgument,
    group: Annotated[str, typer.Option("--group", "-g", metavar="G", help="Read as a member of this group.")],
    *,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="At most N messages; default: all that are left.")
    ] = None,
    follow: FollowOption = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Wait up to S seconds for each further message.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="T", help="Only messages with this tag. Can be repeated.")
    ] = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="Where a new group begins: earliest, latest, or a time.")
    ] = "earliest",
    format: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the messages that a group has not read to stdout, each body on a line, and mark them as read.

    Exit code 0, whether there were any or not; 1 where the reader of a pipe goes away. Ctrl-C ends it with 130; what
    was written and, from a pipe, read counts.
    """
    if follow and timeout is not None:
        raise UsageError("either --follow or --timeout")
    from warren.commands.topic_groups import place_of

    lines = topic_lines(chosen_format(format, as_json=as_json))
    arguments: ReaderArguments = {"tags": tag, "auto_commit": False, "consume_from": place_of(begin)}
    waits = follow or timeout is not None
    with opened_node(path, share=follow) as node:
        topic_handle = topic_of(node, topic)
        with topic_handle.reader(group, **arguments) as reader, Stop(watches=waits) as stop:
            output = MessageOutput(lines, stop)
            _write_all(reader, output, count, None if follow else timeout or 0.0)
        stop.end(has_unreadable=output.has_unreadable)


def _write_all(reader: Reader, output: MessageOutput, count: int | None, timeout: float | None) -> None:
    stop, batch = output.stop, output.batch
    remaining = count
    while not stop and remaining != 0:
        records: Sequence[TopicRecord] = []
        with stop.waiting():
            records = reader.read(batch if remaining is None else min(batch, remaining), timeout)
        if not records or stop:
            return
        written = output.write(records)
        # Of each queue the last one is committed.
        for message in {(message.record.topic, message.queue_id): message for message in written.taken}.values():
            message.commit()
        if not written.goes_on:
            return
        remaining = None if remaining is None else remaining - len(records)
        batch = min(2 * batch, MANY)
