"""Retries: how often each delivered message came back to its queue, and until when it waits.

A message *comes back* when it is requeued, when its channel closes, when a consumer has held it for too long, and when
a crash leaves it unacked. Each time counts if the message was seen; with a prefetch most were not. If that is unknown,
the oldest counts as seen, because messages are processed in order: the oldest of a lost channel, of each channel at a
clean stop, and of all messages that were out when the process crashed (it is *blamed* when it is redelivered). So a
message that kills its process dies of the delivery limit, and those after it do not.

A message that came back more often than the limit dies. A message that has to wait
(:mod:`~warren.actors.engines.declared.retry_policy`) is held as if a channel had it, and then returns to its old
position. So waiting neither moves nor loses messages.

*On disk*: a log of its own (:class:`~warren.storage.record_log.RecordLog`), separate from RabbitMQ's files. A record
consists of big-endian numbers::

    kind  level  first seq_id  after the last   number
    1     1      8             8                8 bytes

======  =======  ====================================================================================================
kind             meaning
======  =======  ====================================================================================================
1       count    the messages came back this often, and are ready
2       wait     the messages wait until then: µs since the epoch
3       out      the messages are about to be redelivered; so a message that kills its process is counted
======  =======  ====================================================================================================

A message that is not in the log was out, for the first time, if the index has a deliver record of it. That record is
written with the next sync, and a message may kill its process before. So after a crash, the records of the first
messages that are delivered (:data:`SUSPECTS`) are written at once. Where deliver records come with the publish and say
nothing, these messages are logged even if nothing is known of them.

A message that waits when the queue stops is in its old position after a restart, and continues to wait when it is
fetched (:meth:`Retries.go_on_waiting`). Log records of messages that are gone have no effect, because no seq_id is
reused while the log exists (:meth:`Retries.begin_anew` is called before a level reuses them). *A crash* loses what was
not synced: a count is lower, or a wait is over. A damaged log is ignored with a warning; no message is lost.

Invariants: waiting messages are pending in the queue; each is listed once, in order of time.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import attrs
from sortedcontainers import SortedDict

from warren.actors.engines.declared.queue_arguments import QueueArguments
from warren.actors.engines.declared.retry_policy import OF_FAILURES, RetryPolicy
from warren.actors.engines.queue.seq_id_map import SeqIdMap, stretches
from warren.actors.log_events import log_event, logger
from warren.storage.errors import DataError, NoRoomError
from warren.storage.record_log import RecordLog

_LOG = logger("queue")

COUNT, WAIT, OUT = 1, 2, 3
RECORD: Final = struct.Struct(">BBQQQ")
MIN_LOG_BYTES: Final = 64 * 1024
"""Up to this size a log is not rewritten; above it, the log may grow to twice its size after the last rewrite."""
SUSPECTS: Final = 4096
_UNKNOWN: Final = -1

Held = list[tuple[int, range]]
"""Messages by level and seq_ids."""


@attrs.frozen
class CameBack:
    """What happens to messages that came back."""

    ready: Held
    """Messages that return to their positions."""
    over: Held
    """Messages that came back more often than the limit allows."""


@attrs.define(eq=False, repr=False)
class Retries:
    """The retries of one queue. ``log``: their log; ``None`` if the queue does not survive a restart.
    ``sync``: whether safe records survive a power loss, or only a crash of the process."""

    arguments: QueueArguments
    _log: RecordLog | None = None
    _sync: bool = True
    counts: SeqIdMap = attrs.field(init=False, factory=SeqIdMap)
    _times: SortedDict[int, Held] = attrs.field(init=False, factory=SortedDict)
    """Waiting messages, by when they are due (µs since the epoch)."""
    suspects: int = 0
    """How many of the next delivered messages may have killed the process."""
    _write_index: Callable[[int], None] | None = None
    """Writes the deliver records of a level that wait in memory; ``None`` if they come with the publish."""
    _blames: bool = attrs.field(init=False)
    """Whether a redelivered message is still to be blamed for a crash."""
    _out: SeqIdMap = attrs.field(init=False, factory=SeqIdMap)
    """Messages that were out when the process crashed, according to the log, until one is blamed."""
    _waits: SeqIdMap = attrs.field(init=False, factory=SeqIdMap)
    """When messages are due that waited when the queue stopped, until they are fetched."""
    waiting: int = attrs.field(init=False, default=0)
    """How many messages wait."""
    _new_log_bytes: int = attrs.field(init=False, default=0)
    """The size of the log when it was last rewritten."""

    def __attrs_post_init__(self) -> None:
        self._blames = self.suspects > 0

    # ── what is kept ────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, next_seq_id: Callable[[int], int]) -> None:
        """Read the log, once, before anything else.

        ``next_seq_id``: returns a level's next seq_id; this and higher ones in the log are obsolete.
        """
        if self._log is None:
            return
        try:
            for _, record in self._log.replay():
                self._replay(record)
        except (DataError, struct.error) as error:
            _LOG.warning("delivery counts cannot be read: %s", error, extra=log_event("queue_counts_lost", error))
            self.counts, self._waits, self._out = SeqIdMap(), SeqIdMap(), SeqIdMap()
            self._log.delete()
            return
        if self._log.damage is not None:
            _LOG.warning(
                "some delivery counts cannot be read: %s",
                self._log.damage,
                extra=log_event("queue_counts_lost", reason=str(self._log.damage)),
            )
        if self._log.torn is not None:
            _LOG.warning(
                "a log of delivery counts ends in invalid bytes: %s",
                self._log.torn,
                extra=log_event("log_torn", self._log.torn),
            )
        for id_map in (self.counts, self._waits, self._out):
            for level in {entry[0] for entry in id_map}:
                id_map.forget_outside(level, range(next_seq_id(level)))
        self._new_log_bytes = self._log.size_bytes

    def _replay(self, record: bytes) -> None:
        for kind, level, start, stop, number in RECORD.iter_unpack(record):
            seq_ids = range(start, stop)
            self._waits.forget(level, seq_ids)
            self._out.forget(level, seq_ids)
            if kind == COUNT:
                self.counts.put(level, seq_ids, number)
            elif kind == WAIT:
                self._waits.put(level, seq_ids, number)
            else:
                self._out.put(level, seq_ids, 1)

    def sync(self) -> None:
        """Make changes safe. Raises :class:`NoRoomError`."""
        log = self._log
        if log is None:
            return
        if log.size_bytes > max(MIN_LOG_BYTES, 2 * self._new_log_bytes):
            self._write_anew(log)
        elif self._sync:
            log.sync()
        else:
            log.write()

    def _write_anew(self, log: RecordLog) -> None:
        if self.counts or self._times:
            log.replace(self._records(), sync=self._sync)
        else:
            log.delete()
        self._new_log_bytes = log.size_bytes

    def _records(self) -> Iterator[bytes]:
        """The records of a new log."""
        for level, start, stop, count in self.counts:
            yield RECORD.pack(COUNT, level, start, stop, count)
        for due, held in self._times.items():
            for level, seq_ids in held:
                yield RECORD.pack(WAIT, level, seq_ids.start, seq_ids.stop, due)
        for level, start, stop, due in self._waits:
            yield RECORD.pack(WAIT, level, start, stop, due)
        for level, start, stop, _ in self._out:
            yield RECORD.pack(OUT, level, start, stop, 0)

    def close(self, out: Iterable[tuple[int, range]], seen: Iterable[tuple[int, int]]) -> None:
        """Stop cleanly: messages that are ``out`` come back; some of them (level and seq_id) were ``seen``."""
        self._out = SeqIdMap()
        for level, seq_ids in out:
            self.counts.add(level, seq_ids, 0)
        for level, seq_id in seen:
            self.counts.add(level, range(seq_id, seq_id + 1), 1)
        if self._log is not None:
            self._write_anew(self._log)
            self._log.close()

    def begin_anew(self, levels: Iterable[int]) -> None:
        """Forget empty levels, which are about to reuse seq_ids."""
        for level in levels:
            for id_map in (self.counts, self._waits, self._out):
                id_map.forget_outside(level, range(0))
        if self._log is not None and not self._log.is_empty:
            self._write_anew(self._log)
            self._log.close()

    def delete(self) -> None:
        """Delete the log, because the queue is deleted."""
        self.counts, self._waits, self._times, self.waiting = SeqIdMap(), SeqIdMap(), SortedDict(), 0
        if self._log is not None:
            self._log.delete()

    def abandon(self) -> None:
        """Give the file up as a crash would."""
        if self._log is not None:
            self._log.close()

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────────

    def came_back(
        self,
        held: Iterable[tuple[int, range]],
        now_us: int,
        *,
        seen: bool = True,
        failed: bool = False,
        retried: bool = False,
        wait_ms: int | None = None,
    ) -> CameBack:
        """Note messages that came back. ``seen`` false: they were not seen, so they neither count nor wait.

        ``failed``: their deliveries failed. ``retried``: their consumer asked to retry them after a wait; ``wait_ms``:
        for this long.
        """
        policy = RetryPolicy.of(self.arguments, failed=failed or retried) or (OF_FAILURES if retried else None)
        limit = self.arguments.delivery_limit
        result = CameBack([], [])
        for level, seq_ids in held:
            for part, count in self.counts.add(level, seq_ids, int(seen)):
                if not seen:
                    self._note(COUNT, level, part, count)
                    result.ready.append((level, part))
                    continue
                if limit is not None and count > limit:
                    self.counts.forget(level, part)
                    result.over.append((level, part))
                    continue
                self._note(COUNT, level, part, count)
                if wait_ms is None and policy is None:
                    result.ready.append((level, part))
                else:
                    self._let_wait(level, part, count, result, now_us=now_us, policy=policy, wait_ms=wait_ms)
        return result

    def _let_wait(
        self,
        level: int,
        part: range,
        count: int,
        result: CameBack,
        *,
        now_us: int,
        policy: RetryPolicy | None,
        wait_ms: int | None,
    ) -> None:
        jittered = wait_ms is None and policy is not None and policy.jitter_percent
        for piece in [range(seq_id, seq_id + 1) for seq_id in part] if jittered else [part]:
            if wait_ms is not None or policy is None:
                wait_us = (wait_ms or 0) * 1000
            else:
                wait_us = policy.wait_us(count, piece.start)
            if wait_us <= 0:
                result.ready.append((level, piece))
                continue
            self._note(WAIT, level, piece, now_us + wait_us)
            self.hold(level, piece, now_us + wait_us)

    def hold(self, level: int, seq_ids: range, due_us: int) -> None:
        """Let pending messages wait until ``due_us``."""
        self._times.setdefault(due_us, []).append((level, seq_ids))
        self.waiting += len(seq_ids)

    def go_on_waiting(self, level: int, seq_ids: range, now_us: int) -> list[bool] | None:
        """Let fetched messages that waited before a stop continue to wait; return which do, ``None`` if none does."""
        if not self._waits:
            return None
        dues = self._waits.of(level, seq_ids, 0)
        self._waits.forget(level, seq_ids)
        if max(dues) <= now_us:
            return None
        for seq_id, due_us in zip(seq_ids, dues, strict=True):
            if due_us > now_us:
                self.hold(level, range(seq_id, seq_id + 1), due_us)
        return [due_us > now_us for due_us in dues]

    def next_due_us(self) -> int | None:
        """When the first waiting message is due; ``None`` if none waits."""
        return self._times.peekitem(0)[0] if self._times else None

    def take_due(self, now_us: int) -> Held:
        """Take the messages that have waited long enough."""
        due: Held = []
        while self._times and self._times.peekitem(0)[0] <= now_us:
            due += self._times.popitem(0)[1]
        self._waited(due)
        return due

    def take_all(self) -> Held:
        """Take all waiting messages."""
        held = [entry for entries in self._times.values() for entry in entries]
        self._times.clear()
        self._waited(held)
        return held

    def _waited(self, held: Held) -> None:
        self.waiting -= sum(len(seq_ids) for _, seq_ids in held)

    @property
    def held(self) -> Iterator[tuple[int, range]]:
        """The waiting messages, by level and seq_ids."""
        return (entry for entries in self._times.values() for entry in entries)

    def delivered_again(self, level: int, seq_ids: range, *, was_out: bool) -> list[int] | None:
        """Log messages that are about to be redelivered; return how often each came back, ``None`` if none did.

        ``was_out``: whether messages without a count were out before, according to the index.
        """
        counts = self.counts.of(level, seq_ids, _UNKNOWN)
        blamed = self._blamed(level, seq_ids, counts, was_out=was_out) if self._blames else None
        is_known = blamed is not None or max(counts) != _UNKNOWN
        if not is_known and (was_out or self.suspects <= 0):
            return None  # the index records as much
        self.suspects -= len(seq_ids)
        if not is_known and self._write_index is not None:
            with contextlib.suppress(NoRoomError):  # a missing record is better than no delivery
                self._write_index(level)
            return None
        if _UNKNOWN in counts:
            self._begin_to_count(level, seq_ids, counts)
        if blamed is not None:
            for part, count in self.counts.add(level, range(blamed, blamed + 1), 1):
                self._note(COUNT, level, part, count)
        if self._log is not None:
            for part in stretches(seq_ids):
                self._note(OUT, level, part, 0)
            with contextlib.suppress(NoRoomError):  # a count that is too low is better than no delivery
                self._log.write()
        return self.counts.of(level, seq_ids, 0)

    def _blamed(self, level: int, seq_ids: range, counts: Sequence[int], *, was_out: bool) -> int | None:
        """The first message that was out when the process crashed. Called only until a message is blamed."""
        for seq_id, count, out in zip(seq_ids, counts, self._out.of(level, seq_ids, 0), strict=True):
            if out or (was_out and count == _UNKNOWN):
                self._blames, self._out = False, SeqIdMap()
                return seq_id
        return None

    def _begin_to_count(self, level: int, seq_ids: range, counts: Sequence[int]) -> None:
        if max(counts) == _UNKNOWN:
            for part in stretches(seq_ids):
                self._put(level, part, 0)
        else:
            for seq_id, count in zip(seq_ids, counts, strict=True):
                if count == _UNKNOWN:
                    self._put(level, range(seq_id, seq_id + 1), 0)

    def _put(self, level: int, seq_ids: range, count: int) -> None:
        self.counts.put(level, seq_ids, count)
        self._note(COUNT, level, seq_ids, count)

    def over_limit(self, counts: Sequence[int]) -> list[bool] | None:
        """Which of some messages came back more often than the limit allows; ``None``: none."""
        limit = self.arguments.delivery_limit
        if limit is None or max(counts) <= limit:
            return None
        return [count > limit for count in counts]

    def forget(self, held: Iterable[tuple[int, range]]) -> None:
        """Forget messages that are gone."""
        for level, seq_ids in held:
            self.counts.forget(level, seq_ids)

    def _note(self, kind: int, level: int, seq_ids: range, number: int) -> None:
        if self._log is not None:
            self._log.append(RECORD.pack(kind, level, seq_ids.start, seq_ids.stop, number))

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if counts, waits or the log contradict one another."""
        self.counts.check_invariants()
        if self._log is not None:
            self._log.check_invariants()
        waiting = [(level, seq_id) for level, seq_ids in self.held for seq_id in seq_ids]
        if len(waiting) != self.waiting or len(set(waiting)) != len(waiting):
            raise RuntimeError(f"{self.waiting} messages wait, and {len(waiting)} of them do, some of them twice")
