"""Deliveries as 4.3 makes them: for a time, and back with or without delay.

A consumer holds each message until a deadline. When that has passed, the message returns, and the consumer is *timed
out*: it gets nothing until it has answered for all that was taken from it (by settling it, for one). A return may wait:
as the queue's settings say, or until the time that the consumer writes into the message's annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from warren.queue_index.quorum.consumers import TIMED_OUT, UP, Consumer
from warren.queue_index.quorum.deliveries import NO_ANNOTATIONS, Deliveries
from warren.queue_index.quorum.ready_queues import QueuedMessage
from warren.queue_index.quorum.timed_messages import TimedMessages
from warren.storage.erlang_terms import Term

_DELIVERY_TIME: Final = b"x-opt-delivery-time"
_DEFERRAL_TOKEN: Final = b"x-opt-deferral-token"


class TimedDeliveries(Deliveries):
    """Messages and consumers, together."""

    messages: TimedMessages

    def finish(self, consumer: Consumer, msg_ids: Sequence[int]) -> None:
        answer_for(consumer, msg_ids)
        super().finish(consumer, msg_ids)

    def give_back(
        self,
        consumer: Consumer,
        msg_ids: Sequence[int],
        *,
        failed: bool,
        annotations: Mapping[Term, Term] = NO_ANNOTATIONS,
    ) -> None:
        answer_for(consumer, msg_ids)
        self.return_several(consumer, msg_ids, failed=failed, annotations=annotations)
        self.service.activate_next()
        self.checkout()

    def return_several(
        self,
        consumer: Consumer,
        msg_ids: Sequence[int],
        *,
        failed: bool,
        annotations: Mapping[Term, Term] = NO_ANNOTATIONS,
    ) -> None:
        """Those that it holds, in this order."""
        for msg_id in msg_ids:
            if msg_id in consumer.held:
                self._return(consumer, msg_id, failed, annotations)

    def return_one(self, consumer: Consumer, msg_id: int, *, failed: bool) -> None:
        self._return(consumer, msg_id, failed, NO_ANNOTATIONS)

    def _return(self, consumer: Consumer, msg_id: int, failed: bool, annotations: Mapping[Term, Term]) -> None:
        messages, again = self.messages, self.take_back(consumer, msg_id, failed=failed)
        if again is None:
            return
        consumer.deadlines.pop(msg_id, None)
        consumer.give_back(1)
        ready_ms = self._ready_ms(again, failed, annotations)
        if ready_ms is None:
            messages.give_back(again)
        else:
            token = annotations.get(_DEFERRAL_TOKEN)
            messages.give_back_later(again, ready_ms, token if isinstance(token, bytes) else None)
        self.service.refresh(consumer)

    def _ready_ms(self, message: QueuedMessage, failed: bool, annotations: Mapping[Term, Term]) -> int | None:
        """When it comes back; ``None``: at once."""
        now_ms, retry = self.messages.now_ms, self.messages.settings.delayed_retry
        asked = annotations.get(_DELIVERY_TIME)
        if type(asked) is int and asked > now_ms:
            return asked
        return None if retry is None else retry.ready_ms(now_ms, message.delivery_count, failed=failed)

    def requeue(self, consumer: Consumer, msg_id: int, index: int) -> None:
        consumer.deadlines.pop(msg_id, None)
        super().requeue(consumer, msg_id, index)

    def retry(self, limit: int | None) -> None:
        """Delayed messages come back before their time."""
        self.messages.come_back(self.messages.delayed.take_first(limit))
        self.checkout()

    def assign(self, consumer: Consumer | None, tokens: Sequence[bytes]) -> None:
        """Messages that it put aside, to a consumer; all of them or none. Without a checkout."""
        messages = self.messages
        if consumer is None or consumer.status != UP or messages.delayed.known(tokens) > consumer.credit:
            return
        taken = messages.delayed.take_tokens(tokens)
        if taken:
            messages.assign(taken, consumer)
            self.service.refresh(consumer)


def answer_for(consumer: Consumer, msg_ids: Sequence[int]) -> None:
    """A timed out consumer answers for what was taken from it; after the last of it, it is what it was."""
    if consumer.status != TIMED_OUT:
        return
    for msg_id in msg_ids:
        if msg_id in consumer.timed_out:
            consumer.timed_out.remove(msg_id)
    if not consumer.timed_out:
        consumer.status, consumer.inner = consumer.inner or UP, None
