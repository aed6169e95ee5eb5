"""Messages on their way between the queue and its consumers: handed out, settled, returned, sent away.

What every command ends with is the *checkout*: what has expired goes at the head, ready messages go to consumers whose
turn it is as long as there are both, then what is over the queue's limits goes at the head.

In 4.3 a return may wait: as the queue's settings say, or until the time that the consumer writes into the message's
annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from warren.salvage.quorum.fifo.consumers import UP, Consumer
from warren.salvage.quorum.fifo.messages import Messages
from warren.salvage.quorum.fifo.ready_queues import QueuedMessage
from warren.salvage.quorum.fifo.rules import Rules
from warren.salvage.quorum.fifo.service import Service
from warren.storage.erlang_terms import Term

NO_ANNOTATIONS: Final[Mapping[Term, Term]] = {}
_DELIVERY_TIME: Final = b"x-opt-delivery-time"
_DEFERRAL_TOKEN: Final = b"x-opt-deferral-token"


class Deliveries:
    """Messages and consumers, together."""

    def __init__(self, messages: Messages, service: Service, rules: Rules) -> None:
        self.messages = messages
        self.service = service
        self.rules = rules
        self.unserved = False
        """Whether messages may wait although it is a consumer's turn: after a command without the checkout it needs."""

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
        """The head goes to the consumer whose turn it is; the number under which it is out, ``None``: nothing goes."""
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
        """Settled, or discarded."""
        consumer.answer_for(msg_ids)
        self.complete(consumer, msg_ids)
        self.activate_if(self.rules.has_keys)
        self.checkout()

    def complete(self, consumer: Consumer, msg_ids: Sequence[int]) -> None:
        """They are gone."""
        done, finish = 0, self.messages.finish
        for msg_id in msg_ids:
            done += finish(consumer, msg_id)
        if done or len(msg_ids) != 1 or self.rules.has_timeouts:
            consumer.give_back(done)
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
        """Returned by the consumer; ``failed``: which counts as a failed delivery. Annotations are 4.3's business."""
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
        """Those that it holds, in this order; how many."""
        returned = 0
        for msg_id in msg_ids:
            if msg_id in consumer.held:
                self._return(consumer, msg_id, failed, annotations)
                returned += 1
        return returned

    def return_all(self, consumer: Consumer, *, failed: bool) -> None:
        self.return_several(consumer, list(consumer.held), failed=failed)

    def _return(self, consumer: Consumer, msg_id: int, failed: bool, annotations: Mapping[Term, Term]) -> None:
        """To the end of the returns, or, past the limit, away; without credit for the former in version 2."""
        again = self.take_back(consumer, msg_id, failed=failed)
        if again is None:
            return
        if self.rules.credits_each_return:
            consumer.give_back(1)
        ready_ms = self._ready_ms(again, failed, annotations) if self.rules.has_timeouts else None
        if ready_ms is None:
            self.messages.give_back(again)
        else:
            token = annotations.get(_DEFERRAL_TOKEN)
            self.messages.give_back_later(again, ready_ms, token if isinstance(token, bytes) else None)
        if self.rules.has_timeouts:
            self.service.refresh(consumer)

    def _ready_ms(self, message: QueuedMessage, failed: bool, annotations: Mapping[Term, Term]) -> int | None:
        """When it comes back; ``None``: at once."""
        now_ms, retry = self.messages.now_ms, self.messages.settings.delayed_retry
        asked = annotations.get(_DELIVERY_TIME)
        if type(asked) is int and asked > now_ms:
            return asked
        return None if retry is None else retry.ready_ms(now_ms, message.delivery_count, failed=failed)

    def take_back(self, consumer: Consumer, msg_id: int, *, failed: bool) -> QueuedMessage | None:
        """What a consumer holds, counted once more, from it; ``None``: it went away, past the limit."""
        messages = self.messages
        index, size, expiry_ms, delivery_count, acquired_count = consumer.held[msg_id]
        again = QueuedMessage(index, size, expiry_ms, delivery_count + failed, acquired_count + 1)
        if messages.is_past_limit(again):
            messages.send_away(again)
            self.complete(consumer, [msg_id])
            return None
        del consumer.held[msg_id]
        consumer.deadlines.pop(msg_id, None)
        return again

    def requeue(self, consumer: Consumer, msg_id: int, index: int) -> None:
        """The message is in the log again, and comes last, under its new index."""
        message = consumer.held.pop(msg_id, None)
        if message is None:
            return
        consumer.deadlines.pop(msg_id, None)
        failed = not self.rules.has_keys
        again = QueuedMessage(
            index, message.size, message.expiry_ms, message.delivery_count + failed, message.acquired_count + 1
        )
        self.messages.requeue(again)
        consumer.give_back(1)
        self.service.refresh(consumer)
        self.activate_if(self.rules.activates_after_return)
        self.checkout()

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

    def activate_if(self, does: bool) -> None:
        """With a single active consumer, the next one."""
        if does and self.service.single_active:
            self.service.activate_next()
