"""A queue's state as a term, as snapshots have it, both ways. Read off 3.10 to 4.2; 4.3's is refused.

::

    {rabbit_fifo, Cfg, Messages, MessagesTotal, Returns, EnqueueCount, Enqueuers, RaIndexes, ReleaseCursors, Consumers,
     ServiceQueue, Dlx, BytesEnqueue, BytesCheckout, WaitingConsumers, LastActive, MsgCache, Unused}

    Cfg          {cfg, Name, Resource, Interval, DeadLetter, BecomeLeader, Overflow, MaxLength, MaxBytes, Strategy,
                  DeliveryLimit, Expires, MsgTtl, Unused, Unused}
    Messages     {Length, Rear, Front} to 3.13: Front, then Rear from its end
                 {rabbit_fifo_q, {Rear, Front}, {Rear, Front}, Length, Turn} from 4.0 on: high, normal
    Returns      {Length, Rear, Front}
    message      [Index | Header], Header being Size, [Size | ExpiryMs] or
                  #{size, delivery_count, acquired_count, expiry}
    Enqueuers    #{Pid => {enqueuer, NextSeq, _, Status, Blocked, _, _}}
    Consumers    #{Key => Consumer}, Key being {Tag, Pid} or, from 4.0 on, also an index
    Consumer     {consumer, {consumer_cfg, Meta, Pid, Tag, CreditMode, Lifetime, Priority}, Status, NextMsgId,
                  #{MsgId => message}, Credit, DeliveryCount}
    CreditMode   simple_prefetch, credited; {simple_prefetch, Cap} from 3.12 on; {credited, Begin} from 4.0 on
    ServiceQueue {queue, Rear, Front, Length} or {pqueue, [{-Priority, {queue, …}}]}, in the order of turns
    Dlx          {rabbit_fifo_dlx, undefined | {dlx_consumer, Pid, Prefetch, #{MsgId => letter}, NextMsgId},
                  {Length, Rear, Front}, RaIndexes, Bytes, BytesCheckout}; letter = [Reason | message]

What does not change the queue (counters for snapshots, names, the resource) is not read, and written empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import attrs

from queue_index.quorum.commands import ConsumerKey, Pid
from queue_index.quorum.consumers import CANCELLED, QUIESCING, SUSPECTED, UP, Consumer
from queue_index.quorum.dead_letters import DeadLetter, DeadLetters
from queue_index.quorum.messages import Messages
from queue_index.quorum.publishers import Publishers
from queue_index.quorum.ready_queues import NORMAL_PRIORITY, OneQueue, QueuedMessage, ReadyQueue, TwoQueues
from queue_index.quorum.rules import QueueSettings, dead_lettering, rules_of
from queue_index.quorum.service import Service
from queue_index.quorum.timed_messages import TimedMessages
from storage.erlang_terms import Atom, ImproperList, Opaque, Term, encode, node_of_pid, pid_key
from storage.errors import TermError

_FIELDS = 18
_CFG_FIELDS = 15
_ENQUEUER_FIELDS = 7
_CONSUMER_FIELDS = 7
_CONSUMER_CFG_FIELDS = 7
_UNDEFINED: Final = Atom("undefined")
_HIGH: Final = NORMAL_PRIORITY + 1
_STATUSES: Final = frozenset({UP, SUSPECTED, CANCELLED, QUIESCING})

_T = TypeVar("_T")


@attrs.frozen
class Parts:
    """What a machine is made of."""

    machine_version: int
    messages: Messages
    publishers: Publishers
    service: Service

    @classmethod
    def new(cls, settings: QueueSettings, machine_version: int) -> Parts:
        """Of an empty queue. Raises :class:`ValueError` for a version that is not known."""
        rules = rules_of(machine_version)
        service = Service(ranked=rules.has_keys)
        service.single_active = settings.single_active
        service.waits_for_suspected = rules.has_timeouts
        messages = Messages(settings, rules.ready_queue())
        if rules.has_timeouts:
            messages = TimedMessages.of(messages, 0)
        return cls(machine_version, messages, Publishers(), service)


def parts_of(state: Term, machine_version: int) -> Parts:
    """The queue that ``state`` is.

    Raises :class:`TermError` where it is none of this version's, :class:`ValueError` for a version that is not known.
    """
    rules_of(machine_version)
    fields = _record(state, "rabbit_fifo", _FIELDS)
    parts = Parts.new(_settings(fields[1]), machine_version)
    messages = parts.messages
    messages.ready = _two_queues(fields[2]) if rules_of(machine_version).has_keys else _one_queue(fields[2])
    messages.returns.extend(map(_message, _queue(fields[4])))
    parts.publishers.following.update(_enqueuers(fields[6]))
    for key, consumer in _map(fields[9]).items():
        parts.service.consumers.add(_consumer(_key(key), consumer))
    _load_service_queue(parts.service, fields[10])
    messages.dead_letters = _dead_letters(fields[11])
    parts.service.waiting = [_waiting(pair) for pair in _list(fields[14])]
    _count(parts)
    return parts


def _count(parts: Parts) -> None:
    messages = parts.messages
    out = [message for consumer in parts.service.consumers for message in consumer.held.values()]
    messages.ready_bytes = sum(message.size for message in messages)
    messages.out_count, messages.out_bytes = len(out), sum(message.size for message in out)
    indexes = {message.index for message in messages} | {message.index for message in out}
    if len(indexes) != len(messages) + len(out):
        raise TermError("a state with a message in two places")


def _settings(cfg: Term) -> QueueSettings:
    fields = _record(cfg, "cfg", _CFG_FIELDS)
    return QueueSettings(
        dead_lettering=dead_lettering(fields[4]),
        drops_head=fields[6] != "reject_publish",
        max_length=_optional(fields[7]),
        max_bytes=_optional(fields[8]),
        single_active=fields[9] == "single_active",
        delivery_limit=_optional(fields[10]),
        msg_ttl_ms=_optional(fields[12]),
    )


def _one_queue(term: Term) -> ReadyQueue:
    queue = OneQueue()
    for message in _queue(term):
        queue.append(_message(message), None)
    return queue


def _two_queues(term: Term) -> ReadyQueue:
    _, high, normal, _, turn = _record(term, "rabbit_fifo_q", 5)
    queues = TwoQueues()
    queues.high.extend(map(_message, _rear_front(high)))
    queues.normal.extend(map(_message, _rear_front(normal)))
    queues.turn = _natural(turn) % 3
    return queues


def _queue(term: Term) -> list[Term]:
    """``{Length, Rear, Front}``, or ``{Length, {Rear, Front}}``, in its order."""
    match term:
        case (_, rear, front):
            return _rear_front((rear, front))
        case (_, pair):
            return _rear_front(pair)
        case _:
            raise TermError("something else in place of a queue")


def _rear_front(term: Term) -> list[Term]:
    match term:
        case (rear, front):
            return [*_list(front), *reversed(_list(rear))]
        case _:
            raise TermError("something else in place of a queue's two lists")


def _message(term: Term) -> QueuedMessage:
    if not isinstance(term, ImproperList):
        raise TermError("something else in place of a message")
    match (*term.elements, term.tail):
        case (index, dict(header)):
            count = _natural(header.get(Atom("delivery_count"), 0))
            acquired = _natural(header.get(Atom("acquired_count"), count))
            size, expiry = header.get(Atom("size")), header.get(Atom("expiry"))
            return QueuedMessage(_natural(index), _natural(size), _optional(expiry), count, acquired)
        case (index, size):
            return QueuedMessage(_natural(index), _natural(size))
        case (index, size, expiry):
            return QueuedMessage(_natural(index), _natural(size), _natural(expiry))
        case _:
            raise TermError("something else in place of a message's header")


def _enqueuers(term: Term) -> dict[Pid, int]:
    return {_pid(pid): _natural(_record(one, "enqueuer", _ENQUEUER_FIELDS)[1]) for pid, one in _map(term).items()}


def _key(term: Term) -> ConsumerKey:
    match term:
        case (bytes(tag), pid):
            return tag, _pid(pid)
        case _:
            return _natural(term)


def _waiting(term: Term) -> Consumer:
    match term:
        case (key, consumer):
            return _consumer(_key(key), consumer)
        case _:
            raise TermError("something else in place of a consumer that waits")


def _consumer(key: ConsumerKey, term: Term) -> Consumer:
    _, cfg, status, next_msg_id, held, credit, delivery_count = _record(term, "consumer", _CONSUMER_FIELDS)
    _, meta, pid, tag, mode, lifetime, priority = _record(cfg, "consumer_cfg", _CONSUMER_CFG_FIELDS)
    if status not in _STATUSES or lifetime not in ("once", "auto") or not isinstance(tag, bytes):
        raise TermError("a consumer of another shape")
    credited, cap, serial = _credit_mode(mode)
    prefetch = meta.get(Atom("prefetch")) if isinstance(meta, Mapping) else None
    return Consumer(
        key=key,
        tag=tag,
        pid=_pid(pid),
        once=lifetime == "once",
        credited=credited,
        cap=cap,
        priority=priority if type(priority) is int else 0,
        credit=_natural(credit),
        delivery_count=_natural(delivery_count),
        serial=serial,
        prefetch=prefetch if type(prefetch) is int else None,
        status=str(status),
        next_msg_id=_natural(next_msg_id),
        held={msg_id: _message(_map(held)[msg_id]) for msg_id in sorted(map(_natural, _map(held)))},
    )


def _credit_mode(term: Term) -> tuple[bool, int | None, bool]:
    """Whether it is ``credited``, its cap, and whether its count is the consumer's own."""
    match term:
        case "credited":
            return True, None, False
        case ("credited", _):
            return True, None, True
        case "simple_prefetch":
            return False, None, False
        case ("simple_prefetch", cap):
            return False, _natural(cap), False
        case _:
            raise TermError("a credit mode that is not known")


