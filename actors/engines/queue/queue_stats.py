"""A queue's statistics, under RabbitMQ's names."""

from __future__ import annotations

from typing import Any

from warren.actors.engines.queue.queue_context import QueueContext


def queue_stats(context: QueueContext, waiting: int) -> dict[str, Any]:
    """All statistics. Wakes nothing. ``waiting``: messages that came back and wait to be redelivered.

    Warren's own are ``messages_retrying``, the waiting ones; ``messages_dead_lettering``, dead letters that are not
    safe yet at their target; and ``recovering``: the queue is still being scanned after a crash, and the counts are
    preliminary.
    """
    declaration, policies, backing, consumers = (
        context.declaration,
        context.policies,
        context.backing,
        context.consumers,
    )
    status = backing.status()
    counts = {key: status.pop(key) for key in list(status) if key.startswith(("message", "disk_"))}
    ready, unacked = len(backing), consumers.unacked
    active = None if consumers.active is None else consumers.active.consumer.tag
    single = declaration.single_active_consumer
    return counts | {
        **declaration.columns(),
        **policies.to_json(),
        "state": "hibernated" if backing.asleep else "running",
        "messages": ready + unacked + waiting,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
        "messages_retrying": waiting,
        "messages_dead_lettering": backing.depth - ready - unacked - waiting,
        "recovering": backing.recovering,
        "unacknowledged_by_channel": consumers.unacked_by_channel(),
        "consumers": len(consumers),
        "exclusive_consumer_tag": None if single else active,
        "single_active_consumer_tag": active if single else None,
        "backing_queue_status": status,
    }
