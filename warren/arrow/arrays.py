"""Arrow arrays out of numpy columns and a file's bytes, without a Python object for each row; and batches of them."""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

KINDS: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
"""Types as Spark's SQL names them."""


def schema_of(columns: str) -> pa.Schema:
    """The columns with their types, as Spark writes them: ``node string, position long``."""
    return pa.schema([(name, KINDS[kind]) for name, kind in (column.split() for column in columns.split(", "))])


def repeated(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    """``count`` times the same value; ``None`` makes nulls."""
    if value is None:
        return pa.nulls(count, kind)
    if pa.types.is_nested(kind):  # pa.repeat appends these one by one
        return pa.array([value], kind).take(pa.array(np.zeros(count, np.int32)))
    return pa.repeat(pa.scalar(value, kind), count)


def as_array(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    """A column of ``count`` rows and of that type.

    ``value`` is an Arrow array of that type, numbers of numpy, a list of values, one value for all rows (``None``:
    nulls), or a function that returns such a value.
    """
    if callable(value):
        value = value()
    if isinstance(value, pa.Array):
        return value
    if isinstance(value, np.ndarray):
        return pa.array(value.astype(kind.to_pandas_dtype(), copy=False))
    return pa.array(value, kind) if isinstance(value, (list, tuple)) else repeated(value, count, kind)


def chosen(values: Sequence[str | None], which: npt.NDArray[np.integer[Any]]) -> pa.Array:
    """Return the texts at the indexes ``which``."""
    return pa.array(values, pa.string()).take(pa.array(which))


def null_unless(values: pa.Array, is_present: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the values, with nulls instead of values that are not present."""
    return values if is_present.all() else pc.if_else(pa.array(is_present), values, pa.scalar(None, values.type))


def slices(data: bytes | memoryview, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.integer[Any]]) -> pa.Array:
    """Slices of ``data`` (below 2 GiB), in ascending order and without overlaps, as binary values."""
    count = len(starts)
    edges = np.empty(2 * count + 1, np.int32)
    edges[0:-1:2] = starts
    edges[1::2] = starts + sizes
    edges[-1] = edges[-2] if count else 0
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    return pieces.take(pa.array(np.arange(0, 2 * count, 2)))


def rows_of(matrix: npt.NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    """The rows of a contiguous matrix as values of a type, binary or text; nothing is copied."""
    count, width = map(int, matrix.shape)
    edges = width * np.arange(count + 1, dtype=np.int32)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(edges), pa.py_buffer(matrix)])


def hexadecimal(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """The rows of a matrix of bytes as texts in hexadecimal."""
    count, width = rows.shape
    return rows_of(np.frombuffer(hexlify(rows.tobytes()), np.uint8).reshape(count, 2 * width), pa.string())


# ── rows as columns ──────────────────────────────────────────────────────────────────────────────────────────────────


class Rows(Protocol):
    """Some rows: as many as ``len`` says, whose columns are made when they are asked for."""

    def __len__(self) -> int: ...

    def column(self, name: str) -> Any:
        """What :func:`as_array` makes the column of that name of."""


@attrs.frozen
class Columns:
    """Rows as columns by their names; a missing column is null."""

    count: int
    columns: Mapping[str, Any]

    def __len__(self) -> int:
        return self.count

    def column(self, name: str) -> Any:
        return self.columns.get(name)


def as_batch(rows: Rows, arrow: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema."""
    arrays = [as_array(rows.column(field.name), len(rows), field.type) for field in arrow]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
