"""The tables by their names."""

from __future__ import annotations

from typing import Final

from warren.pipeline.table import Table
from warren.pipeline.tables import queues

TABLES: Final[dict[str, Table]] = {table.name: table for table in (queues.TABLE,)}
