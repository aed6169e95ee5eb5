"""A node's topics in numbers: for :meth:`warren.Node.stats`, and for metrics.

::

    {"down": why or None, "no_room": what found no room on the disk, or None,
     "commit_log": {"min_offset", "max_offset", "flushed_offset", "dispatch_behind_bytes", "files"},
     "topics": {name: {"queues": {queue id: {"min_offset", "max_offset"}},
                       "groups": {name: {"members": {name: [queue id]}, "committed": {queue id}, "lag": {queue id}}}}}}

What is being appended or dispatched at this moment may be in one number and not yet in another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
