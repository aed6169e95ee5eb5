"""Consumers that come and go: checkouts, basic.get, cancels, processes and nodes that are away, credit.

A cancelled consumer keeps what it holds; it goes when it has finished. A process that is gone loses all: what its
consumers held returns, consumer by consumer in the order of their keys. A node that is away may come back: until then
nothing is handed out to its consumers, and what they held returns. Both count as failed deliveries.

In 4.3 suspicion and time-out are temporary, and the status before is kept. If a process's node is away, its consumers
keep their messages for a time (a timer's command ends it).

A publisher of the queue numbers its messages from 1. A message that it sends again, because no confirm came, has an old
number. One that overtook a lost message has a number that is too high, and is sent again after that message. Neither is
accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from warren.salvage.quorum.fifo.commands import (
    Cancel,
    Checkout,
    ConsumerKey,
    ConsumerTimeout,
    Credit,
    Down,
    NodeUp,
    Pid,
    PurgeNodes,
)
from warren.salvage.quorum.fifo.consumers import CANCELLED, SUSPECTED, TIMED_OUT, UP, Consumer
from warren.salvage.quorum.fifo.deliveries import Deliveries
from warren.salvage.quorum.fifo.rules import DEFAULT_TIMEOUT_MS
from warren.storage.erlang_terms import node_of_pid


@attrs.define(eq=False, repr=False)
class Publishers:
    """The next number of each process."""

    following: dict[Pid, int] = attrs.Factory(dict)
    _holes: int = 0
    _checked: dict[Pid, int] = attrs.Factory(dict)
    """How many holes there were when a number of this process was seen; it may jump if there are more now."""

    def takes(self, pid: Pid, seq: int | None) -> bool:
        """Whether the number is the expected one; if so, expect the next one."""
        following = self.following.get(pid)
        if following is None:
            self.following[pid] = following = 1
        may_jump = self._checked.get(pid, 0) < self._holes
        if seq != following and (seq is None or seq < following or not may_jump):
            return False
        self.following[pid] = seq + 1
        if self._holes:
            self._checked[pid] = self._holes
        return True

    def register(self, pid: Pid) -> None:
        """Add a publisher, unless it is known."""
        if pid not in self.following:
            self.following[pid] = 1
            self._checked[pid] = self._holes

    def forget(self, pid: Pid) -> None:
        self.following.pop(pid, None)
        self._checked.pop(pid, None)

    def after_hole(self) -> None:
        """Entries are missing: the next number of each publisher, known or not, may be any that is not too low."""
        self._holes += 1

    def check_invariants(self) -> None:
        """Raises :class:`RuntimeError` if an invariant does not hold."""
        if any(seq < 1 for seq in self.following.values()) or not self._checked.keys() <= self.following.keys():
            raise RuntimeError("a publisher's sequence number is not sound")


@attrs.define(eq=False, repr=False)
class Membership:
    """The consumers that join and leave.

    Most methods apply a command (``index``: of its entry). They end with a checkout unless their docstrings say
    otherwise.
    """

    deliveries: Deliveries
    publishers: Publishers

    def checkout(self, index: int, command: Checkout) -> None:
        """Add a consumer, or change the settings of an existing one; or do a basic.get."""
        if command.lifetime == "get":
            self._get(command)
            return
        service, rules = self.deliveries.service, self.deliveries.rules
        key: ConsumerKey = command.consumer
        if rules.has_keys:
            consumer_key = service.key_of(command.consumer)
            key = consumer_key if consumer_key is not None else index if command.keyed else command.consumer
        self._join(self._consumer(key, command))
        service.activate_next()
        self.deliveries.checkout()

    def _consumer(self, key: ConsumerKey, command: Checkout) -> Consumer:
        tag, pid = command.consumer
        rules = self.deliveries.rules
        credited = command.credit_mode == "credited"
        return Consumer(
            key=key,
            tag=tag,
            pid=pid,
            once=command.lifetime != "auto",
            credited=credited,
            cap=command.credit if rules.caps_prefetch and not credited else None,
            priority=command.priority,
            credit=0 if credited and rules.has_keys else command.credit,
            delivery_count=command.delivery_count if credited and command.keyed else 0,
            serial=rules.has_timeouts or (credited and command.keyed),
            prefetch=command.prefetch,
            timeout_ms=DEFAULT_TIMEOUT_MS if command.timeout_ms is None else command.timeout_ms,
        )

    def _join(self, new: Consumer) -> None:
        service = self.deliveries.service
        existing = service.consumers.by_key.get(new.key)
        if service.single_active:
            active = service.active()
            if active is not None and (active.key != new.key or active.status != UP):
                existing = None  # cancelled, or about to go: it waits like any other
            if existing is None:
                service.add_waiting(new)
                return
        if existing is None:
            service.attach(new)
            return
        existing.take_on(new)
        existing.status, existing.inner = UP, None
        existing.credit = max(0, new.credit - len(existing.held))
        service.refresh(existing)

    def _get(self, command: Checkout) -> None:
        """basic.get: a consumer of one message. Without a checkout, unless the message is settled at once."""
        deliveries, service = self.deliveries, self.deliveries.service
        if service.single_active or not len(deliveries.messages) or service.consumers.find(command.consumer):
            return
        consumer = self._consumer(command.consumer, command._replace(credit=1, credit_mode="simple_prefetch"))
        service.attach(consumer)
        served = deliveries.serve_one()
        if served is None:  # all that was ready had expired
            service.consumers.remove(consumer)
        elif command.settled:
            deliveries.complete(consumer, [served])
            deliveries.checkout()
        deliveries.messages.apply_limits()

    def cancel(self, index: int, command: Cancel) -> None:
        """From 4.0 on, without a checkout if there is no such consumer."""
        service, has_keys = self.deliveries.service, self.deliveries.rules.has_keys
        key: ConsumerKey = command.consumer
        if has_keys:
            consumer_key = service.key_of(command.consumer)
            if consumer_key is None:
                return
            key = consumer_key
        consumer = service.consumers.by_key.get(key)
        if consumer is None:
            service.take_waiting(key)
        elif command.removes:
            self._remove(consumer, failed=False)
        else:
            consumer.once, consumer.credit = True, 0
            consumer.status, consumer.inner = CANCELLED, None
            service.refresh(consumer)
        self.deliveries.activate_if(has_keys or consumer is not None)
        self.deliveries.checkout()

    def down(self, index: int, command: Down) -> None:
        """A process is gone, or the node that it is on is away."""
        if command.reason == "noconnection":
            self._lose(command.pid)
        else:
            self._forget(command.pid)
            self.deliveries.activate_if(self.deliveries.rules.has_keys)
        self.deliveries.checkout()

    def _forget(self, pid: Pid) -> None:
        self.publishers.forget(pid)
        deliveries, service = self.deliveries, self.deliveries.service
        if service.single_active:
            service.forget_waiting(pid)
        for consumer in service.consumers.of_pid(pid):
            self._remove(consumer, failed=True)
            deliveries.activate_if(not deliveries.rules.has_keys)

    def _remove(self, consumer: Consumer, *, failed: bool) -> None:
        """Return its messages, and remove it."""
        self.deliveries.return_all(consumer, failed=failed)
        self.deliveries.service.consumers.remove(consumer)

    def _lose(self, pid: Pid) -> None:
        """Mark all processes of its node as away; from 4.3 on this one alone, and it keeps its messages."""
        service, node = self.deliveries.service, node_of_pid(pid)
        if self.deliveries.rules.has_timeouts:
            for consumer in service.consumers.of_pid(pid):
                consumer.suspect()
            service.mark_waiting(lambda consumer: consumer.pid == pid, Consumer.suspect)
            return
        away = [consumer for consumer in service.consumers if node_of_pid(consumer.pid) == node]
        if not service.single_active:
            for consumer in away:
                if consumer.status == UP:
                    consumer.status = SUSPECTED
                    self._lose_consumer(consumer)
            return
        last = None
        for consumer in away:
            self._lose_consumer(consumer)
            last = consumer if consumer.key in service.consumers.by_key else None
            service.consumers.remove(consumer)
        if last is not None:  # of several only the last one waits, as in the broker
            service.waiting.append(last)
        service.mark_waiting(lambda consumer: node_of_pid(consumer.pid) == node, _is_suspected)
        service.activate_next()

    def _lose_consumer(self, consumer: Consumer) -> None:
        if not self.deliveries.rules.credits_each_return:
            consumer.give_back(len(consumer.held))
        self.deliveries.return_all(consumer, failed=True)

    def node_up(self, index: int, command: NodeUp) -> None:
        service, has_timeouts = self.deliveries.service, self.deliveries.rules.has_timeouts

        def is_there(consumer: Consumer) -> bool:
            return node_of_pid(consumer.pid) == command.node

        mark = Consumer.clear if has_timeouts else _is_up
        for consumer in filter(is_there, service.consumers):
            is_back = consumer.status == SUSPECTED and consumer.inner is not None
            if is_back if has_timeouts else consumer.status != CANCELLED:
                mark(consumer)
                service.refresh(consumer)
        service.mark_waiting(is_there, mark)
        service.activate_next()
        self.deliveries.checkout()

    def purge_nodes(self, index: int, command: PurgeNodes) -> None:
        """Nodes left the cluster, and their processes are gone. Without a checkout."""
        service = self.deliveries.service
        self.deliveries.unserved = True
        for node in command.nodes:
            pids = [consumer.pid for consumer in service.consumers] + sorted(self.publishers.following)
            pids += [consumer.pid for consumer in service.waiting]
            for pid in reversed(pids):
                if node_of_pid(pid) == node:
                    self._forget(pid)

    def credit(self, index: int, command: Credit) -> None:
        """Without a checkout for a waiting consumer, which up to 3.13 moves to the front."""
        service = self.deliveries.service
        consumer = service.consumers.by_key.get(command.consumer)
        if consumer is not None:
            consumer.grant(command.credit, command.delivery_count)
            service.enqueue(consumer)
            self.deliveries.checkout()
            if command.drain:
                consumer.drain()
            return
        consumer = service.take_waiting(command.consumer)
        if consumer is not None:
            consumer.grant(command.credit, command.delivery_count)
            if command.drain and (consumer.serial or self.deliveries.rules.has_timeouts):
                consumer.drain()
            service.add_waiting(consumer, first=True)

    def time_out(self, index: int, command: ConsumerTimeout) -> None:
        """Messages were held for too long, or a consumer's node was away for too long."""
        if command.consumer is None:
            self._time_out_messages()
        else:
            self._time_out_consumer(command.consumer)

    def _time_out_consumer(self, key: ConsumerKey) -> None:
        """Without a checkout if it is not, or no longer, suspected."""
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

    def answer_waiting(self, key: ConsumerKey, msg_ids: Sequence[int]) -> None:
        """A waiting consumer settles what was taken from it. Without a checkout unless that was the last of it."""
        service = self.deliveries.service
        if not service.single_active:
            return
        consumer = next(
            (candidate for candidate in service.waiting if key in (candidate.key, candidate.consumer_id)), None
        )
        if consumer is None or consumer.status != TIMED_OUT:
            return
        consumer.answer_for(msg_ids)
        service.add_waiting(consumer)
        if consumer.status != TIMED_OUT:
            service.activate_next()
            self.deliveries.checkout()


def _is_suspected(consumer: Consumer) -> None:
    consumer.status = SUSPECTED


def _is_up(consumer: Consumer) -> None:
    consumer.status = UP