def _load_service_queue(service: Service, term: Term) -> None:
    match term:
        case ("queue", _, _, _):
            rows: Iterable[tuple[int, Term]] = [(0, term)]
        case ("pqueue", list(pairs)):
            rows = [(-_integer(pair[0]), pair[1]) for pair in pairs if isinstance(pair, tuple) and len(pair) == 2]
        case _:
            raise TermError("something else in place of a service queue")
    for priority, row in rows:
        _, rear, front, _ = _record(row, "queue", 4)
        for key in _rear_front((rear, front)):
            service.queue.append(_key(key), priority)


def _dead_letters(term: Term) -> DeadLetters:
    _, worker, waiting, _, _, _ = _record(term, "rabbit_fifo_dlx", 6)
    letters = DeadLetters()
    letters.waiting.extend(map(_letter, _queue(waiting)))
    if worker != "undefined":
        _, pid, prefetch, held, next_msg_id = _record(worker, "dlx_consumer", 5)
        letters.worker, letters.prefetch = _pid(pid), _natural(prefetch)
        letters.next_msg_id = _natural(next_msg_id)
        letters.held = {msg_id: _letter(_map(held)[msg_id]) for msg_id in sorted(map(_natural, _map(held)))}
    letters.payload_bytes = sum(letter.message.size for letter in letters)
    return letters


