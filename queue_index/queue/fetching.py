"""Fetching: messages leave at the head.

From Q4; if it is empty from Q3, whose last message brings in the next part: Q1 if delta is empty, else a load from
delta. A message is *redelivered* if its seq_id is below next_deliver_seq_id when it is taken (or if the index has a
deliver record of its own, unless these are written with the publish).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs

from warren.queue_index.index.terms import bodies_of, properties_of
from warren.queue_index.message.message_format import MSG_ID_BYTES, Envelope, Message, decode_message, locate_addresses
from warren.queue_index.queue.paging import load_from_delta, room_for_load
from warren.queue_index.queue.recovering import recover_all
from warren.queue_index.queue.run import DELIVERED, IN_RAM, Batch, Run, UnencodedTerms
from warren.queue_index.queue.run_queue import RunQueue
from warren.queue_index.queue.state import QueueState

DELIVERY_COUNT: Final = "x-delivery-count"
"""The header of a message that was delivered before: how often it came back."""
_NO_ID: Final = bytes(MSG_ID_BYTES)


@attrs.frozen
class MessageProperties:
    """What a predicate of :func:`drop_while` and :func:`fetch_while` sees. Expiry: µs since the epoch, 0 for none."""

    expiry_us: int
    size: int


@attrs.frozen
class Fetched:
    """Messages that were fetched together: seq_ids at equal distances (1, unless several consumers took turns), all
    redelivered or none."""

    seq_ids: range
    redelivered: bool
    _run: Run
    _terms: Sequence[bytes] | None

    @property
    def count(self) -> int:
        return len(self.seq_ids)

    @property
    def has_deliver_record(self) -> bool:
        """Whether the index had their deliver records before they were fetched."""
        return bool(self._run.flags & DELIVERED)

    @property
    def msg_ids(self) -> list[bytes]:
        return self._run.msg_ids()

    @property
    def ids(self) -> bytes:
        """The messages' ids, 16 bytes each, concatenated."""
        run = self._run
        return bytes(run.batch.ids[16 * run.low : 16 * run.high])

    @property
    def terms(self) -> list[bytes]:
        """The encoded messages."""
        return self._run.terms() if self._terms is None else list(self._terms)

    @property
    def unencoded(self) -> UnencodedTerms | None:
        """The messages as one publisher passed them, if they are still unencoded."""
        run = self._run
        terms = run.batch.terms
        if self._terms is not None or not isinstance(terms, UnencodedTerms):
            return None
        return terms if run.count == len(terms) else terms.part(run.low, run.high)

    def term(self, index: int) -> bytes:
        """The ``index``-th encoded message."""
        return self._run.batch.term(self._run.low + index) if self._terms is None else self._terms[index]

    def properties(self, index: int) -> bytes | None:
        """The encoded properties of the ``index``-th message; ``None`` if it does not contain them as bytes."""
        run = self._run
        terms = run.batch.terms
        if self._terms is None and isinstance(terms, UnencodedTerms):
            return terms.properties(run.low + index)
        located = locate_addresses(self.term(index))
        return None if located is None else located.properties

    @property
    def size_bytes(self) -> int:
        """Bytes of all bodies and properties."""
        return self._run.bytes + sum(len(self.properties(index) or b"") for index in range(self.count))

    def encoded_properties(self) -> list[bytes]:
        """Return the messages' encoded properties. Raises :class:`~warren.storage.errors.MessageError` if one is
        unreadable."""
        return properties_of(self._run, self._terms)

    def part(self, offset: int, count: int) -> Fetched:
        """``count`` of the messages, from the ``offset``-th on, by themselves."""
        terms = None if self._terms is None else self._terms[offset : offset + count]
        run = self._run.window(offset, count)
        return Fetched(self.seq_ids[offset : offset + count], self.redelivered, run, terms)

    def every(self, offset: int, step: int, count: int) -> Fetched:
        """Return ``count`` of the messages: the ``offset``-th, and every ``step``-th after it."""
        rows = range(offset, offset + (count - 1) * step + 1, step)
        terms = None if self._terms is None else self._terms[rows.start : rows.stop : step]
        run = self._run.every(rows, with_terms=self._terms is None)
        return Fetched(self.seq_ids[rows.start : rows.stop : step], self.redelivered, run, terms)

    def msg_id(self, index: int) -> bytes:
        """The id of the ``index``-th message."""
        return self._run.window(index, 1).msg_ids()[0]

    def expiry_us(self, index: int) -> int:
        """When the ``index``-th message expires: µs since the epoch, 0 for never."""
        return self._run.batch.expiry(self._run.low + index)

    def bodies(self) -> list[bytes]:
        """Return the payloads alone; the cheap way. Raises :class:`~warren.storage.errors.MessageError` if one is
        unreadable."""
        bodies: Sequence[Any] = self.readable_bodies()
        if self.unencoded is not None:
            return list(bodies)
        return [decode_message(self.term(index)).body if body is None else body for index, body in enumerate(bodies)]

    def readable_bodies(self) -> Sequence[bytes | None]:
        """The payloads; ``None`` in place of one whose bytes on disk are not a message."""
        return bodies_of(self._run, self._terms)

    def messages(self) -> list[Message]:
        """The messages decoded."""
        return [decode_message(term) for term in self.terms]


