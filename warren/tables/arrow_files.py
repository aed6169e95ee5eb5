"""Files of any system that pyarrow knows (S3, GS, HDFS, Azure), through the interface that the engines read from.

Paths are URIs without a query: ``s3://bucket/broker-1/msg_stores``. Errors and rows name files this way. What opens the
system (an endpoint, a region, keys) is the query of the URI that the user gave, and the environment; none of it is in a
path.

An object store answers a request in milliseconds, whatever its size. So small reads are answered out of *blocks* of
:data:`BLOCK_BYTES`; a file system holds the last :data:`CACHED_BLOCKS`, whatever number of files is open; a read that
misses several neighbours asks for them in one request. What a directory's listing says of its files is remembered, too:
there are no directories on an object store, and each question about one is a request. A file system is made for each
task, so both are as old as the task at most. The directories are those of brokers that do not run.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import attrs
import pyarrow

from warren.salvage.read_only import UnchangingFileSystem, refuse
from warren.storage.errors import StorageError
from warren.storage.filesystem import File
from warren.tables.intervals import runs

if TYPE_CHECKING:
    from pyarrow import fs

BLOCK_BYTES: Final = 1 << 20
CACHED_BLOCKS: Final = 32

_UNCACHED_BLOCKS: Final = 16
"""A read of this many blocks bypasses the cache: it would push out all others, and does not come twice."""

_S3: Final = ("s3", "s3a", "s3n")
"""Hadoop has further names for it."""

_Result = TypeVar("_Result")


@attrs.frozen
class Address:
    """A URI taken apart."""

    shown: str
    """Without query and keys: for messages to people and for rows."""
    secret: str = attrs.field(repr=False)
    """With them: what opens it."""


def address(uri: str) -> Address:
    """Take a URI apart. Raises :class:`StorageError` if it is invalid."""
    try:
        parts = urlsplit(uri, allow_fragments=False)
    except ValueError as error:
        raise StorageError(f"{uri.partition('?')[0]}: {error}") from error
    return Address(f"{parts.scheme}://{_host(parts)}{parts.path}", uri)


def _host(parts: SplitResult) -> str:
    """Without an access key and its secret; Azure's container stands at the same place."""
    return parts.netloc.rpartition("@")[2] if parts.scheme in (*_S3, "gs", "gcs") else parts.netloc


def moved(secret: str, shown: str) -> str:
    """Return the URI ``secret`` with the path of ``shown``."""
    new = urlsplit(shown, allow_fragments=False)
    return urlsplit(secret, allow_fragments=False)._replace(path=new.path).geturl()


@functools.lru_cache(maxsize=64)
def _connected(secret: str) -> tuple[fs.FileSystem, str]:
    """The system that holds a bucket (or whatever stands between ``://`` and ``/``), and what pyarrow calls the bucket.

    It is opened only when needed: a process that was forked from one that had it open would hang.
    """
    import pyarrow.fs

    try:
        system, bucket = pyarrow.fs.FileSystem.from_uri(secret)
    except (OSError, pyarrow.ArrowException, ValueError) as error:
        raise ValueError(_one_line(error).replace(secret, address(secret).shown)) from error
    return system, bucket.rstrip("/")


def _bucket(uri: str) -> str:
    """The URI of its bucket, with an S3's endpoint and region as other tools find them in the environment.

    Without a region pyarrow would ask Amazon for the bucket's, whatever the endpoint is.
    """
    parts = urlsplit(uri, allow_fragments=False)
    query = dict(parse_qsl(parts.query))
    if parts.scheme not in _S3:
        return parts._replace(path="/").geturl()
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if "endpoint_override" not in query and endpoint:
        scheme, _, host = endpoint.rpartition("://")
        query |= {"endpoint_override": host.rstrip("/")} | ({"scheme": scheme} if scheme else {})
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if "region" not in query and (region or "endpoint_override" in query):
        query["region"] = region or "us-east-1"
    return parts._replace(scheme="s3", path="", query=urlencode(query)).geturl()


