"""UniqueKeys: which keys of a queue's messages are taken, and how they are stored on disk.

A key is taken *while its message waits*, until the message has left the queue for good (acked, rejected, expired,
dropped, purged), or *for a time* after the message was accepted, whether it still exists or not. This object is not
notified when messages leave: it looks up whether a key's message exists when needed, by level, seq_id and msg_id
(``ids_at``). So keys cost nothing on delivery, and a key cannot outlive its message.

*On disk* keys are records of a :class:`~warren.storage.record_log.RecordLog`: one or more rows of
:mod:`~warren.actors.engines.key_table` each; a later row of a digest replaces earlier ones. The order:

1. :meth:`UniqueKeys.take`: the row is written, then its message is published;
2. the message becomes safe, like any other;
3. :meth:`UniqueKeys.make_safe`: a key for a time gets a second row, which records that its message was safe; the log is
   synced; only now the publisher gets its confirm.

*A crash* before the third step may leave a row without its message. A key that lasts while its message waits then
names a message that the index does not have, so it is free. So is a key for a time with only its first row, unless its
message exists: then it was accepted, and :meth:`UniqueKeys.open` records this in the log before the message can leave.
After the third step both are on disk. So a lost message never makes another one a duplicate, and no duplicate is
accepted once the first message was confirmed.

*A message that a crash brings back*: an ack frees the key at once, and a crash before the ack is safe brings the
message back, although the log may have a later row of its key, whose message was lost, or exists too. So
:meth:`UniqueKeys.open` looks up which messages of *earlier* rows exist again: they have their key, besides that of the
last row. The log drops a row only when the removal of its message is safe.

*Growth*: when the table is full, or the log has outgrown its valid rows, both are rebuilt from the keys that are taken.

Invariants: those of the table and the log; every taken key with a row on disk is in the table, or among the earlier
ones.
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
    is_anothers,
    keys_in,
    lasting,
    packed,
    rows_of,
    unpacked,
)
from warren.storage.errors import DataError, DiskFullError, NoRoomError
from warren.storage.record_log import RecordLog

IdsAt = Callable[[int, Sequence[int]], Sequence[bytes | None]]
"""Return the msg_ids of a level's messages with these ascending seq_ids; ``None`` for each missing message."""

LOG_KIND: Final = "unique-keys"
_ROWS_AT_ONCE: Final = 1000
_EARLIER_AT_ONCE: Final = 20_000
"""How many replaced rows are looked up together."""
MIN_LOG_BYTES: Final = 64 * 1024
"""Up to this size a log is not rewritten; above it, the log may grow to three times its size after the last rewrite."""


