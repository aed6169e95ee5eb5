"""A queue comes back from its files, and works while its index is still being scanned.

After a crash the first message can be fetched as soon as the first segments are read; the others are scanned on demand,
or in idle time (:func:`recover_step`). Until the scan is complete, the queue's counts cover only the messages found so
far; delta counts at least one message as long as a segment is left to scan, so that order is never lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.queue_index.queue.state import QueueState
from warren.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from warren.queue_index.index.scan_losses import Losses


def recover(
    s: QueueState,
    files: FileSystem,
    terms: RecoveryTerms | None,
    on_references: Callable[[list[bytes]], None] | None,
    losses: Losses | None,
    *,
    store_recovered: bool,
    step_by_step: bool,
) -> None:
    """Put what the files say into delta. The arguments are those of ``VariableQueue.recover``."""
    index = s.index
    if terms is not None and (terms.persistent_ref is None or terms.persistent_count is None):
        terms, store_recovered = attrs.evolve(terms, next_seq_id=None, next_deliver_seq_id=None), False
    if terms is not None and store_recovered:
        from warren.queue_index.index.journal_replay import open_clean

        open_clean(files, index, terms.segments)
        low, high = index.bounds()
        count, size = terms.persistent_count or 0, terms.persistent_bytes or 0
        s.length = s.persistent_count = count
        s.bytes = s.persistent_bytes = s.delta_persistent_bytes = size
        blank = False
    else:
        from warren.queue_index.index.recovery import DirtyRecovery

        store = s.persistent_store
        has_body = store.store.contains if store is not None else lambda _: False
        s.recovery = DirtyRecovery(files, index, has_body, on_references, losses)
        low, high = s.recovery.bounds
        if not step_by_step or s.recovery.finished:
            recover_all(s)
            low, high = index.bounds()
        absorb(s)
        count = s.length
        blank = not count
    s.next_seq_id = high if terms is None or terms.next_seq_id is None else terms.next_seq_id
    deliver = s.next_seq_id if terms is None else terms.next_deliver_seq_id
    s.next_deliver_seq_id = s.next_seq_id if deliver is None else deliver
    s.transient_threshold = s.next_seq_id
    if not blank:
        s.delta.start, s.delta.count, s.delta.end = low, count, s.next_seq_id


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
