"""Consumers that come and go, as 4.3 sees them: suspicion and time-out are passing states of what they were.

A process whose node is away keeps what its consumers hold, for a time (a timer's command ends it). What a consumer was
before (up, cancelled, quiescing) is its *inner* status; it is that again when its node is there, and when it has
answered for what was taken from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warren.queue_index.quorum.commands import AssignDeferred, ConsumerKey, ConsumerTimeout, NodeUp, Pid, RetryDelayed
from warren.queue_index.quorum.consumers import CANCELLED, SUSPECTED, TIMED_OUT, UP, Consumer
from warren.queue_index.quorum.membership import Membership
from warren.queue_index.quorum.timed_deliveries import TimedDeliveries, answer_for
from warren.storage.erlang_terms import node_of_pid


class TimedMembership(Membership):
    """Who is there."""

    deliveries: TimedDeliveries

    def _lose(self, pid: Pid) -> None:
        """Only this process; its consumers keep what they hold."""
        service = self.deliveries.service
        for consumer in service.consumers.of_pid(pid):
            suspect(consumer)
        self._mark_waiting(lambda consumer: consumer.pid == pid, suspect)

    def node_up(self, index: int, command: NodeUp) -> None:
        service, node = self.deliveries.service, command.node
        for consumer in service.consumers:
            if node_of_pid(consumer.pid) == node and consumer.status == SUSPECTED and consumer.inner is not None:
                clear(consumer)
                service.refresh(consumer)
        self._mark_waiting(lambda consumer: node_of_pid(consumer.pid) == node, clear)
        service.activate_next()
        self.deliveries.checkout()

    def _mark_waiting(self, is_meant: Callable[[Consumer], bool], mark: Callable[[Consumer], None]) -> None:
        """Cancelled ones wait no longer, whether they are meant or not."""
        service = self.deliveries.service
        service.waiting = [consumer for consumer in service.waiting if consumer.status != CANCELLED]
        for consumer in service.waiting:
            if is_meant(consumer):
                mark(consumer)
        service.rank_waiting()

    def time_out(self, index: int, command: ConsumerTimeout) -> None:
        """Messages were held for too long, or a consumer's node was away for too long."""
        if command.consumer is None:
            self._time_out_messages()
        else:
            self._time_out_consumer(command.consumer)

    def _time_out_consumer(self, key: ConsumerKey) -> None:
        """Without a checkout where it is not, or no longer, suspected."""
        service = self.deliveries.service
        consumer = service.consumers.find(key)
        if consumer is None or consumer.status != SUSPECTED or consumer.inner is None:
            return
        self.deliveries.return_all(consumer, failed=False)
        if service.single_active:
            if consumer.key in service.consumers.by_key and consumer.inner != CANCELLED:
                consumer.inner = UP
                service.waiting.append(consumer)
            service.consumers.remove(consumer)
            service.activate_next()
        self.deliveries.checkout()

    def _time_out_messages(self) -> None:
        service, now_ms = self.deliveries.service, self.deliveries.messages.now_ms
        for consumer in service.consumers:
            late = sorted(msg_id for msg_id, deadline in consumer.deadlines.items() if now_ms >= deadline)
            if late:
                consumer.timed_out = sorted(consumer.timed_out + late)
                if consumer.inner is None:
                    consumer.status, consumer.inner = TIMED_OUT, consumer.status
                self.deliveries.return_several(consumer, late, failed=False)
        if service.single_active:
            for consumer in service.consumers:
                if consumer.inner is not None and not consumer.held:
                    service.consumers.remove(consumer)
                    service.add_waiting(consumer)
        service.activate_next()
        self.deliveries.checkout()

    def retry(self, index: int, command: RetryDelayed) -> None:
        """Delayed messages come back before their time."""
        self.deliveries.retry(command.limit)

    def assign(self, index: int, command: AssignDeferred) -> None:
        """Without a checkout."""
        self.deliveries.assign(self.deliveries.service.consumers.by_key.get(command.consumer), command.tokens)

    def answer_waiting(self, key: ConsumerKey, msg_ids: Sequence[int]) -> None:
        """One that waits answers for what was taken from it. Without a checkout unless it was the last of it."""
        service = self.deliveries.service
        if not service.single_active:
            return
        consumer = next((one for one in service.waiting if key in (one.key, one.consumer_id)), None)
        if consumer is None or consumer.status != TIMED_OUT:
            return
        answer_for(consumer, msg_ids)
        service.add_waiting(consumer)
        if consumer.status != TIMED_OUT:
            service.activate_next()
            self.deliveries.checkout()


def suspect(consumer: Consumer) -> None:
    """Its node is away. The broker forgets what it was when it hears so twice."""
    if consumer.status == SUSPECTED:
        consumer.inner = None
    else:
        consumer.inner = consumer.status if consumer.inner is None else consumer.inner
        consumer.status = SUSPECTED


def clear(consumer: Consumer) -> None:
    """Its node is there."""
    if consumer.inner is not None and consumer.timed_out:
        consumer.status = TIMED_OUT
    else:
        consumer.status, consumer.inner = consumer.inner or UP, None
