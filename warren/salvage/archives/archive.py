"""Unpacks an untrusted archive into an empty directory: a ``.tar``, ``.tar.gz``, ``.tar.bz2``, ``.tar.xz``,
``.tar.zst`` or ``.zip``. The first bytes tell which, not the name. The archive may come through a pipe.

Rejected are absolute names, ``..``, links, devices, more members or bytes than the limits allow, and headers that are
megabytes long: no broker's directory has them, and each has been used in attacks. A member keeps its name, its content
and its modification time, but neither owner nor mode.

Sparse members stay sparse, and zeros become sparse: RocketMQ makes files of their full size at once, and an index file
of 420 MB may hold a few kilobytes. So there are two limits: one on the sizes of the files, one on the bytes that are
written.
"""

from __future__ import annotations

import math
import os
import stat
import struct
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import PurePosixPath
from typing import IO, Any, Final

import attrs

from warren.salvage.archives import archive_streams
from warren.salvage.archives.archive_streams import ZIP, Peeked, Readable, kind_of, plain_of
from warren.storage.errors import DataError, StorageError, shortly

MAX_MEMBERS: Final = 1_000_000
MAX_BYTES: Final = 64 << 30
"""What an archive may grow to, holes included, as long as the disk that it is unpacked on has room for the rest."""

SPARE_BYTES: Final = 256 << 20
"""Room that is left on that disk."""

_MAX_HEADER_BYTES = 64 << 10
_MAX_HEADERS_BYTES = 4 << 20
"""Of all that stands before a member's content, its map of holes included; a file of 1 GiB needs 2.4 MB at most."""

_COPY_BYTES = 256 << 10
_ZEROS = bytes(_COPY_BYTES)
_LATEST_S = 1 << 33
_HEADER_TYPES = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
_FILE_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.GNUTYPE_SPARSE)
_BROKEN = (tarfile.TarError, *archive_streams.BROKEN, ValueError, OverflowError, RecursionError)
"""What the library raises for invalid bytes (it recurses for each header that precedes a header)."""
_BROKEN_ZIP = (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error, EOFError, struct.error, ValueError)
"""The same; RuntimeError: for an encrypted member."""

_UNIX, _FILE_FORMAT_BITS = 3, 16
_EXTENDED_TIME: Final = 0x5455


class _BoundedHeader(tarfile.TarInfo):
    """A header that rejects an extension of excessive length, which would be read whole into memory.

    It notes the archive's end mark: an archive that is not compressed may be cut off between two members.
    """

    @classmethod
    def fromtarfile(cls, tarfile_: Any) -> Any:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            tarfile_.fileobj.fileobj.has_ended = True
            raise

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _BoundedHeader:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _HEADER_TYPES and header.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header


@attrs.define
class _Plain:
    """The archive's bytes. Those that the library reads between the members' contents are limited."""

    path: str
    inner: Readable
    headers_left: int = 0
    is_content: bool = False
    has_ended: bool = False
    """Whether the end of the archive was read."""

    def next_member(self) -> None:
        """What is read from now on is a header."""
        self.headers_left, self.is_content = _MAX_HEADERS_BYTES, False

    def read(self, size: int) -> bytes:
        data = self.inner.read(size)
        if not self.is_content:
            self.headers_left -= len(data)
            if self.headers_left < 0:
                raise DataError(self.path, None, f"a header of more than {_MAX_HEADERS_BYTES} bytes")
        return data


@attrs.define
class _Budget:
    """What may still be unpacked."""

    path: str
    bytes_left: int
    """Of the files' sizes."""
    room_left: int
    """On the disk."""
    members_left: int

    def take_member(self) -> None:
        self.members_left -= 1
        if self.members_left < 0:
            raise DataError(self.path, None, "an archive of too many members")

    def take_bytes(self, count: int) -> None:
        self.bytes_left -= count
        self._check(self.bytes_left)

    def take_room(self, count: int) -> None:
        self.room_left -= count
        self._check(self.room_left)

    def _check(self, left: int) -> None:
        if left < 0:
            raise DataError(self.path, None, "an archive that unpacks to more than there is room for")


