"""Inspect a queue: what its actor answers and accounts for, without changing anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from pykka import ActorDeadError, ActorRef, Timeout

from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.engines.errors import ArgumentsError
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.queue_index.message.message_format import MSG_ID_BYTES
from warren.queue_index.properties import decode_properties
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from warren.queue_index.queue.browsing import Browsed

PAGE_BYTES: Final = 4 << 20
"""The approximate size of the messages that one turn reads."""

QUEUE_BYTES: Final = 8192
"""The memory that an awake queue takes."""
_TIMESTAMP_BIT: Final = 0x40
"""In the second byte of encoded properties."""


@attrs.frozen
class BrowsedMessage:
    """One waiting message, and its level in a priority queue (0 in others)."""

    level: int
    browsed: Browsed

    @property
    def id(self) -> str:
        """Identifies the message while it exists: its place, and an id that no other message ever has."""
        return f"{self.level}:{self.browsed.seq_id}:{self.browsed.msg_id.hex()}"


def chosen_ids(ids: Iterable[str]) -> dict[int, dict[int, bytes]]:
    """Parse ids of :attr:`BrowsedMessage.id`: return their msg_ids by level and seq_id.

    Raises :class:`ArgumentsError`.
    """
    msg_ids_by_level: dict[int, dict[int, bytes]] = {}
    for message_id in ids:
        try:
            level, seq_id, msg_id = message_id.split(":")
            decoded, place = bytes.fromhex(msg_id), (int(level), int(seq_id))
        except (ValueError, AttributeError):
            raise ArgumentsError(f"no message's id: {message_id!r:.100}") from None
        if len(decoded) != MSG_ID_BYTES or min(place) < 0:
            raise ArgumentsError(f"no message's id: {message_id!r:.100}")
        msg_ids_by_level.setdefault(place[0], {})[place[1]] = decoded
    return msg_ids_by_level


def ends_of(process: QueueProcess) -> dict[int, int]:
    """Return the next seq_id of each level; messages that come later have this seq_id or a higher one."""
    return {level: process.backing.status_of(level)["next_seq_id"] for level in process.backing.numbers}


def is_whole(page: Sequence[BrowsedMessage], limit: int) -> bool:
    """Whether the page of :func:`browse` is full, so that more messages may follow."""
    return len(page) >= limit or sum([len(message.browsed.term) for message in page]) >= PAGE_BYTES


def browsed_page(turn: QueueTurn, limit: int, after: tuple[int, int] | None) -> list[BrowsedMessage]:
    """:func:`browse` in a turn of the queue, which browsing wakes."""
    turn.context.worked = True
    return browse(turn.process, limit, after)


def browse(process: QueueProcess, limit: int, after: tuple[int, int] | None) -> list[BrowsedMessage]:
    """Return at most ``limit`` messages, or about :data:`PAGE_BYTES` of them, in the order of delivery, starting after
    ``after`` (level, seq_id)."""
    messages: list[BrowsedMessage] = []
    left_bytes = PAGE_BYTES
    awake = dict(process.backing.awake())
    for level in process.backing.numbers:
        if (after is not None and level > after[0]) or (level not in awake and not process.backing.length_of(level)):
            continue
        last_seq_id = after[1] if after is not None and level == after[0] else -1
        for browsed in process.backing.level(level).browse(last_seq_id + 1, limit - len(messages)):
            messages.append(BrowsedMessage(level, browsed))
            left_bytes -= len(browsed.term)
            if left_bytes <= 0:
                return messages
        if len(messages) >= limit:
            break
    return messages


def allocated_bytes(process: QueueProcess) -> int:
    """Return the memory that the queue accounts for: bodies in RAM, and the overhead of each message there."""
    total = QUEUE_BYTES
    for _, queue in process.backing.awake():
        state = queue.state
        total += state.ram_bytes + MESSAGE_BYTES * (state.ram_msg_count + state.ram_ack_count)
    return total


def head_timestamp(process: QueueProcess) -> int | None:
    """Return the next message's timestamp; ``None`` if it is missing, or the message is not in memory."""
    queue = process.backing.single
    if queue is None:
        number = process.backing.first_level()
        queue = next((level for name, level in process.backing.awake() if name == number), None)
    head = None if queue is None else queue.peek(1)
    encoded = None if head is None else head.properties(0)
    if encoded is None or not encoded[1] & _TIMESTAMP_BIT:
        return None
    return decode_properties(encoded).timestamp


def ask_politely(ref: ActorRef[Any], message: object, patience_s: float) -> Any | None:
    """Return an actor's answer; ``None`` if it does not answer within ``patience_s``, or has stopped."""
    try:
        answer: Any = ref.ask(message, block=False)
        return answer.get() if answer.settled(patience_s) else None
    except (WarrenError, ActorDeadError, Timeout):
        return None
