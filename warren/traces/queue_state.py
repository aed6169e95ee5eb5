"""What a trace's recorder notes of a queue after each operation, and of its recovery terms when it stops."""

from __future__ import annotations

from typing import Any

from warren.queue_index.queue.run_queue import RunQueue
from warren.queue_index.queue.variable_queue import VariableQueue

State = dict[str, Any]


def state_of(queue: VariableQueue) -> State:
    """Return what the trace's recorder notes of a queue."""
    s = queue.state
    delta, persistent, transient = s.delta, s.persistent_store, s.transient_store
    return {
        "bytes": s.bytes,
        "calls_since_reduce": s.calls_since_reduce,
        "credit": [None if persistent is None else persistent.credit.credit, transient.credit.credit],
        "delta": [delta.start, delta.count, delta.transient, delta.end],
        "delta_transient_bytes": s.delta_transient_bytes,
        "disk_reads": s.disk_read_count,
        "disk_writes": s.disk_write_count,
        "index_dirty_count": s.index.dirty_count,
        "index_segments": [[n, seg.unacked, seg.highest] for n, seg in sorted(s.index.segments.items())],
        "len": s.length,
        "mode": s.mode,
        "next_deliver_seq_id": s.next_deliver_seq_id,
        "next_seq_id": s.next_seq_id,
        "pending_acks": [len(s.ram_pending), len(s.disk_pending), len(s.index_pending)],
        "persistent_bytes": s.persistent_bytes,
        "persistent_count": s.persistent_count,
        "q1": _shown_queue(s.q1),
        "q2": _shown_queue(s.q2),
        "q3": _shown_queue(s.q3),
        "q4": _shown_queue(s.q4),
        "ram_ack_count": s.ram_ack_count,
        "ram_bytes": s.ram_bytes,
        "ram_msg_count": s.ram_msg_count,
        "target_ram_count": "infinity" if s.target_ram_count is None else s.target_ram_count,
        "transient_threshold": s.transient_threshold,
        "unacked_bytes": s.unacked_bytes,
        "waiting_bump": s.waiting_bump,
    }


def _shown_queue(queue: RunQueue) -> list[int | None]:
    return [len(queue), queue.first_seq_id, queue.last_seq_id] if queue else [0, None, None]


def shown_terms(terms: Any) -> dict[str, Any]:
    return {
        "segments": [list(pair) for pair in terms.segments],
        "next_seq_id": terms.next_seq_id,
        "next_deliver_seq_id": terms.next_deliver_seq_id,
        "persistent_count": terms.persistent_count,
        "persistent_bytes": terms.persistent_bytes,
        "persistent_ref": None,  # a random id: it says nothing
    }
