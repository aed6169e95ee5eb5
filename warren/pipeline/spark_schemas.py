"""The tables' columns as Spark has them, each with its comment; and those of an export."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from warren.arrow import parquet_export
from warren.tables import schemas
from warren.tables.places import Kind
from warren.tables.table import SCHEMAS


def as_spark(schema: pa.Schema) -> StructType:
    """The same columns, with the same comments."""
    return StructType([_field(field) for field in schema])


def columns_of(table: str, names: Iterable[str]) -> StructType:
    """Some columns of a table."""
    return as_spark(pa.schema([SCHEMAS[table].field(name) for name in names]))


def _field(field: pa.Field) -> StructField:
    comment = field.metadata[schemas.COMMENT].decode()
    return StructField(field.name, from_arrow_type(field.type), True, {"comment": comment})


FINDINGS: Final = as_spark(schemas.FINDINGS)
MESSAGES: Final = as_spark(schemas.MESSAGES)
OFFSETS: Final = as_spark(schemas.OFFSETS)
RECORDS: Final = as_spark(schemas.RECORDS)

EXPORTED_MESSAGES: Final = StructType([MESSAGES[name] for name in parquet_export.MESSAGES.names])
"""The columns of an export of queues, in order."""


def _exported(name: str) -> StructField:
    """What both have is of one type, so that one file can hold both; numbers are ``bigint``."""
    field = (MESSAGES if name in MESSAGES.names else RECORDS)[name]
    return StructField(name, LongType(), True, field.metadata) if field.dataType == IntegerType() else field


EXPORTED_RECORDS: Final = StructType([_exported(name) for name in parquet_export.RECORDS.names])
"""The columns of an export of topics, in order."""

# ── an export's files ────────────────────────────────────────────────────────────────────────────────────────────────

_MESSAGES: Final = to_arrow_schema(EXPORTED_MESSAGES, timezone="UTC")
_RECORDS: Final = to_arrow_schema(EXPORTED_RECORDS, timezone="UTC")
_COLUMNS: Final = {field.name: field for schema in (_MESSAGES, _RECORDS) for field in schema}


def exported_columns(kinds: Kind) -> list[str]:
    """Return the columns of an export of nodes of ``kinds``; of a mix, the columns of both, null if a row lacks one."""
    if kinds == Kind.BOTH:
        return list(_COLUMNS)
    return list((_RECORDS if kinds == Kind.TOPICS else _MESSAGES).names)


def exported_schema(columns: Iterable[str]) -> pa.Schema:
    """These columns."""
    return pa.schema([_COLUMNS[name] for name in columns])