@attrs.define(eq=False, repr=False)
class UniqueKeys:
    """The keys of one queue. ``log``: ``None`` if the queue does not outlive the process."""

    _log: RecordLog | None
    _ids_at: IdsAt
    _wall_clock: Callable[[], int]
    """µs since the Unix epoch."""
    _sync: bool = True
    """Whether safe keys survive a power loss, or only a crash of the process."""
    _make_acks_safe: Callable[[], object] | None = None
    """Makes acks safe, so that no crash brings messages back. Raises :class:`~warren.storage.errors.NoRoomError`."""
    _earlier: dict[bytes, list[TakenKey]] = attrs.field(init=False, factory=dict)
    """Taken keys whose digests have later rows, because a crash has brought their messages back."""
    _table: KeyTable = attrs.field(init=False, factory=KeyTable)
    _log_limit_bytes: int = attrs.field(init=False, default=MIN_LOG_BYTES)

    def __len__(self) -> int:
        """How many keys are stored, including free ones that were not looked up since."""
        return len(self._table)

    @property
    def size_bytes(self) -> int:
        """The size of the table in RAM."""
        return self._table.size_bytes

    @property
    def damage(self) -> DataError | None:
        """The part of the log that could not be read; its keys are free."""
        return None if self._log is None else self._log.damage

    @property
    def torn(self) -> DataError | None:
        """The end of the log, if a crash left it incomplete."""
        return None if self._log is None else self._log.torn

    def open(self) -> None:
        """Read the log. Raises :class:`DataError` if it is not a log of keys."""
        log, table, now_us = self._log, self._table, self._wall_clock()
        if log is None:
            return
        earlier: list[TakenKey] = []
        for offset, payload in log.replay():
            if not payload or len(payload) % ROW.size:
                raise DataError(log.path, offset, f"keys of {len(payload)} bytes")
            count = len(payload) // ROW.size
            if not table.has_room(count):
                table.rebuild(table.rows(), count)
            for at in range(0, len(payload), ROW.size):
                row = payload[at : at + ROW.size]
                before = table.put(row)
                if before is not None and is_anothers(before, row):
                    earlier.append(unpacked(before))
            if len(earlier) >= _EARLIER_AT_ONCE:
                self._note_earlier(earlier, now_us)
                earlier = []
        self._note_earlier(earlier, now_us)
        self._settle_unsure(now_us)
        self._log_limit_bytes = max(MIN_LOG_BYTES, 3 * ROW.size * len(table))
        with contextlib.suppress(NoRoomError):  # retried before the next publisher gets an answer
            self._sync_log()

    def _note_earlier(self, keys: Iterable[TakenKey], now_us: int) -> None:
        """Store those keys whose messages still wait, although there are later rows."""
        for key in self._there(key for key in keys if key.bound and not 0 < key.until_us <= now_us):
            self._earlier.setdefault(key.digest, []).append(key)

    def _settle_unsure(self, now_us: int) -> None:
        """Settle which timed keys were taken when the log ended. Keys of waiting messages are looked up on use."""
        rows = lasting(self._table.rows(), now_us)
        unsure = flags_of(rows) & (BOUND | SAFE) == 0
        present = self._there(keys_in(rows[unsure]))
        self._table.rebuild(rows_of([rows[~unsure].tobytes(), *map(packed, present)]))
        self._note_safe(present)

    def _there(self, keys: Iterable[TakenKey]) -> list[TakenKey]:
        """Return the keys whose messages are in the queue."""
        by_level: dict[int, list[TakenKey]] = {}
        for key in keys:
            by_level.setdefault(key.level, []).append(key)
        present: list[TakenKey] = []
        for level, level_keys in by_level.items():
            level_keys.sort(key=_seq_id)
            ids = self._ids_at(level, [key.seq_id for key in level_keys])
            present += [key for key, msg_id in zip(level_keys, ids, strict=True) if msg_id == key.msg_id]
        return present

    def holders(self, digests: Iterable[bytes]) -> dict[bytes, TakenKey]:
        """Return the keys that are taken, each with the message that has it."""
        now_us, digests = self._wall_clock(), set(digests)
        earlier = self._earlier_there(digests, now_us) if self._earlier else []
        taken = [key for digest in digests if (key := self._table.get(digest)) is not None]
        taken = [key for key in taken if not 0 < key.until_us <= now_us]
        present = self._there([key for key in taken if key.bound])
        return {key.digest: key for key in (*earlier, *present, *(key for key in taken if not key.bound))}

    def _earlier_there(self, digests: Iterable[bytes], now_us: int) -> list[TakenKey]:
        """Return the keys of earlier rows whose messages still wait; the others are forgotten."""
        earlier_digests = [digest for digest in digests if digest in self._earlier]
        self._note_earlier([key for digest in earlier_digests for key in self._earlier.pop(digest)], now_us)
        return [key for digest in earlier_digests for key in self._earlier.get(digest, ())]

    # ── taking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, keys: Sequence[TakenKey]) -> None:
        """Take free keys for the messages that are published next, and log them. All outlive the process, or none.

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
        """Free keys again whose messages were refused."""
        for key in keys:
            self._table.put(packed(key._replace(until_us=1)))  # long past

    def make_safe(self, keys: Iterable[TakenKey]) -> None:
        """Make these keys safe, after their messages are.

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
        """Forget free keys. Must not be called between :meth:`take` and the publish: the messages do not exist yet."""
        now_us = self._wall_clock()
        self._earlier_there(list(self._earlier), now_us)
        rows = lasting(self._table.rows(), now_us)
        bound = flags_of(rows) & BOUND != 0
        present = self._there(keys_in(rows[bound]))
        self._table.rebuild(rows_of([rows[~bound].tobytes(), *map(packed, present)]), room)

    def _compact(self) -> None:
        """Rewrite the log with the taken keys only, if it is much larger."""
        log = self._log
        if log is None or log.size_bytes <= self._log_limit_bytes:
            return
        try:
            if self._make_acks_safe is not None:
                self._make_acks_safe()  # or a crash would bring back messages whose rows are gone
            self._sweep()
            rows = self._table.rows()
            earlier = [packed(key) for keys in self._earlier.values() for key in keys]
            rows = rows_of([*earlier, rows[flags_of(rows) & IN_RAM == 0].tobytes()])
            parts = (rows[low : low + _ROWS_AT_ONCE].tobytes() for low in range(0, len(rows), _ROWS_AT_ONCE))
            log.replace(parts, sync=self._sync)
        except DiskFullError:  # the old log is intact and stays in use
            self._log_limit_bytes = 2 * log.size_bytes
        else:
            self._log_limit_bytes = max(MIN_LOG_BYTES, 3 * log.size_bytes)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def note_gone(self, keys: Iterable[TakenKey]) -> None:
        """Before a clean stop, record the keys of messages that left before they were reported as safe.

        Later it would be unknown that they had been there. Messages still there are found by :meth:`open`.
        """
        for_a_time = [key for key in keys if not key.bound]
        present = {key.digest for key in self._there(for_a_time)}
        self.make_safe([key for key in for_a_time if key.digest not in present])

    def close(self) -> None:
        """Close the log's file as it is."""
        if self._log is not None:
            self._log.close()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the table or the log contradicts itself."""
        self._table.check_invariants()
        if self._log is not None:
            self._log.check_invariants()


def _seq_id(key: TakenKey) -> int:
    return key.seq_id
