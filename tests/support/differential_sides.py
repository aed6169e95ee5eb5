"""What both sides of a differential run are: a node in the test's hands, and a real RabbitMQ.

Each does a program's steps and gives for each the outcome, and afterwards what can be seen: of every queue the ready
messages and the consumers, and what consumers were given since. Refusals are AMQP's numbers.
:mod:`tests.support.differential_here` and :mod:`tests.support.differential_there` are the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from tests.support.differential_program import Arguments, Step, named

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

    def binding(self, owner: int, verb: str, **binding: Any) -> Outcome:
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
