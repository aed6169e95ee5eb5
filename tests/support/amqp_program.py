"""Random programs of AMQP 0-9-1 itself, as its clients may write them: every method, right and wrong.

A *program* is a list of steps, the same for the same seed. A *step*'s verb is a method's name, with its arguments and
the connection and channel it is sent on; ``publish`` has content too. Beside the methods there are ``pipeline``
(several steps in one write), ``drop`` (the socket is closed without a word) and ``wait``. Names begin with ``@``,
which each run replaces by a prefix of its own, so that programs do not meet. What only the server knows stands in
braces: ``{queue 7}`` is the name that step 7 was answered with, ``{tag 9}`` a consumer's; ``{reply}`` is the address
for direct replies that was seen last. ``delivery`` chooses among what a channel has got and not settled. A step that
speaks of what is not there does nothing, so any part of a program is one.

Time stands in a program as ``SHORT_MS`` and ``FAR_MS``: a step ``wait`` lets all that is short pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from warren.queue_index.message.amqp_tables import LongInteger

SHORT_MS: Final = 1_000
"""A time to live that a ``wait`` outlives, and nothing else."""
WAIT_MS: Final = 1_600
FAR_MS: Final = 3_600_000

Arguments = dict[str, Any]


@attrs.frozen
class Step:
    """One verb. ``number``: what it makes is known by it."""

    number: int
    verb: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return (
            f"{self.number:3} {self.verb}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"
        )


Program = tuple[Step, ...]

TYPES: Final = ("direct", "fanout", "headers", "topic")
KEYS: Final = ("a", "b", "a.b", "a.c", "b.c.d", "")
PATTERNS: Final = ("a", "b", "*", "#", "a.*", "*.b", "a.#", "#.d", "*.*", "")
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


class Author:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"amqp {seed}")
        rng = self.rng
        self.connections = rng.choice((1, 2, 2, 3))
        self.channels = rng.choice((1, 2, 3))
        self.queues = [f"@q{number}" for number in range(rng.choice((1, 2, 3, 4)))]
        self.exchanges = [f"@x{number}" for number in range(rng.choice((0, 1, 2, 3)))]
        self.errors = rng.choice((0.0, 0.02, 0.02, 0.08))
        """How often something is wrong that need not be."""
        self.nowait = rng.choice((0.0, 0.05, 0.3))
        self.confirms = rng.random() < 0.6
        self.prioritizes = rng.random() < 0.3
        """Whether queues may have priorities, and no message a time to live of its own."""
        self.lazy = not self.prioritizes and rng.random() < 0.15
        """Whether queues may be lazy, and no message has a time to live."""
        self.times: tuple[int, ...] = (0, FAR_MS)
        """Times to live; all but the first are also times that a queue may be unused."""
        self.expiring = 0.1
        """How many messages have a time to live of their own."""
        self.steps: list[Step] = []
        self.tags: list[str] = []
        self.named: list[str] = []

    def write(self) -> Program:
        """Declarations first, then anything."""
        rng = self.rng
        self.write_first()
        for exchange in self.exchanges:
            self._add("exchange.declare", **self._exchange(exchange))
        for queue in self.queues:
            self._add("queue.declare", **self._queue(queue))
        for _ in range(2 * len(self.exchanges)):
            self._bind()
        if self.confirms:
            self._add("confirm.select", nowait=self._nowait())
        writers = list(self._writers().items())
        for _ in range(rng.randrange(10, 50)):
            [(write, _)] = rng.choices(writers, [weight for _, weight in writers])
            write()
        return tuple(self.steps)

    def write_first(self) -> None:
        """What comes before all declarations."""

    def _writers(self) -> Mapping[Callable[[], None], float]:
        return {
            self._publish: 26,
            self._pipeline: 5,
            self._get: 10,
            self._consume: 10,
            self._settle: 24,
            self._settle_wrongly: 0.5,
            self._cancel: 2.5,
            self._qos: 2,
            self._recover: 1.5,
            self._confirm: 0.6,
            self._tx: 2.5,
            self._flow: 0.3,
            self._declare: 3,
            self._declare_server_named: 1.5,
            self._declare_passively: 1.5,
            self._declare_exchange: 2,
            self._bind: 2.5,
            self._unbind: 1,
            self._purge: 1,
            self._delete: 2,
            self._delete_exchange: 1,
            self._reply_directly: 1.5,
            self._open: 0.15,
            self._close: 1.2,
            self._close_connection: 0.5,
            self._drop: 0.3,
        }

    def _add(self, verb: str, **arguments: Any) -> int:
        number = len(self.steps)
        where = {"connection": self.rng.randrange(self.connections), "channel": 1 + self.rng.randrange(self.channels)}
        self.steps.append(Step(number, verb, where | arguments))
        return number

    def _wrong(self, times: float = 1.0) -> bool:
        return self.rng.random() < self.errors * times

    def _nowait(self) -> bool:
        return self.rng.random() < self.nowait

    # ── names ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _any_queue(self) -> str:
        rng = self.rng
        if self._wrong():
            return rng.choice(("@nowhere", "@nowhere", "", *NAMES))
        return rng.choice((*self.queues, *self.queues, *self.named[-2:]))

    def _any_exchange(self) -> str:
        rng = self.rng
        if self._wrong():
            return rng.choice(("@nowhere", "amq.nowhere", *NAMES))
        return rng.choice(PREDECLARED) if rng.random() < 0.1 else rng.choice((*self.exchanges, ""))

    def _own_exchange(self) -> str:
        if self._wrong():
            return self._any_exchange()
        return self.rng.choice(self.exchanges or PREDECLARED)

    def _key(self, exchange: str) -> str:
        return self.rng.choice(KEYS) if exchange else self._any_queue()

    # ── what is declared ────────────────────────────────────────────────────────────────────────────────────────

    def _queue(self, name: str) -> Arguments:
        rng = self.rng
        return {
            "queue": name,
            "durable": rng.random() < 0.6,
            "exclusive": rng.random() < 0.12,
            "auto_delete": rng.random() < 0.15,
            "nowait": self._nowait(),
            "arguments": self._queue_arguments(),
        }

    def _queue_arguments(self) -> Arguments:
        rng = self.rng
        arguments: Arguments = {}
        chances: list[tuple[float, str, Callable[[], Any]]] = [
            (0.12, "x-message-ttl", lambda: rng.choice(self.times)),
            (0.05, "x-expires", lambda: rng.choice(self.times[1:])),
            (0.2, "x-max-length", lambda: rng.randrange(5)),
            (0.1, "x-max-length-bytes", lambda: rng.choice((0, 2, 5, 20))),
            (0.3, "x-overflow", lambda: rng.choice(("drop-head", "reject-publish", "reject-publish-dlx"))),
            (0.3, "x-dead-letter-exchange", self._any_exchange),
            (0.4 if self.prioritizes else 0, "x-max-priority", lambda: rng.choice((1, 3, 10))),
            (0.12, "x-single-active-consumer", lambda: rng.random() < 0.9),
            (0.5 if self.lazy else 0, "x-queue-mode", lambda: rng.choice(("lazy", "default"))),
        ]
        for chance, name, value in chances:
            if rng.random() < chance:
                arguments[name] = value()
        if "x-dead-letter-exchange" in arguments and rng.random() < 0.6:
            arguments["x-dead-letter-routing-key"] = self._key(arguments["x-dead-letter-exchange"])
        if self._wrong(2):
            name = rng.choice(tuple(WRONG))
            arguments[name] = rng.choice(WRONG[name])
        return arguments

    def _exchange(self, name: str) -> Arguments:
        rng = self.rng
        arguments: Arguments = {"alternate-exchange": self._any_exchange()} if rng.random() < 0.2 else {}
        if self._wrong():
            arguments["alternate-exchange"] = rng.choice((5, None, "amq.fanout"))
        if self._wrong():
            arguments["x-unknown"] = 1
        return {
            "exchange": name,
            "exchange_type": "bogus" if self._wrong() else rng.choice(TYPES),
            "durable": rng.random() < 0.7,
            "auto_delete": rng.random() < 0.15,
            "internal": rng.random() < 0.08,
            "nowait": self._nowait(),
            "arguments": arguments,
        }

    def _declare(self) -> None:
        declared = [step for step in self.steps if step.verb == "queue.declare" and not step.arguments.get("passive")]
        again = self.rng.choice(declared).arguments
        again = {name: value for name, value in again.items() if name not in ("connection", "channel")}
        if self.rng.random() < 0.3:
            again |= {self.rng.choice(("durable", "exclusive", "auto_delete")): self.rng.random() < 0.5}
        elif self.rng.random() < 0.4:
            again = self._queue(self._any_queue())
        self._add("queue.declare", **again)

    def _declare_server_named(self) -> None:
        number = self._add("queue.declare", **self._queue("") | {"nowait": False})
        self.named.append(f"{{queue {number}}}")

    def _declare_passively(self) -> None:
        if self.rng.random() < 0.6:
            self._add("queue.declare", queue=self._any_queue(), passive=True, nowait=self._nowait())
        else:
            exchange = self._any_exchange()
            self._add(
                "exchange.declare", exchange=exchange, exchange_type="direct", passive=True, nowait=self._nowait()
            )

    def _declare_exchange(self) -> None:
        declared = [step for step in self.steps if step.verb == "exchange.declare" and not step.arguments["nowait"]]
        if declared and self.rng.random() < 0.6:
            again = self.rng.choice(declared).arguments
            self._add("exchange.declare", **{**again, "connection": self.rng.randrange(self.connections)})
        else:
            self._add("exchange.declare", **self._exchange(self._own_exchange()))

    def _bind(self) -> None:
        rng = self.rng
        arguments = dict(rng.choice(HEADERS))
        if rng.random() < 0.4:
            arguments["x-match"] = rng.choice(MATCHES) if not self._wrong(2) else rng.choice(("some", 5, ""))
        key = rng.choice(PATTERNS)
        if self.exchanges and rng.random() < 0.2:
            ends = {"destination": self._any_exchange(), "source": self._own_exchange()}
            self._add("exchange.bind", **ends, routing_key=key, nowait=self._nowait(), arguments=arguments)
        else:
            ends = {"queue": self._any_queue(), "exchange": self._own_exchange()}
            self._add("queue.bind", **ends, routing_key=key, nowait=self._nowait(), arguments=arguments)

    def _unbind(self) -> None:
        bound = [step for step in self.steps if step.verb in ("queue.bind", "exchange.bind")]
        if bound:
            step = self.rng.choice(bound)
            names = ("queue", "exchange", "destination", "source", "routing_key", "arguments")
            again = {name: value for name, value in step.arguments.items() if name in names}
            if self._wrong():
                again["routing_key"] = "other"
            self._add(step.verb.replace("bind", "unbind"), **again)

    def _purge(self) -> None:
        self._add("queue.purge", queue=self._any_queue(), nowait=self._nowait())

    def _delete(self) -> None:
        rng = self.rng
        conditions = {"if_unused": rng.random() < 0.3, "if_empty": rng.random() < 0.3}
        self._add("queue.delete", queue=self._any_queue(), **conditions, nowait=self._nowait())

    def _delete_exchange(self) -> None:
        if_unused = self.rng.random() < 0.5
        self._add("exchange.delete", exchange=self._own_exchange(), if_unused=if_unused, nowait=self._nowait())

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    def _message(self, number: int) -> Arguments:
        rng = self.rng
        exchange = self._any_exchange()
        headers = dict(rng.choice(HEADERS))
        for name in ("CC", "BCC"):
            if rng.random() < 0.05:
                headers[name] = [self._key(exchange) for _ in range(rng.choice((1, 2)))]
                if self._wrong(3):
                    headers[name] = rng.choice(("a", 5, [5], None))
        properties: Arguments = {"headers": headers} if headers or rng.random() < 0.1 else {}
        if not self.prioritizes and not self.lazy and rng.random() < self.expiring:
            properties["expiration"] = str(rng.choice(self.times))
        if self._wrong():
            properties["expiration"] = rng.choice(EXPIRATIONS)
        if rng.random() < 0.4:
            properties["delivery_mode"] = rng.choice((1, 2, 2))
        if self.prioritizes and rng.random() < 0.5:
            properties["priority"] = rng.choice((0, 1, 2, 9, 255))
        if rng.random() < 0.1:
            name = rng.choice(tuple(CONTENT))
            properties[name] = rng.choice(CONTENT[name])
        if self._wrong():
            properties["user_id"] = rng.choice(("nobody", ""))
        return {
            "exchange": exchange,
            "routing_key": self._key(exchange),
            "mandatory": rng.random() < 0.25,
            "immediate": self._wrong(0.2),
            "properties": properties,
            "body": f"m{number}" + "." * rng.choice((0, 0, 0, 0, 5, 5_000, 140_000)),
            "count": rng.choice((1, 1, 1, 1, 2, 3, 10)),
        }

    def _publish(self) -> None:
        self._add("basic.publish", **self._message(len(self.steps)))

    def _publish_by_name(self) -> None:
        message = self._message(len(self.steps))
        self._add("basic.publish", **message | {"exchange": "", "routing_key": self._any_queue()})

    def _pipeline(self) -> None:
        """Several steps in one write on one channel. None closes it: what it is given before is a matter of luck."""
        at, errors, self.errors = len(self.steps), self.errors, 0.0
        write = self.rng.choice((self._publish_by_name, self._settle))
        for _ in range(self.rng.choice((2, 3, 5))):
            write()
        self.errors = errors
        inner, self.steps[at:] = self.steps[at:], []
        if inner:
            where = {name: inner[0].arguments[name] for name in ("connection", "channel")}
            steps = [{"verb": step.verb, **step.arguments, **where} for step in inner]
            self._add("pipeline", steps=steps, **where)

    def _get(self) -> None:
        self._add("basic.get", queue=self._any_queue(), no_ack=self.rng.random() < 0.2)

    def _consume(self) -> None:
        rng = self.rng
        number = len(self.steps)
        tag = rng.choice((f"@c{number}", f"@c{number}", "")) if not self._wrong() else "@again"
        arguments: Arguments = {}
        if rng.random() < 0.2:
            arguments["x-priority"] = rng.choice((1, 5, -3)) if not self._wrong(3) else rng.choice(("high", 1.5, None))
        if self._wrong():
            arguments["x-cancel-on-ha-failover"] = rng.choice((True, "yes"))
        self._add(
            "basic.consume",
            queue=self._any_queue(),
            consumer_tag=tag,
            no_local=rng.random() < 0.1,
            no_ack=rng.random() < 0.2,
            exclusive=rng.random() < 0.08,
            nowait=bool(tag) and self._nowait(),
            arguments=arguments,
        )
        self.tags.append(tag or f"{{tag {number}}}")

    def _cancel(self) -> None:
        if self.tags:
            tag = self.rng.choice(self.tags) if not self._wrong() else "@nobody"
            self._add("basic.cancel", consumer_tag=tag, nowait=self._nowait())

    def _qos(self) -> None:
        rng = self.rng
        size = rng.choice((1, 100)) if self._wrong() else 0
        count = rng.choice((0, 1, 1, 2, 3, 10))
        self._add("basic.qos", prefetch_size=size, prefetch_count=count, global_=rng.random() < 0.3)

    def _settlement(self) -> tuple[str, Arguments]:
        rng = self.rng
        multiple, requeue = rng.random() < 0.2, rng.random() < 0.6
        return rng.choice(
            (
                ("basic.ack", {"multiple": multiple}),
                ("basic.ack", {"multiple": multiple}),
                ("basic.nack", {"multiple": multiple, "requeue": requeue}),
                ("basic.reject", {"requeue": requeue}),
            )
        )

    def _settle(self) -> None:
        verb, arguments = self._settlement()
        self._add(verb, delivery=self.rng.choice((0, 0, 1, -1)), **arguments)

    def _settle_wrongly(self) -> None:
        verb, arguments = self._settlement()
        self._add(verb, delivery_tag=self.rng.choice((0, 0, 1, 999, (1 << 64) - 1)), **arguments)

    def _recover(self) -> None:
        verb = self.rng.choice(("basic.recover", "basic.recover", "basic.recover_async"))
        self._add(verb, requeue=not self._wrong(3))

    def _reply_directly(self) -> None:
        rng = self.rng
        kind = rng.randrange(4)
        if kind == 0 or not any(step.arguments.get("queue") == REPLY_TO for step in self.steps):
            tag = f"@c{len(self.steps)}"
            self._add("basic.consume", queue=REPLY_TO, consumer_tag=tag, no_ack=not self._wrong(3), channel=1)
            self.tags.append(tag)
        elif kind == 1:
            self._add("queue.declare", queue=rng.choice(("{reply}", REPLY_TO)), passive=True)
        elif kind == 2:
            message = self._message(len(self.steps)) | {"exchange": "", "routing_key": "{reply}"}
            self._add("basic.publish", **message)
        else:
            message = self._message(len(self.steps)) | {"channel": 1}
            message["properties"] = {**message["properties"], "reply_to": REPLY_TO}
            self._add("basic.publish", **message)

    # ── channels and connections ────────────────────────────────────────────────────────────────────────────────

    def _confirm(self) -> None:
        self._add("confirm.select", nowait=self._nowait())

    def _tx(self) -> None:
        verb = self.rng.choice(("tx.select", "tx.commit", "tx.commit", "tx.rollback"))
        selected = any(step.verb == "tx.select" for step in self.steps)
        if verb == "tx.select" or (selected and not self.confirms) or self._wrong():
            if self.confirms and not self._wrong():
                return
            self._add(verb)

    def _flow(self) -> None:
        self._add("channel.flow", active=not self._wrong(3))

    def _open(self) -> None:
        if self._wrong(5):
            self._add("channel.open")

    def _close(self) -> None:
        self._add("channel.close")

    def _close_connection(self) -> None:
        self._add("connection.close")

    def _drop(self) -> None:
        self._add("drop")


class TimedAuthor(Author):
    """Writes one program in which messages and queues expire."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.times = (0, SHORT_MS, FAR_MS)
        self.expiring = 0.4

    def _writers(self) -> Mapping[Callable[[], None], float]:
        return {**super()._writers(), self._wait: 3}

    def _wait(self) -> None:
        if sum(step.verb == "wait" for step in self.steps) < 2:
            self._add("wait")


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
