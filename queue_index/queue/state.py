"""The state of one queue: what affects it lives here and nowhere else.

Order of a queue, head to tail: Q4, Q3, delta, Q2, Q1. The functions that move messages
(:mod:`~warren.queue_index.queue.publishing`, :mod:`~warren.queue_index.queue.fetching`,
:mod:`~warren.queue_index.queue.acking`, :mod:`~warren.queue_index.queue.paging`) take this object, and every change of
a message's place goes through :meth:`QueueState.count`, which keeps the counters true.

Invariants (:meth:`QueueState.check_invariants`): Q1 non-empty ⇒ Q3 non-empty; Q2 non-empty ⇒ delta non-empty; delta
non-empty ⇒ Q3 non-empty; no message ⇔ Q3 and Q4 empty. Lazy instead: Q1, Q2 and Q4 are empty. While a recovery is still
scanning, delta counts what was found so far and stands for what was not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import attrs

from warren.queue_index.index.queue_index import QueueIndex
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.delta import Delta
from warren.queue_index.queue.pending_acks import PendingAcks
from warren.queue_index.queue.rates import Rates
from warren.queue_index.queue.run import DELIVERED, EMBEDDED, IN_RAM, IN_STORE, INDEXED, PERSISTENT, Run, Terms
from warren.queue_index.queue.run_queue import RunQueue
from warren.storage.errors import DataError
from warren.storage.settings import Settings

if TYPE_CHECKING:
    from warren.queue_index.index.recovery import DirtyRecovery

Mode = Literal["default", "lazy"]
Clock = Callable[[], int]
"""Monotonic time in nanoseconds."""


@attrs.define(eq=False, repr=False)
class WrittenAhead:
    """Small messages that the journal has, and the queue has not yet, as columns."""

    first: int
    """The seq_id that the first of them will have."""
    msg_ids: bytearray
    sizes: list[int]
    """Of their bodies."""
    terms: list[bytes]


@attrs.define(eq=False, repr=False)
class QueueState:
    """The state of a queue. Counts in messages, ``bytes`` in payload bytes; ``None`` targets are infinite."""

    settings: Settings
    index: QueueIndex
    persistent_store: StoreClient | None
    """``None`` for a queue that is not durable."""
    transient_store: StoreClient
    durable: bool
    clock: Clock
    rates: Rates
    io_batch_size: int
    q1: RunQueue = attrs.Factory(RunQueue)
    q2: RunQueue = attrs.Factory(RunQueue)
    delta: Delta = attrs.Factory(Delta)
    q3: RunQueue = attrs.Factory(RunQueue)
    q4: RunQueue = attrs.Factory(RunQueue)
    ram_pending: PendingAcks = attrs.Factory(PendingAcks)
    disk_pending: PendingAcks = attrs.Factory(PendingAcks)
    index_pending: PendingAcks = attrs.Factory(PendingAcks)
    next_seq_id: int = 0
    next_deliver_seq_id: int = 0
    taken_to: int = 0
    """Behind the last message that was taken from the middle, if anything stood before it."""
    transient_threshold: int = 0
    """Transient messages below this are from before the last restart: lost."""
    mode: Mode = "default"
    target_ram_count: int | None = None
    length: int = 0
    bytes: int = 0
    unacked_bytes: int = 0
    persistent_count: int = 0
    persistent_bytes: int = 0
    forgotten: tuple[int, int] = (0, 0)
    """The counted persistent messages that :func:`warren.queue_index.queue.acking.purge_acks` removed, and their
    bytes."""
    ram_msg_count: int = 0
    ram_bytes: int = 0
    ram_msg_count_prev: int = 0
    ram_ack_count_prev: int = 0
    delta_transient_bytes: int = 0
    delta_persistent_bytes: int = 0
    """Of what stands in delta; after a clean stop, what the recovery terms leave for it."""
    disk_read_count: int = 0
    disk_write_count: int = 0
    calls_since_reduce: int = 0
    waiting_bump: bool = False
    recovery: DirtyRecovery | None = None
    on_damage: Callable[[DataError], object] | None = None
    """Told, once, that sizes of messages are not what was counted."""
    written_ahead: WrittenAhead | None = None
    """What the journal has, and the queue has not yet: from ``next_seq_id`` on."""

    @property
    def told_ram_count(self) -> int | None:
        """The target that the memory monitor's answer comes to, as RabbitMQ says it; ``None``: none, or no less than
        the queue may have in any case."""
        target = self.target_ram_count
        return None if target == self.settings.target_ram_count_max else target

    @property
    def ram_ack_count(self) -> int:
        """Pending acks whose payload is in RAM."""
        return len(self.ram_pending) + len(self.index_pending)

    @property
    def pageable_ack_count(self) -> int:
        """How many pending acks in RAM may be paged."""
        return self.ram_ack_count if self.settings.page_embedded_acks else len(self.ram_pending)

    @property
    def pending_ack_count(self) -> int:
        return len(self.ram_pending) + len(self.disk_pending) + len(self.index_pending)

    @property
    def works_in_ram(self) -> bool:
        """Whether some hundred messages that come or go now read no file and flush no journal."""
        return self.ram_msg_count == self.length and self.recovery is None and not self.index.flushes_soon

    @property
    def is_empty_in_ram(self) -> bool:
        """Whether no message is ready, and what comes stays in RAM."""
        return not self.length and self.recovery is None and self.mode == "default"

    @property
    def blocked(self) -> bool:
        """Whether a store has asked this queue to stop paging."""
        persistent = self.persistent_store
        return self.transient_store.credit.blocked or (persistent is not None and persistent.credit.blocked)

    def store(self, run: Run) -> StoreClient:
        """The store that a run's payloads belong to."""
        if not run.persistent:
            return self.transient_store
        if self.persistent_store is None:
            raise RuntimeError("a persistent message in a queue that is not durable")
        return self.persistent_store

    def count(
        self,
        run: Run,
        *,
        before: bool,
        after: bool,
        ready: int = 0,
        unacked: int = 0,
        paged: bool = False,
        to_delta: bool = False,
    ) -> None:
        """Account for a run that changed its place.

        ``before`` and ``after``: payload in RAM; ``ready`` and ``unacked``: +1, 0 or -1 for each message; ``paged``:
        it stays ready, and its payload came or went; ``to_delta``: it went into delta.
        """
        messages, size = run.count, run.bytes
        in_ram = after - before
        if ready:
            self.ram_msg_count += messages * (after if ready > 0 else -before)
        elif paged:
            self.ram_msg_count += messages * in_ram
        self.length += ready * messages
        self.bytes += ready * size
        self.unacked_bytes += unacked * size
        self.ram_bytes += in_ram * size
        if run.flags & PERSISTENT:
            self.persistent_count += (ready + unacked) * messages
            self.persistent_bytes += (ready + unacked) * size
            if to_delta:
                self.delta_persistent_bytes += size
        elif to_delta:
            self.delta_transient_bytes += size

    def note_delivered(self, start: int, count: int) -> None:
        """Move ``next_deliver_seq_id`` over messages that were delivered in order, and over a gap of messages that were
        taken before it was their turn."""
        now = self.next_deliver_seq_id
        if start <= now < start + count or (now < self.taken_to and now < start):
            self.next_deliver_seq_id = start + count

    def note_taken(self, start: int, count: int) -> None:
        """The same of messages that were taken wherever they stood: what stands before them was not delivered."""
        if start <= self.next_deliver_seq_id < start + count:
            self.next_deliver_seq_id = start + count
        elif self.next_deliver_seq_id < start:
            self.taken_to = max(self.taken_to, start + count)

    def hold_pending(self, run: Run) -> None:
        """Take a delivered run into the pending acks."""
        if not run.flags & IN_RAM:
            self.disk_pending.add(run)
        elif run.flags & EMBEDDED:
            self.index_pending.add(run)
        else:
            self.ram_pending.add(run)
        self.rates.ack_in_count += run.count

    def pop_largest_pageable_ack(self, count: int) -> Run:
        """Remove and return at most ``count`` pageable acks of the highest seq_ids, as far as they are one run."""
        pending, embedded = self.ram_pending, self.index_pending
        if not len(pending) or (
            self.settings.page_embedded_acks and len(embedded) and embedded.last_seq_id > pending.last_seq_id
        ):
            pending = embedded
        return pending.pop_largest(count)

    def take_pending(self, seq_ids: range) -> list[Run]:
        """Remove and return the pending acks of ascending ``seq_ids``, in order."""
        pieces = [
            run
            for pending in (self.ram_pending, self.disk_pending, self.index_pending)
            if len(pending)
            for run in pending.remove(seq_ids.start, seq_ids.stop, seq_ids.step)
        ]
        if len(pieces) > 1:
            pieces.sort(key=lambda run: run.start)
        return pieces

    @property
    def next_deliver_after_stop(self) -> int:
        """``next_deliver_seq_id`` as a clean stop leaves it. If the index does not record deliveries, everything up to
        the last message taken from the middle counts as delivered."""
        return max(self.next_deliver_seq_id, self.taken_to if self.settings.deliver_with_publish else 0)

    # ── payloads and positions, to disk and back ─────────────────────────────────────────────────────────────────

    def read_terms(self, run: Run) -> Terms:
        """A run's payloads, from RAM, from the index or from the store."""
        if run.flags & IN_RAM:
            return run.terms()
        self.disk_read_count += run.count
        if run.flags & EMBEDDED:
            return [term for part in self.index.read(run.start, run.end) for term in part.terms()]
        return self.store(run).store.read_many(run.msg_ids())

    def write_payloads(self, run: Run) -> None:
        """Write a run's payloads to their store, unless they are in it or in the index."""
        if not run.flags & (IN_STORE | EMBEDDED):
            self.store(run).write(run.msg_ids(), run.terms_to_write())
            run.flags |= IN_STORE
            self.disk_write_count += run.count

    def note_indexed(self, run: Run) -> None:
        """Note that a run's positions were passed to the index."""
        run.flags |= INDEXED
        if run.flags & EMBEDDED:
            self.disk_write_count += run.count
        if self.settings.deliver_with_publish:
            run.flags |= DELIVERED

    def write_position(self, run: Run) -> None:
        """Write a run's positions alone, unless they are on disk."""
        if not run.flags & INDEXED:
            self.index.publish(run, self.target_ram_count)
            self.note_indexed(run)

    def batch_positions(self, run: Run, *, descending: bool = False) -> None:
        """Let a run's positions join the index batch, unless they are on disk."""
        if not run.flags & INDEXED:
            self.index.pre_publish(run, self.target_ram_count, descending=descending)
            self.note_indexed(run)

    def end_batch(self) -> None:
        self.index.end_batch(self.target_ram_count)

    def mark_delivered(self, runs: list[Run]) -> None:
        """Write the deliver records that positions on disk still lack; the runs are delivered from now on."""
        late = [run.seq_ids for run in runs if run.flags & (INDEXED | DELIVERED) == INDEXED]
        if late:
            self.index.deliver(late)
        for run in runs:
            run.flags |= DELIVERED

    def forget(self, runs: list[Run], *, descending: bool) -> None:
        """Ack on disk: write the index's records for positions on disk, and remove payloads from the store."""
        indexed = [run for run in runs if run.flags & INDEXED]
        if indexed:
            self.mark_delivered(indexed)
            if descending:
                self.index.ack([run.seq_ids[::-1] for run in reversed(indexed)])
            else:
                self.index.ack([run.seq_ids for run in indexed])
        self.remove_bodies(runs)

    def remove_bodies(self, runs: list[Run]) -> None:
        """Give up the stored payloads of runs that are gone."""
        for client, persistent in ((self.persistent_store, PERSISTENT), (self.transient_store, 0)):
            ids = [
                msg_id
                for run in runs
                if run.flags & IN_STORE and run.flags & PERSISTENT == persistent
                for msg_id in run.msg_ids()
            ]
            if ids and client is not None:
                client.store.remove_many(ids)

    def release(self) -> None:
        """Give up file handles, and memory that holds nothing or only saves time."""
        self.index.release()
        for part in (self.q1, self.q2, self.q3, self.q4, self.ram_pending, self.disk_pending, self.index_pending):
            part.release()

    def update_rates_if_due(self) -> None:
        if self.rates.due(self.settings):
            self.rates.update(self.clock(), self.settings)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the state contradicts itself."""
        delta, problems = self.delta, []
        delta.check_invariants()
        if self.mode == "default":
            if self.q1 and not self.q3:
                problems.append("Q1 without Q3")
            if self.q2 and not delta.count:
                problems.append("Q2 without delta")
            if delta.count and not self.q3:
                problems.append("delta without Q3")
            if (self.length == 0) != (not self.q3 and not self.q4):
                problems.append("length against Q3 and Q4")
        elif self.q1 or self.q2 or self.q4:
            problems.append("lazy with messages in Q1, Q2 or Q4")
        ready = len(self.q1) + len(self.q2) + delta.count + len(self.q3) + len(self.q4)
        if ready != self.length:
            problems.append(f"{ready} messages in the lists, {self.length} counted")
        if not 0 <= self.ram_msg_count <= self.length:
            problems.append(f"{self.ram_msg_count} of {self.length} messages in RAM")
        if not 0 <= self.ram_bytes <= self.bytes + self.unacked_bytes:
            problems.append(f"{self.ram_bytes} of {self.bytes} + {self.unacked_bytes} bytes in RAM")
        if min(self.unacked_bytes, self.persistent_count, self.persistent_bytes, self.delta_persistent_bytes) < 0:
            problems.append("a negative counter")
        if self.written_ahead is not None and self.written_ahead.first != self.next_seq_id:
            problems.append("something was published since messages were written ahead")
        problems += self._misplaced()
        if problems:
            raise RuntimeError("; ".join(problems))
        self.index.check_invariants()

    def _misplaced(self) -> list[str]:
        """Messages that are not of the kind that their list holds, or out of order."""
        problems, position = [], -1
        lists = [("q4", self.q4), ("q3", self.q3), ("q2", self.q2), ("q1", self.q1)]
        for name, queue in lists:
            queue.check_invariants(self.index.segment_entry_count)
            for run in queue:
                if run.start <= position:
                    problems.append(f"{run} of {name} is out of order")
                position = run.end - 1
                if run.persistent and not run.flags & INDEXED:
                    problems.append(f"{run} of {name} is persistent and not on disk")
                if name in ("q1", "q4") and not run.in_ram:
                    problems.append(f"{run} of {name} is not in RAM")
                if not run.flags & (IN_RAM | IN_STORE):
                    problems.append(f"{run} of {name} is nowhere")
            if name == "q3" and self.delta.count and self.delta.start is not None:
                if position >= self.delta.start:
                    problems.append("Q3 reaches into delta")
                position = max(position, (self.delta.end or 0) - 1)
        for pending in (self.ram_pending, self.disk_pending, self.index_pending):
            for run in pending:
                if run.persistent and not run.flags & INDEXED:
                    problems.append(f"pending {run} is persistent and not on disk")
                if not run.flags & (IN_RAM | IN_STORE) and run.flags & (EMBEDDED | INDEXED) != EMBEDDED | INDEXED:
                    problems.append(f"pending {run} is nowhere")
        return problems