def unpack(
    path: str,
    target: str,
    *,
    max_bytes: int = MAX_BYTES,
    max_members: int = MAX_MEMBERS,
    source: IO[bytes] | None = None,
    passed: Callable[[int], object] = lambda _: None,
) -> None:
    """Unpack the archive at ``path`` into the existing, empty directory ``target``.

    ``source``: the stream of its bytes, if not the file at ``path``; ``passed`` is called with the bytes read. Raises
    :class:`DataError` for an archive that is broken, refused, or holds more than ``max_bytes``, ``max_members`` or the
    target's disk has room for, and :class:`StorageError` if a system call fails.
    """
    room = os.statvfs(target)
    budget = _Budget(path, max_bytes, room.f_bavail * room.f_frsize - SPARE_BYTES, max_members)
    kind = None
    try:
        with ExitStack() as opened:
            file = opened.enter_context(open(path, "rb")) if source is None else source
            peeked = Peeked(file)
            kind = kind_of(peeked.head)
            if kind == ZIP:
                _unpack_zip(opened.enter_context(_seekable(file, peeked, target, budget)), target, budget)
            else:
                _unpack_tar(plain_of(peeked, kind, path), kind, target, budget, lambda: passed(peeked.count))
    except (*_BROKEN, *_BROKEN_ZIP) as error:
        others = " (nor a .tar, .tar.bz2, .tar.xz, .tar.zst or .zip)" if kind is None else ""
        raise DataError(
            path, None, f"not a .{kind or 'tar.gz'}{others}, or a broken one: {shortly(str(error))}"
        ) from error
    except OSError as error:
        if error.errno is None:  # a library's, of bytes
            raise DataError(path, None, f"not a .{kind}, or a broken one: {shortly(str(error))}") from error
        raise StorageError(f"{path}: cannot be unpacked: {error.strerror or error}") from error


def _unpack_tar(
    unzipped: Readable, kind: str | None, target: str, budget: _Budget, passed: Callable[[], object]
) -> None:
    plain = _Plain(budget.path, unzipped)
    plain.next_member()
    with tarfile.open(fileobj=plain, mode="r|", tarinfo=_BoundedHeader) as archive:  # type: ignore[call-overload]
        for member in archive:
            plain.is_content = True
            budget.take_member()
            _unpack_member(archive, member, target, budget)
            archive.members.clear()  # it would remember them all
            plain.next_member()
            passed()
    if kind is None and not plain.has_ended:
        raise tarfile.ReadError("unexpected end of data")
    while chunk := unzipped.read(_COPY_BYTES):  # the checksum is at the very end, and the writer of a pipe continues
        budget.take_bytes(len(chunk))


@contextmanager
def _seekable(file: IO[bytes], peeked: Peeked, target: str, budget: _Budget) -> Iterator[IO[bytes]]:
    """The file itself; a pipe is first copied to a file beside the target."""
    if file.seekable():
        yield file
        return
    with tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(target))) as copy:
        while chunk := peeked.read(_COPY_BYTES):
            budget.take_room(len(chunk))
            if peeked.count > budget.bytes_left:
                budget.take_bytes(peeked.count)
            copy.write(chunk)
        yield copy


def _unpack_zip(file: IO[bytes], target: str, budget: _Budget) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            budget.take_member()
            _unpack_zip_member(archive, member, target, budget)


