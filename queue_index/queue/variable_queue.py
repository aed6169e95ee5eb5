"""VariableQueue: a RabbitMQ classic queue (v1) as one plain object.

The facade over :mod:`warren.queue_index.queue.state`. It is deterministic and single-threaded: the files, the body
stores, the clock and the credit are passed in. The modules that implement the operations describe them:
:mod:`~warren.queue_index.queue.publishing`, :mod:`~warren.queue_index.queue.fetching`,
:mod:`~warren.queue_index.queue.acking`, :mod:`~warren.queue_index.queue.removal`,
:mod:`~warren.queue_index.queue.browsing`, :mod:`~warren.queue_index.queue.paging`.

How a message moves::

    publish ─► Q1 ─► Q2 ─► delta ─► Q3 ─► Q4 ─► fetch ─► pending ack ─► ack
                            (each may be skipped while the parts after it are empty)

Crash: everything written out is on disk (:meth:`VariableQueue.sync` makes it safe);
:meth:`VariableQueue.recover` brings it back in order. An operation that raises anything but
:class:`~warren.storage.errors.WarrenError` for its arguments leaves a state that must not be used again: reopen the
queue from its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from warren.queue_index.index.queue_index import QueueIndex
from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue import acking, fetching, paging, publishing, recovering
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.confirms import Confirms
from warren.queue_index.queue.fetching import Fetched, MessageProperties, Predicate
from warren.queue_index.queue.rates import Rates
from warren.queue_index.queue.state import Clock, Mode, QueueState
from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import FileSystem
from warren.storage.settings import Settings

if TYPE_CHECKING:
    from warren.queue_index.index.scan_losses import Losses
    from warren.queue_index.queue.browsing import Browsed
    from warren.queue_index.queue.removal import ChosenIds


def _no_grant() -> None:
    raise RuntimeError("blocked by a store that grants no credit")


@attrs.frozen(eq=False, repr=False, kw_only=True)
class QueueFiles:
    """What a queue is made of: where its index lies, and what it uses."""

    files: FileSystem
    path: str
    vhost: bytes
    queue: bytes
    settings: Settings
    persistent_store: StoreClient | None
    """``None``: the queue is not durable."""
    transient_store: StoreClient
    clock: Clock
    sync: bool = True
    """Whether safe messages survive a power loss, or only the process."""
    synced: dict[str, bool] = attrs.Factory(dict)
    """The paths of directories that are known to name their queue, and whether the names are synced."""
    wait_for_grant: Callable[[], None] = _no_grant
    """Called if a change of mode has to wait for a store's credit; must deliver one grant."""
    on_damage: Callable[[DataError], object] | None = None
    """Called if sizes of messages differ from what was counted."""

    def new_index(self) -> QueueIndex:
        return QueueIndex(
            self.files,
            self.path,
            self.settings,
            vhost=self.vhost,
            queue=self.queue,
            sync=self.sync,
            synced=self.synced,
        )

    def new_state(self, index: QueueIndex) -> QueueState:
        return QueueState(
            settings=self.settings,
            index=index,
            persistent_store=self.persistent_store,
            transient_store=self.transient_store,
            durable=self.persistent_store is not None,
            clock=self.clock,
            rates=Rates(self.clock()),
            io_batch_size=self.settings.msg_store_io_batch_size,
            target_ram_count=self.settings.target_ram_count_max,
            on_damage=self.on_damage,
        )


