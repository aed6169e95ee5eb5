"""The state of a quorum queue and of its machine, made by hand.

The machine's state is written in the broker's form (``warren.salvage.quorum.fifo.machine_state`` has it), up to 4.2.
What does not change the queue (counters for snapshots, names, the resource) is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from warren.salvage.quorum.fifo.commands import (
    Body,
    Cancel,
    Checkout,
    Command,
    ConsumerId,
    ConsumerKey,
    Down,
    Enqueue,
    Pid,
    Return,
    Settle,
)
from warren.salvage.quorum.fifo.consumers import UP, Consumer
from warren.salvage.quorum.fifo.machine import QuorumMachine
from warren.salvage.quorum.fifo.messages import DeadLetter
from warren.salvage.quorum.fifo.ready_queues import QueuedMessage, ReadyQueue, TwoQueues
from warren.salvage.quorum.fifo.rules import QueueSettings, rules_of
from warren.salvage.quorum.fifo.service import Service
from warren.storage.erlang_terms import Atom, ImproperList, Opaque, Term, decode, encode, node_of_pid, pid_key

_UNDEFINED: Final = Atom("undefined")


def state_term(machine: QuorumMachine) -> Term:
    """The machine's state, as a snapshot has it. Raises :class:`ValueError` from version 8 on."""
    if rules_of(machine.machine_version).has_timeouts:
        raise ValueError("a state of 4.3 is not written")
    messages, service, settings = machine.messages, machine.service, machine.messages.settings
    has_keys = rules_of(machine.machine_version).has_keys
    message = _message_writer(has_keys)
    letters = messages.dead_letters
    held_bytes = sum(letter.message.size for letter in letters.held.values())
    worker: Term = (
        _UNDEFINED
        if letters.worker is None
        else (
            Atom("dlx_consumer"),
            pid_term(letters.worker),
            letters.prefetch,
            {msg_id: _letter_term(letter) for msg_id, letter in letters.held.items()},
            letters.next_msg_id,
        )
    )
    return (
        Atom("rabbit_fifo"),
        _cfg_term(settings),
        _ready_term(messages.ready, message),
        len(messages) + messages.out_count,
        _queue_term(message(one) for one in messages.returns),
        0,
        {
            pid_term(pid): (Atom("enqueuer"), seq, _UNDEFINED, Atom(UP), _UNDEFINED, _UNDEFINED, _UNDEFINED)
            for pid, seq in machine.publishers.following.items()
        },
        {},
        [] if has_keys else (0, [], []),
        {_key_term(consumer.key): _consumer_term(consumer, message) for consumer in service.consumers},
        _service_queue_term(service),
        (
            Atom("rabbit_fifo_dlx"),
            worker,
            _queue_term(map(_letter_term, letters.waiting)),
            {},
            letters.payload_bytes - held_bytes,
            held_bytes,
        ),
        messages.ready_bytes,
        messages.out_bytes,
        [(_key_term(consumer.key), _consumer_term(consumer, message)) for consumer in service.waiting],
        _UNDEFINED,
        _UNDEFINED,
        [] if has_keys else _UNDEFINED,
    )


def _cfg_term(settings: QueueSettings) -> Term:
    handlers: dict[str, Term] = {
        "none": _UNDEFINED,
        "at_least_once": Atom("at_least_once"),
        "at_most_once": (Atom("at_most_once"), (_UNDEFINED, _UNDEFINED, [])),
    }
    return (
        Atom("cfg"),
        _UNDEFINED,
        _UNDEFINED,
        (0, 0),
        handlers[settings.dead_lettering],
        _UNDEFINED,
        Atom("drop_head" if settings.drops_head else "reject_publish"),
        _or_undefined(settings.max_length),
        _or_undefined(settings.max_bytes),
        Atom("single_active" if settings.single_active else "competing"),
        _or_undefined(settings.delivery_limit),
        _UNDEFINED,
        _or_undefined(settings.msg_ttl_ms),
        _UNDEFINED,
        _UNDEFINED,
    )


def _ready_term(ready: ReadyQueue, message: Callable[[QueuedMessage], Term]) -> Term:
    if isinstance(ready, TwoQueues):
        high: Term = ([], [message(one) for one in ready.high])
        normal: Term = ([], [message(one) for one in ready.normal])
        return Atom("rabbit_fifo_q"), high, normal, len(ready), ready.turn
    return _queue_term(map(message, ready))


def _queue_term(terms: Iterable[Term]) -> Term:
    front = list(terms)
    return len(front), [], front


def _message_writer(has_acquired_count: bool) -> Callable[[QueuedMessage], Term]:
    def write(message: QueuedMessage) -> Term:
        index, size, expiry_ms, delivery_count, acquired_count = message
        if not delivery_count and not acquired_count:
            return ImproperList((index,), size) if expiry_ms is None else ImproperList((index, size), expiry_ms)
        header: dict[Term, Term] = {Atom("size"): size}
        if delivery_count:
            header[Atom("delivery_count")] = delivery_count
        if has_acquired_count:
            header[Atom("acquired_count")] = acquired_count
        if expiry_ms is not None:
            header[Atom("expiry")] = expiry_ms
        return ImproperList((index,), header)

    return write


def _letter_term(letter: DeadLetter) -> Term:
    return ImproperList((Atom(letter.reason), letter.message.index), letter.message.size)


def _consumer_term(consumer: Consumer, message: Callable[[QueuedMessage], Term]) -> Term:
    mode: Term = Atom("credited" if consumer.credited else "simple_prefetch")
    if consumer.serial:
        mode = (mode, 0)
    elif consumer.cap is not None:
        mode = (mode, consumer.cap)
    meta: dict[Term, Term] = {} if consumer.prefetch is None else {Atom("prefetch"): consumer.prefetch}
    return (
        Atom("consumer"),
        (
            Atom("consumer_cfg"),
            meta,
            pid_term(consumer.pid),
            consumer.tag,
            mode,
            Atom("once" if consumer.once else "auto"),
            consumer.priority,
        ),
        Atom(consumer.status),
        consumer.next_msg_id,
        {msg_id: message(held) for msg_id, held in consumer.held.items()},
        consumer.credit,
        consumer.delivery_count,
    )


def _service_queue_term(service: Service) -> Term:
    rows: dict[int, deque[Term]] = {}
    for priority, key in service.queue:
        rows.setdefault(-priority, deque()).append(_key_term(key))
    terms: dict[int, Term] = {row: (Atom("queue"), [], list(keys), len(keys)) for row, keys in rows.items()}
    if rows.keys() <= {0}:
        return terms.get(0, (Atom("queue"), [], [], 0))
    return Atom("pqueue"), [(row, terms[row]) for row in sorted(terms)]


def _key_term(key: ConsumerKey) -> Term:
    return key if isinstance(key, int) else (key[0], pid_term(key[1]))


def _or_undefined(number: int | None) -> Term:
    return _UNDEFINED if number is None else number


def pid_term(pid: Pid) -> Opaque:
    """A pid, in OTP 25's encoding, from its key."""
    node = encode(Atom(node_of_pid(pid)))[1:]
    return Opaque(b"".join((b"X", node, pid[4:8], pid[:4], pid[-4:])))


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
