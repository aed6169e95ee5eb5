"""A Parquet file that grows, and that a crash leaves readable: row group by row group, with a journal beside it.

A Parquet file describes its content at its very end, so an unfinished one is unreadable. Here every row group's own
part of that footer goes into a journal (``….journal``) as soon as the row group is written. The end joins them into the
footer, and deletes the journal. While there is a journal the file is not ended: it still grows, or its writer was
killed. :func:`read` reads both kinds, up to the last complete row group::

    file.parquet            "PAR1"  row group  row group …                  (ended:) footer
    file.parquet.journal    "WARRENJ1"
                            u64  end of the row group in the file           little endian
                            u32  size of the footer
                            u32  CRC-32 of the footer
                            …    the footer that the file would have if it had this row group alone
                            and so on, an entry for each row group

pyarrow makes row groups in memory, with the offsets that they will have in the file. The entry of a row group is
written after its last byte. Nothing is synced: a record survives the end of the process, not of the machine.

Reading ends at a cut entry, a wrong CRC-32 or an end beyond the file's. Any other damage raises
:class:`~warren.storage.errors.DataError`.
"""

from __future__ import annotations

import io
import struct
import zlib
from array import array
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from warren.storage.errors import DataError, SettingsError, StorageError, shortly
from warren.storage.filesystem import FileSystem

if TYPE_CHECKING:
    import pyarrow as pa

JOURNAL: Final = ".journal"
_MAGIC: Final = b"WARRENJ1"
_ENTRY: Final = struct.Struct("<QII")
_PARQUET: Final = b"PAR1"
_TAIL: Final = struct.Struct("<I4s")
"""The end of a Parquet file: the size of the footer before it, and the magic."""
_ZEROS: Final = memoryview(bytes(1 << 20))


class ParquetLog:
    """One growing file. ``kinds``: columns and what is in them (``f8``, ``i8``, ``bool``, ``str``)."""

    def __init__(self, files: FileSystem, path: str, kinds: Mapping[str, str], metadata: Mapping[str, str]) -> None:
        """Raises :class:`SettingsError` if the file exists, :class:`StorageError` if it cannot be created."""
        check_free(files, path)
        self._files = files
        self._path = path
        self._schema = _schema(kinds, metadata)
        self._kinds = dict(kinds)
        self._columns = _columns(kinds)
        self.waiting = 0
        """Rows that no row group has yet."""
        self._footer: pa.parquet.FileMetaData | None = None
        self._journal = files.open_append(path + JOURNAL)
        self._journal.append(_MAGIC)
        self._file = files.open_append(path)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in a row; it waits for its row group."""
        for name, column in self._columns.items():
            column.append(row[name])
        self.waiting += 1

    @property
    def is_empty(self) -> bool:
        """Whether no row was ever added."""
        return not self.waiting and self._footer is None

    def flush(self) -> None:
        """Write what waits as a row group, which is then safe from a kill."""
        if self.waiting:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = [_array(pa, self._columns[field.name], field.type) for field in self._schema]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        self._columns, self.waiting = _columns(self._kinds), 0
        sink = _Sink(self._file.size())
        stream = pa.PythonFile(sink, mode="w")
        with stream, pq.ParquetWriter(stream, self._schema, compression="zstd") as writer:
            sink.skip(stream)
            writer.write_table(table)
        data = bytes(sink.data)
        size = _TAIL.unpack(data[-_TAIL.size :])[0] + _TAIL.size
        footer = data[-size:]
        self._file.append(data[:-size])
        self._journal.append(_ENTRY.pack(self._file.size(), len(footer), zlib.crc32(footer)) + footer)
        self._footer = _joined(self._footer, footer)

    def close(self) -> None:
        """End the file."""
        try:
            if self.waiting or self._footer is None:
                self._write()
            if self._footer is not None:
                self._file.append(_footer_bytes(self._footer))
        finally:
            self._file.close()
            self._journal.close()
        self._files.delete(self._path + JOURNAL)

    def discard(self) -> None:
        """Delete the file."""
        self._file.close()
        self._journal.close()
        self._files.delete(self._path)
        self._files.delete(self._path + JOURNAL)


def check_free(files: FileSystem, path: str) -> None:
    """Raise :class:`SettingsError` if a file of that name could not be begun."""
    directory = path.rpartition("/")[0] or "."
    if files.exists(path + JOURNAL):
        raise SettingsError(f"{path} is there already, and was never ended: it grows, or its writer was killed")
    if files.exists(path):
        raise SettingsError(f"{path} is there already, and is not overwritten")
    if not files.is_directory(directory):
        raise SettingsError(f"{path}: there is no directory {directory}")


def read(files: FileSystem, path: str) -> pa.Table:
    """Return all rows of a file, ended or not. Raises :class:`DataError` if it is not a Parquet file or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        data = files.read(path)
        if files.exists(path + JOURNAL):
            data = _ended(data, files.read(path + JOURNAL), path)
        return pq.read_table(pa.BufferReader(data))
    except StorageError as error:
        raise DataError(path, None, f"cannot be read: {error}") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(path, None, f"no Parquet file: {shortly(str(error))}") from None


