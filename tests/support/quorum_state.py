"""A quorum queue's state written in the broker's form (``warren.salvage.quorum.fifo.machine_state`` has it), up to 4.2.

What does not change the queue (counters for snapshots, names, the resource) is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from warren.salvage.quorum.fifo.commands import ConsumerKey, Pid
from warren.salvage.quorum.fifo.consumers import UP, Consumer
from warren.salvage.quorum.fifo.dead_letters import DeadLetter
from warren.salvage.quorum.fifo.machine import QuorumMachine
from warren.salvage.quorum.fifo.ready_queues import QueuedMessage, ReadyQueue, TwoQueues
from warren.salvage.quorum.fifo.rules import QueueSettings, rules_of
from warren.salvage.quorum.fifo.service import Service
from warren.storage.erlang_terms import Atom, ImproperList, Opaque, Term, encode, node_of_pid

_UNDEFINED: Final = Atom("undefined")


def state_term(machine: QuorumMachine) -> Term:
    """The machine's state, as a snapshot has it. Raises :class:`ValueError` from version 8 on."""
    parts = machine.parts
    if rules_of(parts.machine_version).has_timeouts:
        raise ValueError("a state of 4.3 is not written")
    messages, service, settings = parts.messages, parts.service, parts.messages.settings
    has_keys = rules_of(parts.machine_version).has_keys
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
            for pid, seq in parts.publishers.following.items()
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
