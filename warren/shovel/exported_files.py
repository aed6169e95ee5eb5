"""Files of exported messages, read row by row (:mod:`warren.shovel.exported_rows`): JSON, CSV, Parquet, bodies.

A file is read more than once: first all of it, to see which queues it has, then each queue's part. A *mark* is a row's
number, from 0, and the offset where it begins; reading can begin at any mark seen before. An invalid row yields a
:class:`MessageError` and has a number, too.
"""

from __future__ import annotations

import csv
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final, Protocol

from warren.salvage.formats import Format
from warren.shovel.errors import ShovelError
from warren.shovel.exported_rows import START, Mark, Marked, Row, row_of_cells, row_of_line
from warren.storage.errors import MessageError, SettingsError, StorageError

MAX_LINE_BYTES: Final = 1 << 30
_COPY_BYTES: Final = 1 << 20
_ENDINGS: Final = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
}


class ExportedFile(Protocol):
    """A file of exported messages."""

    @property
    def path(self) -> str: ...

    def rows(self, start: Mark = START) -> Iterator[Marked]:
        """The rows from a mark on."""

    def extent(self) -> int:
        """Where its last row ends, at most."""

    def digest(self) -> str:
        """What tells this content from any other."""


def format_of_file(path: str) -> Format | None:
    """Return the format that the name's ending tells; ``None`` if it tells none."""
    return _ENDINGS.get(os.path.splitext(path)[1].lower())


def open_export(path: str, file_format: Format | None = None) -> ExportedFile:
    """Open the file of exported messages at ``path``; ``file_format``: its format, if the name does not tell.

    Raises :class:`ShovelError` if the format is unknown, :class:`StorageError` if there is no such file.
    """
    chosen = file_format or format_of_file(path)
    if not os.path.exists(path):
        raise StorageError(f"{path}: no such file or directory")
    if os.path.isdir(path) and chosen is not Format.BODIES:
        raise ShovelError(f"{path}: is a directory; --format bodies takes each file of one as a message")
    match chosen:
        case Format.JSONL:
            return JsonFile(path)
        case Format.CSV:
            return CsvFile(path)
        case Format.BODIES:
            return BodyFolder(path) if os.path.isdir(path) else BodyFile(path)
        case Format.PARQUET:
            try:
                from warren.arrow.parquet_import import ParquetFile
            except ImportError as error:
                raise SettingsError('--format parquet: needs pyarrow: pip install "warrenmq[parquet]"') from error
            return ParquetFile(path)
        case None:
            raise ShovelError(f"{path}: its name does not say what it is; say --format jsonl, csv, parquet or bodies")


@contextmanager
def _reading(path: str) -> Iterator[IO[bytes]]:
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


def _digest(paths: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with _reading(path) as file:
            digest.update(f"{os.path.basename(path)}\0".encode(errors="surrogateescape") if len(paths) > 1 else b"")
            while chunk := file.read(_COPY_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


class _OneFile:
    """What is one file, and its lines."""

    def __init__(self, path: str) -> None:
        self.path = path

    def extent(self) -> int:
        return os.path.getsize(self.path)

    def digest(self) -> str:
        return _digest([self.path])

    def _lines(self, start: Mark) -> Iterator[tuple[Mark, bytes]]:
        """Yield the lines with their line ends."""
        with _reading(self.path) as file:
            file.seek(start.at)
            number, file_offset = start
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise ShovelError(f"{self.path}, line {number + 1}: more than {MAX_LINE_BYTES:,} bytes")
                yield Mark(number, file_offset), line
                number, file_offset = number + 1, file_offset + len(line)


class JsonFile(_OneFile):
    """Lines of JSON. Empty ones are passed over."""

    def rows(self, start: Mark = START) -> Iterator[Marked]:
        for mark, line in self._lines(start):
            if line.isspace():
                continue
            try:
                yield mark, row_of_line(line)
            except MessageError as error:
                yield mark, MessageError(f"line {mark.number + 1}: {error}")


class CsvFile(_OneFile):
    """CSV; the first row names the columns. A row's number is that of its first line."""

    def rows(self, start: Mark = START) -> Iterator[Marked]:
        previous_limit = csv.field_size_limit(sys.maxsize)  # a body is one field
        try:
            yield from self._rows(start)
        finally:
            csv.field_size_limit(previous_limit)

    def _rows(self, start: Mark) -> Iterator[Marked]:
        at = START
        names: list[str] | None = None
        lines = self._lines(START)

        def texts(lines: Iterator[tuple[Mark, bytes]]) -> Iterator[str]:
            nonlocal at
            for mark, line in lines:
                at = Mark(mark.number + 1, mark.at + len(line))
                try:
                    yield line.decode("utf-8-sig" if not mark.number else "utf-8")
                except UnicodeDecodeError as error:
                    raise ShovelError(f"{self.path}, line {mark.number + 1}: no UTF-8 ({error.reason})") from error

        cells = csv.reader(texts(lines), strict=True)
        try:
            names = next(cells, None)
            if names is None:
                return
            if "body" not in names:
                raise ShovelError(f"{self.path}: its first line names no column body")
            if start.at > at.at:
                cells = csv.reader(texts(self._lines(start)), strict=True)
                at = start
            mark = at
            for row in cells:
                if row:
                    yield mark, self._row(mark, names, row)
                mark = at
        except csv.Error as error:
            raise ShovelError(f"{self.path}, line {at.number}: {error}") from error

    def _row(self, mark: Mark, names: Sequence[str], cells: Sequence[str]) -> Row | MessageError:
        if len(cells) != len(names):
            return MessageError(f"line {mark.number + 1}: {len(cells)} cells, and {len(names)} columns")
        try:
            return row_of_cells(dict(zip(names, cells, strict=True)))
        except MessageError as error:
            return MessageError(f"line {mark.number + 1}: {error}")


class BodyFile(_OneFile):
    """Bodies, one a line."""

    def rows(self, start: Mark = START) -> Iterator[Marked]:
        for mark, line in self._lines(start):
            yield mark, body_row(line.removesuffix(b"\n"))


class BodyFolder:
    """Bodies, each a file, in the order of the files' names; names that begin with a point are ignored."""

    def __init__(self, path: str) -> None:
        self.path = path

    def rows(self, start: Mark = START) -> Iterator[Marked]:
        for number, path in enumerate(self._paths()[start.number :], start.number):
            with _reading(path) as file:
                yield Mark(number, number), body_row(file.read())

    def extent(self) -> int:
        return len(self._paths())

    def digest(self) -> str:
        return _digest(self._paths())

    def _paths(self) -> list[str]:
        try:
            names = sorted(name for name in os.listdir(self.path) if not name.startswith("."))
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error}") from error
        paths = [os.path.join(self.path, name) for name in names]
        return [path for path in paths if os.path.isfile(path)]


def body_row(body: bytes) -> Row:
    """A message known only by its body: persistent, and for any queue."""
    return {
        "vhost": "/",
        "queue": None,
        "expiry_us": None,
        "exchange": "",
        "routing_keys": [""],
        "properties": '{"delivery_mode": 2}',
        "headers": None,
        "encoded_properties": None,
        "body": body,
    }
