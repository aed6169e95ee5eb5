"""Browsing: looking at every message, ready and pending, without taking any.

The queue's lists and the pending acks are merged by seq_id. Delta is read part by part as the browser gets there,
and nothing of it stays in RAM. The queue must not change while it is browsed; but a browser may begin behind the last
message that it saw, and what lies before is then neither read nor walked through: page by page, a queue costs what it
costs in one go.

:func:`id_at` looks at one position: whether a message that was here once is here still.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

import attrs

from warren.queue_index.fetching import MessageProperties
from warren.queue_index.message_format import Message, decode_message
from warren.queue_index.paging import behind_gap, sift
from warren.queue_index.recovering import recover_to
from warren.queue_index.run import Run
from warren.queue_index.state import QueueState

_CHUNK: Final = 256  # payloads read from a store at a time
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
    kinds = [((run, False) for run in _ready_runs(s, first, _STRETCH if limit is None else min(limit, _STRETCH)))]
    for held in (s.ram_pending, s.disk_pending, s.index_pending):
        kinds.append((run, True) for run in held.since(first))
    for run, unacked in heapq.merge(*kinds, key=lambda pair: pair[0].start):
        while run.count and limit != 0:
            part = run.take_left(min(_CHUNK, run.count, run.count if limit is None else limit))
            limit = None if limit is None else limit - part.count
            yield from _messages(s, part, unacked=unacked)
        if limit == 0:
            return


def id_at(s: QueueState, seq_id: int) -> bytes | None:
    """The msg_id of the message at a position, ready or pending; ``None`` where there is none. Reads no body."""
    for held in (s.ram_pending, s.disk_pending, s.index_pending):
        if len(held) and (run := held.find(seq_id)) is not None:
            return _first_id(run)
    if not s.delta.blank:
        start, end = s.delta.bounds
        if start <= seq_id < end:
            recover_to(s, seq_id + 1)
            if seq_id // s.index.segment_entry_count not in s.index.segments:
                return None
            found = sift(s, s.index.read_some(seq_id, seq_id + 1, 1)[0])[0]
            return _first_id(found[0]) if found else None
    for ready in (s.q4, s.q3, s.q2, s.q1):
        if ready and ready.first_seq_id <= seq_id <= ready.last_seq_id:
            run = next(ready.since(seq_id))
            return _first_id(run) if run.start == seq_id else None
    return None


def _first_id(run: Run) -> bytes:
    return bytes(run.batch.ids[16 * run.low : 16 * run.low + 16])


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
