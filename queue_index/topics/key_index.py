"""The key index: which messages have a key, over a row of index files, oldest first by their names.

Messages are put in the order of the CommitLog. Only the last file is written; when it is full, the next message or key
begins another one. So the keys of a message may stand in two files, and there may be a last file without any item.

Resumption. The header of the last file says which message was put last (:attr:`KeyIndex.end_physical_offset`). As in
RocketMQ, messages before that one are skipped when they are put again, but the message itself is not, which makes
duplicates after a crash; to avoid them, :meth:`KeyIndex.already_put` returns how many of its keys are there.

What was put is found at once. It is safe when :meth:`KeyIndex.flush` or :meth:`KeyIndex.flush_full` has returned; see
:mod:`warren.queue_index.topics.index_file` for what a crash leaves of the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.topics.index_file import IndexFile
from warren.queue_index.topics.index_file_format import Header, Layout, is_file_name, name_after
from warren.storage.columns import Ints, Longs, Mask
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem, delete_half_copies

_LOOK_BACK_ITEMS: Final = 64
_NO_OFFSET: Final = np.iinfo(np.int64).min


@attrs.define(eq=False, repr=False)
class KeyIndex:
    """The files of an ``index`` directory; made by :meth:`load`."""

    files: FileSystem
    directory: str
    layout: Layout
    new_name: Callable[[], str]
    """What to call a file that is made now: 17 digits of the wall clock."""
    writable: bool
    index_files: list[IndexFile] = attrs.Factory(list)
    """Oldest first. Replaced, never changed: others may hold an older list."""
    _unsynced_names: bool = False

    @classmethod
    def load(
        cls,
        files: FileSystem,
        directory: str,
        *,
        max_hash_slot_num: int,
        max_index_num: int,
        new_name: Callable[[], str],
        is_clean: bool = True,
        index_msg_timestamp: int = 0,
        writable: bool = True,
    ) -> KeyIndex:
        """Load the existing files. Unless the last stop ``is_clean``, files that end after ``index_msg_timestamp``
        (the checkpoint's) are deleted, as RocketMQ does; :func:`warren.queue_index.topics.index_recovery.recover` does
        better."""
        index = cls(files, directory, Layout(max_hash_slot_num, max_index_num), new_name, writable)
        if writable:
            delete_half_copies(files, directory, is_file_name)
        for name in filter(is_file_name, files.list(directory)):
            file = IndexFile.load(files, f"{directory}/{name}", index.layout, writable=writable)
            if is_clean or file.header.end_timestamp <= index_msg_timestamp:
                index.index_files.append(file)
            else:
                file.close()
                if writable:
                    files.delete(file.path)
        return index

    @property
    def end_physical_offset(self) -> int:
        """Of the last message put; 0 without files."""
        return self.index_files[-1].header.end_physical_offset if self.index_files else 0

    # ── putting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def put_many(
        self,
        physical_offsets: Longs,
        store_timestamps: Longs,
        key_counts: npt.NDArray[np.integer],
        key_hashes: Ints,
        *,
        skip_first: int = 0,
    ) -> None:
        """Put the keys of messages, in this order; message i has the next ``key_counts[i]`` of ``key_hashes``.

        A message before the last one put is left out; one at the same offset is not. The first ``skip_first`` keys of
        the first message are left out (not more than it has).
        """
        count = len(physical_offsets)
        if len(key_hashes) != int(key_counts.sum()):
            raise RuntimeError(f"{len(key_hashes)} key hashes for messages with {int(key_counts.sum())} keys")
        if not count:
            return
        skip_first = min(skip_first, int(key_counts[0]))
        if skip_first and skip_first == key_counts[0]:  # all its keys are there: it does not start a file
            self.put_many(physical_offsets[1:], store_timestamps[1:], key_counts[1:], key_hashes[skip_first:])
            return
        file = self._last_with_room()
        owners = np.repeat(np.arange(count), key_counts)
        selected = is_put(file.header.end_physical_offset, physical_offsets, key_counts > 0)[owners]
        selected[:skip_first] = False
        if not selected.all():
            owners, key_hashes = owners[selected], key_hashes[selected]
        offsets, timestamps = physical_offsets[owners], store_timestamps[owners]
        written, total = 0, len(owners)
        while written < total:
            file = self._last_with_room()
            stop = min(written + file.room, total)
            file.put(key_hashes[written:stop], offsets[written:stop], timestamps[written:stop])
            written = stop
        if total and owners[-1] < count - 1:
            self._last_with_room()  # a message makes the next file even if it has nothing to put

    def _last_with_room(self) -> IndexFile:
        """Return the last file; a new one if it is full or missing."""
        last = self.index_files[-1] if self.index_files else None
        if last is not None and not last.is_full:
            return last
        if last is None:
            self.files.make_directories(self.directory)
        name = name_after(self.new_name(), None if last is None else last.name)
        header = Header() if last is None else last.header.follow()
        file = IndexFile.create(self.files, f"{self.directory}/{name}", self.layout, header)
        self._unsynced_names = True
        self.index_files = [*self.index_files, file]
        return file

    def already_put(self, physical_offset: int) -> int:
        """How many keys at the end of the index, over the files' borders, are of the message at this offset."""
        count = 0
        for file in reversed(self.index_files):
            stop = min(file.header.index_count, self.layout.item_count)
            while stop > 1:
                start = max(stop - _LOOK_BACK_ITEMS, 1)
                others = np.flatnonzero(file.items(start, stop)["physical_offset"] != physical_offset)
                if len(others):
                    return count + stop - start - 1 - int(others[-1])
                count += stop - start
                stop = start
        return count

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def query(
        self, key_hash: int, max_num: int, begin: int, end: int, damage: list[DataError] | None = None
    ) -> list[int]:
        """Physical offsets of up to ``max_num`` messages with a key of this hash and a store time in [begin, end].

        Newest first. Other keys with this hash are among them, a message can be there twice, and the time is known to
        the second only, from the begin of its file on: the answer is the original's. Where a file's bytes are damaged
        this raises :class:`DataError`; or, with a list for ``damage``, it notes that there and goes on as the original,
        with what it has and the next older file.
        """
        physical_offsets: list[int] = []
        for file in reversed(self.index_files):
            if file.header.matches(begin, end):
                try:
                    file.find(key_hash, physical_offsets, max_num, begin, end)
                except DataError as error:
                    if damage is None:
                        raise
                    damage.append(error)
            if file.header.begin_timestamp < begin or len(physical_offsets) >= max_num:
                break
        return physical_offsets

    # ── to the disk ─────────────────────────────────────────────────────────────────────────────────────────────

    def write(self) -> None:
        """Write what is only in memory to the files, for concurrent readers or copies; nothing is synced."""
        for file in self.index_files:
            file.write()

    def flush(self) -> None:
        """Write all that is only in memory, older files first, and make it survive a power loss."""
        self._flush(with_slots=True)

    def flush_full(self) -> int:
        """As :meth:`flush`, but of the last file, unless it is full, only items and header: what recovery needs.

        The slots of a file that is being written are up to 20 MB, changed all over, so this is for a timer. Returns the
        end timestamp of the last full file, for the checkpoint; 0 if no file is full.
        """
        self._flush(with_slots=False)
        return next((file.header.end_timestamp for file in reversed(self.index_files) if file.is_full), 0)

    def _flush(self, *, with_slots: bool) -> None:
        if self._unsynced_names:
            self.files.sync_directory(os.path.dirname(self.directory))
            self.files.sync_directory(self.directory)
            self._unsynced_names = False
        for file in self.index_files:
            file.flush(with_slots=with_slots)

    def expire(self, commit_log_min: int) -> list[str]:
        """Delete the oldest files, as long as all their messages lie before ``commit_log_min``; never the last file.

        Returns their paths.
        """
        count = 0
        for file in self.index_files[:-1]:
            if file.header.end_physical_offset >= commit_log_min:
                break
            count += 1
        return self.delete(self.index_files[:count])

    def delete(self, doomed: list[IndexFile]) -> list[str]:
        """Delete files of the index; returns their paths."""
        self.index_files = [file for file in self.index_files if file not in doomed]
        for file in doomed:
            file.close()
            self.files.delete(file.path)
        return [file.path for file in doomed]

    def close(self) -> None:
        """Give the files up; nothing is written."""
        for file in self.index_files:
            file.close()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the files contradict themselves or each other. Reads them all."""
        names = [file.name for file in self.index_files]
        if names != sorted(set(names)):
            raise RuntimeError(f"{self.directory}: the files are not in the order of their names")
        if not all(file.is_full for file in self.index_files[:-1]):
            raise RuntimeError(f"{self.directory}: a file before the last is not full")
        for file in self.index_files:
            file.check_invariants()


def is_put(end: int, physical_offsets: Longs, has_keys: Mask) -> Mask:
    """Which messages are put, where ``end`` is the offset of the last one put before them."""
    reached = np.maximum.accumulate(np.where(has_keys, physical_offsets, _NO_OFFSET))
    before = np.maximum(np.concatenate((np.array([end]), reached[:-1])), end)
    put: Mask = has_keys & (physical_offsets >= before)
    return put