class VariableQueue:
    """One queue. See the module's prose."""

    __slots__ = ("_wait_for_grant", "confirms", "state")

    def __init__(self, parts: QueueFiles, state: QueueState) -> None:
        self._wait_for_grant = parts.wait_for_grant
        self.state = state
        """The state itself, to be looked at only."""
        self.confirms = Confirms(state)

    # ── beginnings and ends ─────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def create(cls, parts: QueueFiles) -> VariableQueue:
        """Make a new, empty queue. Nothing is written until necessary.

        An existing directory is a leftover of a crash, in its creation or deletion; if it holds a queue's files,
        :class:`DataError` is raised.
        """
        names = parts.files.list(parts.path)
        if queue_files := [name for name in names if name.endswith((".jif", ".idx", ".qi", ".qs"))]:
            raise DataError(
                f"{parts.path}/{queue_files[0]}", None, "the directory of a new queue contains files of another queue"
            )
        if names:
            parts.synced.pop(parts.path, None)
            parts.files.delete_tree(parts.path)
        return cls(parts, parts.new_state(parts.new_index()))

    @classmethod
    def recover(
        cls,
        parts: QueueFiles,
        terms: RecoveryTerms | None = None,
        *,
        store_recovered: bool = False,
        step_by_step: bool = False,
        on_references: Callable[[list[bytes]], None] | None = None,
        losses: Losses | None = None,
    ) -> VariableQueue:
        """A queue from its files.

        ``terms``: its recovery terms; ``None`` after a crash. ``store_recovered``: the persistent store was stopped
        cleanly too, so the index need not be scanned. ``step_by_step``: return as soon as the first message can be
        fetched; :meth:`recover_step` scans the rest. ``on_references`` receives, during the scan, the ids of the
        stored bodies that messages refer to; ``losses`` records what is dropped. Raises :class:`DataError` for files
        that no crash leaves. If it raises, no file stays open.
        """
        state = parts.new_state(parts.new_index())
        queue = cls(parts, state)
        try:
            recovering.recover(
                state,
                parts.files,
                terms,
                on_references,
                losses,
                store_recovered=store_recovered,
                step_by_step=step_by_step,
            )
            paging.load_from_delta(state, 1 if parts.settings.page_inside_segments else None)
        except BaseException:
            queue.abandon()
            raise
        if not state.length and state.recovery is None:
            state.release()  # a start may find thousands of empty queues
        return queue

    @property
    def durable(self) -> bool:
        """Whether it comes back after a stop."""
        return self.state.durable

    @property
    def recovering(self) -> bool:
        """Whether segments are left to scan: counts then cover only messages found so far."""
        return self.state.recovery is not None

    def recover_step(self) -> bool:
        """Scan one more segment; returns whether there are more."""
        return recovering.recover_step(self.state)

    def close(self, persistent_ref: bytes | None = None) -> RecoveryTerms:
        """Stop cleanly: drop pending acks (their messages come back), write everything.

        ``persistent_ref``: how the store knows this queue; a random id of 16 bytes for a durable queue.
        """
        s = self.state
        recovering.recover_all(s)
        acking.purge_acks(s, keep_persistent=True)
        return RecoveryTerms(
            segments=s.index.close(),
            next_seq_id=s.next_seq_id,
            next_deliver_seq_id=s.next_deliver_after_stop,
            persistent_ref=persistent_ref if s.durable else None,
            persistent_count=s.persistent_count - s.forgotten[0],
            persistent_bytes=s.persistent_bytes - s.forgotten[1],
        )

    def abandon(self) -> None:
        """Give the files up as a crash of the process would."""
        self.state.index.abandon()

    def refuse(self, error: StorageError) -> None:
        """Refuse all further writes: the files belong to another owner."""
        self.state.index.journal.failure = error

    def delete(self) -> int:
        """Delete the queue, pending messages and files included; returns how many were ready."""
        s = self.state
        acking.purge_acks(s, keep_persistent=False)
        return fetching.purge(s)

    # ── messages in ─────────────────────────────────────────────────────────────────────────────────────────────

    def publish(
        self,
        envelope: Envelope,
        msg_id: bytes,
        body: bytes,
        *,
        expiry_us: int = 0,
        delivered: bool = False,
        confirm: bool = False,
    ) -> int:
        """Publish one message; returns its seq_id. ``expiry_us``: µs since the epoch, 0 for none."""
        s = self.state
        seq_id = publishing.publish(s, envelope, msg_id, body, expiry_us, delivered=delivered)
        self._published(range(seq_id, seq_id + 1), confirm=confirm)
        return seq_id

    def publish_many(
        self,
        envelope: Envelope,
        msg_ids: bytes,
        bodies: Sequence[bytes],
        *,
        expiries_us: int | list[int] = 0,
        confirm: bool = False,
    ) -> range:
        """Publish messages that share an envelope, in one call; returns their seq_ids. ``msg_ids``: 16 bytes each."""
        seq_ids = publishing.publish_many(self.state, envelope, msg_ids, bodies, expiries_us)
        self._published(seq_ids, confirm=confirm)
        return seq_ids

    def publish_delivered(
        self, envelope: Envelope, msg_id: bytes, body: bytes, *, expiry_us: int = 0, confirm: bool = False
    ) -> int:
        """Publish one message that a consumer gets at once, ack pending, into an empty queue. Returns its seq_id."""
        s = self.state
        if s.length:
            raise RuntimeError("publish_delivered on a queue that has messages would break their order")
        seq_id = publishing.publish_delivered(s, envelope, msg_id, body, expiry_us)
        self._published(range(seq_id, seq_id + 1), confirm=confirm)
        return seq_id

    def publish_delivered_many(
        self, envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes], *, confirm: bool = False
    ) -> range:
        """Publish messages that a consumer has got already, acks pending, into an empty queue; their seq_ids."""
        if len(bodies) == 1:
            seq_id = self.publish_delivered(envelope, msg_ids, bodies[0], confirm=confirm)
            return range(seq_id, seq_id + 1)
        if self.state.length:
            raise RuntimeError("publish_delivered_many on a queue that has messages would break their order")
        seq_ids = self.publish_many(envelope, msg_ids, bodies, confirm=confirm)
        self.fetch_many(len(seq_ids))
        return seq_ids

    def write_ahead(self, envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes]) -> bool:
        """Make some small messages safe before they are published; ``False``: that cannot be, publish them.

        The next call, except for more of this method, must be :meth:`enter_written`. Raises as :meth:`sync_index` does.
        """
        return publishing.write_ahead(self.state, envelope, msg_ids, bodies)

    def enter_written(self, envelope: Envelope) -> range:
        """Publish what was written ahead, all with this envelope; returns the seq_ids."""
        seq_ids = publishing.enter_written(self.state, envelope)
        self._published(seq_ids, confirm=False)
        return seq_ids

    def note_passed(self, count: int) -> None:
        """Add to the rates ``count`` messages that came, were delivered and acked, and never entered the queue."""
        rates = self.state.rates
        rates.in_count += count
        rates.out_count += count
        rates.ack_in_count += count
        rates.ack_out_count += count
        self.state.update_rates_if_due()

    def _published(self, seq_ids: range, *, confirm: bool) -> None:
        s = self.state
        if confirm:
            self.confirms.expect(seq_ids)
        s.update_rates_if_due()
        paging.reduce_after_operation(s, publishing=True)

    # ── messages out ────────────────────────────────────────────────────────────────────────────────────────────

    def fetch(self, *, ack_required: bool = True) -> Fetched | None:
        """The message at the head; ``None`` from an empty queue."""
        fetched = self.fetch_many(1, ack_required=ack_required)
        return fetched[0] if fetched else None

    def fetch_many(self, count: int, *, ack_required: bool = True) -> list[Fetched]:
        """At most ``count`` messages from the head, in order."""
        fetched = fetching.fetch_many(self.state, count, ack_required=ack_required)
        paging.reduce_after_operation(self.state, publishing=False)
        return fetched

    def peek(self, count: int) -> Fetched | None:
        """Return at most ``count`` messages at the head and leave them there; ``None`` if they are not in RAM."""
        return fetching.peek(self.state, count)

    def drop(self, *, ack_required: bool = False) -> tuple[int, bytes] | None:
        """Take the message at the head without reading it; its seq_id and msg_id."""
        dropped = fetching.drop_one(self.state, ack_required=ack_required)
        paging.reduce_after_operation(self.state, publishing=False)
        return dropped

    def drop_many(self, count: int) -> int:
        """Delete at most ``count`` messages at the head, unread; returns how many there were."""
        dropped = fetching.drop_many(self.state, count)
        paging.reduce_after_operation(self.state, publishing=False)
        return dropped

    def take(self, chosen: ChosenIds) -> list[Fetched]:
        """Take those of the messages that are ready, wherever they are, acks required; others are not changed.

        ``chosen``: their msg_ids, by seq_id.
        """
        from warren.queue_index.queue import removal  # few queues are mended

        fetched = removal.take(self.state, chosen)
        paging.reduce_after_operation(self.state, publishing=False)
        return fetched

    def remove(self, chosen: ChosenIds) -> list[range]:
        """Delete those of the messages that are ready, unread, wherever they are; returns their seq_ids."""
        from warren.queue_index.queue import removal  # as above

        removed = removal.remove(self.state, chosen)
        paging.reduce_after_operation(self.state, publishing=False)
        return removed

    def head_expiry(self) -> int | None:
        """When the message at the head expires (µs since the epoch, 0 for never); ``None``: the queue is empty."""
        return fetching.head_expiry(self.state)

    def head_due(self, now_us: int, limit: int) -> tuple[int, bool]:
        """How many messages at the head, at most ``limit``, are all due at ``now_us`` or all not; and which."""
        return fetching.head_due(self.state, now_us, limit)

    def head_excess(self, messages: int, size: int) -> int:
        """How many messages at the head have to go, until ``messages`` and ``size`` bytes are gone; or a part."""
        return fetching.head_excess(self.state, messages, size)

    def drop_while(self, predicate: Predicate) -> MessageProperties | None:
        """Delete messages at the head as long as the predicate holds; the properties of the one that ended it."""
        return fetching.drop_while(self.state, predicate)

    def fetch_while(self, predicate: Predicate) -> tuple[list[Fetched], MessageProperties | None]:
        """Fetch messages, acks required, as long as the predicate holds; also what ended it."""
        return fetching.fetch_while(self.state, predicate)

    def ack(self, tags: acking.Tags, *, with_ids: bool = False) -> list[bytes]:
        """Ack delivered messages in one call; ``with_ids``: return the msg_ids of the messages that were pending."""
        runs = acking.ack(self.state, tags)
        paging.reduce_after_operation(self.state, publishing=False)
        return acking.ids_of(runs) if with_ids else []

    def ack_up_to(self, seq_id: int, *, with_ids: bool = False) -> list[bytes]:
        """Ack everything that was delivered up to and including ``seq_id``."""
        return self.ack([range(seq_id + 1)], with_ids=with_ids)

    def requeue(self, tags: acking.Tags, *, with_ids: bool = False) -> list[bytes]:
        """Bring delivered messages back to their places; ``with_ids``: returns their msg_ids, highest seq_id first."""
        s = self.state
        requeued = acking.requeue(s, tags, with_ids=with_ids)
        s.update_rates_if_due()
        paging.reduce_after_operation(s, publishing=True)
        return requeued[::-1]

    def purge(self) -> int:
        """Delete every ready message; returns how many."""
        s = self.state
        return fetching.purge(s, confirms_wait=self.confirms.any_unsafe())

    def purge_acks(self) -> None:
        """Ack and forget every pending ack."""
        acking.purge_acks(self.state, keep_persistent=False)

    def browse(self, first: int = 0, limit: int | None = None) -> Iterator[Browsed]:
        """Messages from the seq_id ``first`` on, ready and pending, in order, taking none; at most ``limit``.

        The queue must not change meanwhile.
        """
        from warren.queue_index.queue import browsing  # few look

        return browsing.browse(self.state, first, limit)

    def first_of_last(self, count: int) -> tuple[int, int]:
        """The seq_id from which on there are ``count`` messages, ready and pending, and how many there really are."""
        from warren.queue_index.queue import browsing  # as above

        return browsing.first_of_last(self.state, count)

    def ids_at(self, seq_ids: Sequence[int]) -> list[bytes | None]:
        """Return the msg_ids of the messages under ascending seq_ids, ready or pending; ``None`` for missing ones.

        Continues the scan if a crash has left a position unscanned.
        """
        from warren.queue_index.queue import browsing  # as above

        return browsing.ids_at(self.state, seq_ids)

    def read_pending(self, tags: acking.Tags) -> list[tuple[int, bytes]]:
        """Seq_ids and encoded messages of pending acks, in the order of the tags."""
        s = self.state
        messages: list[tuple[int, bytes]] = []
        for part in acking.tag_ranges(acking.singly(tags)):
            pieces = [
                run
                for pending in (s.ram_pending, s.disk_pending, s.index_pending)
                for run in pending.within(part.start, part.stop)
            ]
            for run in sorted(pieces, key=lambda run: run.start):
                messages += zip(range(run.start, run.end), s.read_terms(run), strict=True)
        return messages

    # ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────

    def set_ram_duration_target(self, duration_s: float | None) -> None:
        """How long, at today's rates, messages in RAM may last; ``None``: without limit. Pages at once if it falls."""
        s = self.state
        previous = s.target_ram_count
        limit = s.settings.target_ram_count_max
        s.target_ram_count = limit if duration_s is None else int(duration_s * s.rates.total)
        if limit is not None and s.target_ram_count is not None:
            s.target_ram_count = min(s.target_ram_count, limit)
        if s.target_ram_count is not None and (previous is None or s.target_ram_count < previous):
            paging.reduce_memory_use(s)

    def ram_duration(self) -> float | None:
        """How long, at today's rates, the messages in RAM will last (seconds); ``None``: for ever."""
        s = self.state
        s.rates.update(s.clock(), s.settings)
        ram_acks = s.ram_ack_count
        in_ram = s.ram_msg_count + s.ram_msg_count_prev + ram_acks + s.ram_ack_count_prev
        duration = None if s.rates.idle else in_ram / (4 * s.rates.total)
        if s.settings.previous_ram_counts:
            s.ram_msg_count_prev, s.ram_ack_count_prev = s.ram_msg_count, ram_acks
        return duration

    def resume(self) -> None:
        """Continue paging: the store gave credit, or the bound had ended a reduction early."""
        paging.reduce_memory_use(self.state)

    def bump(self) -> None:
        """Clear the flag that a reduction was ended early, and continue paging."""
        self.state.waiting_bump = False
        self.resume()

    def set_mode(self, mode: Mode) -> None:
        """``lazy``: messages go to disk as they come, and everything there is goes now; ``default``: as usual again."""
        s = self.state
        if mode == s.mode:
            return
        if mode == "default":
            s.mode = "default"
            paging.load_from_delta(s, paging.room_for_load(s))
            return
        target, batch = s.target_ram_count, s.io_batch_size
        self.set_ram_duration_target(0.0)
        while s.delta.count + len(s.q3) != s.length:
            if s.blocked:
                self._wait_for_grant()
            s.io_batch_size = 0
            paging.reduce_memory_use(s)
            s.io_batch_size = batch
        s.mode, s.target_ram_count = "lazy", target

    # ── disk ────────────────────────────────────────────────────────────────────────────────────────────────────

    def write_out(self) -> None:
        """Hand the operating system every index record that still waits in memory."""
        self.state.index.write_out()

    def sync(self) -> None:
        """Make index and store safe."""
        s = self.state
        if s.persistent_store is not None:
            s.persistent_store.store.sync()
        s.index.sync()

    def sync_index(self) -> None:
        """Make the index alone safe."""
        self.state.index.sync()

    def flush(self) -> None:
        """Move the journal into the segments, as before a rest."""
        self.state.index.flush()

    def rest(self) -> None:
        """Prepare an idle queue for rest: move the journal into the segments and drop what can be rebuilt.

        This closes the journal's file and frees caches; both come back with the next use.
        """
        self.state.index.flush()
        self.state.release()
        self.confirms.release()

    def drain_confirmed(self) -> list[range]:
        """Return the seq_ids of publishes with a confirm that have become safe since the last call."""
        return self.confirms.drain()

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """Ready messages; while :attr:`recovering`, those found so far."""
        return self.state.length

    def __bool__(self) -> bool:
        return True

    @property
    def depth(self) -> int:
        """Ready messages and pending acks."""
        return self.state.length + self.state.pending_ack_count

    def status(self) -> dict[str, Any]:
        """RabbitMQ's backing_queue_status and message counts, under its names."""
        s = self.state
        rates, delta = s.rates, s.delta
        return {
            "mode": s.mode,
            "q1": len(s.q1),
            "q2": len(s.q2),
            "delta": {"start": delta.start, "count": delta.count, "transient": delta.transient, "end": delta.end},
            "q3": len(s.q3),
            "q4": len(s.q4),
            "len": s.length,
            "target_ram_count": "infinity" if s.told_ram_count is None else s.told_ram_count,
            "next_seq_id": s.next_seq_id,
            "next_deliver_seq_id": s.next_deliver_seq_id,
            "avg_ingress_rate": rates.ingress,
            "avg_egress_rate": rates.egress,
            "avg_ack_ingress_rate": rates.ack_ingress,
            "avg_ack_egress_rate": rates.ack_egress,
            "messages_ready_ram": s.ram_msg_count,
            "messages_unacknowledged": s.pending_ack_count,
            "messages_unacknowledged_ram": s.ram_ack_count,
            "messages_ram": s.ram_msg_count + s.ram_ack_count,
            "messages_persistent": s.persistent_count,
            "messages_paged_out": delta.transient,
            "message_bytes": s.bytes + s.unacked_bytes,
            "message_bytes_ready": s.bytes,
            "message_bytes_unacknowledged": s.unacked_bytes,
            "message_bytes_ram": s.ram_bytes,
            "message_bytes_persistent": s.persistent_bytes,
            "message_bytes_paged_out": s.delta_transient_bytes,
            "disk_reads": s.disk_read_count,
            "disk_writes": s.disk_write_count,
        }

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the queue contradicts itself."""
        self.state.check_invariants()
