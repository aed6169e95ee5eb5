"""What both sides of a differential run are: a node in the test's hands, and a real RabbitMQ.

Each does a program's steps and gives for each the outcome, and afterwards what can be seen: of every queue the ready
messages and the consumers, and what consumers were given since. Refusals are AMQP's numbers.
:class:`Here` is the node, in memory, its clock moved by hand; :mod:`tests.support.differential_there` is the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import attrs

from tests.support.differential_program import OWNERS, WAIT_MS, Arguments, Step, named
from tests.support.runtime_tools import hand_node
from warren import Queue, Vhost
from warren.actors.engines.errors import NotFoundError, RefusedError
from warren.actors.queue.intake import PublishRefusedError, QueueDownError
from warren.errors import UnroutableError
from warren.handles.consumer import Consumer, Delivery

Outcome = Any
Seen = Mapping[str, Any]


class TooSlowError(RuntimeError):
    """Real time has passed that the program does not know of."""


@attrs.define
class SideConsumer:
    """A consumer, and what it was given and has not settled."""

    owner: int
    no_ack: bool
    unsettled: list[Any] = attrs.field(factory=list, kw_only=True)


class Side:
    """What runs programs."""

    refusal: ClassVar[type[Exception]]
    """The error with AMQP's number in it."""

    def __init__(self, prefix: str, time_scale: float) -> None:
        self._prefix = prefix
        self._scale = time_scale
        self._got: dict[int, tuple[int, Any, Any]] = {}
        """Messages that were got, by the step: owner, where, and what settles them."""
        self._consumers: dict[int, Any] = {}
        self.queues: dict[str, int] = {}
        """Those that were ever declared, and by whom first."""

    def do(self, step: Step) -> Outcome:
        arguments = named(dict(step.arguments), self._prefix)
        self.before(arguments)
        try:
            outcome = getattr(self, f"_{step.verb}")(step.number, **arguments)
        except self.refusal as error:
            outcome = ("refused", error.reply_code)  # type: ignore[attr-defined]
        self.come_to_rest()
        return outcome

    # ── what a side does in its own way ─────────────────────────────────────────────────────────────────────────

    def before(self, arguments: Arguments) -> None:
        """A step with these arguments is done next."""

    def come_to_rest(self) -> None:
        """Everything that a step set off is to happen now."""

    def close(self) -> None:
        raise NotImplementedError

    def declare(self, owner: int, queue: str, **arguments: Any) -> None:
        raise NotImplementedError

    def binding(
        self, owner: int, verb: str, *, to_exchange: bool, destination: str, source: str, key: str, arguments: Arguments
    ) -> Outcome:
        raise NotImplementedError

    def settle_got(self, where: Any, what: Any, outcome: str) -> None:
        raise NotImplementedError

    def settle_one(self, one: Any, what: Any, outcome: str, multiple: bool) -> None:
        raise NotImplementedError

    def close_consumer(self, one: Any) -> None:
        raise NotImplementedError

    def release_got(self, where: Any) -> None:
        raise NotImplementedError

    def release_owner(self, owner: int) -> None:
        raise NotImplementedError

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _declare(self, _: int, owner: int, queue: str, **arguments: Any) -> Outcome:
        self.declare(owner, queue, **arguments)
        if arguments["exclusive"] or queue not in self.queues:
            self.queues[queue] = owner
        return "ok"

    def _bind(self, _: int, owner: int, **binding: Any) -> Outcome:
        return self.binding(owner, "bind", **binding)

    def _unbind(self, _: int, owner: int, **binding: Any) -> Outcome:
        return self.binding(owner, "unbind", **binding)

    def _settle_got(self, _: int, got: int, outcome: str) -> Outcome:
        found = self._got.pop(got, None)
        if found is not None:
            self.settle_got(found[1], found[2], outcome)
        return None

    def _settle(self, _: int, consumer: int, index: int, outcome: str, multiple: bool) -> Outcome:
        one = self._consumers.get(consumer)
        if one is None or not one.unsettled:
            return None
        at = min(index, len(one.unsettled) - 1)
        at = at if at >= 0 else len(one.unsettled) - 1
        self.settle_one(one, one.unsettled[at], outcome, multiple)
        del one.unsettled[0 if multiple else at : at + 1]
        return None

    def _close(self, _: int, consumer: int) -> Outcome:
        one = self._consumers.pop(consumer, None)
        if one is not None:
            self.close_consumer(one)
        return None

    def _release(self, number: int, owner: int) -> Outcome:
        for consumer in [consumer for consumer, one in self._consumers.items() if one.owner == owner]:
            self._close(number, consumer)
            self.come_to_rest()
        for got in [got for got, (its, *_) in self._got.items() if its == owner]:
            self.release_got(self._got.pop(got)[1])
            self.come_to_rest()
        self.release_owner(owner)
        return None


