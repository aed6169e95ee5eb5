"""A node in numbers: what :meth:`warren.Node.stats` returns."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import attrs

from warren.actors.node.node_registry import NodeRegistry
from warren.hosting.topic_stats import topic_stats
from warren.storage.errors import WarrenError
from warren.verbs.steps import call


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
