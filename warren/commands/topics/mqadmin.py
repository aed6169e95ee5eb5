"""The commands ``warren mqadmin …``: what mqadmin calls the commands ``warren topic …``, with the options that it has.

Each does what its counterpart does, and prints the same; in place of mqadmin's ``-n`` and an address, it takes the path
of a data directory.
"""

from __future__ import annotations

from typing import Annotated

import typer

from warren.commands.message_lines import BODY, JSON, RecordForm
from warren.commands.message_output import WaitOptions
from warren.commands.opening import opened_node
from warren.commands.options import GroupOption, JsonOption, NodePath, StorePath, UsageError
from warren.commands.sending import BodyOptions
from warren.commands.topics import topic_groups, topic_messages
from warren.commands.topics.topic_groups import PlaceOptions
from warren.commands.topics.topic_messages import AppendOptions

_Topic = Annotated[str, typer.Option("--topic", "-t", metavar="T", help="Which topic.")]
_OnlyGroup = Annotated[str | None, typer.Option("--group", "-g", metavar="G", help="Which group.")]
_QueueId = Annotated[int | None, typer.Option("--queueId", "-i", metavar="I", min=0, help="The queue's number.")]
_Offset = Annotated[int | None, typer.Option("--offset", "-o", metavar="N", min=0, help="From this queue offset on.")]
_Time = Annotated[
    str, typer.Option("--timestamp", "-s", metavar="TIME", help="now, ms since 1970, or 2026-01-31#12:00:00:000.")
]


def topic_list(path: StorePath, *, as_json: JsonOption = False) -> None:
    """Like topic list: list the topics."""
    topic_groups.list_topics(path, as_json=as_json)


def topic_status(path: StorePath, topic: _Topic, *, as_json: JsonOption = False) -> None:
    """Like topic stats: where a topic's queues begin and end."""
    topic_groups.stats(path, topic, as_json=as_json)


def update_topic(
    path: NodePath,
    topic: _Topic,
    *,
    read_queues: Annotated[
        int | None, typer.Option("--readQueueNums", "-r", min=1, help="At least N read queues.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option("--writeQueueNums", "-w", min=1, help="At least N write queues.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Declare a topic, or give one more queues."""
    queue_counts = [number for number in (read_queues, write_queues) if number is not None]
    with opened_node(path) as node:
        node.topic(topic, queues=max(queue_counts, default=None))
    topic_groups.stats(path, topic, as_json=as_json)


def consumer_progress(
    path: StorePath,
    *,
    group: _OnlyGroup = None,
    topic: topic_groups.OnlyTopicOption = None,
    as_json: JsonOption = False,
) -> None:
    """Like topic lag, for a group; without one, like topic groups."""
    if group is None:
        topic_groups.groups(path, topic=topic, as_json=as_json)
    else:
        topic_groups.lag(path, group, topic=topic, as_json=as_json)


def reset_offset_by_time(
    path: NodePath, group: GroupOption, topic: _Topic, timestamp: _Time, *, as_json: JsonOption = False
) -> None:
    """Like topic reset-offset: reset a group's offsets to a time."""
    topic_groups.reset_offset(path, topic, group, options=PlaceOptions(to=timestamp), as_json=as_json)


def skip_accumulated_message(path: NodePath, group: GroupOption, topic: _Topic, *, as_json: JsonOption = False) -> None:
    """Like topic reset-offset --to latest: skip all messages that are there."""
    topic_groups.reset_offset(path, topic, group, options=PlaceOptions(to="latest"), as_json=as_json)


def query_msg_by_key(
    path: StorePath,
    topic: _Topic,
    key: Annotated[str, typer.Option("--msgKey", "-k", metavar="K", help="Which key.")],
    *,
    most: Annotated[int, typer.Option("--maxNum", "-m", metavar="N", min=0, help="At most N messages.")] = 32,
    form: RecordForm,
    as_json: JsonOption = False,
) -> None:
    """Like topic query: the messages with a key, newest first, each as a JSON object unless --format says otherwise."""
    from warren.commands.topics.topic_reading import QueryOptions, query

    query(path, topic, key, options=QueryOptions(limit=most), form=form)


def query_msg_by_id(
    path: StorePath,
    message_id: Annotated[str, typer.Option("--msgId", "-i", metavar="ID", help="RocketMQ's offsetMsgId.")],
    *,
    form: RecordForm,
    as_json: JsonOption = False,
) -> None:
    """Like topic message: the message with an id."""
    from warren.commands.topics.topic_reading import message

    message(path, message_id, form=form)


def query_msg_by_offset(
    path: StorePath,
    topic: _Topic,
    queue_id: Annotated[int, typer.Option("--queueId", "-i", metavar="I", min=0, help="The queue's number.")],
    offset: Annotated[int, typer.Option("--offset", "-o", metavar="N", min=0, help="The queue offset.")],
    *,
    form: RecordForm,
    as_json: JsonOption = False,
) -> None:
    """Like topic read --max 1: the message with a number."""
    from warren.commands.topics.topic_reading import RecordOptions, read

    read(
        path,
        topic,
        queue_id,
        offset=offset,
        options=RecordOptions(limit=1, format=form.format, raw_bodies=form.raw_bodies),
    )


def send_message(
    path: NodePath,
    topic: _Topic,
    body: Annotated[str, typer.Option("--body", "-p", metavar="TEXT", help="The body.")],
    *,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="K", help="Keys, separated by blanks.")] = None,
    tags: Annotated[str | None, typer.Option("--tags", "-c", metavar="T", help="The tag.")] = None,
    queue_id: Annotated[
        int | None, typer.Option("--qid", "-i", metavar="I", min=0, help="Into this queue of the topic.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Like topic append: append a message."""
    record = AppendOptions(key=None if key is None else key.split(), tag=tags, queue_id=queue_id)
    topic_messages.append(path, topic, [body], record=record, body=BodyOptions(), as_json=as_json)


def consume_message(
    path: NodePath,
    topic: _Topic,
    *,
    group: _OnlyGroup = None,
    queue_id: _QueueId = None,
    offset: _Offset = None,
    count: Annotated[int, typer.Option("--messageCount", "-c", metavar="N", min=1, help="At most N messages.")] = 128,
    form: RecordForm,
    as_json: JsonOption = False,
) -> None:
    """Like topic consume, for a group; without one, like topic read: nothing is marked as read."""
    if group is not None:
        if queue_id is not None or offset is not None:
            raise UsageError("either --group, or --queueId with or without --offset")
        wait = WaitOptions()
        topic_messages.consume(path, topic, group, count=count, wait=wait, form=form, as_json=as_json)
        return
    from warren.commands.topics.topic_reading import RecordOptions, read

    if queue_id is None:
        raise UsageError("give --group or --queueId")
    line_format = JSON if as_json else form.format or BODY
    options = RecordOptions(limit=count, format=line_format, raw_bodies=form.raw_bodies)
    read(path, topic, queue_id, offset=offset, options=options)
