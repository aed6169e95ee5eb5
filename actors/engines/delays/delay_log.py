"""DelayLog: the delayed messages of one vhost on disk, in order of time.

They are appended to a log (:class:`~warren.storage.record_log.RecordLog`), one file after the other. A file that is
full is *sealed*: an index in order of time is written beside it, and nothing of it stays in RAM but a few numbers
(:mod:`warren.actors.engines.delays.delay_file`). What is due next comes from a heap of the files by their first
message.

A message is *taken* when it is due, and *gone* once it is reported as published, or when it is called back. That
is written down in the file that is written then, whichever the message's own is. A file of which no message is left is
deleted. One that is mostly garbage is *reclaimed*: what lives in it, and what it says of others that are still there,
is written again at the end, and the file is deleted.

*A crash* leaves files of which the last may be torn at its end. What was taken and is not known to be gone waits again:
a message may be published twice, and none is lost that was written (or, with a power loss, synced). A record that says
where a message stands now says also that it does no more where it stood.

*A full disk* refuses what is added (:class:`~warren.storage.errors.NoRoomError`, nothing has changed); what is gone is
written down later.

*Damage.* Messages that cannot be read are told (:attr:`DelayLog.damage`) and passed over; their file is kept.

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
from warren.actors.engines.delays.delay_files import GONE_AT_ONCE, DelayFiles
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
        """Let messages wait, all of them or (:class:`NoRoomError`) none; on return they survive the process."""
        self._append(
            [f.encode_message_record(*message) for message in messages],
            [(message.due_ms, message.id_digest, message.target) for message in messages],
        )

    # ── when they are due ───────────────────────────────────────────────────────────────────────────────────────

    def take_due(self, now_ms: int, count: int, size_bytes: int) -> list[DueMessage]:
        """Take messages that are due, the first first: at most ``count``, and of ``size_bytes`` or one."""
        taken: list[DueMessage] = []
        if len(self._unwritten_gone) >= GONE_AT_ONCE:
            return taken  # their outcome could not be written down
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
        """Messages that were taken are published, or lead nowhere: they are gone."""
        for message in messages:
            self._settle(self._file(message.file), message.entry, was_taken=True)
        self.write_gone()

    def postpone(self, messages: Sequence[DueMessage], due_ms: int) -> None:
        """Messages that were taken could not be published: they wait again. Raises :class:`NoRoomError`.

        What is not synced is synced before: a power loss that took the record in between, and left the first and the
        last one, would leave a message twice.
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
        del self._unwritten_gone[len(self._unwritten_gone) - len(messages) :]  # the records say so

    # ── calling back ────────────────────────────────────────────────────────────────────────────────────────────

    def cancel(self, message_id: bytes, target: int | None = None) -> list[bytes]:
        """Call back those that wait and have this id (``target``: of this one only); returns the encoded messages.

        They are gone when this returns, as far as the process lives.
        """
        digest = f.digest_of_id(message_id)
        found = []
        for file in self._all():
            for number, entry in file.find("id_digest", digest):
                if target is not None and entry.target != target:
                    continue
                term = self._read(file.number, entry)
                if term is not None and f.has_id(term, message_id):
                    file.kill(number)
                    self._settle(file, entry, was_taken=False)
                    found.append(term)
        self._close_sealed()
        self.write_gone()
        return found

    def drop(self, target: int) -> int:
        """Call back all that wait of one target; returns how many."""
        dropped = 0
        if not self.waiting_of(target):
            return dropped
        for one in [file.number for file in self._all()]:
            file = self._file(one)  # that which was written may be sealed meanwhile
            for number, entry in file.find("target", target):
                file.kill(number)
                self._settle(file, entry, was_taken=False)
                dropped += 1
            self.write_gone()
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
        """Give back the room of one file that is mostly garbage; whether there was one. Raises :class:`NoRoomError`."""
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
        """What a file says of others that are still there must not go with it."""
        places = index_of(self._files, file.log, file.path, self.damage).gone
        there = {one.number for one in self._all()} - {file.number}
        again = [Place(*pair) for pair in places[np.isin(places["file"], list(there))].tolist()]
        before = len(self._unwritten_gone)
        self._unwritten_gone += again
        try:
            if self._unwritten_gone:
                self._append([], [])
        except NoRoomError:
            del self._unwritten_gone[before:]
            raise

    def _move(self, file: SealedFile, live: list[tuple[int, Entry]]) -> None:
        """Write messages of a file again at the end."""
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
        del self._unwritten_gone[len(self._unwritten_gone) - len(live) :]  # the records say so

    def _delete(self, file: SealedFile) -> None:
        del self._sealed[file.number]
        self._garbage.discard(file.number)
        file.log.delete()
        if self._files.exists(file.path):
            self._files.delete(file.path)
        self._files.sync_directory(self.directory)  # no power loss may bring it back when it is not said what is gone

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Write down what is gone, make safe what was added. Where nothing waits, nothing is left on disk."""
        self.write_gone()
        self.sync()
        self.abandon()
        if not self._count and not any(one.damaged for one in self._all()):
            for one in sorted(self._sealed.values(), key=lambda one: one.number):  # those go last that say what is gone
                self._delete(one)
            self._files.delete_tree(self.directory)

    def abandon(self) -> None:
        """Leave the files as a crash would."""
        for one in self._all():
            with contextlib.suppress(StorageError):
                one.log.close()


def _chunks(live: list[tuple[int, Entry]]) -> Iterator[list[tuple[int, Entry]]]:
    """The same in parts of about a mebibyte."""
    chunk: list[tuple[int, Entry]] = []
    size_bytes = 0
    for one in live:
        chunk.append(one)
        size_bytes += one[1].size
        if size_bytes >= _CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk
