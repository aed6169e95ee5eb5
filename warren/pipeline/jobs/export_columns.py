"""The columns of a Spark export: those of the single machine's file, each with what it says for Spark to keep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from warren.pipeline.schemas import EXPORTED_MESSAGES, EXPORTED_RECORDS
from warren.tables.places import Kind

_MESSAGES: Final = to_arrow_schema(EXPORTED_MESSAGES, timezone="UTC")
_RECORDS: Final = to_arrow_schema(EXPORTED_RECORDS, timezone="UTC")
_COLUMNS: Final = {field.name: field for schema in (_MESSAGES, _RECORDS) for field in schema}


def columns_of(kinds: Kind) -> list[str]:
    """Return the columns of an export of nodes of ``kinds``; of a mix, the columns of both, null if a row lacks one."""
    if kinds == Kind.BOTH:
        return list(_COLUMNS)
    return list((_RECORDS if kinds == Kind.TOPICS else _MESSAGES).names)


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """These columns."""
    return pa.schema([_COLUMNS[name] for name in columns])
