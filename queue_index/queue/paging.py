"""Paging: keeping a queue within its target_ram_count.

*Reducing* moves alphas to betas (payloads go to disk) and betas to delta (positions too), as many as the target asks
and at most a bound at a time, so that a queue stays responsive; what the bound cut off is done soon after
(``waiting_bump``). *Loading* is the way back: one part of delta, at most to the end of its segment, into Q3.

Embedded payloads stay in RAM as betas. So with ``page_inside_segments`` betas also go to delta if payloads in RAM
exceed the target, and a load brings no more than the target has room for, or ``delta_read_min``: an excess of this size
is tolerated before an operation pushes them out again. At target 0 everything goes but Q3's oldest message. Without
that setting, what is left of Q3's first segment stays, as in RabbitMQ 3.10.

The work is done in runs: a run is cut where the quota, the target, the credit or a boundary ends it.
"""

from __future__ import annotations

from warren.queue_index.index.record_format import MAX_MESSAGE_BYTES
from warren.queue_index.queue.recovering import recover_more, recover_to
from warren.queue_index.queue.run import EMBEDDED, IN_RAM, IN_STORE, PERSISTENT, Run
from warren.queue_index.queue.run_queue import RunQueue
from warren.queue_index.queue.state import QueueState
from warren.storage.errors import DataError

_WALKABLE_SEGMENTS = 1024
"""A larger gap cannot come from the queue itself."""


def excess(current: int, permitted: int | None) -> int:
    """How many of ``current`` are more than permitted; ``None`` permits any number."""
    return 0 if permitted is None or permitted >= current else current - permitted


def reduce_after_operation(s: QueueState, *, publishing: bool) -> None:
    """Reduce memory use if this call is one that has to."""
    if not publishing and not s.settings.reduce_after_every_operation:
        return
    if s.calls_since_reduce >= s.settings.queue_explicit_gc_run_operation_threshold:
        reduce_memory_use(s, slack=s.settings.delta_read_min)
        s.calls_since_reduce = 0
    else:
        s.calls_since_reduce += 1


def reduce_memory_use(s: QueueState, *, slack: int = 0) -> None:
    """Page until the queue is within its target, or the bound or a store's credit ends it.

    ``slack``: an excess of payloads up to this is not pushed to delta (with ``page_inside_segments``).
    """
    if s.target_ram_count is None:
        return
    if s.mode == "lazy":
        _reduce_lazy(s, slack if s.settings.page_inside_segments else 0)
        return
    bound = 2 * s.settings.msg_store_credit_disc_bound[0]
    again = False
    alphas = excess(s.ram_msg_count + s.pageable_ack_count, s.target_ram_count)
    if alphas:
        quota = min(alphas, bound)
        if s.rates.acks_grow_faster:
            quota = _push_alphas_to_betas(s, page_pending_acks(s, quota))
        else:
            quota = page_pending_acks(s, _push_alphas_to_betas(s, quota))
        again = quota == 0 and alphas > bound
    if s.q3:  # else there are no betas
        betas = excess(len(s.q2) + len(s.q3), _permitted_betas(s))
        if betas >= s.io_batch_size:
            _push_betas_to_delta(s, min(betas, bound))
            again = again or betas > bound
        if s.settings.page_inside_segments:
            again = _push_payloads_to_delta(s, bound, slack) or again
    _flush(s, slack)
    if again and not s.blocked:
        s.waiting_bump = True


def _reduce_lazy(s: QueueState, slack: int) -> None:
    surplus = excess(s.ram_msg_count + s.pageable_ack_count, s.target_ram_count)
    if surplus:
        page_pending_acks(s, surplus)
    betas = excess(len(s.q3), _permitted_betas(s))
    if betas > slack:
        _push_tail_to_delta(s, betas, floor=s.q3.first_seq_id)
    _flush(s, slack)


def _flush(s: QueueState, slack: int) -> None:
    """End a reduction with a flush; if every operation reduces, only if much is unflushed, perhaps with payloads."""
    if not s.settings.reduce_after_every_operation:
        s.index.flush_if_room()
    elif s.index.dirty_count > slack:
        s.end_batch()