class FetchedAgain(Fetched):
    """Redelivered messages with their delivery counts."""

    __slots__ = ("delivery_counts", "tells_count")

    delivery_counts: Sequence[int]
    tells_count: bool
    """Whether the messages are to say so in their headers."""

    @classmethod
    def of(cls, fetched: Fetched, delivery_counts: Sequence[int], *, tells_count: bool) -> FetchedAgain:
        """The same messages, with their counts."""
        again = cls(fetched.seq_ids, True, fetched._run, fetched._terms)
        object.__setattr__(again, "delivery_counts", delivery_counts)
        object.__setattr__(again, "tells_count", tells_count)
        return again

    def part(self, offset: int, count: int) -> FetchedAgain:
        part = super().part(offset, count)
        return self.of(part, self.delivery_counts[offset : offset + count], tells_count=self.tells_count)

    def every(self, offset: int, step: int, count: int) -> FetchedAgain:
        counts = self.delivery_counts[offset : offset + (count - 1) * step + 1 : step]
        return self.of(super().every(offset, step, count), counts, tells_count=self.tells_count)


class _FetchedAlone(Fetched):
    """Messages without a queue. Usually only the bodies are read, so the run is made on demand."""

    __slots__ = ("_envelope", "_given")

    redelivered = False
    _terms = None
    _envelope: Envelope
    _given: Sequence[bytes]

    def __init__(self, envelope: Envelope, given: Sequence[bytes]) -> None:
        object.__setattr__(self, "_envelope", envelope)
        object.__setattr__(self, "_given", given)

    @property
    def seq_ids(self) -> range:
        return range(len(self._given))

    @property
    def count(self) -> int:
        return len(self._given)

    @property
    def _run(self) -> Run:
        envelope, given = self._envelope, self._given
        sizes = [envelope.bodies_bytes((content,)) for content in given] if envelope.of_contents else [*map(len, given)]
        ids = _NO_ID * len(given)
        return Run(0, Batch(len(given), ids, sizes, 0, UnencodedTerms(envelope, ids, given)), 0, len(given), IN_RAM)

    def readable_bodies(self) -> Sequence[bytes | None]:
        return bodies_of(self._run, None) if self._envelope.of_contents else self._given

    def bodies(self) -> list[bytes]:
        return super().bodies() if self._envelope.of_contents else [*self._given]


def fetched_alone(envelope: Envelope, bodies: Sequence[bytes]) -> Fetched:
    """Messages that were never in a queue, as if fetched; ``bodies`` are contents if ``envelope.of_contents``."""
    return _FetchedAlone(envelope, bodies)


def queue_out(s: QueueState, count: int) -> Run | None:
    """Take at most ``count`` messages off the head, as many as are one run; ``None`` from an empty queue."""
    if s.mode == "lazy":
        while not s.q3:
            if not s.delta.count:
                return None
            load_from_delta(s, room_for_load(s))
        return s.q3.take_left(count)
    if s.q4:
        return s.q4.take_left(count)
    if not s.q3:
        return None
    run = s.q3.take_left(count)
    if not s.q3:
        if not s.delta.count:
            s.q4, s.q1 = s.q1, RunQueue()
        else:
            load_from_delta(s, room_for_load(s))
    elif len(s.q3) <= s.settings.delta_read_ahead and s.delta.count:
        load_from_delta(s, room_for_load(s))
    return run


