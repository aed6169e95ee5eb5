"""Taking: messages leave from any position, and all others stay as they are.

From Q1 … Q4 they are cut out of their runs; from delta they are read by their positions, and their neighbours are
skipped. On disk this is like any delivery: a deliver record, later an ack, in whatever order. Messages are requested
by seq_id and msg_id: one that is gone or pending, or whose number now belongs to another message, is not taken.

A list that is empty afterwards is filled, or skipped, as when the last message leaves at the head. Taking a message
does not count earlier messages as delivered: ``QueueState.note_taken``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Final

from warren.queue_index.queue.acking import tag_ranges
from warren.queue_index.queue.fetching import Fetched, by_redelivery, leave
from warren.queue_index.queue.paging import count_loaded, has_delta, load_from_delta, room_for_load, settle_bytes, sift
from warren.queue_index.queue.recovering import recover_to
from warren.queue_index.queue.run import Run, Terms
from warren.queue_index.queue.run_queue import RunQueue, part_of
from warren.queue_index.queue.state import QueueState

ChosenIds = Mapping[int, bytes]
"""The msg_id of each message, by its seq_id."""

_NEAR: Final = 256
"""Positions of delta that are at most this far apart are read together."""


def take(s: QueueState, chosen: ChosenIds) -> list[Fetched]:
    """Deliver the messages that are ready, acks required, in order."""
    runs = _cut_out(s, chosen)
    terms = _read(s, runs)
    fetched: list[Fetched] = []
    parts: list[Run] = []
    for run, run_terms in zip(runs, terms, strict=True):
        for part, redelivered in by_redelivery(s, run):
            offset = part.start - run.start
            piece = None if run_terms is None else run_terms[offset : offset + part.count]
            fetched.append(Fetched(part.seq_ids, redelivered, part.window(0, part.count), piece))
            parts.append(part)
    s.mark_delivered(parts)
    for part in parts:
        s.note_taken(part.start, part.count)
        leave(s, part.settle(), ack_required=True)
    _close_gaps(s)
    s.update_rates_if_due()
    return fetched


def remove(s: QueueState, chosen: ChosenIds) -> list[range]:
    """Delete messages, unread; return the seq_ids of the ready ones among them."""
    runs = _cut_out(s, chosen)
    s.forget(runs, descending=False)
    for run in runs:
        s.count(run, before=run.in_ram, after=False, ready=-1)
        s.note_taken(run.start, run.count)
        s.rates.out_count += run.count
    _close_gaps(s)
    s.update_rates_if_due()
    return [run.seq_ids for run in runs]


def _cut_out(s: QueueState, chosen: ChosenIds) -> list[Run]:
    """Remove ready messages from their lists; return them in order, to be made pending or forgotten."""
    ranges, taken = tag_ranges(sorted(chosen)), list[Run]()
    for queue in (s.q4, s.q3):
        taken += _cut(queue, ranges, chosen)
    for run in _in_delta(s, ranges):
        for part in _matching(run, chosen):
            count_loaded(s, part)
            s.delta.count -= part.count
            taken.append(part)
    settle_bytes(s)
    for queue in (s.q2, s.q1):
        taken += _cut(queue, ranges, chosen)
    return taken


def _cut(queue: RunQueue, ranges: Sequence[range], chosen: ChosenIds) -> list[Run]:
    runs = [part for run in queue.within(ranges) for part in _matching(run, chosen)]
    queue.remove(tag_ranges([run.seq_ids for run in runs]))
    return runs


def _matching(run: Run, chosen: ChosenIds) -> Iterator[Run]:
    """Yield the parts of a run whose messages have the expected ids."""
    ids = [chosen[seq_id] for seq_id in run.seq_ids]
    actual = run.msg_ids()
    if actual == ids:
        yield run
        return
    matching = [
        at for at, (actual_id, expected_id) in enumerate(zip(actual, ids, strict=True)) if actual_id == expected_id
    ]
    for part in tag_ranges(matching):
        yield run.window(part.start, len(part))


def _in_delta(s: QueueState, ranges: Sequence[range]) -> Iterator[Run]:
    """Yield the runs in delta for ``ranges`` of seq_ids, in order."""
    if s.delta.blank:
        return
    for stretch in _stretches(s, ranges, *s.delta.bounds):
        start, end = stretch[0].start, stretch[-1].stop
        recover_to(s, end)
        for run in sift(s, s.index.read(start, end))[0]:
            for part in stretch:
                if part.start < run.end and run.start < part.stop:
                    yield part_of(run, part)


def _stretches(s: QueueState, ranges: Sequence[range], start: int, end: int) -> Iterator[list[range]]:
    """Yield the ranges between ``start`` and ``end``, grouped by reads: each is a part of one segment."""
    size, inside = s.index.segment_entry_count, list[range]()
    for part in ranges:
        low, high = max(part.start, start), min(part.stop, end)
        while low < high:
            stop = min(high, s.index.next_segment_boundary(low))
            inside.append(range(low, stop))
            low = stop
    apart = [
        at
        for at, (left, right) in enumerate(pairwise(inside), 1)
        if left.start // size != right.start // size or right.start - left.stop > _NEAR
    ]
    for low, high in pairwise([0, *apart, len(inside)]):
        if low < high:
            yield inside[low:high]


def _read(s: QueueState, runs: Sequence[Run]) -> list[Terms | None]:
    """Read the payloads of the runs that are not in RAM: one read of each store."""
    payloads: list[Terms | None] = [None] * len(runs)
    for persistent in (True, False):
        places = [at for at, run in enumerate(runs) if not run.in_ram and run.persistent is persistent]
        if not places:
            continue
        msg_ids = [msg_id for at in places for msg_id in runs[at].msg_ids()]
        terms = iter(s.store(runs[places[0]]).store.read_many(msg_ids))
        s.disk_read_count += len(msg_ids)
        for at in places:
            payloads[at] = [*islice(terms, runs[at].count)]
    return payloads


def _close_gaps(s: QueueState) -> None:
    """Replace a list that has become empty by the next one."""
    if not s.delta.blank and not s.delta.count:
        has_delta(s)
    if s.mode == "lazy" or s.q3:
        return
    if s.delta.count:
        load_from_delta(s, room_for_load(s))
    else:
        s.q4.extend(s.q1)
        s.q1 = RunQueue()
