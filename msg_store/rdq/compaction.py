"""Combines two neighbouring files, so that their garbage goes: the younger (right) one into the older (left).

    left   A B x C x D      A, B: the *prefix*, good from the start and left in place
    right  E x x F          C, D: the *tail*, good after the first hole

1. The tail is copied to ``<left>.rdt``, which is synced.                         read from here on: C D in the .rdt
2. The left file is cut to the prefix and extended, with zeros, to A B C D E F.
3. The ``.rdt`` is copied back after the prefix, synced, and deleted.                                C D in the left
4. The right file's good records are copied after that, synced, and the right file is deleted.       E F in the left

At no instant is a good record in fewer than one synced place, so a crash between any two operations loses none: the
scan that recovers takes the last of a message's places, which is the original as long as there is one. (A ``.rdt``
begins with a byte that no record begins with until all of it is synced: one that is not complete is read as empty.)

Each step is one operation on a file. Between two steps the store may be read, written and removed from: a message
removed before its copy is done is garbage in the copy, and the index is updated for each copy once it is synced.

Invariant: until the end neither file is deleted by anyone else. Files with damage in them are left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import attrs

from warren.msg_store.rdq.body_reader import ReadHandles
from warren.msg_store.rdq.file_summary import FileSummary
from warren.msg_store.rdq.locations import Location, Locations, pack
from warren.msg_store.rdq.rdq_format import Record, leftover_of, scan
from warren.storage.errors import DataError, DiskFullError, NoRoomError
from warren.storage.filesystem import File, FileSystem

COPY_BYTES = 1 << 20
"""The most that one step copies; it is held in memory."""

_NO_RECORD = b"\xff"
"""The first byte of a ``.rdt`` that is not complete: a record of 2**63 bytes and more."""


@attrs.define(eq=False, repr=False, kw_only=True)
class Compaction:
    """A pair of files that is being combined. Call ``step`` until it returns ``False``."""

    left: int
    right: int
    _files: FileSystem
    _locations: Locations
    _summary: FileSummary
    _handles: ReadHandles
    must_finish: bool = attrs.field(default=False, init=False)
    """Whether the left file was changed; before that, breaking off leaves nothing but a useless ``.rdt``."""
    damage: DataError | None = attrs.field(default=None, init=False)
    _no_room: NoRoomError | None = attrs.field(default=None, init=False)
    _steps: Iterator[None] = attrs.field(init=False, default=attrs.Factory(lambda self: self._run(), takes_self=True))

    def step(self) -> bool:
        """Do one more operation; ``False`` when there is nothing left to do.

        Raises :class:`NoRoomError` if the disk is full and the operation has to wait: the next step tries again.
        """
        for _ in self._steps:
            error, self._no_room = self._no_room, None
            if error is not None:
                raise error
            return True
        return False

    def _has_room(self, work: Callable[[], object]) -> bool:
        """Do some work, if there is room for it."""
        try:
            work()
        except DiskFullError as error:
            self._no_room = NoRoomError(str(error))
            return False
        return True

    def __contains__(self, number: int) -> bool:
        return number in (self.left, self.right)

    def _run(self) -> Iterator[None]:
        left, right = self._good_records(self.left), self._good_records(self.right)
        if left is None or right is None:
            return
        prefix_end, tail = _split(left)
        tail_end = prefix_end + _bytes_of(tail)
        yield
        target = self._files.open_append(self._handles.path(self.left))
        try:
            if tail:
                yield from self._save_tail(target, tail)
            yield from self._make_room(target, prefix_end, tail_end + _bytes_of(right))
            if tail:
                yield from self._bring_back_tail(target, tail, prefix_end)
            yield from self._append_right(target, right, tail_end)
        finally:
            target.close()

    def _good_records(self, number: int) -> list[Record] | None:
        """The records of a file that hold a message; ``None`` if a scan does not find them all."""
        path = self._handles.path(number)
        handle = self._files.open_read(path)
        try:
            places = self._locations.places
            records = [
                record
                for record in scan(handle, path)
                if record.good and places.get(record.msg_id) == pack(number, record.offset, record.size)
            ]
        finally:
            handle.close()
        entry = self._summary[number]
        if _bytes_of(records) == entry.valid_bytes:
            return records
        entry.damaged = True
        self.damage = DataError(path, None, f"a scan finds {_bytes_of(records)} of {entry.valid_bytes} valid bytes")
        return None

    def _save_tail(self, source: File, tail: Sequence[Record]) -> Iterator[None]:
        leftover = leftover_of(self.left)
        scratch = self._files.open_append(self._handles.path(leftover))
        try:
            if scratch.size():
                scratch.truncate(0)
            for piece in _pieces(source, tail):
                scratch.append(piece if scratch.size() else _NO_RECORD + piece[1:])
                yield
            scratch.sync()
            yield
            scratch.pwrite(b"\0", 0)
            yield
            scratch.sync()
            yield
        finally:
            scratch.close()
        self._files.sync_directory(self._handles.directory)
        self._moved(tail, self.left, _packed(tail, 0), leftover)
        yield

    def _make_room(self, target: File, prefix_end: int, total: int) -> Iterator[None]:
        self.must_finish = True
        target.truncate(prefix_end)
        yield
        while not self._has_room(lambda: target.truncate(total)):
            yield
        self._summary.resize(self.left, total)
        yield

    def _bring_back_tail(self, target: File, tail: Sequence[Record], start: int) -> Iterator[None]:
        leftover = leftover_of(self.left)
        path = self._handles.path(leftover)
        saved = _packed(tail, 0)
        source = self._files.open_read(path)
        try:
            yield from self._copy(_pieces(source, saved), target, start)
        finally:
            source.close()
        self._moved(saved, leftover, _packed(tail, start), self.left)
        self._handles.drop(leftover)
        self._files.delete(path)
        yield

    def _append_right(self, target: File, records: Sequence[Record], start: int) -> Iterator[None]:
        path = self._handles.path(self.right)
        source = self._files.open_read(path)
        try:
            yield from self._copy(_pieces(source, records), target, start)
        finally:
            source.close()
        moved_bytes = self._moved(records, self.right, _packed(records, start), self.left)
        self._summary.validate(self.left, moved_bytes)
        self._summary.validate(self.right, -moved_bytes)
        self._handles.drop(self.right)
        self._files.delete(path)
        self._summary.remove(self.right)
        yield

    def _copy(self, pieces: Iterator[bytes], target: File, offset: int) -> Iterator[None]:
        """Write the pieces to ``target`` from ``offset``, and sync them."""
        for piece in pieces:
            while not self._has_room(functools.partial(target.pwrite, piece, offset)):
                yield
            offset += len(piece)
            yield
        target.sync()
        yield

    def _moved(self, originals: Sequence[Record], old: int, copies: Sequence[Record], new: int) -> int:
        """Tell the index of synced copies; returns the bytes of the messages that are still there."""
        moved_bytes = 0
        for original, copied in zip(originals, copies, strict=True):
            place = Location(old, original.offset, original.size)
            if self._locations.move(original.msg_id, place, Location(new, copied.offset, copied.size)):
                moved_bytes += copied.size
        return moved_bytes


def _bytes_of(records: Sequence[Record]) -> int:
    return sum(record.size for record in records)


def _packed(records: Sequence[Record], start: int) -> list[Record]:
    """The records as they stand when they follow each other from ``start``."""
    packed = []
    for record in records:
        packed.append(record._replace(offset=start))
        start += record.size
    return packed


def _split(records: Sequence[Record]) -> tuple[int, Sequence[Record]]:
    """Return where the first hole begins, and the records after it."""
    end = 0
    for number, record in enumerate(records):
        if record.offset != end:
            return end, records[number:]
        end += record.size
    return end, ()


def _blocks(records: Sequence[Record]) -> Iterator[tuple[int, int]]:
    """Ranges of a file without a hole, each from its start to its end."""
    start = end = 0
    for record in records:
        if record.offset != end:
            if end > start:
                yield start, end
            start = record.offset
        end = record.offset + record.size
    if end > start:
        yield start, end


def _pieces(source: File, records: Sequence[Record]) -> Iterator[bytes]:
    """Yield the bytes of the records, concatenated, ``COPY_BYTES`` at a time."""
    piece = bytearray()
    for start, end in _blocks(records):
        offset = start
        while offset < end:
            data = source.pread(min(end - offset, COPY_BYTES - len(piece)), offset)
            if not data:
                raise RuntimeError(f"a file was cut while it was compacted: nothing at offset {offset}")
            piece += data
            offset += len(data)
            if len(piece) == COPY_BYTES:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)