def _letter(term: Term) -> DeadLetter:
    if not isinstance(term, ImproperList) or not isinstance(term.elements[0], Atom) or len(term.elements) < 2:
        raise TermError("something else in place of a dead letter")
    return DeadLetter(str(term.elements[0]), _message(ImproperList(term.elements[1:], term.tail)))


def _record(term: Term, name: str, fields: int) -> tuple[Term, ...]:
    if not isinstance(term, tuple) or len(term) != fields or term[0] != name:
        raise TermError(f"something else in place of a {name} of {fields} fields")
    return term


def _map(term: Term) -> Mapping[Term, Term]:
    if not isinstance(term, Mapping):
        raise TermError("something else in place of a map")
    return term


def _list(term: Term) -> Sequence[Term]:
    if not isinstance(term, list):
        raise TermError("something else in place of a list")
    return term


def _integer(term: Term | None) -> int:
    if type(term) is not int:
        raise TermError("something else in place of a number")
    return term


def _natural(term: Term | None) -> int:
    if _integer(term) < 0:
        raise TermError("a number below 0")
    return _integer(term)


def _optional(term: Term | None) -> int | None:
    return None if term is None or term == "undefined" else _integer(term)


def _pid(term: Term) -> Pid:
    if not isinstance(term, Opaque):
        raise TermError("something else in place of a pid")
    return pid_key(term.encoded)


def term_of(parts: Parts) -> Term:
    """The state in the broker's form; what does not change the queue is empty."""
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
