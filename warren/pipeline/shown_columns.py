"""A table's columns as Spark shows them: as the files have them or, by options, with types and a column of Spark's own.

``native_types``: a time is a ``timestamp``, without the unit in its name (``expiry`` for ``expiry_us``), and an object
that is JSON is a ``map<string,string>``. ``include_metadata``: ``_metadata`` says which file a row is from, with the
names that Spark's own sources of files use.

Filters on these columns are turned into filters on the table's own columns.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from warren.arrow.arrays import KINDS, Rows, as_array
from warren.pipeline.spark_schemas import as_spark
from warren.salvage.names import as_text, to_json
from warren.storage.errors import StorageError
from warren.storage.filesystem import FileSystem
from warren.tables.filters import Bounds, Pushdown
from warren.tables.pipeline_errors import PipelineError
from warren.tables.read_options import OptionTexts
from warren.tables.schemas import COMMENT
from warren.tables.table import SCHEMAS

METADATA: Final = "_metadata"
_FILE: Final = ("file", "file_offset")

_TIMES: Final[Mapping[str, tuple[str, int]]] = {
    "expiry_us": ("expiry", 1),
    "head_message_timestamp": ("head_message_timestamp", 1_000_000),
    "store_timestamp": ("store_timestamp", 1_000),
    "born_timestamp": ("born_timestamp", 1_000),
    "timestamp": ("timestamp", 1_000),
}
"""Columns of times: the names of timestamps, and microseconds in their units."""
_OBJECTS: Final = frozenset({"properties", "headers", "arguments"})
"""Columns that are JSON objects as text, in tables that do not have them as maps."""

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = KINDS["map<string,string>"]
_METADATA_TYPE: Final = pa.struct(
    [
        ("file_path", pa.string()),
        ("file_name", pa.string()),
        ("file_size", pa.int64()),
        ("file_modification_time", _TIMESTAMP),
        ("file_offset", pa.int64()),
    ]
)
_METADATA_COMMENT: Final = b"the file that the row is from, and the row's offset in it, in bytes"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
"""Spark's timestamps are those of the years 1 to 9999."""


@attrs.frozen(slots=False)
class ShownTable:
    """A table with the columns that the options ask for; small, and sent to every task."""

    name: str
    native_types: bool = False
    include_metadata: bool = False

    @classmethod
    def of(cls, name: str, options: Mapping[str, str]) -> ShownTable:
        """The table of that name. Raises :class:`PipelineError` for an invalid option."""
        texts = OptionTexts.of(options)
        include_metadata = texts.yes_or_no("include_metadata", default=False)
        if include_metadata and _FILE[0] not in SCHEMAS[name].names:
            raise PipelineError(f"option include_metadata: a row of the table {name} is not from a single file")
        return cls(name, texts.yes_or_no("native_types", default=False), include_metadata)

    @cached_property
    def schema(self) -> StructType:
        """The columns."""
        fields = [self._shown(field) for field in SCHEMAS[self.name]]
        if self.include_metadata:
            fields.append(pa.field(METADATA, _METADATA_TYPE, metadata={COMMENT: _METADATA_COMMENT}))
        return as_spark(pa.schema(fields))

    def _shown(self, field: pa.Field) -> pa.Field:
        if self.native_types and field.name in _TIMES:
            return field.with_name(_TIMES[field.name][0]).with_type(_TIMESTAMP)
        return field.with_type(_MAP) if self.native_types and _is_object(field) else field

    @cached_property
    def _own(self) -> dict[str, pa.Field]:
        """The table's own columns, by the names that are shown."""
        return {self._shown(field).name: field for field in SCHEMAS[self.name]}

    def pushdown(self, bounds: Iterable[tuple[tuple[str, ...], Bounds]], names: Iterable[str]) -> Pushdown:
        """What a scan is given: bounds of shown columns, by their paths, and the shown columns that are asked for."""
        columns = {name for shown in names for name in (_FILE if shown == METADATA else (self._own[shown].name,))}
        return Pushdown.of(self._own_bounds(bounds), frozenset(columns))

    def _own_bounds(self, bounds: Iterable[tuple[tuple[str, ...], Bounds]]) -> Iterator[tuple[str, Bounds]]:
        for path, limits in bounds:
            if path == (METADATA, "file_path"):
                yield "file", limits
            elif len(path) == 1 and path[0] in self._own:
                own = self._own[path[0]].name
                if self.native_types and own in _TIMES:
                    yield own, _in_units(limits, _TIMES[own][1])
                else:
                    yield own, limits

    def shown(self, rows: Rows, files: FileSystem) -> Rows:
        """The rows of the table with the columns that are shown."""
        return _ShownRows(rows, self, files) if self.native_types or self.include_metadata else rows


