"""Looking at a queue: what its actor answers and accounts for, without changing anything."""

from __future__ import annotations

from typing import Any, Final

import attrs
from pykka import ActorDeadError, ActorRef, Timeout

from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.engines.queue_process import QueueProcess
from warren.queue_index.browsing import Browsed
from warren.storage.errors import WarrenError

QUEUE_BYTES: Final = 8192
"""What a queue takes that is awake."""


@attrs.frozen
class BrowsedMessage:
    """One message as it stands, and its level in a priority queue (0 in others)."""

    level: int
    browsed: Browsed


def browse(process: QueueProcess, limit: int, after: tuple[int, int] | None) -> list[BrowsedMessage]:
    """At most ``limit`` messages in the order of delivery, from behind ``after`` (level, seq_id) on."""
    found: list[BrowsedMessage] = []
    awake = dict(process.backing.awake())
    for level in process.backing.numbers:
        if (after is not None and level > after[0]) or (level not in awake and not process.backing.length_of(level)):
            continue
        behind = after[1] if after is not None and level == after[0] else -1
        page = process.backing.level(level).browse(behind + 1, limit - len(found))
        found += [BrowsedMessage(level, one) for one in page]
        if len(found) >= limit:
            break
    return found


def allocated_bytes(process: QueueProcess) -> int:
    """What the queue accounts for: bodies in RAM, and what goes with each message there."""
    total = QUEUE_BYTES
    for _, queue in process.backing.awake():
        state = queue.state
        total += state.ram_bytes + MESSAGE_BYTES * (state.ram_msg_count + state.ram_ack_count)
    return total


def ask_politely(ref: ActorRef[Any], message: object, patience_s: float) -> Any | None:
    """What an actor answers; ``None`` where it does not get to it within ``patience_s``, or has stopped."""
    try:
        answer: Any = ref.ask(message, block=False)
        return answer.get() if answer.settled(patience_s) else None
    except (WarrenError, ActorDeadError, Timeout):
        return None