def _unpack_zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: str, budget: _Budget) -> None:
    if not member.filename:
        raise zipfile.BadZipFile("a member without a name")
    place = _place(target, member.filename.replace("\\", "/"), budget.path)
    mode = member.external_attr >> _FILE_FORMAT_BITS if member.create_system == _UNIX else 0
    kind = stat.S_IFMT(mode)
    if member.is_dir() or kind == stat.S_IFDIR:
        os.makedirs(place, exist_ok=True)
        return
    if kind not in (0, stat.S_IFREG):
        raise DataError(budget.path, None, f"the member '{shortly(member.filename)}' is neither a file nor a directory")
    budget.take_bytes(member.file_size)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with archive.open(member) as content, open(place, "wb") as sink:
        _copy(content, sink, 0, member.file_size, budget)
        if content.read(1):  # now the library has compared the checksum, too
            raise DataError(budget.path, None, f"the member '{shortly(member.filename)}' is longer than it says")
        sink.truncate(member.file_size)
    os.utime(place, ns=(_zip_modified_ns(member),) * 2)


def _zip_modified_ns(member: zipfile.ZipInfo) -> int:
    """When the member was last changed: to the second if the archive has it in UTC, else to two seconds of local
    time."""
    extra = member.extra
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        if kind == _EXTENDED_TIME and size >= 5 and len(extra) >= 9 and extra[4] & 1:
            return max(int(struct.unpack_from("<i", extra, 5)[0]), 0) * 1_000_000_000
        extra = extra[4 + size :]
    try:
        return max(int(time.mktime((*member.date_time, 0, 0, -1))), 0) * 1_000_000_000
    except (ValueError, OverflowError):
        return 0


def _place(target: str, name: str, path: str) -> str:
    """The path of a member; raises :class:`DataError` if it would be outside of the target."""
    member_path = PurePosixPath(name)
    if member_path.is_absolute() or ".." in member_path.parts or "\0" in name:
        raise DataError(path, None, f"the member '{shortly(name)}' would leave the directory")
    return os.path.join(target, *member_path.parts)


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, target: str, budget: _Budget) -> None:
    place = _place(target, member.name, budget.path)
    if member.isdir():
        os.makedirs(place, exist_ok=True)
        return
    if member.type not in _FILE_TYPES or archive.fileobj is None:
        raise DataError(budget.path, None, f"the member '{shortly(member.name)}' is neither a file nor a directory")
    pieces = _pieces(member, budget.path)
    budget.take_bytes(member.size)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "wb") as sink:
        position = member.offset_data
        for start, size in pieces:
            archive.fileobj.seek(position)
            _copy(archive.fileobj, sink, start, size, budget)
            position += size
        sink.truncate(member.size)
    os.utime(place, ns=(_modified_ns(member),) * 2)


def _pieces(member: tarfile.TarInfo, path: str) -> list[tuple[int, int]]:
    """The member's pieces between holes, as (offset in the file, bytes); in the archive they are contiguous."""
    pieces: Any = member.sparse
    if pieces is None:
        return [(0, member.size)]
    end = 0
    for start, size in pieces:
        if start < end or size < 0:
            raise DataError(path, None, f"the member '{shortly(member.name)}' has overlapping pieces")
        end = start + size
    if end > member.size:
        raise DataError(path, None, f"the member '{shortly(member.name)}' has pieces after its end")
    return [(start, size) for start, size in pieces if size]


def _copy(source: Readable, sink: IO[bytes], start: int, size: int, budget: _Budget) -> None:
    sink.seek(start)
    while size:
        chunk = source.read(min(size, _COPY_BYTES))
        if not chunk:
            raise tarfile.ReadError("unexpected end of data")
        size -= len(chunk)
        if chunk == _ZEROS[: len(chunk)]:
            sink.seek(len(chunk), os.SEEK_CUR)
        else:
            budget.take_room(len(chunk))
            sink.write(chunk)


def _modified_ns(member: tarfile.TarInfo) -> int:
    """When the member was last changed; the header's text has more digits than its number."""
    seconds = float(member.mtime)
    if not math.isfinite(seconds) or not 0 <= seconds < _LATEST_S:
        return 0
    try:
        exact = Decimal(member.pax_headers.get("mtime") or seconds)
    except InvalidOperation:  # a text that is no number
        exact = Decimal(seconds)
    return int(exact * 1_000_000_000)
