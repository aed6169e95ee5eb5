"""Reads bodies: from the buffer, or from the file where the index says they lie.

Reading changes nothing in the store and needs no turn of the writer. It may happen in another thread while the writer
flushes, compacts or deletes: the index says old place or new place, a message is in the buffer until it has a place,
and the record itself says whose it is. So a read that fails looks again, once with a fresh handle, and only what fails
twice at the same place is damaged.

Terms: a *run* is a range of a file with several wanted records close together, read at once.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import attrs

from warren.msg_store.rdq.locations import Location, Locations, unpack
from warren.msg_store.rdq.rdq_format import decode_record, path_of
from warren.msg_store.rdq.write_buffer import WriteBuffer
from warren.storage.errors import DataError, StorageError, UnknownMessageError
from warren.storage.filesystem import File, FileSystem

OPEN_HANDLES = 64
"""Files that are kept open for reading."""

RUN_BYTES = 1 << 20
GAP_BYTES = 16 * 1024
"""A run's length at most, and the unwanted bytes that are cheaper to read than to pass over."""


@attrs.frozen(eq=False, repr=False)
class _Handle:
    """An open file, closed with the last reference to it: a reader in another thread holds one."""

    file: File

    def __del__(self) -> None:
        self.file.close()


@attrs.define(eq=False, repr=False)
class ReadHandles:
    """The files of a store, opened on demand; the least recently used are closed again."""

    files: FileSystem
    directory: str
    capacity: int = OPEN_HANDLES
    _open: OrderedDict[int, _Handle] = attrs.field(factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._open)

    def path(self, number: int) -> str:
        """The path of a file."""
        return path_of(self.directory, number)

    def pread(self, number: int, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes of a file from ``offset``."""
        handle = self._open.get(number)
        if handle is None:
            handle = self._add(number)
        else:
            with contextlib.suppress(KeyError):  # another thread dropped it just now
                self._open.move_to_end(number)
        return handle.file.pread(size, offset)

    def drop(self, number: int) -> None:
        """Give up a file that is about to go, or one whose handle may be of an older file of that name."""
        self._open.pop(number, None)

    def close(self) -> None:
        """Give them all up."""
        self._open.clear()

    def _add(self, number: int) -> _Handle:
        handle = self._open[number] = _Handle(self.files.open_read(self.path(number)))
        while len(self._open) > self.capacity:
            with contextlib.suppress(KeyError):  # another thread made room just now
                self._open.popitem(last=False)
        return handle


@attrs.define(eq=False, repr=False)
class BodyReader:
    """Looks up and reads; owns nothing but the handles."""

    _buffer: WriteBuffer
    _locations: Locations
    handles: ReadHandles

    def read(self, msg_id: bytes) -> bytes:
        """The body of a message. Raises :class:`UnknownMessageError`, and :class:`DataError` for a damaged record."""
        failed: Location | None = None
        while True:
            buffered = self._buffer.messages.get(msg_id)
            if buffered is not None:
                return bytes(buffered)
            location = self._locations.find(msg_id)
            if location is None:
                raise UnknownMessageError(msg_id.hex())
            try:
                return self._read_at(location, msg_id)
            except (DataError, StorageError):
                if location == failed:
                    raise
                failed = location
                self.handles.drop(location.file)

    def read_many(self, msg_ids: Sequence[bytes]) -> list[bytes]:
        """:meth:`read` for many, in file order and several records at a time; the bodies in the order asked for."""
        buffered = map(self._buffer.messages.get, msg_ids)
        bodies = [None if message is None else bytes(message) for message in buffered]
        places = [
            (place, position)
            for position, msg_id in enumerate(msg_ids)
            if bodies[position] is None and (place := self._locations.places.get(msg_id)) is not None
        ]
        places.sort()
        for run in runs([(unpack(place), position) for place, position in places]):
            self._read_run(run, msg_ids, bodies)
        return [self.read(msg_id) if body is None else body for msg_id, body in zip(msg_ids, bodies, strict=True)]

    def _read_at(self, location: Location, msg_id: bytes) -> bytes:
        file, offset, size = location
        return decode_record(self.handles.pread(file, size, offset), msg_id, self.handles.path(file), offset, size)

    def _read_run(self, run: list[tuple[Location, int]], msg_ids: Sequence[bytes], bodies: list[bytes | None]) -> None:
        """Fill in the readable bodies; leave the others to :meth:`read`, which tries again."""
        file, start, _ = run[0][0]
        end = max(location.offset + location.size for location, _ in run)
        path = self.handles.path(file)
        try:
            data = self.handles.pread(file, end - start, start)
            for (_, offset, size), position in run:
                record = data[offset - start : offset - start + size]
                bodies[position] = decode_record(record, msg_ids[position], path, offset, size)
        except (DataError, StorageError):
            return


def runs(entries: list[tuple[Location, int]], gap_bytes: int = GAP_BYTES) -> Iterator[list[tuple[Location, int]]]:
    """Split locations in file order into runs; ``gap_bytes``: the unwanted bytes that a run may have in a row."""
    run: list[tuple[Location, int]] = []
    for entry in entries:
        location = entry[0]
        if run:
            first, last = run[0][0], run[-1][0]
            gap = location.offset - (last.offset + last.size)
            run_bytes = location.offset + location.size - first.offset
            if location.file != first.file or gap > gap_bytes or run_bytes > RUN_BYTES:
                yield run
                run = []
        run.append(entry)
    if run:
        yield run
