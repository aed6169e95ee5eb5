"""The commands ``warren topic list``, ``stats``, ``groups``, ``lag`` and ``reset-offset``: topics in numbers, and where
their groups are. A node that runs is asked; otherwise the files are, but for what changes something.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import attrs
import typer

from warren.commands.opening import opened_node
from warren.commands.options import (
    GroupArgument,
    GroupOption,
    JsonOption,
    NodePath,
    SetOption,
    StorePath,
    TopicArgument,
    UsageError,
)
from warren.commands.output import print_json, print_text, table_of
from warren.commands.topics.topic_sources import NodeTopics, NoTopicError, Row, TopicSource, opened_source, topic_of
from warren.msg_store.commit_log.commit_log_format import Record

if TYPE_CHECKING:
    from warren.actors.engines.topics.consumer_group import StartOffset
    from warren.values.topic_record import Moment

_FIRST: Final = frozenset({"earliest", "first"})
_LAST: Final = frozenset({"latest", "last", "now"})
_MQADMINS: Final = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})")
"""How mqadmin writes a time."""

OnlyTopicOption = Annotated[str | None, typer.Option("--topic", "-t", metavar="T", help="Only of this topic.")]


def list_topics(path: StorePath, *, setting: SetOption = None, as_json: JsonOption = False) -> None:
    """List the topics: how many queues and messages each has, and how many groups read it."""
    with opened_source(path, setting) as source:
        rows: list[dict[str, Any]] = []
        for topic, queues in source.topics().items():
            messages = sum(end - first for first, end in source.bounds(topic).values())
            groups = {row["group"] for row in source.groups(topic)}
            rows.append({"topic": topic, "queues": queues, "messages": messages, "groups": sorted(groups)})
    if as_json:
        print_json(rows)
    elif not rows:
        print("No topics.")
    else:
        cells = [(row["topic"], f"{row['queues']:,}", f"{row['messages']:,}", ", ".join(row["groups"])) for row in rows]
        print_text([table_of(cells, "topic", numbers=("queues", "messages"), last="groups")])


def stats(path: StorePath, topic: TopicArgument, *, setting: SetOption = None, as_json: JsonOption = False) -> None:
    """Print where each queue of a topic begins and ends, and when its last message was stored."""
    with opened_source(path, setting) as source:
        rows = []
        for queue_id, (first, end) in source.bounds(topic).items():
            last = next(source.messages(topic, queue_id, end - 1, 1), None) if end > first else None
            stored = last.store_timestamp if isinstance(last, Record) else None
            rows.append({"queue_id": queue_id, "min_offset": first, "max_offset": end, "last_updated": stored})
    if as_json:
        print_json({"topic": topic, "queues": rows})
        return
    cells = [
        (str(row["queue_id"]), str(row["min_offset"]), str(row["max_offset"]), _shown_time(row["last_updated"]))
        for row in rows
    ]
    print_text([table_of(cells, numbers=("queue", "min offset", "max offset", "last updated"))])


def groups(
    path: StorePath, *, topic: OnlyTopicOption = None, setting: SetOption = None, as_json: JsonOption = False
) -> None:
    """List the groups: the topics that each reads, how many members it has, and its lag."""
    with opened_source(path, setting) as source:
        group_rows = _rows(source, topic)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in group_rows:
        key = row["group"], row["topic"]
        entry = rows.setdefault(key, {"group": key[0], "topic": key[1], "lag": 0, "members": set()})
        entry["lag"] += row["lag"]
        entry["members"] |= {row["member"]} - {None}
    entries = [{**entry, "members": sorted(entry["members"])} for _, entry in sorted(rows.items())]
    if as_json:
        print_json(entries)
    elif not entries:
        print("No groups.")
    else:
        cells = [
            (entry["group"], entry["topic"], f"{len(entry['members']):,}", f"{entry['lag']:,}") for entry in entries
        ]
        print_text([table_of(cells, "group", "topic", numbers=("members", "lag"))])


def lag(
    path: StorePath,
    group: GroupArgument,
    *,
    topic: OnlyTopicOption = None,
    setting: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print, for each queue that a group reads, the queue's end, the group's offset and the lag."""
    with opened_source(path, setting) as source:
        group_rows = _rows(source, topic)
        rows = [row for row in group_rows if row["group"] == group]
        if not rows:
            raise _no_group(group, topic, [row["group"] for row in group_rows])
        for row in rows:
            row["max_offset"] = source.bounds(row["topic"]).get(row["queue_id"], (0, 0))[1]
    if as_json:
        print_json({"group": group, "queues": rows, "lag": sum(row["lag"] for row in rows)})
        return
    cells = []
    for row in rows:
        offset = "–" if row["offset"] is None else str(row["offset"])
        numbers = str(row["queue_id"]), str(row["max_offset"]), offset, f"{row['lag']:,}"
        cells.append((row["topic"], *numbers, row["member"] or ""))
    table = table_of(cells, "topic", numbers=("queue", "max offset", "group's offset", "lag"), last="member")
    print_text([table, f"{sum(row['lag'] for row in rows):,} messages to read"])


