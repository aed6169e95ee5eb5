"""The version of a data directory: which warren may read it, and which may write into it.

``warren.version`` in the data directory, a line of JSON, replaced as a whole::

    {"checksum": "1f00ab34", "created_by": "0.1.0", "features": ["definitions", …], "format": "warren data directory",
     "version": [1, 0], "written_by": "0.1.0"}

The checksum is CRC-32 of everything else as compact JSON with sorted keys. This description of the file holds for every
later version, which may add keys: so the oldest warren can tell that a directory is too new for it.

*The numbers.* The first number is raised if a warren without the change would read wrongly, the second if it would only
write wrongly: a directory with a newer first number is refused, one with a newer second number may only be read. So may
one with an unknown *feature*. Later warrens read older directories, and raise the numbers when a node opens one to
write. A directory without the file (a broker's, or one from before there was such a file) is of the
first format.

*The writer* is the process that has the data directory's lock and is about to write warren's own files; it writes this
file first and syncs it, so no crash leaves new bytes under an old number. A process that writes only what a broker
knows does not write it.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from warren.storage.errors import DataError, DiskFullError, WarrenError
from warren.storage.filesystem import FileSystem, write_file

WARREN_VERSION: Final = "0.1.0"
"""This warren's; as in pyproject.toml."""
FILE_NAME: Final = "warren.version"
MAX_BYTES: Final = 1 << 16
"""The largest size of the file, in any version: a larger one is damage, and is not read."""


class Numbers(NamedTuple):
    """A format's."""

    first: int
    second: int

    def __str__(self) -> str:
        return f"{self.first}.{self.second}"


FIRST_FORMAT: Final = Numbers(1, 0)
"""The format of a directory without the file."""
FORMAT: Final = Numbers(1, 0)
"""The format that this warren writes. To raise it: docs/upgrading.md."""
FEATURES: Final = ("definitions", "delayed", "keys", "topics", "users")
"""What this warren may keep in a data directory in addition to a broker's files."""

_NAME: Final = "warren data directory"


class VersionError(WarrenError):
    """Another warren wrote or hosts the data directory, in a way that this one does not know; nothing was touched."""


class DataVersion(NamedTuple):
    """What the file says."""

    numbers: Numbers
    created_by: str | None
    """The warren that made the directory; ``None``: a broker did, or a warren that did not say."""
    written_by: str
    """The one that wrote the file: it made the directory, or was the first to raise it to this format."""
    features: tuple[str, ...]

    def encode(self) -> bytes:
        content = {
            "format": _NAME,
            "version": list(self.numbers),
            "created_by": self.created_by,
            "written_by": self.written_by,
            "features": list(self.features),
        }
        return json.dumps({**content, "checksum": _checksum(content)}, sort_keys=True).encode("ascii") + b"\n"

    def check(self, directory: str, *, writing: bool) -> None:
        """Raise :class:`VersionError` if this warren must not read it, or (``writing``) write into it."""
        if self.numbers.first > FORMAT.first:
            raise VersionError(
                f"{directory}: written by warren {self.written_by} in format {self.numbers}; this is warren "
                f"{WARREN_VERSION}, which knows formats up to {FORMAT.first}.x: use warren {self.written_by} or newer"
            )
        unknown = [feature for feature in self.features if feature not in FEATURES]
        if writing and (self.numbers > FORMAT or unknown):
            label = f"format {self.numbers}" + (f" ({', '.join(unknown)})" if unknown else "")
            raise VersionError(
                f"{directory}: written by warren {self.written_by} in {label}; this is warren {WARREN_VERSION}, which "
                f"writes {FORMAT} and can only read it (inspect, verify, export): use warren {self.written_by} or newer"
            )


CURRENT: Final = DataVersion(FORMAT, WARREN_VERSION, WARREN_VERSION, FEATURES)
"""The version that this warren writes into a directory that it makes."""


def read_version(files: FileSystem, directory: str) -> DataVersion | None:
    """What ``directory`` says; ``None``: nothing. Raises :class:`DataError` for a damaged file."""
    path = _path(directory)
    if not files.exists(path):
        return None
    if files.size(path) > MAX_BYTES:
        raise DataError(path, None, f"{files.size(path):,} bytes, which no such file has")
    return _parse(files.read(path), path)


def refuse_newer(files: FileSystem, directory: str) -> None:
    """Raise :class:`VersionError` if a newer warren wrote ``directory``; call it before opening that for writing.

    Raises :class:`DataError` if the version file is damaged.
    """
    version = read_version(files, directory)
    if version is not None:
        version.check(directory, writing=True)


def refuse_unreadable(files: FileSystem, directories: Iterable[str]) -> None:
    """The same for reading. A damaged file does not prevent reading the rest."""
    for directory in directories:
        with contextlib.suppress(DataError):
            version = read_version(files, directory)
            if version is not None:
                version.check(directory or ".", writing=False)


def stamp(files: FileSystem, directory: str, *, is_new: bool) -> None:
    """Make sure that ``directory``, whose lock the caller has, is marked as written in this warren's format.

    ``is_new``: nothing was in it before. Raises :class:`VersionError`, :class:`DataError` and
    :class:`StorageError`. A disk without room for the file is not an error as long as the format does not differ from
    that of a directory without the file: the next opening writes it.
    """
    version = read_version(files, directory)
    if version is not None:
        version.check(directory, writing=True)
        if version.numbers == FORMAT and set(version.features) == set(FEATURES):
            return
    made_by = WARREN_VERSION if is_new else None if version is None else version.created_by
    current = CURRENT._replace(created_by=made_by)
    try:
        write_file(files, _path(directory), current.encode(), sync=True)
    except DiskFullError:
        if FORMAT.first > (FIRST_FORMAT if version is None else version.numbers).first:
            raise


def _path(directory: str) -> str:
    return f"{directory}/{FILE_NAME}" if directory else FILE_NAME


def _checksum(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True, separators=(',', ':')).encode('ascii')):08x}"


def _parse(data: bytes, path: str) -> DataVersion:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(path, getattr(error, "pos", 0), f"not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != _NAME:
        raise DataError(path, 0, f"not of the format '{_NAME}'")
    if content.pop("checksum", None) != _checksum(content):
        raise DataError(path, 0, "the checksum is wrong: damaged, or edited")
    match content:
        case {
            "version": [int(first), int(second)],
            "created_by": str() | None as created_by,
            "written_by": str(written_by),
            "features": [*features],
        } if all(isinstance(feature, str) for feature in features):
            return DataVersion(Numbers(first, second), created_by, written_by, tuple(features))
    raise DataError(path, 0, "lacks a part, or has another one in its place")
