"""Where a queue keeps its messages: one :class:`~warren.queue_index.queue.variable_queue.VariableQueue`, or one for
each level of a priority queue.

Levels are the numbers ``max_priority … 0``, each with files of its own, highest first; a queue without priorities is
the one level 0 under its own name. A level stands in one of three states:

=========  ==========================================================================================================
awake      its VariableQueue is in memory
asleep     it was closed as for a clean stop; only its recovery terms are in memory (:class:`Asleep`)
untouched  it has not been used yet and has no files
=========  ==========================================================================================================

:meth:`Backing.level` wakes a level. A level can be put to sleep while nothing of it is pending, nothing waits to be
confirmed, and all its messages are persistent, so only caches and the history of its rates are lost. It is put to sleep
if nothing of it is in RAM, if it is lazy, or if a duration has been set, which means that memory is short. Its counts
and sizes can be read without waking it.

A crash leaves a sleeping level's files as a clean stop would; without recovery terms they are scanned like others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.queue_index.queue.state import Mode
from warren.queue_index.queue.variable_queue import QueueFiles, VariableQueue
from warren.storage.errors import NoRoomError

PartsOf = Callable[[int | None], QueueFiles]
"""Return the files of a level, or for ``None`` of the queue itself, if it has no levels."""
RandomBytes = Callable[[int], bytes]

_ASLEEP_REF: Final = bytes(16)
"""A placeholder for the store's reference in terms that never reach a file; a stop generates a real one."""


@attrs.frozen
class Asleep:
    """A level that is not in memory. Its read and write counters continue when it wakes."""

    terms: RecoveryTerms | None
    """``None``: untouched, or nothing was left of it."""
    disk_reads: int = 0
    disk_writes: int = 0

    @property
    def length(self) -> int:
        return 0 if self.terms is None else self.terms.persistent_count or 0

    @property
    def bytes(self) -> int:
        return 0 if self.terms is None else self.terms.persistent_bytes or 0


_UNTOUCHED: Final = Asleep(None)
_SUMMED: Final = frozenset({"q1", "q2", "q3", "q4", "len", "next_seq_id", "next_deliver_seq_id"})


