"""UniqueKeys: which keys of a queue's messages are taken, and how that is on disk.

A key is taken *while its message waits*, until that has left the queue for good (acked, rejected, expired, dropped,
purged), or *for a time* since the message was accepted, whether it is there or not. Nobody tells this object that
messages leave: whether a key's message is there is looked up where it matters (``holds``), by level, seq_id and msg_id.
So what goes out pays nothing for keys, and a key cannot outlive its message.

*On disk* a key is a record of a :class:`~warren.storage.record_log.RecordLog`, a row of
:mod:`~warren.actors.engines.key_table`; a later record of a digest holds in place of those before. The order is:

1. :meth:`UniqueKeys.take`: the record is written, then its message is published;
2. the message gets safe, as any other;
3. :meth:`UniqueKeys.make_safe`: a key for a time gets a second record, which says that its message was safe; the log is
   synced; only now the publisher is told.

*A crash* before the third step may leave a record without its message. A key that lasts while its message waits then
names a message that the index does not have, so it is free. So is a key for a time that has its first record only,
unless its message is there: then it was accepted, and :meth:`UniqueKeys.open` says so in the log before anybody can
take the message away. After the third step both are on disk. So a lost message never counts as a duplicate's first one,
and no duplicate is taken once its first one was confirmed.

*Growth*: when the table is full, or the log has outgrown what holds, both are made anew of the keys that are taken.

Invariants: those of the table and the log; every key with a record is in the table until it is not taken any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import attrs

from warren.actors.engines.key_table import IN_RAM, ROW, SAFE, KeyTable, TakenKey, unpacked
from warren.storage.errors import DataError, DiskFullError, NoRoomError
from warren.storage.record_log import RecordLog

Holds = Callable[[int, int, bytes], bool]
"""Whether the message of a level, a seq_id and a msg_id is in the queue."""

LOG_KIND: Final = "unique-keys"
MIN_LOG_BYTES: Final = 64 * 1024
"""Up to here a log is not worth a new file; above, it may grow to three times of what it had to say."""


@attrs.define(eq=False, repr=False)
class UniqueKeys:
    """The keys of one queue. ``log``: ``None`` where nothing of the queue outlives the process."""

    _log: RecordLog | None
    _holds: Holds
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

    def open(self) -> None:
        """Read what the log says. Raises :class:`DataError` where it is no log of keys."""
        log, table, now_us = self._log, self._table, self._wall_clock()
        if log is None:
            return
        for offset, payload in log.replay():
            if len(payload) != ROW.size:
                raise DataError(log.path, offset, f"a key of {len(payload)} bytes")
            if not table.has_room(1):
                table.rebuild(list(table))
            table.put(unpacked(payload))
        table.rebuild(list(self._found(now_us)))
        self._log_limit_bytes = max(MIN_LOG_BYTES, log.size_bytes)
        with contextlib.suppress(NoRoomError):  # it is tried again before the next publisher is told anything
            self._sync_log()

    def _found(self, now_us: int) -> Iterator[TakenKey]:
        """The keys that were taken when the log ended. What waits is looked up when somebody asks for its key."""
        for key in self._table:
            if 0 < key.until_us <= now_us:
                continue
            if key.bound or key.safe:
                yield key
            elif self._holds(key.level, key.seq_id, key.msg_id):
                yield self._noted(key)

    def find(self, digest: bytes) -> TakenKey | None:
        """Who has a key; ``None``: it is free."""
        key = self._table.get(digest)
        return key if key is not None and self._is_taken(key, self._wall_clock()) else None

    def _is_taken(self, key: TakenKey, now_us: int) -> bool:
        if 0 < key.until_us <= now_us:
            return False
        return not key.bound or self._holds(key.level, key.seq_id, key.msg_id)

    # ── taking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, keys: Sequence[TakenKey]) -> None:
        """Let messages that are to be published next have keys that are free, and write that down.

        Raises :class:`~warren.storage.errors.NoRoomError`: the keys are free, and nothing may be published.
        """
        if not self._table.has_room(len(keys)):
            self._sweep(len(keys))
        for key in keys:
            self._table.put(key)
        if self._log is not None:
            for key in keys:
                if not key.in_ram:
                    self._log.append(key.pack())
            try:
                self._log.write()
            except BaseException:
                self.give_back(keys)
                raise

    def give_back(self, keys: Iterable[TakenKey]) -> None:
        """Their messages were not taken in after all."""
        for key in keys:
            self._table.put(key._replace(until_us=1))  # long past

    def make_safe(self, keys: Iterable[TakenKey]) -> None:
        """The messages of these keys are safe: let the keys be so.

        Raises :class:`~warren.storage.errors.NoRoomError`; the next call then does what this one could not.
        """
        for key in keys:
            known = self._table.get(key.digest)
            if known is not None and known.msg_id == key.msg_id and not known.safe:
                self._table.put(self._noted(known))
        self._sync_log()
        self._compact()

    def _noted(self, key: TakenKey) -> TakenKey:
        """The key of a message that is safe. One for a time is told by itself from now on."""
        if key.bound:
            return key._replace(flags=key.flags | SAFE)
        safe = key._replace(flags=(key.flags | SAFE) & ~IN_RAM)
        if self._log is not None:
            self._log.append(safe.pack())
        return safe

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
        self._table.rebuild([key for key in self._table if self._is_taken(key, now_us)], room)

    def _compact(self) -> None:
        """Have the log say what is taken, and nothing else, where it says much more."""
        log = self._log
        if log is None or log.size_bytes <= self._log_limit_bytes:
            return
        self._sweep()
        try:
            log.replace((key.pack() for key in self._table if not key.in_ram), sync=self._sync)
        except DiskFullError:  # the log is well, and goes on
            self._log_limit_bytes = 2 * log.size_bytes
        else:
            self._log_limit_bytes = max(MIN_LOG_BYTES, 3 * log.size_bytes)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def note_gone(self, keys: Iterable[TakenKey]) -> None:
        """Before a clean stop: of messages that nobody has called safe yet, some have been delivered and acked since.

        Nobody could find out later that they were there. Those that are there are found by :meth:`open`.
        """
        self.make_safe([key for key in keys if not key.bound and not self._holds(key.level, key.seq_id, key.msg_id)])

    def close(self) -> None:
        """Give up the log's file, as it is."""
        if self._log is not None:
            self._log.close()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` where table or log contradict themselves."""
        self._table.check_invariants()
        if self._log is not None:
            self._log.check_invariants()
