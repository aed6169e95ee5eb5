"""UniqueKeys: which keys of a queue's messages are taken, and how that is on disk.

A key is taken *while its message waits*, until that has left the queue for good (acked, rejected, expired, dropped,
purged), or *for a time* since the message was accepted, whether it is there or not. This object is not notified when
messages leave: whether a key's message is there is looked up when needed, by level, seq_id and msg_id (``ids_at``). So
deliveries pay nothing for keys, and a key cannot outlive its message.

*On disk* keys are records of a :class:`~warren.storage.record_log.RecordLog`: one or more rows of
:mod:`~warren.actors.engines.key_table` each; a later row of a digest replaces earlier ones. The order:

1. :meth:`UniqueKeys.take`: the row is written, then its message is published;
2. the message gets safe, as any other;
3. :meth:`UniqueKeys.make_safe`: a key for a time gets a second row, which says that its message was safe; the log is
   synced; only now the publisher gets its confirm.

*A crash* before the third step may leave a row without its message. A key that lasts while its message waits then
names a message that the index does not have, so it is free. So is a key for a time that has its first row only, unless
its message is there: then it was accepted, and :meth:`UniqueKeys.open` records this in the log before the message can
be taken away. After the third step both are on disk. So a lost message never counts as a duplicate's first one,
and no duplicate is taken once its first one was confirmed.

*A message that a crash brings back*: an ack frees the key at once, and a crash before it is safe brings the message
back, though the log may have a later row of its key, whose message was lost, or is there too. So
:meth:`UniqueKeys.open` looks which messages of *earlier* rows are there again: they have their key, beside the last
row's. The log forgets a row only when what took its message away is safe.

*Growth*: when the table is full, or the log has outgrown its valid rows, both are rebuilt from the keys that are taken.

Invariants: those of the table and the log; every key with a row on disk is in the table, or among the earlier ones,
until it is not taken any more.
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
"""How many rows that were replaced by later ones are looked up together."""
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
    _make_acks_safe: Callable[[], object] | None = None
    """Let no crash bring back what has left the queue. Raises :class:`~warren.storage.errors.NoRoomError`."""
    _earlier: dict[bytes, list[TakenKey]] = attrs.field(init=False, factory=dict)
    """Keys that wait though their digests have later rows: a crash has brought their messages back."""
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
        with contextlib.suppress(NoRoomError):  # it is retried before the next publisher gets an answer
            self._sync_log()

    def _note_earlier(self, keys: Iterable[TakenKey], now_us: int) -> None:
        """Remember those that wait, in spite of later rows."""
        for key in self._there(key for key in keys if key.bound and not 0 < key.until_us <= now_us):
            self._earlier.setdefault(key.digest, []).append(key)

    def _settle_unsure(self, now_us: int) -> None:
        """Settle which timed keys were taken when the log ended. Keys of waiting messages are looked up on use."""
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
        now_us, digests = self._wall_clock(), set(digests)
        before = self._earlier_there(digests, now_us) if self._earlier else []
        known = [key for digest in digests if (key := self._table.get(digest)) is not None]
        known = [key for key in known if not 0 < key.until_us <= now_us]
        there = self._there([key for key in known if key.bound])
        return {key.digest: key for key in (*before, *there, *(key for key in known if not key.bound))}

    def _earlier_there(self, digests: Iterable[bytes], now_us: int) -> list[TakenKey]:
        """Those of earlier rows that wait still; what does not is forgotten."""
        some = [digest for digest in digests if digest in self._earlier]
        self._note_earlier([key for digest in some for key in self._earlier.pop(digest)], now_us)
        return [key for digest in some for key in self._earlier.get(digest, ())]

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
        """Forget the keys that are free. Not between :meth:`take` and the publish: the messages are not there yet."""
        now_us = self._wall_clock()
        self._earlier_there(list(self._earlier), now_us)
        rows = lasting(self._table.rows(), now_us)
        bound = flags_of(rows) & BOUND != 0
        there = self._there(keys_in(rows[bound]))
        self._table.rebuild(rows_of([rows[~bound].tobytes(), *map(packed, there)]), room)

    def _compact(self) -> None:
        """Have the log say what is taken, and nothing else, where it says much more."""
        log = self._log
        if log is None or log.size_bytes <= self._log_limit_bytes:
            return
        try:
            if self._make_acks_safe is not None:
                self._make_acks_safe()  # else a crash brings back messages whose rows are gone
            self._sweep()
            rows = self._table.rows()
            earlier = [packed(key) for some in self._earlier.values() for key in some]
            rows = rows_of([*earlier, rows[flags_of(rows) & IN_RAM == 0].tobytes()])
            parts = (rows[low : low + _ROWS_AT_ONCE].tobytes() for low in range(0, len(rows), _ROWS_AT_ONCE))
            log.replace(parts, sync=self._sync)
        except DiskFullError:  # the log is well, and goes on
            self._log_limit_bytes = 2 * log.size_bytes
        else:
            self._log_limit_bytes = max(MIN_LOG_BYTES, 3 * log.size_bytes)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def note_gone(self, keys: Iterable[TakenKey]) -> None:
        """Before a clean stop, record the keys of messages that left before they were reported as safe.

        Later it would be unknown that they had been there. Messages still there are found by :meth:`open`.
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
