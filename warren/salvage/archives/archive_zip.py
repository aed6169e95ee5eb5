"""The members of a ``.zip``: :mod:`warren.salvage.archives.archive`, whose rules are the same for them."""

from __future__ import annotations

import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import IO, Final

BROKEN: Final = (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error, EOFError, struct.error, ValueError)
"""What the library raises for invalid bytes; RuntimeError: for an encrypted member."""

_UNIX, _FILE_FORMAT_BITS = 3, 16
_EXTENDED_TIME: Final = 0x5455


class ZipMember:
    """A member of an archive."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._archive, self._info = archive, info
        self.name = info.filename
        self.size = info.file_size
        mode = info.external_attr >> _FILE_FORMAT_BITS if info.create_system == _UNIX else 0
        kind = stat.S_IFMT(mode)
        self.is_directory = info.is_dir() or kind == stat.S_IFDIR
        self.is_file = not self.is_directory and kind in (0, stat.S_IFREG)

    @property
    def modified_ns(self) -> int:
        """The modification time: to the second if the archive has it in UTC, else to two seconds of local time."""
        return _said_ns(self._info)

    def content(self) -> closing[IO[bytes]]:
        """What it holds."""
        return closing(self._archive.open(self._info))


def members_of(file: IO[bytes]) -> Iterator[ZipMember]:
    """The members in the order of the directory at its end. Raises one of :data:`BROKEN` for a nameless one."""
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if not info.filename:
                raise zipfile.BadZipFile("a member without a name")
            yield ZipMember(archive, info)


def _said_ns(info: zipfile.ZipInfo) -> int:
    extra = info.extra
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        if kind == _EXTENDED_TIME and size >= 5 and len(extra) >= 9 and extra[4] & 1:
            return max(int(struct.unpack_from("<i", extra, 5)[0]), 0) * 1_000_000_000
        extra = extra[4 + size :]
    try:
        return max(int(time.mktime((*info.date_time, 0, 0, -1))), 0) * 1_000_000_000
    except (ValueError, OverflowError):
        return 0