@attrs.frozen(kw_only=True)
class PlaceOptions:
    """Where in its queues a group goes on."""

    to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="earliest, latest, or a time, as 2026-01-31T12:00 (local, if it names no zone)."
        ),
    ] = None
    timestamp: Annotated[
        int | None, typer.Option("--timestamp", metavar="MS", min=0, help="To this time: milliseconds since 1970.")
    ] = None
    offset: Annotated[int | None, typer.Option("--offset", metavar="N", min=0, help="To this queue offset.")] = None

    def place(self) -> StartOffset | Moment:
        """Return the place. Raises :class:`UsageError` unless one option is given."""
        match self.to, self.timestamp, self.offset:
            case str(text), None, None:
                return place_of(text)
            case None, int(timestamp_ms), None:
                return timestamp_ms / 1000
            case None, None, int(offset):
                return offset
        raise UsageError("give one of --to, --timestamp and --offset")


def reset_offset(
    path: NodePath,
    topic: TopicArgument,
    group: GroupOption,
    *,
    options: PlaceOptions,
    queue_id: Annotated[
        int | None, typer.Option("--queue-id", metavar="I", min=0, help="Only in this queue of the topic.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Create the group, if it has not read the topic yet.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Reset a group's offsets in a topic. Its members may be running; what they have read no longer counts."""
    place = options.place()
    with opened_node(path) as node:
        topic_handle = topic_of(node, topic)
        group_names = [row["group"] for row in NodeTopics(node).groups(topic)]
        if group not in group_names and not new:
            raise _no_group(group, topic, group_names)
        if queue_id is not None:
            if queue_id not in topic_handle.offsets():
                raise NoTopicError(f"no queue {queue_id} of the topic {topic!r}")
            if isinstance(place, float | datetime):
                place = topic_handle.offset_at(place)[queue_id]
            new_offsets = topic_handle.seek(group, {queue_id: place})
        else:
            new_offsets = topic_handle.seek(group, place)
        lags = topic_handle.lag(group)
    rows = [
        {"queue_id": number, "offset": queue_offset, "lag": lags.get(number, 0)}
        for number, queue_offset in sorted(new_offsets.items())
    ]
    if as_json:
        print_json({"topic": topic, "group": group, "queues": rows})
    else:
        cells = [(str(row["queue_id"]), str(row["offset"]), f"{row['lag']:,}") for row in rows]
        print_text([table_of(cells, numbers=("queue", "offset", "lag"))])


def place_of(text: str) -> StartOffset | Moment:
    """What ``--to`` says. Raises :class:`UsageError`."""
    if text.lower() in _FIRST:
        return "first"
    if text.lower() in _LAST:
        return "last"
    try:
        if match := _MQADMINS.fullmatch(text):
            return datetime.fromisoformat("{}T{}.{}".format(*match.groups()))
        if text.isdigit() and len(text) > len("20260131"):
            return int(text) / 1000
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--to {text}: earliest, latest, or a time such as 2026-01-31T12:00") from None


def _rows(source: TopicSource, topic: str | None) -> list[Row]:
    topics = source.topics() if topic is None else [topic]
    rows = [row for name in topics for row in source.groups(name)]
    if topic is not None and not rows:
        source.bounds(topic)  # raises if there is no such topic
    return rows


def _no_group(group: str, topic: str | None, names: list[str]) -> NoTopicError:
    listed = ", ".join(sorted(set(names))) or "none"
    return NoTopicError(f"no group {group!r}{'' if topic is None else f' of the topic {topic!r}'}; groups: {listed}")


def _shown_time(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ms / 1000)) + f".{timestamp_ms % 1000:03d}"
