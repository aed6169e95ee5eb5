"""The tables by their names. A table's columns are known without it; what reads it is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from warren.tables import schemas
from warren.tables.table import Table

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "queues": schemas.QUEUES,
    "index": schemas.INDEX,
    "store": schemas.STORE,
    "messages": schemas.MESSAGES,
    "findings": schemas.FINDINGS,
    "records": schemas.RECORDS,
    "entries": schemas.ENTRIES,
    "index_items": schemas.INDEX_ITEMS,
    "offsets": schemas.OFFSETS,
}


_ROCKETMQ: Final = frozenset({"records", "entries", "index_items", "offsets"})


class _Tables(Mapping[str, Table]):
    """Each table is in a module of its name."""

    def __getitem__(self, name: str) -> Table:
        if name not in SCHEMAS:
            raise KeyError(name)
        package = "warren.tables.rocketmq" if name in _ROCKETMQ else "warren.tables"
        table: Table = importlib.import_module(f"{package}.{name}").TABLE
        return table

    def __contains__(self, name: object) -> bool:
        return name in SCHEMAS

    def __iter__(self) -> Iterator[str]:
        return iter(SCHEMAS)

    def __len__(self) -> int:
        return len(SCHEMAS)


TABLES: Final = _Tables()
