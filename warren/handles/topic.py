"""Topic: a thread's handle on one topic of a node. Safe to share between threads; hold on to it as long as you like.

The verbs are those of :mod:`warren.verbs.topics.topic_verbs`.

A tail begins with the last messages of all queues together, out of the last ones of each.

A :class:`Transaction` is a message that stays hidden until its producer commits it. It is prepared, which is safe on
the disk, and then committed or rolled back. A message that was undecided when the process stopped is found by
:meth:`warren.Node.pending_transactions` after a restart: the producer decides then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self, TypeVar, Unpack

from warren.actors.engines.topics.consumer_group import StartOffset
from warren.actors.topics.log_intake import AppendConfirm
from warren.msg_store.commit_log.packed_records import PackedRecords, packed_again
from warren.storage.call_arguments import check_wait, checked, signature
from warren.values.read_message import Iteration, ReadMessage, RecordBatch, RecordVerbs
from warren.values.topic_record import Moment, StoredMessage
from warren.verbs.instrumentation import HOOK, called
from warren.verbs.steps import Steps, blocking, run
from warren.verbs.topics.reader_verbs import Read, ReaderArguments, ReaderHandle, ReaderVerbs
from warren.verbs.topics.topic_verbs import AppendArguments, TopicHandle, TopicVerbs
from warren.verbs.topics.transaction_verbs import TransactionHandle, TransactionVerbs


class TopicRecord(ReadMessage):
    """A message that was read."""

    __slots__ = ()

    commit = blocking(RecordVerbs.commit)
    retry = blocking(RecordVerbs.retry)


def _batch(read: Read) -> RecordBatch[TopicRecord]:
    return RecordBatch(TopicRecord, read)


class Reader(ReaderHandle):
    """Reads a topic for a group, for one thread at a time. Made by :meth:`warren.Topic.reader`; to be closed."""

    def __init__(self, verbs: ReaderVerbs) -> None:
        super().__init__(verbs)
        run(verbs.begin())

    queues = blocking(ReaderVerbs.queues)
    read = blocking(ReaderVerbs.read, _batch)

    @checked
    def records(self, max_records: int | None = None, timeout: float | None = 0.0) -> Iterator[TopicRecord]:
        """Messages one by one, up to ``max_records``, until none came for ``timeout`` seconds (``None``: for ever)."""
        iteration = Iteration(self._verbs, TopicRecord, max_records, timeout)
        try:
            while run(iteration.next_batch()):
                while (record := iteration.take_now()) is not None:
                    yield record
        finally:
            iteration.leave()

    def __iter__(self) -> Iterator[TopicRecord]:
        """Messages one by one, for ever."""
        return self.records(timeout=None)

    commit = blocking(ReaderVerbs.commit)
    close = blocking(ReaderVerbs.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._verbs.leave(is_done=error is None))  # what was being worked on is not done


R = TypeVar("R", bound=StoredMessage)
Bounds = Mapping[int, tuple[int, int]]
"""By queue, its first number and its end at the time of the query."""


def read_last(topic: TopicVerbs, last: int) -> Steps[tuple[ReaderVerbs, Read, Bounds]]:
    """Return a reader of all queues, the ``last`` messages of each, which it has read, and the queues' bounds."""
    bounds = yield from topic.offsets()
    reader = topic.reader("", broadcast=True, positions=places_before_end(bounds, last))
    read: Read = []
    yield from reader.begin()
    try:
        while not is_behind(reader.positions, bounds) and (batch := (yield from reader.read())):
            read += batch
    except BaseException:
        yield from reader.close()
        raise
    return reader, read, bounds


def places_before_end(bounds: Bounds, last: int) -> dict[int, int]:
    """Return, by queue, the position before its ``last`` messages."""
    return {queue_id: max(first, end - last) for queue_id, (first, end) in bounds.items()}


def is_behind(positions: Mapping[int, int], bounds: Bounds) -> bool:
    """Whether a reader at these positions has read everything up to the end in ``bounds``."""
    return all(positions.get(queue_id, end) >= end for queue_id, (_, end) in bounds.items())


def last_of(records: Iterable[R], bounds: Bounds, last: int) -> list[R]:
    """Return the last messages up to the ends in ``bounds``, and all later ones, in the order of the CommitLog."""
    ordered = sorted(records, key=lambda record: record.physical_offset)
    old = sum(record.queue_offset < bounds[record.queue_id][1] for record in ordered if record.queue_id in bounds)
    return ordered[max(old - last, 0) :]


def _records(packed: list[PackedRecords]) -> list[TopicRecord]:
    return [TopicRecord(record) for record in packed]


_USUAL_LIMITS = range(65)
"""Limits of a :meth:`Topic.find` whose arguments need no other check."""


class Transaction(TransactionHandle):
    """One prepared message."""

    @property
    def message(self) -> TopicRecord:
        """The message as it was prepared."""
        return TopicRecord(packed_again(run(self._verbs.record())))

    commit = blocking(TransactionVerbs.commit)
    rollback = blocking(TransactionVerbs.rollback)


