"""The state of a broadcast reader: which instance of its group it is, and its positions.

It reads every queue of a topic for itself. RocketMQ's consumers keep their progress where they run, for each instance
and group; a node does so for the readers in it (:mod:`warren.queue_index.topics.local_offsets`).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from warren.actors.engines.topics.consumer_groups import DEFAULT_INSTANCE
from warren.actors.engines.topics.errors import TopicError
from warren.actors.engines.topics.names import check_group_name, check_instance_name
from warren.queue_index.topics.local_offsets import SEPARATOR


@attrs.define
class Broadcast:
    """One broadcast reader, for threads or for coroutines."""

    instance_name: str | None
    """``None``: the first instance that is idle when it joins."""
    positions: Mapping[int, int] | None
    """Where it starts when it joins, if given."""
    places: dict[int, int] = attrs.Factory(dict)
    """By queue, the offset that is handed out next."""

    def go_back(self, queue_id: int, queue_offset: int) -> None:
        """Hand out messages from this offset on again."""
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
