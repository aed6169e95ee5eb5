"""The other side of a differential run: a real RabbitMQ through pika.

An error there closes a channel; so every consumer, and every message that was got, has a channel of its own.

Things take time: :meth:`There.look` waits until what is seen is what is expected, and gives up after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pika
from pika import exceptions as refusals

from tests.support.broker import Broker
from tests.support.differential_program import OWNERS, SHORT_MS, WAIT_MS, Arguments
from tests.support.differential_sides import Outcome, Seen, Side, SideConsumer, TooSlowError, delivered


@attrs.define
class ThereConsumer(SideConsumer):
    """A consumer on a channel of its own."""

    channel: Any
    prefetch: int
    ended: bool = False
    new: list[Any] = attrs.Factory(list)


class There(Side):
    """A broker, through a connection for each owner."""

    refusal = refusals.ChannelClosedByBroker

    def __init__(self, broker: Broker, prefix: str, time_scale: float = 1.0) -> None:
        super().__init__(prefix, time_scale)
        self._broker = broker
        self._connections = [broker.connect() for _ in range(OWNERS)]
        self._channels: dict[int, Any] = {}
        self._exchanges: set[str] = set()
        self.longest_s = 0.0
        """The longest time in which something short may have passed unnoticed."""
        self._since_s: float | None = None
        """When something short may have begun; ``None``: nothing has since the last wait."""
        self._short_queues = False
        self._dead_letters = False
        """Whether messages may be on their way between queues after a step has been answered."""

    def close(self) -> None:
        """Close the connections and delete queues and exchanges."""
        for connection in self._connections:
            connection.close()
        with self._broker.channel() as channel:
            for queue in self.queues:
                channel.queue_delete(queue)
            for exchange in self._exchanges:
                channel.exchange_delete(exchange)

    def before(self, arguments: Arguments) -> None:
        of_queue = arguments.get("arguments") or {}
        self._dead_letters |= "x-dead-letter-exchange" in of_queue
        short_ms = SHORT_MS * self._scale
        self._short_queues |= short_ms in (of_queue.get("x-message-ttl"), of_queue.get("x-expires"))
        if self._since_s is None and (self._short_queues or arguments.get("expiration_ms") == SHORT_MS):
            self._since_s = time.monotonic()

    def _note_time(self) -> None:
        if self._since_s is not None:
            self.longest_s = max(self.longest_s, time.monotonic() - self._since_s)
            if self.longest_s > 0.8 * SHORT_MS * self._scale / 1000:
                raise TooSlowError(f"{self.longest_s:.1f} s between two waits")

    def look(self, expected: Seen, patience_s: float) -> Seen:
        """Return what can be seen, once it is what is expected, or after ``patience_s``."""
        deadline_s = time.monotonic() + patience_s
        given: dict[int, list[Any]] = {}
        again = self._dead_letters
        while True:
            for connection in self._connections:
                connection.process_data_events(time_limit=0)
            for number, one in self._consumers.items():
                if one.new:
                    given.setdefault(number, []).extend(one.new)
                    one.new.clear()
            seen = {
                "queues": {name: self._length(name) for name in self.queues},
                "given": given,
                "ended": sorted(number for number, one in self._consumers.items() if one.ended),
            }
            if (seen == expected and not again) or time.monotonic() > deadline_s:
                self._note_time()
                return seen
            again = again and seen != expected

    def _length(self, queue: str) -> Any:
        for owner in (self.queues[queue], *range(OWNERS)):
            try:
                with self._channel(owner) as channel:
                    found = channel.queue_declare(queue, passive=True).method
                    return found.message_count, found.consumer_count
            except refusals.ChannelClosedByBroker as error:
                if error.reply_code == 404:
                    return None
        return "nobody's"

    @contextmanager
    def _channel(self, owner: int) -> Iterator[Any]:
        """An owner's channel for what needs none of its own; in confirm mode."""
        channel = self._channels.get(owner)
        if channel is None or not channel.is_open:
            channel = self._channels[owner] = self._connections[owner].channel()
            channel.confirm_delivery()
        yield channel

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────────────────────

    def declare(self, owner: int, queue: str, **arguments: Any) -> None:
        with self._channel(owner) as channel:
            channel.queue_declare(queue, **arguments)

    def _delete(self, _: int, owner: int, queue: str, if_unused: bool, if_empty: bool) -> Outcome:
        with self._channel(owner) as channel:
            return channel.queue_delete(queue, if_unused=if_unused, if_empty=if_empty).method.message_count

    def _purge(self, _: int, owner: int, queue: str) -> Outcome:
        with self._channel(owner) as channel:
            return channel.queue_purge(queue).method.message_count

    def _declare_exchange(self, _: int, owner: int, exchange: str, type: str, **arguments: Any) -> Outcome:
        self._exchanges.add(exchange)
        with self._channel(owner) as channel:
            channel.exchange_declare(exchange, type, **arguments)
        return "ok"

    def _delete_exchange(self, _: int, owner: int, exchange: str, if_unused: bool) -> Outcome:
        with self._channel(owner) as channel:
            channel.exchange_delete(exchange, if_unused=if_unused)
        return "ok"

    def binding(
        self, owner: int, verb: str, *, to_exchange: bool, destination: str, source: str, key: str, arguments: Arguments
    ) -> Outcome:
        with self._channel(owner) as channel:
            kind = "exchange" if to_exchange else "queue"
            call: Callable[..., Any] = getattr(channel, f"{kind}_{verb}")
            call(destination, source, key, arguments=arguments)
        return "ok"

    def _publish(self, _: int, owner: int, exchange: str, key: str, body: str, **properties: Any) -> Outcome:
        mandatory, expiration_ms = properties.pop("mandatory"), properties.pop("expiration_ms")
        chosen = pika.BasicProperties(
            headers=properties["headers"],
            priority=properties["priority"],
            expiration=None if expiration_ms is None else str(round(expiration_ms * self._scale)),
            delivery_mode=2 if properties["persistent"] else 1,
        )
        try:
            with self._channel(owner) as channel:
                channel.basic_publish(exchange, key, body.encode(), chosen, mandatory=mandatory)
        except refusals.NackError:
            return "nacked"
        except refusals.UnroutableError:
            return "returned"
        return "ok"

    def _get(self, number: int, owner: int, queue: str, auto_ack: bool) -> Outcome:
        channel = self._connections[owner].channel()
        method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
        if method is None or auto_ack:
            channel.close()
        else:
            self._got[number] = owner, channel, method.delivery_tag
        return None if method is None else _there(method, properties, body)

    def settle_got(self, where: Any, what: int, outcome: str) -> None:
        _settle_there(where, what, outcome)
        where.close()

    def _consume(
        self, number: int, owner: int, queue: str, *, prefetch: int, no_ack: bool, exclusive: bool, priority: int
    ) -> Outcome:
        channel = self._connections[owner].channel()
        one = ThereConsumer(owner, no_ack, channel, prefetch)

        def take(_: Any, method: Any, properties: Any, body: bytes) -> None:
            one.new.append(_there(method, properties, body))
            if not no_ack:
                one.unsettled.append(method.delivery_tag)

        def end(_: Any) -> None:
            one.ended = True

        channel.add_on_cancel_callback(end)
        channel.basic_qos(prefetch_count=prefetch)
        arguments = {"x-priority": priority} if priority else None
        channel.basic_consume(
            queue, take, auto_ack=no_ack, exclusive=exclusive, consumer_tag=f"c{number}", arguments=arguments
        )
        self._consumers[number] = one
        return "ok"

    def settle_one(self, one: ThereConsumer, what: int, outcome: str, multiple: bool) -> None:
        _settle_there(one.channel, what, outcome, multiple=multiple)
        one.channel.basic_qos(prefetch_count=one.prefetch)  # its answer comes after the settling was seen to

    def _cancel(self, number: int, consumer: int) -> Outcome:
        one = self._consumers.get(consumer)
        if one is not None and not one.ended:
            one.channel.basic_cancel(f"c{consumer}")
            one.ended = True
        return None

    def close_consumer(self, one: ThereConsumer) -> None:
        if one.channel.is_open:
            one.channel.close()

    def release_got(self, where: Any) -> None:
        where.close()

    def release_owner(self, owner: int) -> None:
        self._connections[owner].close()
        self._connections[owner] = self._broker.connect()
        self._channels.pop(owner, None)

    def _wait(self, _: int) -> Outcome:
        self._note_time()
        if self._since_s is not None:
            time.sleep(WAIT_MS * self._scale / 1000)
            self._since_s = None
        return None


def _settle_there(channel: Any, tag: int, outcome: str, *, multiple: bool = False) -> None:
    if outcome == "ack":
        channel.basic_ack(tag, multiple=multiple)
    else:
        channel.basic_nack(tag, multiple=multiple, requeue=outcome == "requeue")


def _there(method: Any, properties: Any, body: bytes) -> Outcome:
    return delivered(body, method, method.routing_key, properties)