@attrs.frozen
class _Info:
    """The type, size and time of a path."""

    is_directory: bool
    size: int
    modified_ms: int


@attrs.define(eq=False)
class ArrowFileSystem(UnchangingFileSystem):
    """The directory that ``secret`` opens, with all below it; methods that write raise :class:`StorageError`."""

    secret: str = attrs.field(repr=False)
    _root: str = attrs.field(init=False)
    _bucket: str = attrs.field(init=False)
    _blocks: OrderedDict[tuple[str, int], bytes] = attrs.field(init=False, factory=OrderedDict)
    _listings: dict[str, dict[str, _Info]] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._root = address(self.secret).shown.rstrip("/")
        parts = urlsplit(self._root, allow_fragments=False)
        self._bucket = f"{parts.scheme}://{parts.netloc}"

    def open_read(self, path: str) -> File:
        return ArrowFile(self, path, self._ask(path, lambda system, at: system.open_input_file(at)))

    def read(self, path: str) -> bytes:
        handle = self.open_read(path)
        try:
            return handle.pread(handle.size(), 0)
        finally:
            handle.close()

    def list(self, path: str) -> list[str]:
        return sorted(self._listing(path))

    def exists(self, path: str) -> bool:
        return self._info(path) is not None

    def is_directory(self, path: str) -> bool:
        info = self._info(path)
        return info is not None and info.is_directory

    def has_bucket(self) -> bool:
        """Whether the bucket is there (or the system's root)."""
        import pyarrow.fs

        (info,) = self._ask(self._bucket, lambda system, at: system.get_file_info([at or "/"]))
        return bool(info.type != pyarrow.fs.FileType.NotFound)

    def size(self, path: str) -> int:
        return self._existing_info(path).size

    def modified_ms(self, path: str) -> int:
        return self._existing_info(path).modified_ms

    def _ask(self, path: str, question: Callable[[Any, str], _Result]) -> _Result:
        """Return pyarrow's answer to a question about a path."""
        with _refusals(path):
            if not f"{path}/".startswith(f"{self._bucket}/"):
                raise ValueError(f"does not lie in {self._bucket}")
            system, bucket = _connected(_bucket(self.secret))
            return question(system, bucket + path[len(self._bucket) :].rstrip("/"))

    def _listing(self, path: str) -> dict[str, _Info]:
        """Return what is in a directory; empty if it is missing."""
        import pyarrow.fs

        listing = self._listings.get(path)
        if listing is None:
            selector = functools.partial(pyarrow.fs.FileSelector, allow_not_found=True)
            infos = self._ask(path, lambda system, at: system.get_file_info(selector(at)))
            listing = self._listings[path] = {info.base_name: _info_of(info) for info in infos if info.base_name}
        return listing

    def _info(self, path: str) -> _Info | None:
        directory, _, name = path.rpartition("/")
        if directory == self._root or directory.startswith(self._root + "/"):
            return self._listing(directory).get(name)
        import pyarrow.fs

        (info,) = self._ask(path, lambda system, at: system.get_file_info([at]))
        return None if info.type == pyarrow.fs.FileType.NotFound else _info_of(info)

    def _existing_info(self, path: str) -> _Info:
        info = self._info(path)
        if info is None:
            raise StorageError(f"{path}: no such file")
        return info

    def block(self, path: str, number: int) -> bytes | None:
        """Return a block of a file, if it is still cached."""
        data = self._blocks.get((path, number))
        if data is not None:
            self._blocks.move_to_end((path, number))
        return data

    def keep(self, path: str, number: int, data: bytes) -> None:
        """Cache a block of a file."""
        self._blocks[path, number] = data
        while len(self._blocks) > CACHED_BLOCKS:
            self._blocks.popitem(last=False)