def fetch_many(s: QueueState, count: int, *, ack_required: bool) -> list[Fetched]:
    """At most ``count`` messages from the head."""
    fetched: list[Fetched] = []
    while count and (run := queue_out(s, count)) is not None:
        count -= run.count
        fetched += _hand_over(s, run, ack_required=ack_required)
    s.update_rates_if_due()
    return fetched


def peek(s: QueueState, count: int) -> Fetched | None:
    """At most ``count`` messages at the head, as the next :func:`fetch_many` will find them; ``None``: not in RAM."""
    queue = s.q4 or s.q3
    if not queue or not queue.head.in_ram:
        return None
    head = queue.head
    part, redelivered = next(by_redelivery(s, head.window(0, min(count, head.count))))
    return Fetched(range(part.start, part.end), redelivered, part, None)


def _hand_over(s: QueueState, run: Run, *, ack_required: bool) -> Iterator[Fetched]:
    """Give a run that was taken to a consumer."""
    terms = None if run.in_ram else s.read_terms(run)
    for part, redelivered in by_redelivery(s, run):
        offset = part.start - run.start
        piece = None if terms is None else terms[offset : offset + part.count]
        shown = part.window(0, part.count)
        leave(s, part, ack_required=ack_required)
        s.note_delivered(shown.start, shown.count)
        yield Fetched(range(shown.start, shown.end), redelivered, shown, piece)


def drop_one(s: QueueState, *, ack_required: bool) -> tuple[int, bytes] | None:
    """Take one message off the head without reading it; its seq_id and msg_id."""
    run = queue_out(s, 1)
    if run is None:
        return None
    answer = run.start, run.msg_ids()[0]
    leave(s, run, ack_required=ack_required)
    s.note_delivered(answer[0], 1)
    s.update_rates_if_due()
    return answer


def drop_many(s: QueueState, count: int) -> int:
    """Delete at most ``count`` messages at the head, unread; returns how many there were."""
    left = count
    while left and (run := queue_out(s, left)) is not None:
        left -= run.count
        leave(s, run, ack_required=False)
        s.note_delivered(run.start, run.count)
    s.update_rates_if_due()
    return count - left


def head_expiry(s: QueueState) -> int | None:
    """When the message at the head expires (µs since the epoch, 0 for never); ``None``: the queue is empty."""
    head = _head(s)
    return None if head is None else head.batch.expiry(head.low)


def head_due(s: QueueState, now_us: int, limit: int) -> tuple[int, bool]:
    """How many messages at the head, of one run and at most ``limit``, are all due or all not due; and which."""
    head = _head(s)
    if head is None:
        return 0, False
    batch, high = head.batch, min(head.high, head.low + limit)
    due = 0 < batch.expiry(head.low) <= now_us
    if isinstance(batch.expiries, int):
        return high - head.low, due
    for index in range(head.low + 1, high):
        if (0 < batch.expiries[index] <= now_us) != due:
            return index - head.low, due
    return high - head.low, due


