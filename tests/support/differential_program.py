"""Random programs of AMQP's verbs, the same for the same seed, and how a failing one is made shorter.

A *program* is a list of steps; a *step* is a verb with arguments. Owners are numbers: a connection there, a
:class:`warren.Vhost` here. Names begin with ``@``, which each run replaces by a prefix of its own, so that programs do
not meet. What a step makes (a consumer, a message that was got) is known by the step's number; a step that speaks of
something that is not there does nothing, so any part of a program is one.

Time stands in a program as ``SHORT_MS`` and ``FAR_MS``: a step ``wait`` lets all that is short pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from warren.queue_index.message.amqp_tables import LongInteger

OWNERS: Final = 3
SHORT_MS: Final = 1_000
"""A time to live that a ``wait`` outlives, and nothing else."""
WAIT_MS: Final = 1_600
FAR_MS: Final = 3_600_000

Arguments = Mapping[str, Any]


@attrs.frozen
class Step:
    """One verb. ``number``: what it makes is known by it."""

    number: int
    verb: str
    arguments: Arguments

    def __str__(self) -> str:
        return (
            f"{self.number:3} {self.verb}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"
        )


Program = tuple[Step, ...]

TYPES: Final = ("direct", "fanout", "headers", "topic")
KEYS: Final = ("a", "b", "a.b", "a.c", "b.c.d", "")
PATTERNS: Final = ("a", "b", "*", "#", "a.*", "*.b", "a.#", "#.d", "*.*", "")
_HEADERS: Final[tuple[Mapping[str, Any], ...]] = ({}, {"h": 1}, {"h": "x"}, {"h": 1, "i": True}, {"i": False})


class Author:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.queues = [f"@q{number}" for number in range(self.rng.choice((1, 2, 3, 4)))]
        self.exchanges = [f"@x{number}" for number in range(self.rng.choice((0, 1, 2, 3)))]
        self.prioritizes = self.rng.random() < 0.4
        """Whether queues may have priorities, and no message a time to live of its own: see :meth:`_publish`."""
        self.lazy = self.rng.random() < 0.15
        """Whether queues may be lazy, and no message has a time to live: what ``x-death`` tells of it is undecided."""
        self.steps: list[Step] = []
        self.consumers: list[int] = []
        self.gets: list[int] = []

    def write(self) -> Program:
        """Declarations first, then anything."""
        rng = self.rng
        for exchange in self.exchanges:
            self._add("declare_exchange", **self._exchange(exchange))
        for queue in self.queues:
            self._add("declare", **self._queue(queue))
        for _ in range(2 * len(self.exchanges)):
            self._bind()
        verbs = list(self._verbs().items())
        for _ in range(rng.randrange(10, 45)):
            [(write, _)] = rng.choices(verbs, [weight for _, weight in verbs])
            write()
        return tuple(self.steps)

    def _verbs(self) -> Mapping[Callable[[], None], int]:
        return {
            self._publish: 30,
            self._get: 10,
            self._settle_got: 8,
            self._consume: 8,
            self._settle: 24,
            self._cancel: 3,
            self._close: 2,
            self._wait: 2,
            self._declare_again: 3,
            self._delete: 2,
            self._purge: 1,
            self._bind: 2,
            self._unbind: 1,
            self._delete_exchange: 1,
            self._declare_exchange_again: 1,
            self._release: 1,
        }

    def _add(self, verb: str, **arguments: Any) -> int:
        number = len(self.steps)
        self.steps.append(Step(number, verb, arguments))
        return number

    # ── what is declared ────────────────────────────────────────────────────────────────────────────────────────

    def _queue(self, name: str) -> dict[str, Any]:
        rng = self.rng
        exclusive = rng.random() < 0.12
        return {
            "owner": rng.randrange(OWNERS),
            "queue": name,
            "durable": rng.random() < 0.8,
            "exclusive": exclusive,
            "auto_delete": rng.random() < 0.12,
            "arguments": self._queue_arguments(),
        }

    def _queue_arguments(self) -> dict[str, Any]:
        rng = self.rng
        arguments: dict[str, Any] = {}
        by_priority = 0.4 if self.prioritizes else 0
        chances: list[tuple[float, str, Callable[[], Any]]] = [
            (0.2, "x-message-ttl", lambda: rng.choice((0, SHORT_MS, SHORT_MS, FAR_MS))),
            (0.05, "x-expires", lambda: rng.choice((SHORT_MS, FAR_MS))),
            (0.25, "x-max-length", lambda: rng.randrange(5)),
            (0.1, "x-max-length-bytes", lambda: rng.choice((0, 2, 5, 20))),
            (0.3, "x-overflow", lambda: rng.choice(("drop-head", "reject-publish", "reject-publish-dlx"))),
            (0.55, "x-dead-letter-exchange", self._any_exchange),
            (by_priority, "x-max-priority", lambda: rng.choice((1, 3, 10))),
            (0.2, "x-single-active-consumer", lambda: True),
            (0.5 if self.lazy else 0, "x-queue-mode", lambda: rng.choice(("lazy", "default"))),
        ]
        for chance, name, value in chances:
            if rng.random() < chance:
                arguments[name] = value()
        if "x-dead-letter-exchange" in arguments and rng.random() < 0.7:
            arguments["x-dead-letter-routing-key"] = self._key(arguments["x-dead-letter-exchange"])
        return arguments

    def _exchange(self, name: str) -> dict[str, Any]:
        rng = self.rng
        arguments = {"alternate-exchange": self._any_exchange()} if rng.random() < 0.2 else {}
        return {
            "owner": rng.randrange(OWNERS),
            "exchange": name,
            "type": rng.choice(TYPES),
            "durable": rng.random() < 0.7,
            "auto_delete": rng.random() < 0.15,
            "internal": rng.random() < 0.08,
            "arguments": arguments,
        }

    def _any_exchange(self) -> str:
        rng = self.rng
        return rng.choice((*self.exchanges, "", "")) if rng.random() < 0.95 else "@nowhere"

    def _any_queue(self) -> str:
        return self.rng.choice(self.queues) if self.rng.random() < 0.97 else "@nowhere"

    def _key(self, exchange: str) -> str:
        return self._any_queue() if not exchange else self.rng.choice(KEYS)

    def _binding(self) -> dict[str, Any]:
        rng = self.rng
        source = rng.choice(self.exchanges) if self.exchanges and rng.random() < 0.97 else self._any_exchange()
        to_exchange = bool(self.exchanges) and rng.random() < 0.2
        arguments = dict(rng.choice(_HEADERS))
        if rng.random() < 0.4:
            arguments["x-match"] = rng.choice(("all", "any"))
        return {
            "owner": rng.randrange(OWNERS),
            "to_exchange": to_exchange,
            "destination": self._any_exchange() if to_exchange else self._any_queue(),
            "source": source,
            "key": rng.choice(PATTERNS),
            "arguments": arguments,
        }

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _bind(self) -> None:
        self._add("bind", **self._binding())

    def _unbind(self) -> None:
        bound = [step for step in self.steps if step.verb == "bind"]
        if bound:
            self._add("unbind", **{**self.rng.choice(bound).arguments, "owner": self.rng.randrange(OWNERS)})

    def _publish(self) -> None:
        # A message that overtakes others by its priority and expires before them is only noticed there on a look.
        rng = self.rng
        exchange = self._any_exchange()
        expirations: tuple[int | None, ...] = (None, None, None, None, 0, SHORT_MS, FAR_MS)
        if self.prioritizes or self.lazy:
            expirations = (None,) if self.lazy else (None, FAR_MS)
        headers = dict(rng.choice(_HEADERS))
        for name in ("CC", "BCC"):
            if rng.random() < 0.06:
                headers[name] = [self._key(exchange) for _ in range(rng.choice((1, 2)))]
        number = len(self.steps)
        self._add(
            "publish",
            owner=rng.randrange(OWNERS),
            exchange=exchange,
            key=self._key(exchange),
            body=f"m{number}" + "." * rng.choice((0, 0, 0, 5, 5_000)),
            headers=headers or None,
            priority=rng.choice((None, None, 0, 1, 2, 9)),
            expiration_ms=rng.choice(expirations),
            persistent=rng.random() < 0.5,
            mandatory=rng.random() < 0.2,
        )

    def _get(self) -> None:
        number = self._add(
            "get", owner=self.rng.randrange(OWNERS), queue=self._any_queue(), auto_ack=self.rng.random() < 0.2
        )
        self.gets.append(number)

    def _settle_got(self) -> None:
        if self.gets:
            got = self.gets.pop(self.rng.randrange(len(self.gets)))
            self._add("settle_got", got=got, outcome=self._outcome())

    def _outcome(self) -> str:
        return self.rng.choice(("ack", "ack", "requeue", "requeue", "reject"))

    def _consume(self) -> None:
        rng = self.rng
        number = self._add(
            "consume",
            owner=rng.randrange(OWNERS),
            queue=self._any_queue(),
            prefetch=rng.choice((0, 1, 1, 2, 3)),
            no_ack=rng.random() < 0.12,
            exclusive=rng.random() < 0.08,
            priority=rng.choice((0, 0, 0, 0, 1, 5)),
        )
        self.consumers.append(number)

    def _settle(self) -> None:
        if self.consumers:
            self._add(
                "settle",
                consumer=self.rng.choice(self.consumers),
                index=self.rng.choice((0, 0, 1, -1)),
                outcome=self._outcome(),
                multiple=self.rng.random() < 0.2,
            )

    def _cancel(self) -> None:
        if self.consumers:
            self._add("cancel", consumer=self.rng.choice(self.consumers))

    def _close(self) -> None:
        if self.consumers:
            self._add("close", consumer=self.rng.choice(self.consumers))

    def _wait(self) -> None:
        if sum(step.verb == "wait" for step in self.steps) < 2:
            self._add("wait")

    def _declare_again(self) -> None:
        declared = [step for step in self.steps if step.verb == "declare"]
        again = self.rng.choice(declared)
        if self.rng.random() < 0.7:
            self._add("declare", **{**again.arguments, "owner": self.rng.randrange(OWNERS)})
        else:
            self._add("declare", **self._queue(again.arguments["queue"]))

    def _declare_exchange_again(self) -> None:
        declared = [step for step in self.steps if step.verb == "declare_exchange"]
        if declared:
            again = self.rng.choice(declared)
            if self.rng.random() < 0.7:
                self._add("declare_exchange", **{**again.arguments, "owner": self.rng.randrange(OWNERS)})
            else:
                self._add("declare_exchange", **self._exchange(again.arguments["exchange"]))

    def _delete(self) -> None:
        rng = self.rng
        self._add(
            "delete",
            owner=rng.randrange(OWNERS),
            queue=self._any_queue(),
            if_unused=rng.random() < 0.3,
            if_empty=rng.random() < 0.3,
        )

    def _delete_exchange(self) -> None:
        if self.exchanges:
            rng = self.rng
            self._add(
                "delete_exchange",
                owner=rng.randrange(OWNERS),
                exchange=rng.choice(self.exchanges),
                if_unused=rng.random() < 0.5,
            )

    def _purge(self) -> None:
        self._add("purge", owner=self.rng.randrange(OWNERS), queue=self._any_queue())

    def _release(self) -> None:
        self._add("release", owner=self.rng.randrange(OWNERS))


def program_of(seed: int) -> Program:
    """The program of a seed."""
    return Author(seed).write()


def named(value: Any, prefix: str) -> Any:
    """The same with ``prefix`` where names have ``@``."""
    match value:
        case str():
            return value.replace("@", prefix)
        case dict():
            return {name: named(one, prefix) for name, one in value.items()}
        case list():
            return [named(one, prefix) for one in value]
        case _:
            return value


def shortened(program: Program, differs: Callable[[Program], bool]) -> Program:
    """A part of ``program`` that differs as well, and from which no step can be left out."""
    size = max(len(program) // 2, 1)
    while True:
        at = 0
        while at < len(program):
            shorter = program[:at] + program[at + size :]
            if shorter and differs(shorter):
                program = shorter
            else:
                at += size
        if size == 1:
            return program
        size = max(size // 2, 1)


REPLY_TO: Final = "amq.rabbitmq.reply-to"

PREDECLARED: Final = ("amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic")
HEADERS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"h": 1},
    {"h": "x"},
    {"h": 1, "i": True},
    {"i": False},
    {"h": None},
    {"x-h": 1, "h": 1.5},
    {"h": LongInteger(1), "i": [1, "two", {"three": 3}]},
    {"h": b"\xff\0"},
)
MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")
NUMBERS: Final = ("x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority")
WRONG_NUMBERS: Final[tuple[Any, ...]] = (-1, "10", 1.5, None, True, 1 << 40, 0, 256, {}, [])
WRONG: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(NUMBERS, WRONG_NUMBERS),
    "x-overflow": ("drop-tail", 1, ""),
    "x-queue-mode": ("eager", 5),
    "x-dead-letter-exchange": (5, None, ["@x0"]),
    "x-dead-letter-routing-key": (5, "a"),
    "x-dead-letter-strategy": ("at-most-once", "sometimes"),
    "x-single-active-consumer": ("true", 1),
    "x-queue-type": ("classic", 1),
    "x-queue-master-locator": ("client-local",),
    "x-max-in-memory-length": (1, -1),
    "x-max-in-memory-bytes": (1,),
    "x-quorum-initial-group-size": (1,),
    "x-max-age": ("1h",),
    "x-stream-max-segment-size-bytes": (1000,),
    "x-queue-version": (3, "1", 1),
    "x-unknown": (1, "two", None),
}
NAMES: Final = (
    "amq.",
    "amq.own",
    "with\nnewline",
    "\N{LATIN SMALL LETTER U WITH DIAERESIS}",
    "x" * 255,
    "amq.gen-own",
)
EXPIRATIONS: Final = ("", "abc", "-1", "1.5", "12abc", "4294967296", " 1", f"+{FAR_MS}", "\N{ARABIC-INDIC DIGIT ONE}")
CONTENT: Final[Mapping[str, tuple[Any, ...]]] = {
    "content_type": ("text/plain", ""),
    "content_encoding": ("utf-8",),
    "correlation_id": ("c1",),
    "message_id": ("m1",),
    "timestamp": (0, 1_700_000_000),
    "type": ("t",),
    "app_id": ("a",),
    "cluster_id": ("k",),
    "user_id": ("guest",),
    "reply_to": ("@q0", REPLY_TO),
}
