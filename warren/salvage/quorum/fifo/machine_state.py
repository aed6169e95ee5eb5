"""Reads a queue's state from the term in a snapshot.

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

In 4.3 these differ::

    state        … ReclaimableBytes, Enqueuers, LastCommandTime, NextConsumerTimeout, Consumers … MsgCache, Delayed}
    Cfg          … MsgTtl, DisconnectedTimeout, DelayedRetry}
    Messages     {pq, #{31 - Priority => {Length, Rear, Front}}, Length, Bits}
    message      also one number, 0 … 2**59 - 1: Index + Size * 2**44
    Consumer     {consumer, {consumer_cfg, …, Priority, TimeoutMs}, Status, NextMsgId,
                  #{MsgId => {DeadlineMs, message}}, Credit, DeliveryCount, Drain, [MsgId timed out]};
                  Status also {suspected_down | timeout, Status}
    Delayed      {delayed, {Size, Node}, Next, #{Token => Key}}, Node = nil | {Key, message, Smaller, Greater},
                  Key = [ReadyMs | Index]

In version 9, which is in no release yet, these differ from 4.3's::

    state        … Delayed, #{Node => BytesPublished}}
    Consumer     {consumer, {consumer_cfg, …, TimeoutMs, Spec}, …
    Delayed      {delayed, {Size, Node}, Next, #{Token => [Key]}}, the newest key first

What does not change the queue (counters for snapshots, names, the resource) is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs

from warren.salvage.quorum.fifo.commands import ConsumerKey, Pid
from warren.salvage.quorum.fifo.consumers import CANCELLED, QUIESCING, SUSPECTED, TIMED_OUT, UP, Consumer
from warren.salvage.quorum.fifo.delayed import Delayed
from warren.salvage.quorum.fifo.membership import Publishers
from warren.salvage.quorum.fifo.messages import DeadLetter, DeadLetters, Messages
from warren.salvage.quorum.fifo.ready_queues import (
    HIGHEST_PRIORITY,
    ManyQueues,
    OneQueue,
    QueuedMessage,
    ReadyQueue,
    TwoQueues,
)
from warren.salvage.quorum.fifo.rules import QueueSettings, dead_lettering, delayed_retry, rules_of
from warren.salvage.quorum.fifo.service import Service
from warren.salvage.quorum.fifo.state_terms import (
    as_list,
    as_map,
    integer,
    key_of,
    message_of,
    natural,
    old_message_of,
    optional,
    pid_of,
    queue_of,
    rear_front,
    record,
)
from warren.storage.erlang_terms import Atom, ImproperList, Term
from warren.storage.errors import TermError

_FIELDS = 18
_FIELDS_9 = 19
_CFG_FIELDS = 15
_ENQUEUER_FIELDS = 7
_Reader = Callable[[Term], QueuedMessage]
_STATUSES: Final = frozenset({UP, SUSPECTED, CANCELLED, QUIESCING})


@attrs.frozen
class Parts:
    """The parts of a machine."""

    machine_version: int
    messages: Messages
    publishers: Publishers
    service: Service

    @classmethod
    def new(cls, settings: QueueSettings, machine_version: int) -> Parts:
        """Of an empty queue. Raises :class:`ValueError` for a version that is not known."""
        rules = rules_of(machine_version)
        service = Service(
            single_active=settings.single_active, ranked=rules.has_keys, waits_for_suspected=rules.has_timeouts
        )
        return cls(machine_version, Messages(settings, rules), Publishers(), service)


def parts_of(state: Term, machine_version: int) -> Parts:
    """The queue that ``state`` describes.

    Raises :class:`TermError` for a state of another version, :class:`ValueError` for an unknown version.
    """
    rules_of(machine_version)
    fields = record(state, "rabbit_fifo", _FIELDS if machine_version < 9 else _FIELDS_9)
    parts = Parts.new(_settings(fields[1]), machine_version)
    messages = parts.messages
    read = message_of if machine_version >= 4 else old_message_of
    messages.ready = _ready(fields[2], machine_version)
    messages.returns.extend(map(read, queue_of(fields[4])))
    parts.publishers.following.update(_enqueuers(fields[6]))
    for key, consumer in as_map(fields[9]).items():
        parts.service.consumers.add(_consumer(key_of(key), consumer, read))
    _load_service_queue(parts.service, fields[10])
    messages.dead_letters = _dead_letters(fields[11])
    parts.service.waiting = [_waiting(pair, read) for pair in as_list(fields[14])]
    if messages.rules.has_timeouts:
        messages.delayed = _delayed(fields[17])
    _count(parts)
    return parts


def _count(parts: Parts) -> None:
    messages = parts.messages
    out = [message for consumer in parts.service.consumers for message in consumer.held.values()]
    ready = [*messages, *messages.delayed]
    messages.ready_bytes = sum(message.size for message in ready)
    messages.out_count, messages.out_bytes = len(out), sum(message.size for message in out)
    if len({message.index for message in [*ready, *out]}) != len(ready) + len(out):
        raise TermError("a state with a message in two places")


def _settings(cfg: Term) -> QueueSettings:
    fields = record(cfg, "cfg", _CFG_FIELDS)
    return QueueSettings(
        dead_lettering=dead_lettering(fields[4]),
        drops_head=fields[6] != "reject_publish",
        max_length=optional(fields[7]),
        max_bytes=optional(fields[8]),
        single_active=fields[9] == "single_active",
        delivery_limit=optional(fields[10]),
        msg_ttl_ms=optional(fields[12]),
        delayed_retry=delayed_retry(fields[14]),
    )


def _ready(term: Term, machine_version: int) -> ReadyQueue:
    if machine_version < 4:
        return _one_queue(term)
    return _two_queues(term) if machine_version < 8 else _many_queues(term)


def _one_queue(term: Term) -> ReadyQueue:
    queue = OneQueue()
    for message in queue_of(term):
        queue.append(old_message_of(message), None)
    return queue


def _two_queues(term: Term) -> ReadyQueue:
    _, high, normal, _, turn = record(term, "rabbit_fifo_q", 5)
    queues = TwoQueues()
    queues.high.extend(map(message_of, rear_front(high)))
    queues.normal.extend(map(message_of, rear_front(normal)))
    queues.turn = natural(turn) % 3
    return queues


def _many_queues(term: Term) -> ReadyQueue:
    _, buckets, _, _ = record(term, "pq", 4)
    queues = ManyQueues()
    for bucket, queue in as_map(buckets).items():
        for message in queue_of(queue):
            queues.append(message_of(message), HIGHEST_PRIORITY - natural(bucket))
    return queues


def _delayed(term: Term) -> Delayed:
    match record(term, "delayed", 4):
        case (_, (_, node), following, tokens):
            first = natural(following[1]) if isinstance(following, tuple) and len(following) == 3 else None
        case _:
            raise TermError("something else in place of a tree")
    indexes = {token: _indexes(keys) for token, keys in as_map(tokens).items() if isinstance(token, bytes)}
    return Delayed.of(_nodes(node), first, indexes)


def _indexes(keys: Term) -> list[int]:
    """Of a token's messages, in the order in which they were put aside: version 9's list has the newest key first."""
    ordered = keys[::-1] if isinstance(keys, list) else [keys]
    return [natural(key.tail) for key in ordered if isinstance(key, ImproperList)]


def _nodes(node: Term) -> Iterator[tuple[int, QueuedMessage]]:
    """In no order."""
    nodes = [node]
    while nodes:
        match nodes.pop():
            case "nil":
                pass
            case (ImproperList((ready_ms,), _), message, smaller, greater):
                yield natural(ready_ms), message_of(message)
                nodes += (smaller, greater)
            case _:
                raise TermError("something else in place of a tree's node")


def _enqueuers(term: Term) -> dict[Pid, int]:
    return {
        pid_of(pid): natural(record(enqueuer, "enqueuer", _ENQUEUER_FIELDS)[1])
        for pid, enqueuer in as_map(term).items()
    }


def _waiting(term: Term, read: _Reader) -> Consumer:
    match term:
        case (key, consumer):
            return _consumer(key_of(key), consumer, read)
        case _:
            raise TermError("something else in place of a consumer that waits")


def _consumer(key: ConsumerKey, term: Term, read: _Reader) -> Consumer:
    match term:
        case ("consumer", cfg, status, next_msg_id, held, credit, delivery_count):
            timed_out: Term = []
            counts_serially = False
        case ("consumer", cfg, status, next_msg_id, held, credit, delivery_count, _, timed_out):
            counts_serially = True
        case _:
            raise TermError("something else in place of a consumer")
    match cfg:
        case ("consumer_cfg", meta, pid, bytes(tag), mode, ("once" | "auto") as lifetime, priority, *timeout):
            pass
        case _:
            raise TermError("something else in place of a consumer's settings")
    credited, cap, serial = _credit_mode(mode)
    prefetch = meta.get(Atom("prefetch")) if isinstance(meta, Mapping) else None
    consumer = Consumer(
        key=key,
        tag=tag,
        pid=pid_of(pid),
        once=lifetime == "once",
        credited=credited,
        cap=cap,
        priority=priority if type(priority) is int else 0,
        credit=natural(credit),
        delivery_count=natural(delivery_count),
        serial=serial or counts_serially,
        prefetch=prefetch if type(prefetch) is int else None,
        next_msg_id=natural(next_msg_id),
        timeout_ms=natural(timeout[0]) if timeout else 0,
        timed_out=[natural(msg_id) for msg_id in as_list(timed_out)],
    )
    consumer.status, consumer.inner = _status(status)
    _load_held(consumer, as_map(held), read)
    return consumer


def _load_held(consumer: Consumer, held: Mapping[Term, Term], read: _Reader) -> None:
    for msg_id in sorted(map(natural, held)):
        match held[msg_id]:
            case (deadline, message):
                consumer.held[msg_id] = read(message)
                consumer.deadlines[msg_id] = natural(deadline)
            case message:
                consumer.held[msg_id] = read(message)


def _status(term: Term) -> tuple[str, str | None]:
    match term:
        case (("suspected_down" | "timeout") as status, inner) if inner in _STATUSES:
            return SUSPECTED if status == SUSPECTED else TIMED_OUT, str(inner)
        case Atom() if term in _STATUSES:
            return str(term), None
        case _:
            raise TermError("a consumer's status that is not known")


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
            return False, natural(cap), False
        case _:
            raise TermError("a credit mode that is not known")


def _load_service_queue(service: Service, term: Term) -> None:
    match term:
        case ("queue", _, _, _):
            rows: Iterable[tuple[int, Term]] = [(0, term)]
        case ("pqueue", list(pairs)):
            rows = [(-integer(pair[0]), pair[1]) for pair in pairs if isinstance(pair, tuple) and len(pair) == 2]
        case _:
            raise TermError("something else in place of a service queue")
    for priority, row in rows:
        _, rear, front, _ = record(row, "queue", 4)
        for key in rear_front((rear, front)):
            service.queue.append(key_of(key), priority)


def _dead_letters(term: Term) -> DeadLetters:
    _, worker, waiting, _, _, _ = record(term, "rabbit_fifo_dlx", 6)
    letters = DeadLetters()
    letters.waiting.extend(map(_letter, queue_of(waiting)))
    if worker != "undefined":
        _, pid, prefetch, held, next_msg_id = record(worker, "dlx_consumer", 5)
        letters.worker, letters.prefetch = pid_of(pid), natural(prefetch)
        letters.next_msg_id = natural(next_msg_id)
        letters.held = {msg_id: _letter(as_map(held)[msg_id]) for msg_id in sorted(map(natural, as_map(held)))}
    letters.payload_bytes = sum(letter.message.size for letter in letters)
    return letters


def _letter(term: Term) -> DeadLetter:
    if not isinstance(term, ImproperList) or not isinstance(term.elements[0], Atom):
        raise TermError("something else in place of a dead letter")
    message = ImproperList(term.elements[1:], term.tail) if len(term.elements) > 1 else term.tail
    return DeadLetter(str(term.elements[0]), message_of(message))