def _permitted_betas(s: QueueState) -> int | None:
    """How many messages Q2 and Q3 may hold; ``None``: any number."""
    target = s.target_ram_count
    if not s.length or target is None:
        return None
    if s.mode == "lazy":
        return target
    segment = s.index.segment_entry_count
    if target == 0:
        return 1 if s.settings.page_inside_segments else min(len(s.q3), segment)
    beta_delta = s.length - len(s.q1) - len(s.q4)
    return max(segment, beta_delta - beta_delta * beta_delta // (beta_delta + target))


def page_pending_acks(s: QueueState, quota: int) -> int:
    """Drop the payloads of pending acks from the highest seq_id down; returns the quota that is left."""
    while quota and s.pageable_ack_count:
        run = s.pop_largest_pageable_ack(quota)
        quota -= run.count
        s.write_payloads(run)
        if run.embedded:
            s.batch_positions(run, descending=True)
        s.count(run, before=True, after=False)
        s.disk_pending.add(run.paged(run.flags))
    _end_batch(s)
    return quota


def _push_alphas_to_betas(s: QueueState, quota: int) -> int:
    """Q1 from its head to the tail of Q3 or Q2, then Q4 from its tail to the head of Q3; returns what is left."""
    behind = s.q2 if s.delta.count else s.q3
    quota = _push_alphas(s, quota, s.q1, behind, from_head=True)
    return _push_alphas(s, quota, s.q4, s.q3, from_head=False)


def _push_alphas(s: QueueState, quota: int, source: RunQueue, target: RunQueue, *, from_head: bool) -> int:
    while quota and source and not s.blocked:
        surplus = excess(s.ram_msg_count, s.target_ram_count)
        if not surplus:
            break
        flags = (source.head if from_head else source.tail).flags
        take = quota
        if not flags & EMBEDDED:
            take = min(take, surplus)  # each drops a payload, so no more than are too many
            if not flags & IN_STORE:
                client = s.transient_store if not flags & PERSISTENT else s.persistent_store
                take = min(take, client.credit.credit) if client is not None and client.credit.credit > 0 else take
        run = source.take_left(take) if from_head else source.take_right(take)
        quota -= run.count
        beta = drop_payloads(s, run)
        s.count(beta, before=True, after=beta.in_ram, paged=True)
        if from_head:
            target.append(beta)
        else:
            target.prepend(beta)
    _end_batch(s)
    return quota


def drop_payloads(s: QueueState, run: Run) -> Run:
    """Make betas of a run: payloads on disk and out of RAM, but embedded ones keep theirs."""
    s.write_payloads(run)
    return run if run.flags & EMBEDDED or not run.flags & IN_RAM else run.paged(run.flags)


def _push_betas_to_delta(s: QueueState, quota: int) -> None:
    if s.q3:
        oldest = s.q3.first_seq_id
        all_but_one = s.settings.page_inside_segments and s.target_ram_count == 0
        quota = _push_tail_to_delta(
            s, quota, floor=oldest + 1 if all_but_one else s.index.next_segment_boundary(oldest)
        )
    _push_head_to_delta(s, quota)


def _push_payloads_to_delta(s: QueueState, bound: int, slack: int) -> bool:
    """Push betas that have their payloads in RAM, while there are too many; return whether there are more.

    Q2 from its head, because that is needed last; then Q3 from its tail, but not its oldest message.
    """
    if excess(s.ram_msg_count, s.target_ram_count) <= slack:
        return False
    left = bound
    while left and s.q2 and (surplus := excess(s.ram_msg_count, s.target_ram_count)):
        take = min(left, surplus)
        left -= take - _push_head_to_delta(s, take)
    while left and len(s.q3) > 1 and (surplus := excess(s.ram_msg_count, s.target_ram_count)):
        take = min(left, surplus)
        left -= take - _push_tail_to_delta(s, take, floor=s.q3.first_seq_id + 1)
    return not left and excess(s.ram_msg_count, s.target_ram_count) > 0


def _push_head_to_delta(s: QueueState, quota: int) -> int:
    """Q2 from its head into delta; returns the quota that is left."""
    if not s.q2:
        return quota
    while quota and s.q2:
        run = s.q2.take_left(quota)
        quota -= run.count
        _into_delta(s, run, descending=False)
    _end_batch(s)
    return quota


def _end_batch(s: QueueState) -> None:
    """Write the batch that waits. If none waits, this may flush; if every operation reduces, leave that to the end."""
    if s.index.batch_waits or not s.settings.reduce_after_every_operation:
        s.end_batch()


def _push_tail_to_delta(s: QueueState, quota: int, *, floor: int) -> int:
    """Q3 from its tail into delta, but nothing below ``floor``; returns the quota that is left."""
    if s.q3.last_seq_id < floor:
        return quota
    while quota and s.q3 and s.q3.last_seq_id >= floor:
        run = s.q3.take_right(min(quota, s.q3.last_seq_id - floor + 1))
        quota -= run.count
        _into_delta(s, run, descending=True)
    _end_batch(s)
    return quota


def _into_delta(s: QueueState, run: Run, *, descending: bool) -> None:
    s.batch_positions(run, descending=descending)
    s.count(run, before=run.in_ram, after=False, paged=True, to_delta=True)
    s.delta.expand(run.start, run.count, transient=not run.persistent)


def room_for_load(s: QueueState) -> int | None:
    """How many messages a load may bring; ``None``: any number.

    At target 0 and in lazy mode all messages count; else only those with payloads: positions may fill a segment.
    """
    settings, target = s.settings, s.target_ram_count
    if target is None or not settings.page_inside_segments:
        return None
    return max(settings.delta_read_min, target - s.ram_msg_count)


def load_from_delta(s: QueueState, limit: int | None = None, *, ack_lost: bool = True) -> None:
    """Load the next part of delta that has a message into Q3, at most ``limit``; Q2 joins when delta is used up.

    Transient messages from before the last restart are acked on the way (``ack_lost``), pending ones skipped.
    """
    delta, index = s.delta, s.index
    while not delta.blank:
        runs, end = _read_stretch(s, limit)
        loaded, lost = sift(s, runs)
        _lose(s, lost, ack=ack_lost)
        count = sum(run.count for run in loaded)
        for run in loaded:
            count_loaded(s, run)
            s.q3.append(run)
        if not count:
            delta.start = behind_gap(s, end, delta.bounds[1])
            continue
        if count > delta.count:
            raise DataError(index.path, None, f"{count - delta.count} messages more than were counted")
        delta.count -= count
        settle_bytes(s)
        if has_delta(s):
            delta.start = end
            if delta.end is not None and end + delta.count > delta.end:  # the index lost some since a clean stop
                missing = end + delta.count - delta.end
                raise DataError(index.path, None, f"at least {missing} messages that were counted are not there")
        return
    if delta.count:
        raise DataError(index.path, None, f"{delta.count} messages that were counted are not there")
    settle_bytes(s)


def count_loaded(s: QueueState, run: Run) -> None:
    """Account for a run that was read from delta."""
    if run.in_ram:
        s.disk_read_count += run.count
    elif run.bytes > MAX_MESSAGE_BYTES:
        from warren.queue_index.queue.payload_sizes import ask_store

        ask_store(s, run)
    size = run.bytes
    s.count(run, before=False, after=run.in_ram, paged=True)
    if run.persistent:
        s.delta_persistent_bytes -= size
    else:
        s.delta.transient -= run.count
        s.delta_transient_bytes -= size


def settle_bytes(s: QueueState) -> None:
    """Check that the bytes that left delta match the count: no more, and with the last message all of them."""
    if s.delta_persistent_bytes < 0 or (s.delta_persistent_bytes and not s.delta.count):
        from warren.queue_index.queue.payload_sizes import follow_files

        follow_files(s)


def has_delta(s: QueueState) -> bool:
    """Return whether messages are left in delta, after some left it. If not, append Q2 to Q3."""
    if not s.delta.count:
        recover_more(s)
    if s.delta.count:
        return True
    s.delta.clear()
    s.delta_transient_bytes = 0
    s.q3.extend(s.q2)
    s.q2 = RunQueue()
    return False


def _read_stretch(s: QueueState, limit: int | None) -> tuple[list[Run], int]:
    """Return the messages of delta's next part, and where it ends."""
    start, delta_end = s.delta.bounds
    end = min(s.index.next_segment_boundary(start), delta_end)
    if s.settings.delta_read_max is not None:
        end = min(end, start + s.settings.delta_read_max)
    recover_to(s, end)
    if limit is None:
        return s.index.read(start, end), end
    return s.index.read_some(start, end, limit, embedded=bool(s.target_ram_count) and s.mode == "default")


def behind_gap(s: QueueState, start: int, end: int) -> int:
    """Return where to continue after a part of delta, in a load or in a fold: directly after it.

    So a segment that a flush has dropped, because everything in it was acked, is read again, is empty, and is listed
    until the next flush, as in RabbitMQ. But damaged numbers can leave a gap too large to walk through: then reading
    continues at the next known segment.
    """
    index = s.index
    if s.recovery is not None or start % index.segment_entry_count:
        return start
    next_start = index.next_known(start, end)
    return start if next_start - start <= _WALKABLE_SEGMENTS * index.segment_entry_count else next_start


def sift(s: QueueState, runs: list[Run]) -> tuple[list[Run], list[Run]]:
    """Split a part of delta into messages to load, and those lost in a restart; pending messages are neither."""
    loaded: list[Run] = []
    lost: list[Run] = []
    for run in runs:
        if not run.persistent and run.start < s.transient_threshold:
            lost.append(run.take_left(min(run.count, s.transient_threshold - run.start)))
            if not run.count:
                continue
        loaded += parts_not_pending(s, run)
    return loaded, lost


def parts_not_pending(s: QueueState, run: Run) -> list[Run]:
    """Return the parts of a run that have no pending ack."""
    pending_spans = [
        (max(piece.start, run.start), min(piece.end, run.end))
        for pending in (s.ram_pending, s.disk_pending, s.index_pending)
        if len(pending)
        for piece in pending.within(run.start, run.end)
    ]
    parts = []
    for low, high in sorted(pending_spans):
        if low > run.start:
            parts.append(run.take_left(low - run.start))
        if run.count:
            run.take_left(min(high - run.start, run.count))
    if run.count:
        parts.append(run)
    return parts


def _lose(s: QueueState, lost: list[Run], *, ack: bool) -> None:
    """Ack transient messages from before the restart; the next delivery moves past at most one of them."""
    if any(run.start <= s.next_deliver_seq_id < run.end for run in lost):
        s.next_deliver_seq_id += 1
    if lost and ack:
        s.mark_delivered(lost)
        s.index.ack([range(run.start, run.end) for run in lost])
