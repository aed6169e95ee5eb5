"""Parquet files of exported messages, read row by row: :mod:`warren.shovel.exported_files`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from warren.shovel.errors import ShovelError
from warren.shovel.exported_rows import START, Mark, Marked, Row, check_types
from warren.storage.errors import MessageError, StorageError, WarrenError

ROWS: Final = 256
"""Rows that are Python objects at a time."""
_NEEDED: Final = ("vhost", "queue", "exchange", "routing_keys", "properties", "headers", "body")
_MORE: Final = ("expiry_us", "encoded_properties")


class ParquetFile:
    """A Parquet file; a mark's place is its row's number."""

    def __init__(self, path: str) -> None:
        self.path = path

    def rows(self, start: Mark = START) -> Iterator[Marked]:
        """Yield the rows from a mark on. Raises :class:`ShovelError` if the file is no export."""
        for number, row in self._rows(start.number):
            yield Mark(number, number), _checked(number, row)

    def _rows(self, first: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows from number ``first`` on, as they are."""
        with _reading(self.path), pq.ParquetFile(self.path) as file:
            names = file.schema_arrow.names
            if "topic" in names:
                raise ShovelError(f"{self.path}: messages of topics, which go into no queue")
            if missing := [name for name in _NEEDED if name not in names]:
                raise ShovelError(f"{self.path}: is no export of queues: it has no column {missing[0]}")
            number = 0
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if number + count <= first:
                    number += count
                    continue
                for batch in file.iter_batches(batch_size=ROWS, row_groups=[group]):
                    for row in batch.to_pylist():
                        if number >= first:
                            yield number, row
                        number += 1

    def extent(self) -> int:
        """Return the number of rows."""
        with _reading(self.path):
            return int(pq.read_metadata(self.path).num_rows)

    def digest(self) -> str:
        """Return a hash of the content."""
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn errors of pyarrow and the system into warren's; pyarrow may raise anything, such as UnicodeDecodeError."""
    try:
        yield
    except WarrenError:
        raise
    except pa.ArrowException as error:
        raise ShovelError(f"{path}: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or ' '.join(str(error).split())}") from error
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise ShovelError(f"{path}: no Parquet that can be read: {' '.join(text.split())}") from error


def _checked(number: int, row: dict[str, Any]) -> Row | MessageError:
    try:
        check_types(row)
    except MessageError as error:
        return MessageError(f"row {number + 1}: {error}")
    return {name: row.get(name) for name in _MORE} | row
