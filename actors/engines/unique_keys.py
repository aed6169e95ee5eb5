"""UniqueKeys: which keys of a queue's messages are taken, and how that is on disk.

A key is taken *while its message waits*, until that has left the queue for good (acked, rejected, expired, dropped,
purged), or *for a time* since the message was accepted, whether it is there or not. Nobody tells this object that
messages leave: whether a key's message is there is looked up where that matters, by level, seq_id and msg_id
(``ids_at``). So what goes out pays nothing for keys, and a key cannot outlive its message.

*On disk* keys are records of a :class:`~warren.storage.record_log.RecordLog`: each one row of
:mod:`~warren.actors.engines.key_table`, or several; a later row of a digest holds in place of those before. The order:

1. :meth:`UniqueKeys.take`: the row is written, then its message is published;
2. the message gets safe, as any other;
3. :meth:`UniqueKeys.make_safe`: a key for a time gets a second row, which says that its message was safe; the log is
   synced; only now the publisher is told.

*A crash* before the third step may leave a row without its message. A key that lasts while its message waits then
names a message that the index does not have, so it is free. So is a key for a time that has its first row only, unless
its message is there: then it was accepted, and :meth:`UniqueKeys.open` says so in the log before anybody can
take the message away. After the third step both are on disk. So a lost message never counts as a duplicate's first one,
and no duplicate is taken once its first one was confirmed.

*Growth*: when the table is full, or the log has outgrown what holds, both are made anew of the keys that are taken.

Invariants: those of the table and the log; every key with a row on disk is in the table until it is not taken any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from warren.actors.engines.key_table import (
    BOUND,
    IN_RAM,
    ROW,
    SAFE,
    KeyTable,
    TakenKey,
    flags_of,
    keys_in,
    lasting,
    packed,
    rows_of,
)
from warren.storage.errors import DataError, DiskFullError, NoRoomError
from warren.storage.record_log import RecordLog

IdsAt = Callable[[int, Sequence[int]], Sequence[bytes | None]]
"""The msg_ids of the messages in the queue under a level and seq_ids, which ascend; ``None`` where none is."""

LOG_KIND: Final = "unique-keys"
_ROWS_AT_ONCE: Final = 1000
MIN_LOG_BYTES: Final = 64 * 1024
"""Up to here a log is not worth a new file; above, it may grow to three times of what it had to say."""


@attrs.define(eq=False, repr=False)
class UniqueKeys:
    """The keys of one queue. ``log``: ``None`` where nothing of the queue outlives the process."""

    _log: RecordLog | None
    _ids_at: IdsAt
    _wall_clock: Callable[[], int]
    """µs since the Unix epoch."""
    _sync: bool = True
    """Whether what is called safe survives a power loss, or only the process."""
    _table: KeyTable = attrs.field(init=False, factory=KeyTable)
    _log_limit_bytes: int = attrs.field(init=False, default=MIN_LOG_BYTES)

    def __len__(self) -> int:
        """How many keys are remembered, with those that are free again and were not looked at since."""
        return len(self._table)

    @property
    def size_bytes(self) -> int:
        """What they take in RAM."""
        return self._table.size_bytes

    @property
    def damage(self) -> DataError | None:
        """What of the log could not be read: its keys are free."""
        return None if self._log is None else self._log.damage

    @property
    def torn(self) -> DataError | None:
        """What of the log a crash did not let be written."""
        return None if self._log is None else self._log.torn

    def open(self) -> None:
        """Read what the log says. Raises :class:`DataError` where it is no log of keys."""
        log, table, now_us = self._log, self._table, self._wall_clock()
        if log is None:
            return
        for offset, payload in log.replay():
            if not payload or len(payload) % ROW.size:
                raise DataError(log.path, offset, f"keys of {len(payload)} bytes")
            count = len(payload) // ROW.size
            if not table.has_room(count):
                table.rebuild(table.rows(), count)
            for at in range(0, len(payload), ROW.size):
                table.put(payload[at : at + ROW.size])
        self._settle_unsure(now_us)
        self._log_limit_bytes = max(MIN_LOG_BYTES, 3 * ROW.size * len(table))
        with contextlib.suppress(NoRoomError):  # it is tried again before the next publisher is told anything
            self._sync_log()

    def _settle_unsure(self, now_us: int) -> None:
        """Tell which keys were taken when the log ended. What waits is looked up when somebody asks for its key."""
        rows = lasting(self._table.rows(), now_us)
        unsure = flags_of(rows) & (BOUND | SAFE) == 0
        there = self._there(keys_in(rows[unsure]))
        self._table.rebuild(rows_of([rows[~unsure].tobytes(), *map(packed, there)]))
        self._note_safe(there)

    def _there(self, keys: Iterable[TakenKey]) -> list[TakenKey]:
        """Those whose messages are in the queue."""
        by_level: dict[int, list[TakenKey]] = {}
        for key in keys:
            by_level.setdefault(key.level, []).append(key)
        found: list[TakenKey] = []
        for level, some in by_level.items():
            some.sort(key=_seq_id)
            ids = self._ids_at(level, [key.seq_id for key in some])
            found += [key for key, msg_id in zip(some, ids, strict=True) if msg_id == key.msg_id]
        return found

    def holders(self, digests: Iterable[bytes]) -> dict[bytes, TakenKey]:
        """Who has these keys; what is free is not among them."""
        now_us = self._wall_clock()
        known = [key for digest in digests if (key := self._table.get(digest)) is not None]
        known = [key for key in known if not 0 < key.until_us <= now_us]
        there = self._there([key for key in known if key.bound])
        return {key.digest: key for key in (*there, *(key for key in known if not key.bound))}

    # ── taking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, keys: Sequence[TakenKey]) -> None:
        """Let messages that are to be published next have keys that are free, and write that down. All outlive the
        process, or none.

        Raises :class:`~warren.storage.errors.NoRoomError`: the keys are free, and nothing may be published.
        """
        if not self._table.has_room(len(keys)):
            self._sweep(len(keys))
        rows = [packed(key) for key in keys]
        for row in rows:
            self._table.put(row)
        if self._log is not None and keys and not keys[0].in_ram:
            self._log.append(b"".join(rows))
            try:
                self._log.write()
            except BaseException:
                self.give_back(keys)
                raise

    def give_back(self, keys: Iterable[TakenKey]) -> None:
        """Their messages were not taken in after all."""
        for key in keys:
            self._table.put(packed(key._replace(until_us=1)))  # long past

    def make_safe(self, keys: Iterable[TakenKey]) -> None:
        """The messages of these keys are safe: let the keys be so.

        Raises :class:`~warren.storage.errors.NoRoomError`; the next call then does what this one could not.
        """
        self._note_safe(keys)
        self._sync_log()
        self._compact()

    def _note_safe(self, keys: Iterable[TakenKey]) -> None:
        rows = [row for key in keys if (row := self._table.note_safe(key.digest, key.msg_id)) is not None]
        if self._log is not None and rows:
            self._log.append(b"".join(rows))

    def _sync_log(self) -> None:
        if self._log is None:
            return
        if self._sync:
            self._log.sync()
        else:
            self._log.write()

    # ── growth ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _sweep(self, room: int = 0) -> None:
        """Forget the keys that are free. Not between :meth:`take` and the publish: the messages are not there yet."""
        rows = lasting(self._table.rows(), self._wall_clock())
        bound = flags_of(rows) & BOUND != 0
        there = self._there(keys_in(rows[bound]))
        self._table.rebuild(rows_of([rows[~bound].tobytes(), *map(packed, there)]), room)

    def _compact(self) -> None:
        """Have the log say what is taken, and nothing else, where it says much more."""
        log = self._log
        if log is None or log.size_bytes <= self._log_limit_bytes:
            return
        self._sweep()
        try:
            rows = self._table.rows()
            rows = rows[flags_of(rows) & IN_RAM == 0]
            parts = (rows[low : low + _ROWS_AT_ONCE].tobytes() for low in range(0, len(rows), _ROWS_AT_ONCE))
            log.replace(parts, sync=self._sync)
        except DiskFullError:  # the log is well, and goes on
            self._log_limit_bytes = 2 * log.size_bytes
        else:
            self._log_limit_bytes = max(MIN_LOG_BYTES, 3 * log.size_bytes)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def note_gone(self, keys: Iterable[TakenKey]) -> None:
        """Before a clean stop: of messages that nobody has called safe yet, some have been delivered and acked since.

        Nobody could find out later that they were there. Those that are there are found by :meth:`open`.
        """
        for_a_time = [key for key in keys if not key.bound]
        there = {key.digest for key in self._there(for_a_time)}
        self.make_safe([key for key in for_a_time if key.digest not in there])

    def close(self) -> None:
        """Give up the log's file, as it is."""
        if self._log is not None:
            self._log.close()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` where table or log contradict themselves."""
        self._table.check_invariants()
        if self._log is not None:
            self._log.check_invariants()


def _seq_id(key: TakenKey) -> int:
    return key.seq_id
