"""Browsing: looking at every message, ready and pending, without taking any.

The queue's lists and the pending acks are merged by seq_id. Delta is read part by part as the browser gets there,
and nothing of it stays in RAM. The queue must not change while it is browsed; but a browser may begin after the last
message that it saw, and the messages before it are then neither read nor walked through: browsing a queue page by page
costs as much as in one go.

:func:`ids_at` looks at positions: whether messages that were here once are here still.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

import attrs

from warren.queue_index.message.message_format import Message, decode_message
from warren.queue_index.queue.fetching import MessageProperties
from warren.queue_index.queue.paging import behind_gap, sift
from warren.queue_index.queue.recovering import recover_to
from warren.queue_index.queue.run import Run
from warren.queue_index.queue.state import QueueState

_CHUNK: Final = 256  # payloads read from a store at a time,
_CHUNK_BYTES: Final = 1 << 20  # and at most this many bytes, unless a single one is larger
_STRETCH: Final = 2048  # positions read from delta at a time


@attrs.frozen
class Browsed:
    """One message as it stands. ``unacked``: a consumer has it."""

    seq_id: int
    msg_id: bytes
    unacked: bool
    properties: MessageProperties
    term: bytes

    @property
    def message(self) -> Message:
        return decode_message(self.term)


def browse(s: QueueState, first: int = 0, limit: int | None = None) -> Iterator[Browsed]:
    """Messages in seq_id order from ``first`` on, at most ``limit`` (``None``: all), read as they are reached."""
    for run, unacked in _runs(s, first, _STRETCH if limit is None else min(limit, _STRETCH)):
        while run.count and limit != 0:
            part = run.take_left(_chunk(run, run.count if limit is None else limit))
            limit = None if limit is None else limit - part.count
            yield from _messages(s, part, unacked=unacked)
        if limit == 0:
            return


def _chunk(run: Run, limit: int) -> int:
    """How many messages at a run's head are read at a time."""
    count, sizes = min(_CHUNK, run.count, limit), run.batch.sizes
    if isinstance(sizes, int):
        return min(count, max(1, _CHUNK_BYTES // max(sizes, 1)))
    left = _CHUNK_BYTES
    for index, size in enumerate(sizes[run.low : run.low + count]):
        left -= size
        if left < 0:
            return max(index, 1)
    return count


def first_of_last(s: QueueState, count: int) -> tuple[int, int]:
    """The seq_id from which on there are ``count`` messages, ready and pending, and how many there are: fewer in a
    shorter queue. No message is read, and of delta only what is that near to the end, or twice as far."""
    end = s.next_seq_id
    reach = count
    while True:
        first = max(end - reach, 0)
        runs = [(run.start, run.count) for run, _ in _runs(s, first, _STRETCH)] if count else []
        if not first or sum(size for _, size in runs) >= count:
            break
        reach *= 2
    left = count
    for start, size in reversed(runs):
        if size >= left:
            return start + size - left, count
        left -= size
    return (runs[0][0] if runs else end), count - left


def _runs(s: QueueState, first: int, limit: int) -> Iterator[tuple[Run, bool]]:
    """Ready and pending messages from ``first`` on, and whether they are pending; at most ``limit`` of delta in one."""
    kinds = [((run, False) for run in _ready_runs(s, first, limit))]
    for pending in (s.ram_pending, s.disk_pending, s.index_pending):
        kinds.append((run, True) for run in pending.since(first))
    return heapq.merge(*kinds, key=lambda pair: pair[0].start)


def ids_at(s: QueueState, seq_ids: Sequence[int]) -> list[bytes | None]:
    """Return the msg_ids of the messages at ascending positions, ready or pending; ``None`` for missing ones."""
    msg_ids: list[bytes | None] = [None] * len(seq_ids)
    for run in _runs_at(s, seq_ids) if seq_ids else ():
        ids, before = run.batch.ids, 16 * (run.low - run.start)
        low = bisect_left(seq_ids, run.start)
        for index in range(low, bisect_left(seq_ids, run.end, low)):
            at = before + 16 * seq_ids[index]
            msg_ids[index] = bytes(ids[at : at + 16])
    return msg_ids


def _runs_at(s: QueueState, seq_ids: Sequence[int]) -> Iterator[Run]:
    """Yield the runs that have one of the positions. A segment of delta is read once, and only if one is in it."""
    first, last = seq_ids[0], seq_ids[-1]
    for pending in (s.ram_pending, s.disk_pending, s.index_pending):
        yield from pending.within(first, last + 1) if len(pending) else ()
    for queue in (s.q4, s.q3, s.q2, s.q1):
        yield from takewhile(lambda run: run.start <= last, queue.since(first))
    start, end = (0, 0) if s.delta.blank else s.delta.bounds
    at = bisect_left(seq_ids, start)
    while at < len(seq_ids) and seq_ids[at] < end:
        low, at = seq_ids[at], bisect_left(seq_ids, min(s.index.next_segment_boundary(seq_ids[at]), end), at)
        high = seq_ids[at - 1] + 1
        recover_to(s, high)
        if low // s.index.segment_entry_count in s.index.segments:
            yield from sift(s, s.index.read_some(low, high, high - low)[0])[0]


def _messages(s: QueueState, run: Run, *, unacked: bool) -> Iterator[Browsed]:
    for index, (msg_id, term) in enumerate(zip(run.msg_ids(), s.read_terms(run), strict=True)):
        place = run.low + index
        properties = MessageProperties(run.batch.expiry(place), run.batch.size(place))
        yield Browsed(run.start + index, msg_id, unacked, properties, term)


def _ready_runs(s: QueueState, first: int, limit: int) -> Iterator[Run]:
    yield from s.q4.since(first)
    yield from s.q3.since(first)
    start, end = (None, None) if s.delta.blank else s.delta.bounds
    while start is not None and end is not None and (start := max(start, first)) < end:
        stop = min(s.index.next_segment_boundary(start), end)
        recover_to(s, stop)
        runs, stop = s.index.read_some(start, stop, limit)
        yield from sift(s, runs)[0]
        start = behind_gap(s, stop, end)
    yield from s.q2.since(first)
    yield from s.q1.since(first)
