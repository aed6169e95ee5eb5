"""Browsing: looking at every message, ready and pending, without taking any.

The queue's lists and the pending acks are merged by seq_id. Delta is read stretch by stretch as the browser gets there,
and nothing of it stays in RAM. The queue must not change while it is browsed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import attrs

from queue_index.fetching import MessageProperties
from queue_index.message_format import Message, decode_message
from queue_index.paging import sift
from queue_index.recovering import recover_to
from queue_index.run import Run
from queue_index.state import QueueState

_CHUNK = 256  # payloads read from a store at a time


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


def browse(s: QueueState) -> Iterator[Browsed]:
    """Every message in seq_id order, read as it is reached."""
    ready = _messages(s, _ready_runs(s), unacked=False)
    pending = [_messages(s, pieces, unacked=True) for pieces in (s.ram_pending, s.disk_pending, s.index_pending)]
    return heapq.merge(ready, *pending, key=lambda browsed: browsed.seq_id)


def _messages(s: QueueState, runs: Iterable[Run], *, unacked: bool) -> Iterator[Browsed]:
    for run in runs:
        for low in range(0, run.count, _CHUNK):
            part = run.window(low, min(_CHUNK, run.count - low))
            for index, (msg_id, term) in enumerate(zip(part.msg_ids(), s.read_terms(part), strict=True)):
                place = part.low + index
                properties = MessageProperties(part.batch.expiry(place), part.batch.size(place))
                yield Browsed(part.start + index, msg_id, unacked, properties, term)


def _ready_runs(s: QueueState) -> Iterator[Run]:
    yield from s.q4
    yield from s.q3
    start, end = (None, None) if s.delta.blank else s.delta.bounds
    while start is not None and end is not None and start < end:
        stop = min(s.index.next_segment_boundary(start), end, start + 2048)
        recover_to(s, stop)
        yield from sift(s, s.index.read(start, stop))[0]
        beyond = s.recovery is None and not stop % s.index.segment_entry_count
        start = s.index.next_known(stop, end) if beyond else stop
    yield from s.q2
    yield from s.q1
