"""Acking and requeueing of delivered messages.

An ack removes a message: an index record if its position is on disk, a removal if its payload is in a store. A
requeue brings messages back to their old places, so that no order is lost: those below Q3's first into Q4 (as alphas,
read back), those below delta's start into Q3 (as betas), the rest into delta (written). A message that was taken from
Q2 or Q1 comes back there if the list still has an earlier message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from warren.queue_index.queue.paging import drop_payloads
from warren.queue_index.queue.run import Run
from warren.queue_index.queue.state import QueueState

Tags = Sequence[int | range]
"""Ack tags (seq_ids), singly or as ranges, in the order in which they are acked."""


def tag_ranges(tags: Tags) -> list[range]:
    """Tags as ascending ranges, neighbours joined, in order; every n-th tag stays one range of that step."""
    if isinstance(tags, list) and tags and isinstance(first := tags[0], int) and tags[-1] == first + len(tags) - 1:
        consecutive = range(first, first + len(tags))  # the usual case: they were delivered together
        if tags == [*consecutive]:
            return [consecutive]
    ranges: list[range] = []
    start = stop = -1
    for tag in tags:
        if isinstance(tag, int):
            first, behind = tag, tag + 1
        elif tag.step == 1:
            first, behind = tag.start, max(tag.start, tag.stop)
        elif tag.step < 0:
            return tag_ranges(singly(tags))
        else:
            if start < stop:
                ranges.append(range(start, stop))
            ranges.append(tag)
            start = stop = -1
            continue
        if first == behind:
            continue
        if first == stop:
            stop = behind
            continue
        if start < stop:
            ranges.append(range(start, stop))
        start, stop = first, behind
    if start < stop:
        ranges.append(range(start, stop))
    return ranges


def singly(tags: Tags) -> list[int | range]:
    """Return the same tags, with ranges of step 1 whole and other ranges split into single tags."""
    return [part for tag in tags for part in ((tag,) if isinstance(tag, int) or tag.step == 1 else tag)]


def ack(s: QueueState, tags: Tags) -> list[Run]:
    """Ack delivered messages in one call; returns those that were pending, in the order of the tags."""
    ranges = tag_ranges(tags)
    runs = [run for part in ranges for run in s.take_pending(part)]
    s.forget(runs, descending=True)
    for run in runs:
        s.count(run, before=run.in_ram, after=False, unacked=-1)
    tag_count = sum(map(len, ranges))
    if tag_count > 1 or runs:
        s.rates.ack_out_count += tag_count
    return runs


def requeue(s: QueueState, tags: Tags, *, with_ids: bool = False) -> list[bytes]:
    """Bring delivered messages back to their places; with ``with_ids`` returns their msg_ids in seq_id order."""
    runs = [run for part in tag_ranges(_sorted(tags)) for run in s.take_pending(part)]
    requeued = ids_of(runs) if with_ids else []  # now: a run may grow when it joins its neighbours in a list
    count = sum(run.count for run in runs)
    beta_limit = s.q3.first_seq_id if s.q3 else None
    rest = _requeue_behind_delta(s, runs) if s.q1 or s.q2 else runs
    if s.next_deliver_seq_id < s.taken_to and s.settings.deliver_with_publish:
        _note_requeued(s, runs)
    if s.mode == "default":
        alphas, rest = _below(rest, beta_limit)
        s.q4.merge([_requeued_alpha(s, run) for run in alphas])
    betas, rest = _below(rest, None if s.delta.blank else s.delta.start)
    s.q3.merge([_requeued_beta(s, run) for run in betas])
    for run in rest:
        s.write_payloads(run)
        s.batch_positions(run)
        s.delta.expand(run.start, run.count, transient=not run.persistent)
        s.count(run, before=run.in_ram, after=False, ready=1, unacked=-1, to_delta=True)
    s.rates.in_count += count
    s.end_batch()
    return requeued


def _requeue_behind_delta(s: QueueState, runs: list[Run]) -> list[Run]:
    """Bring back the messages that come after the first of Q2, or of Q1; return the others."""
    rest, late = _below(runs, s.q1.first_seq_id if s.q1 else None)
    s.q1.merge([_requeued_alpha(s, run) for run in late])
    rest, late = _below(rest, s.q2.first_seq_id if s.q2 else None)
    s.q2.merge([_requeued_beta(s, run) for run in late])
    return rest


def _note_requeued(s: QueueState, runs: list[Run]) -> None:
    """Count messages that were taken out of turn, and come back, as delivered; nothing else records it."""
    if runs:
        s.next_deliver_seq_id = max(s.next_deliver_seq_id, runs[-1].end)


def _requeued_alpha(s: QueueState, run: Run) -> Run:
    alpha = run if run.in_ram else run.with_terms(s.read_terms(run))
    s.count(alpha, before=run.in_ram, after=True, ready=1, unacked=-1)
    return alpha


def _requeued_beta(s: QueueState, run: Run) -> Run:
    before = run.in_ram
    paged = run.embedded and not before  # its payload is read back, because an embedded beta's payload is in RAM
    beta = run.with_terms(s.read_terms(run)) if paged else drop_payloads(s, run)
    s.count(beta, before=before, after=beta.in_ram, ready=1, unacked=-1)
    return beta


def _below(runs: list[Run], limit: int | None) -> tuple[list[Run], list[Run]]:
    """Cut runs, in order, at a seq_id: those below it, and the rest."""
    if limit is None:
        return runs, []
    low: list[Run] = []
    high: list[Run] = []
    for run in runs:
        if run.end <= limit:
            low.append(run)
        elif run.start >= limit:
            high.append(run)
        else:
            low.append(run.window(0, limit - run.start))
            high.append(run.window(limit - run.start, run.end - limit))
    return low, high


def _sorted(tags: Tags) -> list[int | range]:
    """Return tags in seq_id order; ranges stay whole if possible."""
    parts = tag_ranges(singly(tags))
    if all(left.stop <= right.start for left, right in pairwise(parts)):
        return list(parts)
    return [*sorted({tag for part in parts for tag in part})]


def purge_acks(s: QueueState, *, keep_persistent: bool) -> None:
    """Forget the pending acks; ack them on disk, or (``keep_persistent``, a clean stop) leave persistent ones there.

    All counters keep them, as the original's do; so a clean stop has to know how many persistent ones were forgotten.
    """
    runs = [run for pending in (s.ram_pending, s.disk_pending, s.index_pending) for run in pending.clear()]
    if keep_persistent:
        s.remove_bodies([run for run in runs if not run.persistent])
        return
    s.forget(runs, descending=True)
    for run in runs:
        if run.persistent:
            count, size = s.forgotten
            s.forgotten = count + run.count, size + run.bytes


def ids_of(runs: Iterable[Run]) -> list[bytes]:
    return [msg_id for run in runs for msg_id in run.msg_ids()]
