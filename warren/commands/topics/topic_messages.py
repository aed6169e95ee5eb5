"""The commands ``warren topic append`` and ``consume``: messages into a topic, and out of it for a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from warren.commands.message_lines import RecordForm, chosen_format, topic_lines
from warren.commands.message_output import WaitOptions, Written, opened_output
from warren.commands.opening import opened_node
from warren.commands.options import JsonOption, NodePath, TopicArgument, UsageError, pairs
from warren.commands.sending import Bodies, BodyOptions, Confirm, CountOption, Published
from warren.commands.topics.topic_sources import NoTopicError, topic_of
from warren.verbs.publishing import PATIENCE_S

if TYPE_CHECKING:
    from warren.handles.topic import TopicRecord
    from warren.verbs.topics.reader_verbs import ReaderArguments
    from warren.verbs.topics.topic_verbs import AppendArguments


@attrs.frozen(kw_only=True)
class AppendOptions:
    """What the messages have beside their bodies, and their queue."""

    key: Annotated[
        list[str] | None,
        typer.Option("--key", "-k", metavar="K", help="A key, which also chooses the queue. Can be repeated."),
    ] = None
    tag: Annotated[str | None, typer.Option("--tag", metavar="T", help="The tag.")] = None
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=TEXT", help="A property. Can be repeated.")
    ] = None
    queue_id: Annotated[
        int | None, typer.Option("--queue-id", metavar="I", min=0, help="Into this queue of the topic.")
    ] = None
    delay: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Deliver after this delay, rounded up to a delay level.")
    ] = None

    def arguments(self) -> AppendArguments:
        """Return the arguments of an append. Raises :class:`UsageError`."""
        return {
            "tag": self.tag,
            "properties": pairs("--property", self.properties, "NAME=TEXT", may_be_empty=True) or None,
            "queue": self.queue_id,
            "delay": self.delay,
        }


def append(
    path: NodePath,
    topic: TopicArgument,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[BODY]...", help="One message each; default: from stdin.")
    ] = None,
    *,
    record: AppendOptions,
    body: BodyOptions,
    declare: Annotated[
        bool, typer.Option("--declare", help="Create the topic, and the directory, if missing.")
    ] = False,
    queues: Annotated[int | None, typer.Option(metavar="N", min=1, help="With --declare: at least N queues.")] = None,
    count: CountOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Append messages to a topic, and return when they are safe."""
    bodies = Bodies.of(words or [], body)
    if record.key and body.key_delimiter is not None:
        raise UsageError("either --key or --key-delimiter")
    if queues is not None and not declare:
        raise UsageError("--queues needs --declare")
    arguments = record.arguments()
    with opened_node(path, make=declare) as node:
        try:
            topic_handle = node.topic(topic, queues=queues) if declare else topic_of(node, topic)
        except NoTopicError as error:
            raise NoTopicError(f"{error}; --declare creates it") from error

        def send(key: str | None, message: bytes) -> Confirm:
            keyed: AppendArguments = {**arguments, "key": record.key or key}
            return topic_handle.append(message, timeout=PATIENCE_S, **keyed)

        published = Published()
        published.send_all(bodies, send, count, shows=not as_json)
    published.say("appended", as_json=as_json)


def consume(
    path: NodePath,
    topic: TopicArgument,
    group: Annotated[str, typer.Option("--group", "-g", metavar="G", help="Read as a member of this group.")],
    *,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="At most N messages; default: all that are left.")
    ] = None,
    wait: WaitOptions,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="T", help="Only messages with this tag. Can be repeated.")
    ] = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="Where a new group begins: earliest, latest, or a time.")
    ] = "earliest",
    form: RecordForm,
    as_json: JsonOption = False,
) -> None:
    """Write the messages that a group has not read to stdout, each body on a line, and mark them as read.

    Exit code 0, whether there were any or not; 1 where the reader of a pipe goes away. Ctrl-C ends it with 130; what
    was written and, from a pipe, read counts.
    """
    from warren.commands.topics.topic_groups import place_of

    lines = topic_lines(chosen_format(form.format, as_json=as_json), raw_bodies=form.raw_bodies)
    arguments: ReaderArguments = {"tags": tag, "auto_commit": False, "consume_from": place_of(begin)}
    with (
        opened_node(path, share=wait.follow) as node,
        opened_output(lines, watches=wait.waits) as output,
        topic_of(node, topic).reader(group, **arguments) as reader,
    ):
        timeout = None if wait.follow else wait.timeout or 0.0

        def read(most: int) -> Sequence[TopicRecord]:
            records: Sequence[TopicRecord] = []
            with output.stop.waiting():
                records = reader.read(most, timeout)
            return () if output.stop else records

        output.write_batches(read, _commit, count)


def _commit(written: Written[TopicRecord]) -> None:
    """Commit the last message of each queue."""
    for message in {(message.record.topic, message.queue_id): message for message in written.taken}.values():
        message.commit()
