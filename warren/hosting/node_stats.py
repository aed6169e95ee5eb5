"""A node in numbers: what :meth:`warren.Node.stats` returns; and, also for metrics, its topics in numbers::

    {"down": why or None, "no_room": what found no room on the disk, or None,
     "commit_log": {"min_offset", "max_offset", "flushed_offset", "dispatch_behind_bytes", "files"},
     "topics": {name: {"queues": {queue id: {"min_offset", "max_offset"}},
                       "groups": {name: {"members": {name: [queue id]}, "committed": {queue id}, "lag": {queue id}}}}}}

What is being appended or dispatched at this moment may be in one number and not yet in another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from warren.actors.node.node_registry import NodeRegistry
from warren.storage.errors import WarrenError
from warren.verbs.steps import call

if TYPE_CHECKING:
    from warren.actors.topics.running_topics import RunningTopics


Groups = dict[str, dict[str, Any]]
"""What the groups' actor answers: topic → group → its numbers."""


def topic_stats(running: RunningTopics) -> dict[str, Any]:
    """The numbers of topics that run."""
    store, log = running.store, running.store.commit_log
    topics = each_topic(running, call(running.groups, running.groups.consumer_groups.described).get())
    return {
        "down": None,
        "no_room": no_room(running),
        "commit_log": {
            "min_offset": log.min_offset,
            "max_offset": log.end,
            "flushed_offset": log.flushed_end,
            "dispatch_behind_bytes": store.behind_bytes,
            "files": len(log.mapped.bases),
        },
        "topics": topics,
    }


def no_room(running: RunningTopics) -> str | None:
    """What of the topics found no room on the disk when it was last tried."""
    return next((str(actor.full_disk.error) for actor in running.actors if actor.full_disk.error is not None), None)


def each_topic(running: RunningTopics, groups: Groups) -> dict[str, dict[str, Any]]:
    """Of each topic its queues and its groups."""
    topics: dict[str, dict[str, Any]] = {
        name: {"queues": {}, "groups": groups.get(name, {})} for name in running.table.topics
    }
    for (topic, queue_id), queue in list(running.store.queues.items()):
        topic_entry = topics.setdefault(topic, {"queues": {}, "groups": groups.get(topic, {})})
        topic_entry["queues"][queue_id] = {"min_offset": queue.min_offset, "max_offset": queue.max_offset}
    return topics


def node_stats(
    registry: NodeRegistry,
    streams: dict[str, dict[str, Any]],
    asked: Mapping[tuple[str, str], Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the stats of every vhost and of the topics. ``streams``, ``asked``: stats that were fetched already."""
    vhosts: dict[str, Any] = {}
    for name, running in list(registry.vhosts.items()):
        queues: dict[str, Any] = {}
        for queue, entry in list(running.queues.items()):
            with contextlib.suppress(WarrenError):
                stats = asked.get((name, queue)) or call(entry.actor, entry.actor.stats).get()
                queues[queue] = {**stats, "messages_delayed": running.waiting_of_queue(queue)}
        try:
            stores = {kind: attrs.asdict(status) for kind, status in running.store_statuses()}
        except WarrenError:
            continue  # the vhost is being deleted or reopened
        of_streams = streams.get(name, {})
        vhosts[name] = {"queues": queues, "streams": of_streams, "down": running.failed_queues, "stores": stores}
        vhosts[name]["messages_delayed"] = running.messages_delayed
        delays = running.delays
        vhosts[name]["delayed_down"] = None if delays is None or delays.error is None else str(delays.error)
    down = {name: str(error) for name, error in list(registry.down.items())}
    return {"vhosts": vhosts, "down_vhosts": down, "topics": _topic_stats(registry)}


def _topic_stats(registry: NodeRegistry) -> dict[str, Any] | None:
    try:
        return None if (running := registry.topics) is None else topic_stats(running)
    except WarrenError as error:
        return {"down": str(error), "no_room": None, "commit_log": {}, "topics": {}}