class Backing:
    """The levels of one queue. ``opened``: those that are in memory already, by number."""

    __slots__ = ("_asleep", "_duration_s", "_mode", "_parts_of", "_queues", "_read", "durable", "levels", "single")

    def __init__(
        self,
        parts_of: PartsOf,
        *,
        durable: bool,
        max_priority: int | None = None,
        opened: Mapping[int, VariableQueue] | None = None,
        terms: Mapping[int, RecoveryTerms] | None = None,
    ) -> None:
        """``terms``: of levels that, like the store, were stopped cleanly; these begin asleep. Others are untouched."""
        self._parts_of = parts_of
        self.durable = durable
        self.levels: int | None = max_priority
        """The highest level; ``None``: a queue without priorities."""
        self._queues: dict[int, VariableQueue] = dict(opened or {})
        self._asleep: dict[int, Asleep] | None = None
        for number, level_terms in (terms or {}).items():
            if (
                number in self._queues
                or level_terms.persistent_ref is None
                or level_terms.persistent_count is None
                or not durable
            ):
                raise ValueError(f"level {number} cannot begin asleep")
            self._sleep(number, Asleep(level_terms))
        self._mode: Mode = "default"
        self._duration_s: float | None = None
        self._read: dict[int, tuple[int, int]] | None = None
        self.single: VariableQueue | None = self._queues.get(0) if max_priority is None else None
        """The only queue, if there are no levels and it is awake: the fast path."""

    # ── waking and sleeping ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def numbers(self) -> range:
        """All levels, highest first."""
        return range(self.levels or 0, -1, -1)

    def level_of(self, priority: int) -> int:
        """The level for a message of that priority; the highest level if the priority is too high."""
        return min(max(priority, 0), self.levels or 0)

    def level(self, number: int) -> VariableQueue:
        """Return a level, waking it if necessary."""
        queue = self._queues.get(number)
        return self._wake(number) if queue is None else queue

    def _wake(self, number: int) -> VariableQueue:
        parts = self._parts_of(None if self.levels is None else number)
        asleep = self._asleep.pop(number, _UNTOUCHED) if self._asleep else _UNTOUCHED
        if asleep.terms is None:
            queue = VariableQueue.create(parts)
        else:
            queue = VariableQueue.recover(parts, asleep.terms, store_recovered=True)
        if not self._asleep:
            self._asleep = None
        if asleep.disk_reads or asleep.disk_writes:
            self._read = self._read or {}
            self._read[number] = asleep.disk_reads, asleep.disk_writes
        if self._duration_s is not None:
            queue.set_ram_duration_target(self._duration_s)
        if self._mode != "default":
            queue.set_mode(self._mode)
        self._queues[number] = queue
        if self.levels is None:
            self.single = queue
        return queue

    def _sleep(self, number: int, asleep: Asleep) -> None:
        if self._asleep is None:
            self._asleep = {}
        self._asleep[number] = asleep

    def hibernate(self) -> bool:
        """Rest, and put to sleep the levels that can sleep and are worth it; return whether all sleep.

        The caller ensures that no confirm waits.
        """
        for number, queue in list(self._queues.items()):
            keeps = queue.state.ram_msg_count and self._mode == "default" and self._duration_s is None
            if keeps or not _may_sleep(queue):
                queue.rest()
                continue
            reads, writes = self._disk_counts(number, queue)
            if not queue.state.length:
                queue.delete()
                terms = None
            else:
                queue.flush()
                terms = queue.close(_ASLEEP_REF)
            del self._queues[number]
            if self._read:
                self._read.pop(number, None)
            if terms is not None or reads or writes:
                self._sleep(number, Asleep(terms, reads, writes))
        if self.levels is None and not self._queues:
            self.single = None
        self._read = self._read or None
        if not self._queues:
            self._duration_s = None  # it no longer receives durations; it asks for one when it wakes
        return not self._queues

    @property
    def asleep(self) -> bool:
        """Whether no level is in memory."""
        return not self._queues

    @property
    def recovering(self) -> bool:
        """Whether a level has segments left to scan after a crash."""
        return any(queue.recovering for queue in self._queues.values())

    def awake(self) -> Iterator[tuple[int, VariableQueue]]:
        """The levels that are in memory, highest first."""
        return iter(sorted(self._queues.items(), reverse=True))

    # ── looking, without waking ─────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """Ready messages."""
        if self.single is not None:
            return self.single.state.length
        count = sum(queue.state.length for queue in self._queues.values())
        return count + (sum(asleep.length for asleep in self._asleep.values()) if self._asleep else 0)

    def __bool__(self) -> bool:
        return True

    @property
    def ready_bytes(self) -> int:
        """Bytes of the bodies of ready messages."""
        if self.single is not None:
            return self.single.state.bytes
        size = sum(queue.state.bytes for queue in self._queues.values())
        return size + (sum(asleep.bytes for asleep in self._asleep.values()) if self._asleep else 0)

    @property
    def depth(self) -> int:
        """Ready and pending messages."""
        return len(self) + sum(queue.state.pending_ack_count for queue in self._queues.values())

    def first_level(self) -> int | None:
        """The highest level that has a ready message."""
        if self.single is not None:
            return 0 if self.single.state.length else None
        for number in self.numbers:
            queue = self._queues.get(number)
            if (queue.state.length if queue is not None else self._sleeping(number).length) > 0:
                return number
        return None

    def ids_at(self, number: int, seq_ids: Sequence[int]) -> list[bytes | None]:
        """Return the msg_ids of a level's messages with these ascending seq_ids; ``None`` for each missing message."""
        if number not in self.numbers:
            return [None] * len(seq_ids)
        return self.level(number).ids_at(seq_ids)

    def length_of(self, number: int) -> int:
        """Ready messages of one level."""
        queue = self._queues.get(number)
        return self._sleeping(number).length if queue is None else queue.state.length

    def next_seq_id(self, number: int) -> int:
        """The seq_id that the next message of a level gets."""
        queue = self._queues.get(number)
        if queue is not None:
            return queue.state.next_seq_id
        terms = self._sleeping(number).terms
        return 0 if terms is None else terms.next_seq_id or 0

    def _sleeping(self, number: int) -> Asleep:
        return self._asleep.get(number, _UNTOUCHED) if self._asleep else _UNTOUCHED

    def _disk_counts(self, number: int, queue: VariableQueue) -> tuple[int, int]:
        reads, writes = self._read.get(number, (0, 0)) if self._read else (0, 0)
        return reads + queue.state.disk_read_count, writes + queue.state.disk_write_count

    def status_of(self, number: int) -> dict[str, Any]:
        """What :meth:`VariableQueue.status` returns for a level, or would return if the level were awake."""
        queue = self._queues.get(number)
        if queue is None:
            status = _status_asleep(self._sleeping(number), self._mode)
            return status | {"target_ram_count": "infinity" if self._duration_s is None else 0}
        status = queue.status()
        status["disk_reads"], status["disk_writes"] = self._disk_counts(number, queue)
        return status

    def status(self) -> dict[str, Any]:
        """Return the sum of the levels' statuses, with ``priority_lengths`` if the queue has levels."""
        if self.levels is None:
            return self.status_of(0)
        total: dict[str, Any] = {}
        lengths: dict[int, int] = {}
        for number in self.numbers:
            status = self.status_of(number)
            lengths[number] = status["len"]
            total = {key: _added(value, total.get(key)) for key, value in status.items()}
        return total | {"priority_lengths": lengths}

    # ── all levels at once ──────────────────────────────────────────────────────────────────────────────────────

    def purge(self) -> int:
        """Delete every ready message; returns how many."""
        return sum(self.level(number).purge() for number in self.numbers if self.length_of(number))

    def delete(self) -> int:
        """Delete everything, files included; returns how many messages were ready."""
        deleted = 0
        for number in self.numbers:
            if number in self._queues or self._sleeping(number).terms is not None:
                deleted += self.level(number).delete()
        self._queues, self._asleep, self._read, self.single = {}, None, None, None
        return deleted

    def set_mode(self, mode: Mode) -> None:
        """Set the mode of every level, ``lazy`` or ``default``; a sleeping one gets it when it wakes."""
        self._mode = mode
        for queue in self._queues.values():
            queue.set_mode(mode)

    @property
    def mode(self) -> Mode:
        return self._mode

    def set_ram_duration_target(self, duration_s: float | None) -> None:
        """As :meth:`VariableQueue.set_ram_duration_target`, for every level."""
        self._duration_s = duration_s
        for queue in self._queues.values():
            queue.set_ram_duration_target(duration_s)

    def ram_duration(self) -> float | None:
        """The shortest of the levels' durations (seconds); ``None``: infinite."""
        durations = [queue.ram_duration() for queue in self._queues.values()]
        return min((duration for duration in durations if duration is not None), default=None)

    @property
    def is_pageable(self) -> bool:
        """Whether the body of a message is in RAM."""
        return any(queue.state.ram_msg_count or queue.state.ram_ack_count for queue in self._queues.values())

    def resume(self) -> None:
        """Continue paging that was stopped by a store's credit or by the bound."""
        for _, queue in self.awake():
            queue.bump()

    @property
    def wants_bump(self) -> bool:
        """Whether a reduction of memory was cut short and wants :meth:`resume` soon."""
        if self.single is not None:
            return self.single.state.waiting_bump
        return any(queue.state.waiting_bump for queue in self._queues.values())

    def flush(self) -> None:
        for _, queue in self.awake():
            queue.flush()

    def write_out(self) -> None:
        self._make_safe(VariableQueue.write_out)

    def sync_index(self) -> None:
        self._make_safe(VariableQueue.sync_index)

    def _make_safe(self, make_safe: Callable[[VariableQueue], None]) -> None:
        """Do it for every level. If one finds no room, the journals of all are flushed first, which may make some.

        Raises :class:`~warren.storage.errors.NoRoomError`.
        """
        try:
            for _, queue in self.awake():
                make_safe(queue)
        except NoRoomError:
            if self.levels is None:  # it has been flushed
                raise
            for _, queue in self.awake():
                with contextlib.suppress(NoRoomError):
                    queue.flush()
            for _, queue in self.awake():
                make_safe(queue)

    def recover_step(self) -> bool:
        """Scan one more segment after a crash; returns whether there are more."""
        for _, queue in self.awake():
            if queue.recovering:
                queue.recover_step()
                break
        return self.recovering

    def close(self, random: RandomBytes) -> dict[bytes, RecoveryTerms]:
        """Stop cleanly; return the recovery terms of every level, by the name under which it is stored.

        A queue that is not durable is deleted instead; the result is empty.
        """
        if not self.durable:
            self.delete()
            return {}
        terms: dict[bytes, RecoveryTerms] = {}
        for number in self.numbers:
            parts = self._parts_of(None if self.levels is None else number)
            asleep = self._sleeping(number)
            if number not in self._queues and asleep.terms is not None:
                terms[parts.queue] = attrs.evolve(asleep.terms, persistent_ref=random(16))
            else:
                terms[parts.queue] = self.level(number).close(random(16))
        self._queues, self._asleep, self._read, self.single = {}, None, None, None
        return terms

    def abandon(self) -> None:
        """Give the files up as a crash of the process would."""
        for queue in self._queues.values():
            queue.abandon()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if a level contradicts itself, or is in two states."""
        for number, queue in self._queues.items():
            queue.check_invariants()
            if number not in self.numbers or (self._asleep and number in self._asleep):
                raise RuntimeError(f"level {number} is no level, or awake and asleep")
        if self.levels is None and self.single is not self._queues.get(0):
            raise RuntimeError("the fast path needs a queue without levels that is awake")


def _may_sleep(queue: VariableQueue) -> bool:
    s = queue.state
    persistent = s.persistent_count - s.forgotten[0]
    return not s.pending_ack_count and s.length == (persistent if s.durable else 0) and s.recovery is None


def _added(value: Any, before: Any) -> Any:
    """Add a level's value to those of higher levels, as the broker does."""
    if before is None or isinstance(value, str) or isinstance(before, str):
        return before if before == "infinity" else value
    if isinstance(value, dict):
        return {key: _added(part, before[key]) if part is not None else before[key] for key, part in value.items()}
    return before + value


