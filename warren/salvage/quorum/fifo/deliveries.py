"""Messages on their way between the queue and its consumers: handed out, settled, returned, sent away.

Every command ends with the *checkout*: expired messages are removed at the head, ready messages are delivered to
consumers in turn as long as there are both, then messages over the queue's limits are removed at the head.

In 4.3 a returned message may be delayed: by the queue's settings, or until the time that the consumer writes into its
annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from warren.salvage.quorum.fifo.commands import AssignDeferred, RetryDelayed
from warren.salvage.quorum.fifo.consumers import UP, Consumer
from warren.salvage.quorum.fifo.messages import Messages
from warren.salvage.quorum.fifo.ready_queues import QueuedMessage
from warren.salvage.quorum.fifo.rules import Rules
from warren.salvage.quorum.fifo.service import Service
from warren.storage.erlang_terms import Term

NO_ANNOTATIONS: Final[Mapping[Term, Term]] = {}
_DELIVERY_TIME: Final = b"x-opt-delivery-time"
_DEFERRAL_TOKEN: Final = b"x-opt-deferral-token"


@attrs.define(eq=False, repr=False)
class Deliveries:
    """Messages and consumers, together."""

    messages: Messages
    service: Service
    unserved: bool = False
    """Whether messages may wait although it is a consumer's turn: after a command without the checkout it needs."""

    @property
    def rules(self) -> Rules:
        return self.messages.rules

    def checkout(self) -> None:
        while self.serve_one() is not None:
            pass
        self.unserved = False
        messages = self.messages
        if messages.settings.dead_lettering == "at_least_once":
            messages.dead_letters.hand_out()
        if messages.settings.has_limits:
            messages.apply_limits()

    def serve_one(self) -> int | None:
        """Deliver the head to the consumer whose turn it is; return its msg_id, or ``None`` without a delivery."""
        message = self.messages.head()
        service = self.service
        queue, by_key = service.queue, service.consumers.by_key
        while (key := queue.first()) is not None:
            consumer = by_key.get(key)
            if consumer is None:
                queue.drop_first()
            elif message is None:
                return None
            else:
                queue.drop_first()
                if consumer.credit and consumer.status == UP:
                    self.messages.hand_out(message, consumer)
                    service.enqueue(consumer)
                    return consumer.next_msg_id - 1
        return None

    def finish(self, consumer: Consumer, msg_ids: Sequence[int]) -> None:
        """Finish messages that were settled or discarded."""
        consumer.answer_for(msg_ids)
        self.complete(consumer, msg_ids)
        self.activate_if(self.rules.has_keys)
        self.checkout()

    def complete(self, consumer: Consumer, msg_ids: Sequence[int]) -> None:
        """Remove messages that a consumer has finished, and give their credit back."""
        finished, finish = 0, self.messages.finish
        for msg_id in msg_ids:
            finished += finish(consumer, msg_id)
        if finished or len(msg_ids) != 1 or self.rules.has_timeouts:
            consumer.give_back(finished)
            self.service.refresh(consumer)

    def discard(self, consumer: Consumer, msg_ids: Sequence[int]) -> None:
        for msg_id in dict.fromkeys(msg_ids):
            message = consumer.held.get(msg_id)
            if message is not None:
                self.messages.to_dead_letters("rejected", message)
        self.finish(consumer, msg_ids)

    def give_back(
        self,
        consumer: Consumer,
        msg_ids: Sequence[int],
        *,
        failed: bool,
        annotations: Mapping[Term, Term] = NO_ANNOTATIONS,
    ) -> None:
        """Return messages; ``failed``: whether that is a failed delivery. Annotations have an effect only in 4.3."""
        rules = self.rules
        consumer.answer_for(msg_ids)
        ordered = msg_ids if rules.has_keys else sorted(set(msg_ids))
        returned = self.return_several(consumer, ordered, failed=failed, annotations=annotations)
        if not rules.has_timeouts and consumer.key in self.service.consumers.by_key:
            if not rules.credits_each_return:
                consumer.give_back(returned)
            self.service.refresh(consumer)
        self.activate_if(rules.activates_after_return)
        self.checkout()

    def return_several(
        self,
        consumer: Consumer,
        msg_ids: Sequence[int],
        *,
        failed: bool,
        annotations: Mapping[Term, Term] = NO_ANNOTATIONS,
    ) -> int:
        """Return those that the consumer holds, in this order; return their number."""
        returned = 0
        for msg_id in msg_ids:
            if msg_id in consumer.held:
                self._return(consumer, msg_id, failed, annotations)
                returned += 1
        return returned

    def return_all(self, consumer: Consumer, *, failed: bool) -> None:
        self.return_several(consumer, list(consumer.held), failed=failed)

    def _return(self, consumer: Consumer, msg_id: int, failed: bool, annotations: Mapping[Term, Term]) -> None:
        """Append it to the returns, or send it away past the limit; version 2 gives no credit for the former."""
        returned = self.take_back(consumer, msg_id, failed=failed)
        if returned is None:
            return
        if self.rules.credits_each_return:
            consumer.give_back(1)
        if not self.rules.has_timeouts:
            self.messages.give_back(returned)
            return
        self._return_in_time(returned, failed, annotations)
        self.service.refresh(consumer)

    def _return_in_time(self, message: QueuedMessage, failed: bool, annotations: Mapping[Term, Term]) -> None:
        """Append it to the returns, or delay it: until its annotated time, or by the queue's settings."""
        messages, token = self.messages, annotations.get(_DEFERRAL_TOKEN)
        now_ms, retry, ready_ms = messages.now_ms, messages.settings.delayed_retry, annotations.get(_DELIVERY_TIME)
        if type(ready_ms) is not int or ready_ms <= now_ms:
            ready_ms = None if retry is None else retry.ready_ms(now_ms, message.delivery_count, failed=failed)
            token = None if self.rules.has_delivery_times else token
        if ready_ms is None:
            messages.give_back(message)
        else:
            messages.give_back_later(message, ready_ms, token if isinstance(token, bytes) else None)

    def take_back(self, consumer: Consumer, msg_id: int, *, failed: bool) -> QueuedMessage | None:
        """Take a message from a consumer and count its delivery; ``None`` if it is past the limit and sent away."""
        messages = self.messages
        returned = consumer.held[msg_id].returned(failed=failed)
        if messages.is_past_limit(returned):
            messages.send_away(returned)
            self.complete(consumer, [msg_id])
            return None
        del consumer.held[msg_id]
        consumer.deadlines.pop(msg_id, None)
        return returned

    def requeue(self, consumer: Consumer, msg_id: int, index: int) -> None:
        """Append a message that was written to the log again, under its new index."""
        message = consumer.held.pop(msg_id, None)
        if message is None:
            return
        consumer.deadlines.pop(msg_id, None)
        self.messages.requeue(message.returned(failed=not self.rules.has_keys)._replace(index=index))
        consumer.give_back(1)
        self.service.refresh(consumer)
        self.activate_if(self.rules.activates_after_return)
        self.checkout()

    def retry(self, index: int, command: RetryDelayed) -> None:
        """Return delayed messages before their time."""
        self.messages.returns.extend(self.messages.delayed.take_first(command.limit))
        self.checkout()

    def assign(self, index: int, command: AssignDeferred) -> None:
        """Deliver messages that a consumer put aside to it, all of them or none. Without a checkout."""
        messages, tokens = self.messages, command.tokens
        consumer = self.service.consumers.by_key.get(command.consumer)
        if consumer is None or consumer.status != UP or messages.delayed.count_named(tokens) > consumer.credit:
            return
        taken = messages.delayed.take_tokens(tokens)
        if taken:
            messages.assign(taken, consumer)
            self.service.refresh(consumer)

    def activate_if(self, does: bool) -> None:
        """If ``does``, activate the next single active consumer."""
        if does and self.service.single_active:
            self.service.activate_next()
