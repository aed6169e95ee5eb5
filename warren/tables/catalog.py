"""The tables by their names."""

from __future__ import annotations

from typing import Final

from warren.tables import entries, findings, index, index_items, messages, offsets, queues, records, store
from warren.tables.table import Table

TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        queues.TABLE,
        index.TABLE,
        store.TABLE,
        messages.TABLE,
        findings.TABLE,
        records.TABLE,
        entries.TABLE,
        index_items.TABLE,
        offsets.TABLE,
    )
}
