"""Values for a quorum queue's machine: processes, consumers, messages, and a machine that counts its indexes."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.quorum_state import state_term
from warren.salvage.quorum.fifo.commands import (
    Body,
    Cancel,
    Checkout,
    Command,
    ConsumerId,
    Down,
    Enqueue,
    Pid,
    Return,
    Settle,
)
from warren.salvage.quorum.fifo.machine import QuorumMachine
from warren.storage.erlang_terms import Atom, Opaque, Term, decode, encode, pid_key

NODE = "rabbit@one"
OTHER_NODE = "rabbit@two"


def pid(number: int, node: str = NODE) -> Pid:
    """A process; they sort by ``number``."""
    name = encode(Atom(node))[1:]
    return pid_key(b"X" + name + number.to_bytes(4, "big") + bytes(4) + (1).to_bytes(4, "big"))


def consumer(tag: str, number: int = 100, node: str = NODE) -> ConsumerId:
    return tag.encode(), pid(number, node)


def body(size: int = 10, ttl_ms: int | None = None, priority: int | None = None) -> Body:
    return Body(0, size, size, ttl_ms, priority)


def settings(**values: Term) -> dict[Term, Term]:
    """As ``config`` has them."""
    undefined: dict[Term, Term] = {Atom("dead_letter_handler"): Atom("undefined")}
    return undefined | {Atom(name): value for name, value in values.items()}


AT_LEAST_ONCE = settings(dead_letter_handler=Atom("at_least_once"), overflow_strategy=Atom("reject_publish"))


def subscribed(
    consumer_id: ConsumerId, credit: int = 10, *, priority: int = 0, mode: str = "simple_prefetch", keyed: bool = False
) -> Checkout:
    return Checkout(consumer_id, "auto", False, credit, mode, priority, keyed)


def got(consumer_id: ConsumerId, *, settled: bool = False) -> Checkout:
    return Checkout(consumer_id, "get", settled, 1, "simple_prefetch", 0)


class Driven:
    """A machine, and the log's indexes and times; proves its invariants after each command."""

    def __init__(self, version: int = 2, of: Mapping[Term, Term] | None = None) -> None:
        self.machine = QuorumMachine.new(settings() if of is None else of, version)
        self.index = 0
        self.now_ms = 1000
        self._published = 0

    def apply(self, *commands: Command) -> None:
        for command in commands:
            self.index += 1
            self.machine.apply(self.index, self.now_ms, command)
            self.machine.check_invariants()

    def publish(
        self, count: int = 1, *, size: int = 10, ttl_ms: int | None = None, priority: int | None = None
    ) -> list[int]:
        """Their indexes."""
        first = self.index + 1
        for _ in range(count):
            self._published += 1
            self.apply(Enqueue(pid(1), self._published, body(size, ttl_ms, priority)))
        return list(range(first, self.index + 1))

    def settle(self, consumer_id: ConsumerId, *msg_ids: int) -> None:
        self.apply(Settle(consumer_id, list(msg_ids)))

    def give_back(self, consumer_id: ConsumerId, *msg_ids: int) -> None:
        self.apply(Return(consumer_id, list(msg_ids)))

    def cancel(self, consumer_id: ConsumerId) -> None:
        self.apply(Cancel(consumer_id))

    def down(self, number: int, reason: str = "normal", node: str = NODE) -> None:
        self.apply(Down(pid(number, node), reason))

    def ready(self) -> list[int]:
        return [message.index for message in self.machine.ready()]

    def counts(self) -> list[tuple[int, int]]:
        """Of the ready ones: index, delivery count."""
        return [(message.index, message.delivery_count) for message in self.machine.ready()]

    def out(self) -> dict[ConsumerId | int, dict[int, int]]:
        """By consumer: number, index."""
        found: dict[ConsumerId | int, dict[int, int]] = {}
        for key, msg_id, message in self.machine.outstanding():
            found.setdefault(key, {})[msg_id] = message.index
        return found


def again(machine: QuorumMachine) -> QuorumMachine:
    """The machine of its own snapshot, by way of the bytes."""
    state = decode(encode(state_term(machine)))
    return QuorumMachine.from_snapshot(state, {}, machine.machine_version)


def encoded_pid(number: int) -> Opaque:
    return Opaque(b"X" + encode(Atom(NODE))[1:] + number.to_bytes(4, "big") + bytes(4) + (1).to_bytes(4, "big"))