def _ended(data: bytes, journal: bytes, path: str) -> bytes:
    """Return an unfinished file with the end that its journal gives it."""
    footer, end = None, 0
    for end_of_group, part in _entries(journal, path):
        if not end < end_of_group <= len(data):
            break
        footer, end = _joined(footer, part), end_of_group
    if footer is None:
        raise DataError(path, None, "no row group of it was ever ended")
    return data[:end] + _footer_bytes(footer)


def _entries(journal: bytes, path: str) -> Iterator[tuple[int, bytes]]:
    if journal[: len(_MAGIC)] != _MAGIC[: len(journal)]:
        raise DataError(path + JOURNAL, 0, "no journal of a growing Parquet file")
    position = len(_MAGIC)
    while position + _ENTRY.size <= len(journal):
        end, size, crc = _ENTRY.unpack_from(journal, position)
        footer = journal[position + _ENTRY.size : position + _ENTRY.size + size]
        if len(footer) < size or zlib.crc32(footer) != crc:
            return
        yield end, footer
        position += _ENTRY.size + size


def _joined(footer: pa.parquet.FileMetaData | None, part: bytes) -> pa.parquet.FileMetaData:
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(pa.BufferReader(_PARQUET + part))
    if footer is None:
        return metadata
    footer.append_row_groups(metadata)
    return footer


def _footer_bytes(footer: pa.parquet.FileMetaData) -> bytes:
    buffer = io.BytesIO()
    footer.write_metadata_file(buffer)
    return buffer.getvalue()


class _Sink(io.RawIOBase):
    """Collects what pyarrow writes from a position on.

    pyarrow counts offsets itself, from 0 and with the magic; so as many bytes as the file has are written first, and
    dropped.
    """

    def __init__(self, position: int) -> None:
        super().__init__()
        self.data = bytearray()
        self._before = position

    def skip(self, stream: pa.NativeFile) -> None:
        """Let the writer's stream reach the position."""
        while self._before:
            stream.write(_ZEROS[: self._before])

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._before:
            self._before -= len(data)
        else:
            self.data += data
        return len(data)


def arrow_types() -> dict[str, pa.DataType]:
    """Return the types of the kinds of columns."""
    import pyarrow as pa

    return {"f8": pa.float64(), "i8": pa.int64(), "bool": pa.bool_(), "str": pa.string()}


def _schema(kinds: Mapping[str, str], metadata: Mapping[str, str]) -> pa.Schema:
    import pyarrow as pa

    types = arrow_types()
    return pa.schema([(name, types[kind]) for name, kind in kinds.items()], metadata=dict(metadata))


def _columns(kinds: Mapping[str, str]) -> dict[str, Any]:
    factories: Mapping[str, Any] = {"f8": lambda: array("d"), "i8": lambda: array("q"), "bool": list, "str": list}
    return {name: factories[kind]() for name, kind in kinds.items()}


def _array(pa: Any, column: Any, type_: pa.DataType) -> pa.Array:
    if isinstance(column, array):
        return pa.Array.from_buffers(type_, len(column), [None, pa.py_buffer(column)])
    return pa.array(column, type_)
