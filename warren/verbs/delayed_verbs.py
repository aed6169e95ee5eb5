"""The verbs for messages that wait until they are due: those of a vhost, or of one of its queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warren.actors.delays.delay_actor import DelayActor
from warren.actors.delays.vhost_delays import target_of
from warren.actors.engines.declared.texts import check_short_string
from warren.hosting.running_node import RunningNode
from warren.verbs.steps import Steps, call


def waiting(node: RunningNode, vhost: str, limit: int, queue: str | None) -> Steps[list[tuple[int, bytes]]]:
    """Return the next due messages: when each is due, and the encoded message. ``queue``: only for this one."""
    target = _target(queue)

    def first(actor: DelayActor) -> list[tuple[int, bytes]]:
        return [message for _, message in zip(range(limit), actor.log.waiting(target), strict=False)]

    messages: list[tuple[int, bytes]] = yield from _asked(node, vhost, first, otherwise=[])
    return messages


def cancel(node: RunningNode, vhost: str, message_id: str, queue: str | None) -> Steps[int]:
    """Cancel the messages with an id; return how many."""
    check_short_string("a message_id", message_id)
    encoded, target = message_id.encode("utf-8", "surrogateescape"), _target(queue)
    cancelled: int = yield from _asked(node, vhost, lambda actor: actor.cancel(encoded, target), otherwise=0)
    return cancelled


def count(node: RunningNode, vhost: str, queue: str) -> Steps[int]:
    """Return how many delayed messages a queue has, including those just handed over; 0 if the actor is not running."""
    delays = node.vhost(vhost).delays
    actor = None if delays is None else delays.running
    if actor is None:
        return 0
    message_count: int = yield call(actor, lambda: actor.log.waiting_of(target_of(queue, "")))
    return message_count


def purge(node: RunningNode, vhost: str, queue: str) -> Steps[int]:
    """Cancel all messages of a queue; return how many."""
    check_short_string("a queue's name", queue)
    target = target_of(queue, "")
    dropped: int = yield from _asked(node, vhost, lambda actor: actor.drop(target), otherwise=0)
    return dropped


def _target(queue: str | None) -> int | None:
    if queue is None:
        return None
    check_short_string("a queue's name", queue)
    return target_of(queue, "")


def _asked(node: RunningNode, vhost: str, work: Callable[[DelayActor], object], otherwise: object) -> Steps[Any]:
    delays = node.vhost(vhost).delays
    if delays is None:  # there never was one
        return otherwise
    actor = delays.actor
    return (yield call(actor, lambda: work(actor)))
