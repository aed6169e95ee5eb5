"""DelayLog: the delayed messages of one vhost on disk, in order of time.

They are appended to a log (:class:`~warren.storage.record_log.RecordLog`) of several files. A full file is *sealed*: an
index in order of time is written beside it, and only a few numbers stay in RAM
(:mod:`warren.actors.engines.delays.delay_file`). A heap of the files, ordered by their first message, yields the next
due message.

A message is *taken* when it is due. It is *removed* once it is reported as published, or when it is cancelled. That is
recorded in the file that is open at that time, not in the message's own file. A file without messages is deleted. One
that is mostly garbage is *reclaimed*: its live messages, and its records about messages of other files that still
exist, are rewritten at the end of the log, and the file is deleted.

*A crash* may leave the last file torn at its end. A message that was taken and is not known to be removed waits again:
it may be published twice, but no message is lost that was written (or, after a power loss, synced). A record that moves
a message also marks its old position as removed.

*A full disk* refuses additions (:class:`~warren.storage.errors.NoRoomError`, nothing has changed); messages that are
removed are recorded later.

*Damage.* Unreadable messages are reported (:attr:`DelayLog.damage`) and skipped; their file is kept.

Invariants: those of :class:`~warren.actors.engines.delays.delay_files.DelayFiles`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import attrs
import numpy as np

from warren.actors.engines.delays import delay_format as f
from warren.actors.engines.delays.delay_file import SealedFile
from warren.actors.engines.delays.delay_files import REMOVED_AT_ONCE, DelayFiles
from warren.actors.engines.delays.delay_format import Entry, Place
from warren.actors.engines.delays.delay_recovery import index_of
from warren.actors.log_events import log_event, logger
from warren.storage.errors import DataError, NoRoomError, StorageError

_LOG = logger("delays")

_CHUNK_BYTES: Final = 1 << 20


class NewMessage(NamedTuple):
    """A message that is to wait."""

    due_ms: int
    id_digest: int
    target: int
    term: bytes


class DueMessage(NamedTuple):
    """A message that was taken."""

    file: int
    entry: Entry
    term: bytes


@attrs.define(eq=False, repr=False)
class DelayLog(DelayFiles):
    """See the module's prose. One caller at a time; :meth:`waiting_of` and ``len`` may be asked from any thread."""

    def add(self, messages: Sequence[NewMessage]) -> None:
        """Add all messages or, raising :class:`NoRoomError`, none. On return they survive a crash of the process."""
        self._append(
            [f.encode_message_record(*message) for message in messages],
            [(message.due_ms, message.id_digest, message.target) for message in messages],
        )

    # ── when they are due ───────────────────────────────────────────────────────────────────────────────────────

    def take_due(self, now_ms: int, count: int, size_bytes: int) -> list[DueMessage]:
        """Take due messages, the earliest first: at most ``count``, up to ``size_bytes`` but at least one."""
        taken: list[DueMessage] = []
        if len(self._unwritten_removed) >= REMOVED_AT_ONCE:
            return taken  # their outcome could not be recorded
        while len(taken) < count and size_bytes > 0:
            first = self._first()
            if first is None or first[0] > now_ms:
                break
            file = first[1]
            entry = file.take()
            self._taken += 1
            term = self._read(file.number, entry)
            if term is not None:
                size_bytes -= entry.size
                taken.append(DueMessage(file.number, entry, term))
        self._close_sealed()
        return taken

    def settle(self, messages: Iterable[DueMessage]) -> None:
        """Note that taken messages are removed: they were published, or have no target."""
        for message in messages:
            self._settle(self._file(message.file), message.entry, was_taken=True)
        self.write_removed()

    def postpone(self, messages: Sequence[DueMessage], due_ms: int) -> None:
        """Let taken messages that could not be published wait again. Raises :class:`NoRoomError`.

        Syncs first: a power loss that took only the record in between, and left the first and the last one, would leave
        a message twice.
        """
        self.sync()
        payloads, heads = [], []
        replaced = [Place(message.file, message.entry.offset) for message in messages]
        for message, replaces in zip(messages, replaced, strict=True):
            entry = message.entry
            payloads.append(f.encode_message_record(due_ms, entry.id_digest, entry.target, message.term, replaces))
            heads.append((due_ms, entry.id_digest, entry.target))
        self._append(payloads, heads, replaced)
        for message in messages:
            self._settle(self._file(message.file), message.entry, was_taken=True)
        del self._unwritten_removed[len(self._unwritten_removed) - len(messages) :]  # the records say so

    # ── calling back ────────────────────────────────────────────────────────────────────────────────────────────

    def cancel(self, message_id: bytes, target: int | None = None) -> list[bytes]:
        """Cancel the waiting messages with this id; return the encoded messages. ``target``: only those of this target.

        They are removed when this returns, but a crash may bring them back.
        """
        digest = f.digest_of_id(message_id)
        cancelled = []
        for file in self._all():
            for number, entry in file.find("id_digest", digest):
                if target is not None and entry.target != target:
                    continue
                term = self._read(file.number, entry)
                if term is not None and f.has_id(term, message_id):
                    file.kill(number)
                    self._settle(file, entry, was_taken=False)
                    cancelled.append(term)
        self._close_sealed()
        self.write_removed()
        return cancelled

    def drop(self, target: int) -> int:
        """Cancel all waiting messages of one target; return their number."""
        dropped = 0
        if not self.waiting_of(target):
            return dropped
        for file_number in [file.number for file in self._all()]:
            file = self._file(file_number)  # the open file may have been sealed meanwhile
            for number, entry in file.find("target", target):
                file.kill(number)
                self._settle(file, entry, was_taken=False)
                dropped += 1
            self.write_removed()
        return dropped

    # ── reclaiming ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_garbage(self) -> bool:
        """Whether :meth:`reclaim` would do something."""
        return self._reclaimable() is not None

    def _reclaimable(self) -> SealedFile | None:
        for number in list(self._garbage):
            file = self._sealed.get(number)
            if file is not None and file.is_garbage:
                return file
            self._garbage.discard(number)
        return None

    def reclaim(self) -> bool:
        """Reclaim one file that is mostly garbage; return whether there was one. Raises :class:`NoRoomError`."""
        file = self._reclaimable()
        if file is None:
            return False
        self._say_again(file)
        live = file.all_live()
        for chunk in _chunks(live):
            self._move(file, chunk)
            if file.damaged:
                break
        file.log.close()
        if not file.damaged:
            self.sync()
            self._delete(file)
        return True

    def _say_again(self, file: SealedFile) -> None:
        """Rewrite a file's records about messages of other files that still exist, before it is deleted."""
        places = index_of(self._files, file.log, file.path, self.damage).removed
        file_numbers = {other.number for other in self._all()} - {file.number}
        repeated = [Place(*pair) for pair in places[np.isin(places["file"], list(file_numbers))].tolist()]
        before = len(self._unwritten_removed)
        self._unwritten_removed += repeated
        try:
            if self._unwritten_removed:
                self._append([], [])
        except NoRoomError:
            del self._unwritten_removed[before:]
            raise

    def _move(self, file: SealedFile, live: list[tuple[int, Entry]]) -> None:
        """Rewrite messages of a file at the end of the log."""
        payloads = []
        places = [Place(file.number, entry.offset) for _, entry in live]
        for place in places:
            try:
                payloads.append(f.moved(file.log.read(place.offset), place))
            except DataError as error:
                _LOG.error(
                    "a file of delayed messages is damaged, and kept: %s", error, extra=log_event("delayed_lost", error)
                )
                self.damage.append(error)
                file.damaged = True
                return
        self._append(payloads, [entry[:3] for _, entry in live], places)
        for number, entry in live:
            file.kill(number)
            self._settle(file, entry, was_taken=False)
        del self._unwritten_removed[len(self._unwritten_removed) - len(live) :]  # the records say so

    def _delete(self, file: SealedFile) -> None:
        del self._sealed[file.number]
        self._garbage.discard(file.number)
        file.log.delete()
        if self._files.exists(file.path):
            self._files.delete(file.path)
        # A power loss must not restore the file after the records of its removed messages were deleted.
        self._files.sync_directory(self.directory)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Record removed messages and make additions safe. Delete all files if nothing is left and none is damaged."""
        self.write_removed()
        self.sync()
        self.abandon()
        if not self._count and not any(file.damaged for file in self._all()):
            # Oldest first: later files record which messages of earlier ones are removed.
            for file in sorted(self._sealed.values(), key=lambda file: file.number):
                self._delete(file)
            self._files.delete_tree(self.directory)

    def abandon(self) -> None:
        """Leave the files as a crash would."""
        for file in self._all():
            with contextlib.suppress(StorageError):
                file.log.close()


def _chunks(live: list[tuple[int, Entry]]) -> Iterator[list[tuple[int, Entry]]]:
    """Split messages into parts of about a mebibyte."""
    chunk: list[tuple[int, Entry]] = []
    size_bytes = 0
    for pair in live:
        chunk.append(pair)
        size_bytes += pair[1].size
        if size_bytes >= _CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk
