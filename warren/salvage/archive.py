"""Unpacks a ``.tar.gz`` that nobody vouches for, into an empty directory.

What is refused, because no broker's directory has it and each of them has been used to do harm: absolute names, ``..``,
links, devices, more members or bytes than the limits say, and headers that are themselves megabytes long. Nothing of a
member but its name and its content is taken over: no owner, no mode, no time.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from pathlib import PurePosixPath
from typing import IO, Final

import attrs

from storage.errors import DataError, StorageError

MAX_MEMBERS: Final = 1_000_000
MAX_BYTES: Final = 64 << 30
"""What an archive may grow to, as long as the disk that it is unpacked on has room for it."""

SPARE_BYTES: Final = 256 << 20
"""Room that is left on that disk."""

_MAX_HEADER_BYTES = 64 << 10
_COPY_BYTES = 1 << 20
_HEADER_TYPES = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError)
"""What the library raises for bytes that it does not like (of headers before headers it goes down one level each)."""


class _BoundedHeader(tarfile.TarInfo):
    """A header that refuses to be read where its extension (read whole into memory) is out of all proportion."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _BoundedHeader:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _HEADER_TYPES and header.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header


@attrs.define
class _Budget:
    """What may still be unpacked."""

    path: str
    bytes_left: int
    members_left: int

    def take_member(self) -> None:
        self.members_left -= 1
        if self.members_left < 0:
            raise DataError(self.path, None, "an archive of too many members")

    def take_bytes(self, count: int) -> None:
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise DataError(self.path, None, "an archive that unpacks to more than there is room for")


def unpack(path: str, target: str, *, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS) -> None:
    """Unpack the archive at ``path`` into the existing, empty directory ``target``.

    Raises :class:`DataError` for an archive that is broken, refused, or holds more than ``max_bytes``, ``max_members``
    or the target's disk has room for, and :class:`StorageError` where the system refuses.
    """
    room = os.statvfs(target)
    budget = _Budget(path, min(max_bytes, room.f_bavail * room.f_frsize - SPARE_BYTES), max_members)
    try:
        with gzip.open(path) as plain:
            with tarfile.open(fileobj=plain, mode="r|", tarinfo=_BoundedHeader) as archive:
                for member in archive:
                    budget.take_member()
                    _unpack_member(archive, member, target, budget)
                    archive.members.clear()  # type: ignore[attr-defined]  # it would remember them all
            while chunk := plain.read(_COPY_BYTES):  # the checksum stands at the very end
                budget.take_bytes(len(chunk))
    except _BROKEN as error:
        raise DataError(path, None, f"not a .tar.gz, or a broken one: {error}") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be unpacked: {error.strerror or error}") from error


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, target: str, budget: _Budget) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\0" in member.name:
        raise DataError(budget.path, None, f"the member {member.name!r} would leave the directory")
    place = os.path.join(target, *name.parts)
    if member.isdir():
        os.makedirs(place, exist_ok=True)
        return
    source = archive.extractfile(member) if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) else None
    if source is None:
        raise DataError(budget.path, None, f"the member {member.name!r} is neither a file nor a directory")
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "wb") as sink:
        _copy(source, sink, budget)


def _copy(source: IO[bytes], sink: IO[bytes], budget: _Budget) -> None:
    while chunk := source.read(_COPY_BYTES):
        budget.take_bytes(len(chunk))
        sink.write(chunk)