class Topic(TopicHandle):
    """One topic. Made by :meth:`warren.Node.topic`."""

    def append(
        self,
        body: bytes,
        *,
        block: bool = True,
        timeout: float | None = None,
        **arguments: Unpack[AppendArguments],
    ) -> AppendConfirm:
        """Append a message; the confirm's ``wait`` returns its position once it is safe.

        While the disk lags, or an alarm is set, this waits (``block``, ``timeout``), then raises
        :class:`BlockedError`, and the message was not taken.
        """
        if timeout is not None or block is not True:
            check_wait(block, timeout)
        if arguments and (len(arguments) > 1 or type(arguments.get("key")) is not str):  # most have a key or nothing
            signature(Topic.append, 1).check((body,), arguments)
        if HOOK.instrumentation is not None:
            return run(called(self._verbs.append, body, block=block, timeout=timeout, **arguments))
        return self._verbs.host.append_here(self._verbs, body, block, timeout, arguments)

    append_many = blocking(TopicVerbs.append_many)
    prepare = blocking(TopicVerbs.prepare, Transaction)
    sync = blocking(TopicVerbs.sync)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    @checked
    def reader(self, group: str, **arguments: Unpack[ReaderArguments]) -> Reader:
        """Join a group and read (:class:`~warren.handles.topic.Reader`).

        ``auto_commit``: what was read is done at the next read, unless this is ``False``. ``tags``: only messages
        with one of them; RocketMQ's ``"a || b"`` is accepted, too. ``consume_from``: where a group begins that has not
        read this topic before: "first" (the default), "last", a time, or a queue offset for each queue (a whole number:
        for all of them). ``broadcast``: read all queues and share nothing; its position is kept for the group and this
        ``instance_name`` of it (``None``: the first one that reads nothing now). ``positions``: it continues there
        instead.
        """
        return Reader(self._verbs.reader(group, **arguments))

    @checked
    def read(
        self,
        group: str,
        *,
        max_records: int | None = None,
        timeout: float | None = 0.0,
        tags: str | Iterable[str] | None = None,
        auto_commit: bool = True,
        consume_from: StartOffset | Moment | Mapping[int, int] = "first",
    ) -> Iterator[TopicRecord]:
        """Continue where the group is: read up to ``max_records`` messages, until none comes for ``timeout`` seconds.

        With ``auto_commit`` a message is done when the next one is requested, or the loop ends; a loop that is left in
        the middle of a message gets that one again. A member of the group while it lasts.
        """
        verbs = self._verbs.reader(group, tags=tags, auto_commit=auto_commit, consume_from=consume_from)
        run(self._verbs.host.host.within(timeout or None, verbs.begin()))
        with Reader(verbs) as reader:
            yield from reader.records(max_records, timeout)

    @checked
    def tail(self, last: int = 10, *, timeout: float | None = 0.0) -> Iterator[TopicRecord]:
        """Read the last messages of all queues together, then new ones, until none comes for ``timeout``
        seconds (``None``: for ever). This joins no group, and stores no position."""
        verbs, read, bounds = run(self._verbs.host.host.within(timeout or None, read_last(self._verbs, last)))
        with Reader(verbs) as reader:
            yield from last_of(RecordBatch(TopicRecord, read), bounds, last)
            yield from reader.records(timeout=timeout)

    def find(
        self,
        key: str,
        *,
        begin: Moment | None = None,
        end: Moment | None = None,
        limit: int = 64,
        exact: bool = True,
    ) -> list[TopicRecord]:
        """Return messages with this key (or UNIQ_KEY), the newest first, stored from ``begin`` to ``end`` inclusive.

        ``exact=False``: trust the index, without a look at the messages' keys: other keys of the same hash are
        included, and a message can come twice.
        """
        is_usual = type(limit) is int and limit in _USUAL_LIMITS and exact is True
        if not is_usual or type(key) is not str or begin is not None or end is not None:
            signature(Topic.find, 1).check((key,), {"begin": begin, "end": end, "limit": limit, "exact": exact})
        return _records(self._verbs.host.find_here(self._verbs, key, begin=begin, end=end, limit=limit, exact=exact))

    get = blocking(TopicVerbs.get, TopicRecord)
    pull = blocking(TopicVerbs.pull, _records)
    message_at = blocking(TopicVerbs.message_at, TopicRecord)
    view_message = blocking(TopicVerbs.view_message, TopicRecord)

    # ── where groups and messages are ───────────────────────────────────────────────────────────────────────────

    offsets = blocking(TopicVerbs.offsets)
    offset_at = blocking(TopicVerbs.offset_at)
    seek = blocking(TopicVerbs.seek)
    lag = blocking(TopicVerbs.lag)
    groups = blocking(TopicVerbs.groups)