def head_excess(s: QueueState, messages: int, size: int) -> int:
    """How many messages of the run at the head have to go, until ``messages`` and ``size`` bytes are gone."""
    head = _head(s)
    if head is None:
        return 0
    sizes = head.batch.sizes
    if isinstance(sizes, int):
        by_size = -(-size // sizes) if sizes else (head.count if size > 0 else 0)
        return min(head.count, max(messages, by_size))
    count = 0
    while count < head.count and (count < messages or size > 0):
        size -= sizes[head.low + count]
        count += 1
    return count


def by_redelivery(s: QueueState, run: Run) -> Iterator[tuple[Run, bool]]:
    """Cut a run where its messages begin to be delivered for the first time."""
    before = min(max(s.next_deliver_seq_id - run.start, 0), run.count)
    if before:
        yield run.window(0, before), True
    if before < run.count:
        was_delivered = bool(run.flags & DELIVERED) and not s.settings.deliver_with_publish
        yield run.window(before, run.count - before), was_delivered


def leave(s: QueueState, run: Run, *, ack_required: bool) -> None:
    """Hand a run to a consumer: add it to the pending acks (it may grow there), or forget it at once."""
    if ack_required:
        s.mark_delivered([run])
        s.count(run, before=run.in_ram, after=run.in_ram, ready=-1, unacked=1)
        s.hold_pending(run)
    else:
        s.forget([run], descending=False)
        s.count(run, before=run.in_ram, after=False, ready=-1)
    s.rates.out_count += run.count


Predicate = Callable[[MessageProperties], bool]


def collect_while(s: QueueState, predicate: Predicate) -> tuple[list[Run], MessageProperties | None]:
    """Take messages off the head as long as the predicate holds; also the properties of the one that ended it."""
    collected: list[Run] = []
    while (head := _head(s)) is not None:
        passed = _prefix(head, predicate)
        run = queue_out(s, passed or 1)
        if run is None:
            raise RuntimeError("the head of a queue was seen and could not be taken")
        if not passed:
            _put_back(s, run)
            return collected, MessageProperties(run.batch.expiry(run.low), run.batch.size(run.low))
        collected.append(run)
    return collected, None


def _head(s: QueueState) -> Run | None:
    """Return the run at the head, and leave it there."""
    if s.mode == "lazy" and not s.q3:
        load_from_delta(s, room_for_load(s))
    queue = s.q4 or s.q3
    return queue.head if queue else None


def _prefix(run: Run, predicate: Predicate) -> int:
    """How many messages at a run's head the predicate holds for."""
    batch = run.batch
    if isinstance(batch.expiries, int) and isinstance(batch.sizes, int):
        return run.count if predicate(MessageProperties(batch.expiries, batch.sizes)) else 0
    for index in range(run.low, run.high):
        if not predicate(MessageProperties(batch.expiry(index), batch.size(index))):
            return index - run.low
    return run.count


def _put_back(s: QueueState, run: Run) -> None:
    """Return one message that was taken to the head.

    To Q4 if its payload is in RAM or Q4 holds any (then it is read), else to Q3; lazy: to Q3, or, if that is empty,
    to delta.
    """
    if s.mode == "lazy":
        if s.q3:
            s.q3.prepend(run)
            return
        s.write_payloads(run)
        s.write_position(run)
        s.count(run, before=run.in_ram, after=False, paged=True, to_delta=True)
        s.delta.expand(run.start, 1, transient=not run.persistent)
    elif run.in_ram:
        s.q4.prepend(run)
    elif s.q4:
        alpha = run.with_terms(s.read_terms(run))
        s.count(alpha, before=False, after=True, paged=True)
        s.q4.prepend(alpha)
    else:
        s.q3.prepend(run)


def drop_while(s: QueueState, predicate: Predicate) -> MessageProperties | None:
    """Ack messages at the head, unread, as long as the predicate holds; the properties of the one that ended it."""
    runs, stopper = collect_while(s, predicate)
    remove_entries(s, runs)
    s.rates.out_count += sum(run.count for run in runs)
    s.update_rates_if_due()
    return stopper


def remove_entries(s: QueueState, runs: list[Run], *, ack: bool = True) -> None:
    """Delete ready messages that were taken out of their list; ``ack``: in the index too."""
    if ack:
        s.forget(runs, descending=True)
    else:
        s.remove_bodies(runs)
    for run in runs:
        s.note_delivered(run.start, run.count)
        s.count(run, before=run.in_ram, after=False, ready=-1)


def fetch_while(s: QueueState, predicate: Predicate) -> tuple[list[Fetched], MessageProperties | None]:
    """Fetch messages, acks required, as long as the predicate holds; also the properties of the one that ended it."""
    runs, stopper = collect_while(s, predicate)
    fetched = [part for run in runs for part in _hand_over(s, run, ack_required=True)]
    s.update_rates_if_due()
    return fetched, stopper


def purge(s: QueueState, *, confirms_wait: bool = False) -> int:
    """Delete every ready message; returns how many.

    Without pending acks, and confirms that wait for the index, the index is deleted altogether.
    """
    recover_all(s)
    purged, ack = s.length, s.pending_ack_count > 0 or confirms_wait
    remove_entries(s, list(s.q4), ack=ack)
    s.q4 = RunQueue()
    while True:
        if s.mode == "lazy":
            load_from_delta(s, ack_lost=ack)  # a second part each time: it shows in when the index flushes
        if not s.q3:
            break
        runs, s.q3 = list(s.q3), RunQueue()
        remove_entries(s, runs, ack=ack)
        load_from_delta(s, ack_lost=ack)
    remove_entries(s, list(s.q1), ack=ack)
    s.q1 = RunQueue()
    if not ack:
        s.index.reset()
    return purged
