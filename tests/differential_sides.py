"""The two sides of a differential run: a real RabbitMQ through pika, and a node in the test's hands.

Each does a program's steps and gives for each the outcome, and afterwards what can be seen: of every queue the ready
messages and the consumers, and what consumers were given since. Refusals are AMQP's numbers. An error there closes a
channel; so there every consumer, and every message that was got, has a channel of its own.

There things take time: :meth:`There.look` waits until what is seen is what is expected, and gives up after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import attrs
import pika  # type: ignore[import-untyped]
from pika import exceptions as refusals  # type: ignore[import-untyped]

from actors.engines.errors import NotFoundError, RefusedError
from actors.handing_over import PublishRefusedError, QueueDownError
from tests.broker import Broker
from tests.differential_program import OWNERS, SHORT_MS, WAIT_MS, Arguments, Step, named
from tests.runtime_tools import hand_node
from warren import Queue, UnroutableError, Vhost
from warren.consumer import Consumer, Delivery

Outcome = Any


class TooSlowError(RuntimeError):
    """Real time has passed that the program does not know of."""


Seen = Mapping[str, Any]


class Side(Protocol):
    """What runs programs."""

    def do(self, step: Step) -> Outcome: ...
    def close(self) -> None: ...


def shown(value: Any) -> Any:
    """Headers without times, tables in their order."""
    match value:
        case dict():
            return [(name, shown(inner)) for name, inner in value.items() if name != "time"]
        case list():
            return [shown(inner) for inner in value]
        case _:
            return value


# ── here ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class HereConsumer:
    """A consumer, and what it was given and has not settled."""

    owner: int
    queue: Queue
    consumer: Consumer
    no_ack: bool
    unsettled: list[Delivery] = attrs.Factory(list)


class Here:
    """A node in memory whose clock is moved by hand."""

    def __init__(self, prefix: str, time_scale: float = 1.0) -> None:
        self._prefix = prefix
        self._scale = time_scale
        self._hand = hand_node(seed=1)
        self._owners = [self._hand.node.vhost() for _ in range(OWNERS)]
        self._got: dict[int, tuple[int, Queue, Delivery]] = {}
        self._consumers: dict[int, HereConsumer] = {}
        self.queues: dict[str, int] = {}
        """Those that were ever declared, and by whom first."""

    def close(self) -> None:
        self._hand.node.close()

    def do(self, step: Step) -> Outcome:
        arguments = named(dict(step.arguments), self._prefix)
        try:
            outcome = getattr(self, f"_{step.verb}")(step.number, **arguments)
        except RefusedError as error:
            outcome = ("refused", error.reply_code)
        self._hand.run()
        return outcome

    def look(self) -> Seen:
        """What can be seen now."""
        self._hand.run()
        given: dict[int, list[Any]] = {}
        more = True
        while more:
            more = False
            for number, one in self._consumers.items():
                while (delivery := _taken(one.consumer)) is not None:
                    more = True
                    given.setdefault(number, []).append(_here(delivery))
                    if not one.no_ack:
                        one.unsettled.append(delivery)
            self._hand.run()
        cells = self._hand.node.actor.vhost("/").cells
        lengths: dict[str, Any] = {}
        for name in self.queues:
            if name in cells:
                stats = Queue(self._hand.node, cells[name]).stats()
                lengths[name] = (stats["messages_ready"], stats["consumers"])
            else:
                lengths[name] = None
        ended = sorted(number for number, one in self._consumers.items() if one.consumer.ended)
        return {"queues": lengths, "given": given, "ended": ended}

    def follow_up(self, step: Step) -> Step | None:
        """What both sides must do after a step before anything else.

        Where a single active consumer is cancelled, messages that waited behind those that it had are given to nobody
        there until something is requeued; whatever is published before makes the queue's process fail. So it gives all
        that it had back.
        """
        one = self._consumers.get(step.arguments["consumer"]) if step.verb == "cancel" else None
        if one is None or not one.unsettled or "x-single-active-consumer" not in one.queue.arguments:
            return None
        return Step(step.number, "settle", {**step.arguments, "index": -1, "outcome": "requeue", "multiple": True})

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _declare(self, _: int, owner: int, queue: str, **arguments: Any) -> Outcome:
        self._owners[owner].queue(queue, **arguments)
        if arguments["exclusive"] or queue not in self.queues:
            self.queues[queue] = owner
        return "ok"

    def _delete(self, _: int, owner: int, queue: str, if_unused: bool, if_empty: bool) -> Outcome:
        return self._owners[owner].delete_queue(queue, if_unused=if_unused, if_empty=if_empty)

    def _purge(self, _: int, owner: int, queue: str) -> Outcome:
        return self._owners[owner].queue(queue, passive=True).purge()

    def _declare_exchange(self, _: int, owner: int, exchange: str, **arguments: Any) -> Outcome:
        self._owners[owner].exchange(exchange, **arguments)
        return "ok"

    def _delete_exchange(self, _: int, owner: int, exchange: str, if_unused: bool) -> Outcome:
        self._owners[owner].delete_exchange(exchange, if_unused=if_unused)
        return "ok"

    def _bind(self, _: int, owner: int, **binding: Any) -> Outcome:
        return self._binding(owner, "bind", **binding)

    def _unbind(self, _: int, owner: int, **binding: Any) -> Outcome:
        return self._binding(owner, "unbind", **binding)

    def _binding(
        self, owner: int, verb: str, *, to_exchange: bool, destination: str, source: str, key: str, arguments: Arguments
    ) -> Outcome:
        vhost: Vhost = self._owners[owner]
        try:
            to = vhost.exchange(destination) if to_exchange else destination
        except NotFoundError:
            if verb == "bind":
                raise
            return "ok"  # what is not there has no binding; here there is no handle to speak of it
        getattr(vhost, verb)(to, source, key, arguments)
        return "ok"

    def _publish(self, _: int, owner: int, exchange: str, key: str, body: str, **properties: Any) -> Outcome:
        expiration_ms = properties.pop("expiration_ms")
        if expiration_ms is not None:
            properties["expiration"] = expiration_ms * self._scale / 1000
        confirm = self._owners[owner].exchange(exchange).publish(body.encode(), key, **properties)
        self._hand.run()
        match confirm.error if confirm.done else None:
            case None:
                return "ok"
            case PublishRefusedError():
                return "nacked"
            case UnroutableError():
                return "returned"
            case error:
                raise error

    def _get(self, number: int, owner: int, queue: str, auto_ack: bool) -> Outcome:
        handle = self._owners[owner].queue(queue, passive=True)
        delivery = handle.get(auto_ack=auto_ack)
        if delivery is None:
            return None
        if not auto_ack:
            self._got[number] = owner, handle, delivery
        return _here(delivery)

    def _settle_got(self, _: int, got: int, outcome: str) -> Outcome:
        found = self._got.pop(got, None)
        if found is not None:
            _settle(found[2], outcome)
        return None

    def _consume(self, number: int, owner: int, queue: str, no_ack: bool, **arguments: Any) -> Outcome:
        handle = self._owners[owner].queue(queue, passive=True)
        if no_ack:  # a prefetch means nothing there; here it is how many come in one go
            arguments["prefetch"] = 0
        consumer = handle.consume(tag=f"c{number}", auto_ack=no_ack, **arguments)
        self._consumers[number] = HereConsumer(owner, handle, consumer, no_ack)
        return "ok"

    def _settle(self, _: int, consumer: int, index: int, outcome: str, multiple: bool) -> Outcome:
        one = self._consumers.get(consumer)
        if one is None or not one.unsettled:
            return None
        at = min(index, len(one.unsettled) - 1)
        at = at if at >= 0 else len(one.unsettled) - 1
        _settle(one.unsettled[at], outcome, multiple=multiple)
        del one.unsettled[0 if multiple else at : at + 1]
        return None

    def _cancel(self, _: int, consumer: int) -> Outcome:
        one = self._consumers.get(consumer)
        if one is not None:
            one.consumer.cancel()
        return None

    def _close(self, _: int, consumer: int) -> Outcome:
        one = self._consumers.pop(consumer, None)
        if one is not None:
            one.consumer.close()
        return None

    def _release(self, number: int, owner: int) -> Outcome:
        for consumer in [consumer for consumer, one in self._consumers.items() if one.owner == owner]:
            self._close(number, consumer)
            self._hand.run()
        for got in [got for got, (its, *_) in self._got.items() if its == owner]:
            self._got.pop(got)[1].release()
            self._hand.run()
        self._owners[owner].release()
        self._owners[owner] = self._hand.node.vhost()
        return None

    def _wait(self, _: int) -> Outcome:
        for _ in range(16):
            self._hand.advance(WAIT_MS * self._scale / 16_000)
        return None


def _taken(consumer: Consumer) -> Delivery | None:
    with suppress(QueueDownError):  # it is deleted
        return consumer.take_now()
    return None


def _settle(delivery: Delivery, outcome: str, *, multiple: bool = False) -> None:
    with suppress(QueueDownError):  # it is deleted, and the message with it
        match outcome:
            case "ack":
                delivery.ack(multiple=multiple)
            case "requeue":
                delivery.nack(requeue=True, multiple=multiple)
            case _:
                delivery.nack(requeue=False, multiple=multiple)


def _here(delivery: Delivery) -> Outcome:
    properties = delivery.properties
    return {
        "body": delivery.body.decode()[:8],
        "size": len(delivery.body),
        "exchange": delivery.exchange,
        "key": delivery.routing_key,
        "redelivered": delivery.redelivered,
        "headers": shown(dict(properties.headers)) if properties.headers is not None else None,
        "priority": properties.priority,
        "expiration": properties.expiration,
        "delivery_mode": properties.delivery_mode,
    }


# ── there ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class ThereConsumer:
    """A consumer on a channel of its own."""

    owner: int
    channel: Any
    prefetch: int
    no_ack: bool
    ended: bool = False
    new: list[Any] = attrs.Factory(list)
    unsettled: list[int] = attrs.Factory(list)


class There:
    """A broker, through a connection for each owner."""

    def __init__(self, broker: Broker, prefix: str, time_scale: float = 1.0) -> None:
        self._broker = broker
        self._prefix = prefix
        self._scale = time_scale
        self._connections = [broker.connect() for _ in range(OWNERS)]
        self._channels: dict[int, Any] = {}
        self._got: dict[int, tuple[int, Any, int]] = {}
        self._consumers: dict[int, ThereConsumer] = {}
        self._exchanges: set[str] = set()
        self.queues: dict[str, int] = {}
        self.longest_s = 0.0
        """The longest time in which something short may have passed unnoticed."""
        self._since_s: float | None = None
        """When something short may have begun; ``None``: nothing has since the last wait."""
        self._short_queues = False
        self._dead_letters = False
        """Whether messages may be on their way between queues after a step has been answered."""

    def close(self) -> None:
        """Leave nothing behind."""
        for connection in self._connections:
            connection.close()
        with self._broker.channel() as channel:
            for queue in self.queues:
                channel.queue_delete(queue)
            for exchange in self._exchanges:
                channel.exchange_delete(exchange)

    def do(self, step: Step) -> Outcome:
        arguments = named(dict(step.arguments), self._prefix)
        self._note_times(arguments)
        try:
            return getattr(self, f"_{step.verb}")(step.number, **arguments)
        except refusals.ChannelClosedByBroker as error:
            return ("refused", error.reply_code)

    def _note_times(self, arguments: Arguments) -> None:
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
        """What can be seen, when it is what is expected, or after so long."""
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

    def _declare(self, _: int, owner: int, queue: str, **arguments: Any) -> Outcome:
        with self._channel(owner) as channel:
            channel.queue_declare(queue, **arguments)
        if arguments["exclusive"] or queue not in self.queues:
            self.queues[queue] = owner
        return "ok"

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

    def _bind(self, _: int, owner: int, **binding: Any) -> Outcome:
        return self._binding(owner, "bind", **binding)

    def _unbind(self, _: int, owner: int, **binding: Any) -> Outcome:
        return self._binding(owner, "unbind", **binding)

    def _binding(
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

    def _settle_got(self, _: int, got: int, outcome: str) -> Outcome:
        found = self._got.pop(got, None)
        if found is not None:
            _, channel, tag = found
            _settle_there(channel, tag, outcome)
            channel.close()
        return None

    def _consume(
        self, number: int, owner: int, queue: str, *, prefetch: int, no_ack: bool, exclusive: bool, priority: int
    ) -> Outcome:
        channel = self._connections[owner].channel()
        one = ThereConsumer(owner, channel, prefetch, no_ack)

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

    def _settle(self, _: int, consumer: int, index: int, outcome: str, multiple: bool) -> Outcome:
        one = self._consumers.get(consumer)
        if one is None or not one.unsettled:
            return None
        at = min(index, len(one.unsettled) - 1)
        at = at if at >= 0 else len(one.unsettled) - 1
        _settle_there(one.channel, one.unsettled[at], outcome, multiple=multiple)
        one.channel.basic_qos(prefetch_count=one.prefetch)  # its answer comes after the settling was seen to
        del one.unsettled[0 if multiple else at : at + 1]
        return None

    def _cancel(self, number: int, consumer: int) -> Outcome:
        one = self._consumers.get(consumer)
        if one is not None and not one.ended:
            one.channel.basic_cancel(f"c{consumer}")
            one.ended = True
        return None

    def _close(self, _: int, consumer: int) -> Outcome:
        one = self._consumers.pop(consumer, None)
        if one is not None and one.channel.is_open:
            one.channel.close()
        return None

    def _release(self, number: int, owner: int) -> Outcome:
        for consumer in [consumer for consumer, one in self._consumers.items() if one.owner == owner]:
            self._close(number, consumer)
        for got in [got for got, (its, *_) in self._got.items() if its == owner]:
            self._got.pop(got)[1].close()
        self._connections[owner].close()
        self._connections[owner] = self._broker.connect()
        self._channels.pop(owner, None)
        return None

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
    return {
        "body": body.decode()[:8],
        "size": len(body),
        "exchange": method.exchange,
        "key": method.routing_key,
        "redelivered": method.redelivered,
        "headers": shown(properties.headers),
        "priority": properties.priority,
        "expiration": properties.expiration,
        "delivery_mode": properties.delivery_mode,
    }