@attrs.frozen(eq=False)
class _ShownRows:
    rows: Rows
    table: ShownTable
    files: FileSystem

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> Any:
        if name == METADATA:
            return self._metadata
        field = self.table._own[name]
        convert: Callable[[pa.Array], pa.Array] | None = None
        if self.table.native_types and field.name in _TIMES:
            convert = _Times(_TIMES[field.name][1])
        elif self.table.native_types and _is_object(field):
            convert = _maps
        if convert is None:
            return self.rows.column(name)
        return convert(as_array(self.rows.column(field.name), len(self), field.type))

    def _metadata(self) -> pa.Array:
        count = len(self)
        file, offsets = (
            as_array(self.rows.column(name), count, SCHEMAS[self.table.name].field(name).type) for name in _FILE
        )
        which = file.dictionary_encode()
        status = [self._status(path) for path in which.dictionary.to_pylist()]
        names, sizes, times = zip(*status, strict=True) if status else ((), (), ())
        columns = [
            file,
            *(
                pa.array(values, _METADATA_TYPE.field(number).type).take(which.indices)
                for number, values in enumerate((names, sizes, times), 1)
            ),
            offsets,
        ]
        return pa.StructArray.from_arrays(columns, fields=list(_METADATA_TYPE), mask=pc.is_null(file))

    def _status(self, path: str) -> tuple[str, int | None, int | None]:
        """A file's name, size and time of its last change in microseconds; of one that is gone, its name."""
        name = posixpath.basename(path)
        try:
            return name, self.files.size(path), self.files.modified_ms(path) * 1_000
        except StorageError:
            return name, None, None


def _is_object(field: pa.Field) -> bool:
    return field.name in _OBJECTS and field.type == pa.string()


@attrs.frozen
class _Times:
    """Makes timestamps of numbers; null for those that Spark has no timestamp for."""

    unit_us: int

    def __call__(self, numbers: pa.Array) -> pa.Array:
        low, high = -(-_FIRST_US // self.unit_us), _LAST_US // self.unit_us
        is_time = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
        times = pc.if_else(is_time, numbers, pa.scalar(None, pa.int64()))
        return pc.multiply(times, self.unit_us).cast(_TIMESTAMP)


def _maps(texts: pa.Array) -> pa.Array:
    """JSON's objects as maps: a value that is a text is itself, null is null, any other is JSON."""
    which = pc.dictionary_encode(texts)
    objects = map(json.loads, which.dictionary.to_pylist())
    items = [[(as_text(name), _as_text(value)) for name, value in entry.items()] for entry in objects]
    return pa.array(items, _MAP).take(which.indices)


def _as_text(value: Any) -> str | None:
    return as_text(value if value is None or isinstance(value, str) else to_json(value).decode())


def _in_units(limits: Bounds, unit_us: int) -> Bounds:
    """Bounds of timestamps as bounds of numbers."""

    def number(time: Any) -> Any:
        if not isinstance(time, datetime):
            return None
        return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // _MICROSECOND // unit_us

    choice = None if limits.choice is None else frozenset(map(number, limits.choice))
    return Bounds(number(limits.low), number(limits.high), None if choice and None in choice else choice)
