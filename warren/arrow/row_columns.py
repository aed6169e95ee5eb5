"""Rows as columns by their names, and the Arrow batches that are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs
import pyarrow as pa

from warren.arrow.arrays import as_array


class Rows(Protocol):
    """Some rows: as many as ``len`` says, whose columns are made when they are asked for."""

    def __len__(self) -> int: ...

    def column(self, name: str) -> Any:
        """What :func:`~warren.arrow.arrays.as_array` makes the column of that name of."""


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
