"""DeadLetterOutbox: the dead letters of one queue that are on their way, and not yet known to be safe at their target.

They leave in numbered batches. Until :meth:`DeadLetterOutbox.safe` the queue holds their messages as pending, as if a
channel had them. So a stop or a crash meanwhile brings them back, and confirmed messages are not lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs

from warren.actors.engines.queue.dead_letters import DeadLetterBuilder, Reason
from warren.actors.engines.queue.effects import DeadLetterBatch
from warren.actors.engines.queue.queue_context import QueueContext
from warren.actors.log_events import log_event, logger
from warren.queue_index.message.message_format import Envelope, Message, decode_message
from warren.queue_index.properties import decode_properties
from warren.storage.errors import MessageError

_LOG = logger("queue")

BATCH_MESSAGES: Final = 1024
"""The largest batch: the bodies are in memory while the batch is on its way."""

_NO_ID: Final = bytes(16)

Held = list[tuple[int, range]]
"""Messages by level and seq_ids."""


@attrs.define(eq=False, repr=False)
class DeadLetterOutbox:
    """The dead letters that a queue has on their way. Truth value: whether there are any."""

    _context: QueueContext
    _held: dict[int, Held] = attrs.Factory(dict)
    _next: int = 1

    def __bool__(self) -> bool:
        return bool(self._held)

    def take_head(self, level: int, count: int, reason: Reason, now_us: int) -> None:
        """Dead-letter messages at the head of a level."""
        fetched = self._context.backing.level(level).fetch_many(count, ack_required=True)
        messages = _readable(term for part in fetched for term in part.terms)
        self._send_letters(messages, reason, [(level, part.seq_ids) for part in fetched], now_us, lazy=self._lazy)

    def take_held(self, held: Held, reason: Reason, now_us: int) -> None:
        """Dead-letter messages that a channel had."""
        for batch in _in_batches(held):
            messages = _readable(
                term
                for level, seq_ids in batch
                for _, term in self._context.backing.level(level).read_pending([seq_ids])
            )
            self._send_letters(messages, reason, batch, now_us, lazy=self._lazy)

    def take_refused(self, envelope: Envelope, bodies: Sequence[bytes], now_us: int) -> None:
        """Dead-letter messages that the queue refused; nothing is held for them."""
        e, properties = envelope, decode_properties(envelope.properties)
        messages = [
            Message(_NO_ID, e.vhost, e.exchange, e.routing_keys, properties, body, e.persistent, None, e.properties)
            for body in bodies
        ]
        self._send_letters(messages, "maxlen", [], now_us, lazy=False)

    @property
    def _lazy(self) -> bool:
        return self._context.backing.mode == "lazy"

    def _send_letters(
        self, messages: Iterable[Message], reason: Reason, held: Held, now_us: int, *, lazy: bool
    ) -> None:
        arguments = self._context.arguments
        builder = DeadLetterBuilder(
            queue=arguments.name,
            exchange=arguments.dead_letter_exchange or "",
            routing_key=arguments.dead_letter_routing_key,
            reason=reason,
            time_s=now_us // 1_000_000,
            tells_expiration=not lazy,
        )
        letters = builder.build(messages)
        if letters:
            number, self._next = self._next, self._next + 1
            self._held[number] = held
            self._context.send_dead_letters(DeadLetterBatch(number, builder.exchange, letters))
        else:
            self._forget(held)

    def safe(self, number: int) -> None:
        """Remove the messages of a batch that is safe at its target, or without a target."""
        held = self._held.pop(number, None)
        if held is None:
            raise RuntimeError(f"there is no batch {number} of dead letters on its way")
        self._forget(held)

    def _forget(self, held: Held) -> None:
        for level, seq_ids in held:
            self._context.backing.level(level).ack([seq_ids])

    def __iter__(self) -> Iterator[tuple[int, range]]:
        """What is held, by level and seq_ids."""
        return (pair for held in self._held.values() for pair in held)


def _readable(terms: Iterable[bytes]) -> list[Message]:
    """The decoded messages. A message that cannot be decoded is dropped, because it cannot be a dead letter."""
    messages = []
    for term in terms:
        try:
            messages.append(decode_message(term))
        except MessageError as error:
            _LOG.warning(
                "an unreadable dead letter is dropped: %s",
                error,
                extra=log_event("message_unreadable", error),
            )
    return messages


def _in_batches(held: Held) -> list[Held]:
    """Split messages into lists of at most :data:`BATCH_MESSAGES`."""
    batches: list[Held] = []
    room = 0
    for level, seq_ids in held:
        remaining = seq_ids
        while remaining:
            if not room:
                batches.append([])
                room = BATCH_MESSAGES
            part, remaining = remaining[:room], remaining[room:]
            batches[-1].append((level, part))
            room -= len(part)
    return batches