def _status_asleep(asleep: Asleep, mode: Mode) -> dict[str, Any]:
    terms, count, size = asleep.terms, asleep.length, asleep.bytes
    next_seq_id = (terms.next_seq_id or 0) if terms is not None else 0
    zeros = ("q1", "q2", "q3", "q4")
    rates = ("avg_ingress_rate", "avg_egress_rate", "avg_ack_ingress_rate", "avg_ack_egress_rate")
    return {
        "mode": mode,
        **dict.fromkeys(zeros, 0),
        "delta": {
            "start": terms.segments[0][0] if terms is not None and count and terms.segments else None,
            "count": count,
            "transient": 0,
            "end": next_seq_id if count else None,
        },
        "len": count,
        "target_ram_count": "infinity",
        "next_seq_id": next_seq_id,
        "next_deliver_seq_id": (terms.next_deliver_seq_id or 0) if terms is not None else 0,
        **dict.fromkeys(rates, 0.0),
        "messages_ready_ram": 0,
        "messages_unacknowledged": 0,
        "messages_unacknowledged_ram": 0,
        "messages_ram": 0,
        "messages_persistent": count,
        "messages_paged_out": 0,
        "message_bytes": size,
        "message_bytes_ready": size,
        "message_bytes_unacknowledged": 0,
        "message_bytes_ram": 0,
        "message_bytes_persistent": size,
        "message_bytes_paged_out": 0,
        "disk_reads": asleep.disk_reads,
        "disk_writes": asleep.disk_writes,
    }