def delivered(body: bytes, routed: Any, key: str, properties: Any) -> Outcome:
    """What a delivery says; ``routed`` has the exchange and the redelivered flag."""
    return {
        "body": body.decode()[:8],
        "size": len(body),
        "exchange": routed.exchange,
        "key": key,
        "redelivered": routed.redelivered,
        "headers": without_times(dict(properties.headers)) if properties.headers is not None else None,
        "priority": properties.priority,
        "expiration": properties.expiration,
        "delivery_mode": properties.delivery_mode,
    }


def without_times(value: Any) -> Any:
    """Headers without times, tables in their order."""
    match value:
        case dict():
            return [(name, without_times(inner)) for name, inner in value.items() if name != "time"]
        case list():
            return [without_times(inner) for inner in value]
        case _:
            return value


@attrs.define
class HereConsumer(SideConsumer):
    """A consumer, and what it was given and has not settled."""

    queue: Queue
    consumer: Consumer


class Here(Side):
    """A node in memory whose clock is moved by hand."""

    refusal = RefusedError

    def __init__(self, prefix: str, time_scale: float = 1.0) -> None:
        super().__init__(prefix, time_scale)
        self._hand = hand_node(seed=1)
        self._owners = [self._hand.node.vhost() for _ in range(OWNERS)]

    def close(self) -> None:
        self._hand.node.close()

    def come_to_rest(self) -> None:
        self._hand.run()

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
        there = {queue.name: queue for queue in self._hand.node.queues()}
        lengths: dict[str, Any] = dict.fromkeys(self.queues)
        for name in there.keys() & self.queues.keys():
            stats = there[name].stats()
            lengths[name] = (stats["messages_ready"], stats["consumers"])
        ended = sorted(number for number, one in self._consumers.items() if one.consumer.ended)
        return {"queues": lengths, "given": given, "ended": ended}

    def follow_up(self, step: Step) -> Step | None:
        """What both sides must do after a step before anything else.

        When a single active consumer is cancelled, messages that waited after its unacked ones are delivered to no
        consumer there until something is requeued; anything published before that makes the queue's process fail. So
        the consumer gives all that it had back.
        """
        one = self._consumers.get(step.arguments["consumer"]) if step.verb == "cancel" else None
        if one is None or not one.unsettled or "x-single-active-consumer" not in one.queue.arguments:
            return None
        return Step(step.number, "settle", {**step.arguments, "index": -1, "outcome": "requeue", "multiple": True})

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────────────────────

    def declare(self, owner: int, queue: str, **arguments: Any) -> None:
        self._owners[owner].queue(queue, **arguments)

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

    def binding(
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

    def settle_got(self, where: Queue, what: Delivery, outcome: str) -> None:
        _settle(what, outcome)

    def _consume(self, number: int, owner: int, queue: str, no_ack: bool, **arguments: Any) -> Outcome:
        handle = self._owners[owner].queue(queue, passive=True)
        if no_ack:  # a prefetch means nothing there; here it is how many come in one go
            arguments["prefetch"] = 0
        consumer = handle.consume(tag=f"c{number}", auto_ack=no_ack, **arguments)
        self._consumers[number] = HereConsumer(owner, no_ack, handle, consumer)
        return "ok"

    def settle_one(self, one: HereConsumer, what: Delivery, outcome: str, multiple: bool) -> None:
        _settle(what, outcome, multiple=multiple)

    def _cancel(self, _: int, consumer: int) -> Outcome:
        one = self._consumers.get(consumer)
        if one is not None:
            one.consumer.cancel()
        return None

    def close_consumer(self, one: HereConsumer) -> None:
        one.consumer.close()

    def release_got(self, where: Queue) -> None:
        where.release()

    def release_owner(self, owner: int) -> None:
        self._owners[owner].release()
        self._owners[owner] = self._hand.node.vhost()

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
    return delivered(delivery.body, delivery, delivery.routing_key, delivery.properties)
