"""A queue that works while its index is still being scanned.

After a crash the first message can be fetched as soon as the first segments are read; the others are scanned on demand,
or in idle time (:func:`recover_step`). Until the scan is complete, the queue's counts cover only the messages found so
far; delta counts at least one message as long as a segment is left to scan, so that order is never lost.
"""

from __future__ import annotations

from warren.queue_index.queue.state import QueueState


def recover_step(s: QueueState) -> bool:
    """Scan one more segment; return whether there are more. The last one flushes, if something is to be moved."""
    recovery = s.recovery
    if recovery is None:
        return False
    recovery.step()
    absorb(s)
    if recovery.finished:
        s.recovery = None
        if recovery.needs_flush:
            s.index.flush_if_room(even_if_clean=True)
    return s.recovery is not None


def absorb(s: QueueState) -> None:
    """Count what the scan has found since the last time: it stands in delta."""
    recovery = s.recovery
    if recovery is None:
        return
    messages, size = recovery.take_found()
    s.length += messages
    s.delta.count += messages
    s.persistent_count += messages
    s.bytes += size
    s.persistent_bytes += size
    s.delta_persistent_bytes += size


def recover_to(s: QueueState, seq_id: int) -> None:
    """Scan until everything below ``seq_id`` is known."""
    while s.recovery is not None and s.recovery.scanned_to < seq_id:
        recover_step(s)


def recover_more(s: QueueState) -> None:
    """Scan until delta has a message again, or nothing is left to scan."""
    while s.recovery is not None and not s.delta.count:
        recover_step(s)


def recover_all(s: QueueState) -> None:
    """Scan everything."""
    while recover_step(s):
        pass
