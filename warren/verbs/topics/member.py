"""Who reads a topic: a member of a consumer group, or a broadcast reader, which is a group of one.

A broadcast reader reads every queue of a topic for itself. RocketMQ's consumers keep its progress where they run, for
each instance and group; a node does so for the readers in it (:mod:`warren.queue_index.topics.local_offsets`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Final, TypedDict

import attrs

from warren.actors.engines.topics.consumer_group import StartOffset
from warren.actors.engines.topics.consumer_groups import DEFAULT_INSTANCE
from warren.actors.engines.topics.errors import TopicError
from warren.actors.engines.topics.names import check_group_name, check_instance_name, retry_topic
from warren.queue_index.topics.local_offsets import SEPARATOR
from warren.storage.call_arguments import as_texts
from warren.values.topic_record import Moment

_NUMBERS: Final = itertools.count(1)


class MemberArguments(TypedDict, total=False):
    """What a member reads, and from where on."""

    broadcast: bool
    """Read all queues, and share nothing."""
    tags: str | Iterable[str] | None
    """Read only messages with any of the tags."""
    consume_from: StartOffset | Moment | Mapping[int, int]
    """Where a group begins that has not read this topic before."""
    positions: Mapping[int, int] | None
    """Where a broadcast reader continues, instead of at its stored position."""
    instance_name: str | None
    """Which reader of its broadcast group it is; ``None``: the first instance that is idle when it joins."""


def _texts(tags: str | Iterable[str] | None) -> str | list[str] | None:
    return tags if tags is None or isinstance(tags, str) else as_texts(tags, "tags")


@attrs.define(eq=False, repr=False)
class Member:
    """One reader as its group knows it. The fields up to ``instance_name`` are :class:`MemberArguments`."""

    topic: str
    group: str
    broadcast: bool = attrs.field(default=False, kw_only=True)
    tags: str | Iterable[str] | None = attrs.field(default=None, kw_only=True, converter=_texts)
    consume_from: StartOffset | Moment | Mapping[int, int] = attrs.field(default="first", kw_only=True)
    positions: Mapping[int, int] | None = attrs.field(default=None, kw_only=True)
    instance_name: str | None = attrs.field(default=None, kw_only=True)
    name: str = attrs.field(kw_only=True)
    """Its name among the group's members."""
    key: str = attrs.field(init=False)
    """The group's key; a broadcast reader has one of its own once it has joined."""
    topics: list[str] = attrs.field(init=False)
    """The topics that it reads: a group's messages to be retried come to its members, too."""
    places: dict[int, int] = attrs.field(init=False, factory=dict)
    """Of a broadcast reader: by queue, the offset that is handed out next."""

    @name.default
    def _numbered(self) -> str:
        return f"{self.group}-{next(_NUMBERS)}"

    def __attrs_post_init__(self) -> None:
        check_reader_names(self.group, self.instance_name, broadcast=self.broadcast)
        if self.positions is not None and not self.broadcast:
            raise TopicError("only broadcast readers have positions")
        self.key = self.group
        self.topics = [self.topic] if self.broadcast else list(dict.fromkeys((self.topic, retry_topic(self.group))))

    def go_back(self, queue_id: int, queue_offset: int) -> None:
        """Hand out a broadcast reader's messages from this offset on again."""
        self.places[queue_id] = min(self.places.get(queue_id, queue_offset), queue_offset)


def check_reader_names(group: str, instance_name: str | None, *, broadcast: bool) -> None:
    """Raise :class:`TopicNameError` for invalid names; a broadcast reader does not need a group."""
    if group or not broadcast:
        check_group_name(group)
    if instance_name is not None:
        if not broadcast:
            raise TopicError("only broadcast readers have an instance_name")
        check_instance_name(instance_name)


def group_key(group: str, instance_name: str | None, *, broadcast: bool) -> str:
    """Return the key of a group; for broadcast readers, of one instance (``None``: RocketMQ's ``DEFAULT``)."""
    check_reader_names(group, instance_name, broadcast=broadcast)
    return f"{group}{SEPARATOR}{instance_name or DEFAULT_INSTANCE}" if broadcast else group