@attrs.define(eq=False)
class ArrowFile:
    """An open file; see :class:`warren.storage.filesystem.File`."""

    _system: ArrowFileSystem
    path: str
    _file: Any
    _size: int | None = None

    def pread(self, size: int, offset: int) -> bytes:
        stop = min(offset + size, self.size())
        if stop <= offset:
            return b""
        first_block, end_block = offset // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        if end_block - first_block >= _UNCACHED_BLOCKS:
            return self._get(offset, stop)
        blocks = {number: self._system.block(self.path, number) for number in range(first_block, end_block)}
        for low, high in runs(number for number, data in blocks.items() if data is None):
            data = self._get(low * BLOCK_BYTES, min((high + 1) * BLOCK_BYTES, self.size()))
            for number in range(low, high + 1):
                start = (number - low) * BLOCK_BYTES
                blocks[number] = data if high == low else data[start : start + BLOCK_BYTES]
                self._system.keep(self.path, number, blocks[number] or b"")
        start = offset - first_block * BLOCK_BYTES
        whole = blocks[first_block] if len(blocks) == 1 else b"".join(data or b"" for data in blocks.values())
        return (whole or b"")[start : start + stop - offset]

    def next_data(self, offset: int) -> int:
        return min(offset, self.size())

    def _get(self, start: int, stop: int) -> bytes:
        with _refusals(self.path):
            data: bytes = self._file.read_at(stop - start, start)
        if len(data) != stop - start:
            raise StorageError(f"{self.path}: {len(data)} bytes from {start} on, and not {stop - start}")
        return data

    def size(self) -> int:
        if self._size is None:
            with _refusals(self.path):
                self._size = int(self._file.size())
        return self._size

    def close(self) -> None:
        self._file.close()

    @property
    def end(self) -> int:
        return self.size()

    def append(self, data: bytes | bytearray | memoryview) -> NoReturn:
        refuse(self.path)

    def appendv(self, pieces: Sequence[bytes | bytearray | memoryview]) -> NoReturn:
        refuse(self.path)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> NoReturn:
        refuse(self.path)

    def truncate(self, size: int) -> NoReturn:
        refuse(self.path)

    def sync(self) -> NoReturn:
        refuse(self.path)


def matches(pattern: Address) -> list[Address]:
    """Return the paths that match a URI's pattern, sorted; a name that begins with a dot needs a pattern with one."""
    scheme, separator, path = pattern.shown.partition("://")
    names = path.split("/")
    is_directory_wanted = names[-1] == ""
    plain = next(number for number, name in enumerate(names) if has_magic(name))
    places = [f"{scheme}{separator}{'/'.join(names[:plain])}"]
    for number in range(plain, len(names) - is_directory_wanted):
        is_last = number + 1 == len(names)
        places = [inner for place in places for inner in _matches_in(pattern, place, names[number], is_last=is_last)]
    end = "/" if is_directory_wanted else ""
    return [Address(place + end, moved(pattern.secret, place + end)) for place in sorted(places)]


def _matches_in(pattern: Address, place: str, name: str, *, is_last: bool) -> Iterator[str]:
    files = ArrowFileSystem(moved(pattern.secret, place))
    for entry in files.list(place):
        if fnmatch.fnmatchcase(entry, name) and (not entry.startswith(".") or name.startswith(".")):
            inner = f"{place}/{entry}"
            if is_last or files.is_directory(inner):
                yield inner


def has_magic(path: str) -> bool:
    """Whether it is a pattern. ``?`` is not a wildcard, because it begins a URI's query."""
    return re.search(r"[*\[]", path) is not None


def _info_of(info: fs.FileInfo) -> _Info:
    import pyarrow.fs

    modified_ns = info.mtime_ns
    return _Info(info.type == pyarrow.fs.FileType.Directory, info.size or 0, (modified_ns or 0) // 1_000_000)


@contextmanager
def _refusals(path: str) -> Iterator[None]:
    """Turn the file system's errors into a :class:`StorageError` of one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(f"{path}: No such file or directory") from error
    except (OSError, pyarrow.ArrowException, ValueError) as error:
        raise StorageError(f"{path}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
