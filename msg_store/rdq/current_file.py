"""The current file of a store: the highest-numbered one, the only one that grows.

It is written to in one append for many messages. When it has reached the size limit the store *rolls*: the file is
synced and closed, and the next number opened. So every file but the current one is on the disk whole, and its name too
once the next sync has returned. In a store that promises nothing against a power loss the files before it are synced
when it is closed.

Invariant: what stands in the file up to ``size_bytes`` is whole records; it may be followed by the torn end of a failed
write, which the next write cuts off. After a failed fsync it is unknown which bytes are on the disk: ``failure`` says
so, and nothing more is written or confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from warren.msg_store.rdq.rdq_format import path_of
from warren.storage.errors import DiskFullError, NoRoomError, StorageError
from warren.storage.filesystem import File, FileSystem, append_whole
from warren.storage.pieces import Piece


@attrs.define(eq=False, repr=False)
class CurrentFile:
    """The open end of a store. ``durable`` false: it need not survive, so nothing is ever fsynced."""

    _files: FileSystem
    _directory: str
    number: int
    size_bytes: int
    durable: bool
    _unsynced: bool
    """Whether the file may have bytes that are not on the disk."""
    _name_unsynced: bool
    _rolled_unsynced: list[int] = attrs.field(factory=list, kw_only=True)
    """Files before it that may have bytes that are not on the disk, and wait for :meth:`sync_rolled`."""
    failure: str | None = attrs.field(default=None, init=False)
    _handle: File = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._handle = self._files.open_append(path_of(self._directory, self.number))

    def write(self, records: Sequence[Piece], size_bytes: int) -> None:
        """Append whole records, in pieces of ``size_bytes`` together.

        Raises :class:`StorageError`; nothing counts as written then.
        """
        if self._handle.size() > self.size_bytes:
            self._handle.truncate(self.size_bytes)
        self._unsynced = True
        append_whole(self._handle, (records,))
        self.size_bytes += size_bytes

    def sync(self) -> None:
        """Sync the file and its name."""
        if not self.durable:
            return
        try:
            if self._unsynced:
                self._handle.sync()
            if self._name_unsynced:
                self._files.sync_directory(self._directory)
        except StorageError as error:
            self.failure = f"an fsync failed: {error}"
            raise
        self._unsynced = self._name_unsynced = False

    def sync_rolled(self) -> None:
        """Sync the files that :meth:`roll` left unsynced, if they still exist."""
        for number in self._rolled_unsynced:
            path = path_of(self._directory, number)
            if self._files.exists(path):
                handle = self._files.open_append(path)
                try:
                    handle.sync()
                finally:
                    handle.close()
        self._rolled_unsynced.clear()

    def roll(self, *, sync: bool) -> None:
        """Close the file and open the next one; without ``sync``, :meth:`sync_rolled` syncs it later."""
        if sync:
            self.sync()
        elif self.durable:
            self._rolled_unsynced.append(self.number)
        try:
            following = self._files.open_append(path_of(self._directory, self.number + 1))
        except DiskFullError as error:
            raise NoRoomError(str(error)) from error
        self._handle.close()
        self._handle = following
        self.number += 1
        self.size_bytes = 0
        self._name_unsynced = True

    def close(self) -> None:
        """Abandon the file without syncing it."""
        self._handle.close()
