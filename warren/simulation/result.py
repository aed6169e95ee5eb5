"""What a simulation answers: the timeline, the node's, the marks and the summary; and how they lie in a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.simulation.node import Mark
from warren.simulation.scenario import Scenario
from warren.simulation.timeline import NODE_COLUMNS, QUEUE_COLUMNS
from warren.storage.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TIMELINE_FILE: Final = "timeline.parquet"
NODE_FILE: Final = "node.parquet"
SUMMARY_FILE: Final = "summary.json"
DTYPES: Final = {"f8": "float64", "i8": "int64", "bool": "bool", "str": "object"}
"""What pandas calls the kinds of columns."""


@attrs.frozen(slots=False, eq=False, kw_only=True)
class Result:
    """One simulation's answer."""

    scenario: Scenario | None
    """``None``: it was read from a folder."""
    timeline_columns: Mapping[str, Any] = attrs.field(repr=False)
    node_columns: Mapping[str, Any] = attrs.field(repr=False)
    marks: tuple[Mark, ...] = attrs.field(repr=False)
    summary: Mapping[str, Any]
    """The contents of summary.json (:mod:`warren.simulation.summary`)."""

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """A row for each queue (or group) and step; columns: :data:`warren.simulation.timeline.QUEUE_COLUMNS`."""
        return _frame(self.timeline_columns, QUEUE_COLUMNS)

    @cached_property
    def node(self) -> pd.DataFrame:
        """A row for each step; columns: :data:`warren.simulation.timeline.NODE_COLUMNS`."""
        return _frame(self.node_columns, NODE_COLUMNS)

    def queue(self, name: str) -> pd.DataFrame:
        """Return the rows of a queue or a group. Raises ``KeyError`` if there are no such rows."""
        rows = self.timeline[self.timeline["queue"] == name]
        if not len(rows):
            raise KeyError(f"no queue {name!r} in the timeline; there are {', '.join(self.names[:10])}")
        return rows.reset_index(drop=True)

    @property
    def names(self) -> list[str]:
        """The names of the queues and groups that have rows in the timeline."""
        return list(dict.fromkeys(self.timeline_columns["queue"]))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write timeline.parquet, node.parquet and summary.json into ``folder``, which is made if it is missing."""
        import pyarrow.parquet as pq

        os.makedirs(folder, exist_ok=True)
        pq.write_table(_table(self.timeline_columns, QUEUE_COLUMNS), os.path.join(folder, TIMELINE_FILE))
        pq.write_table(_table(self.node_columns, NODE_COLUMNS), os.path.join(folder, NODE_FILE))
        summary = dict(self.summary) | {"marks": [attrs.asdict(mark) for mark in self.marks]}
        write_json(os.path.join(folder, SUMMARY_FILE), summary)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Result:
        """Return what :meth:`save` wrote. Raises :class:`DataError` if a file is missing or damaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = os.path.join(folder, SUMMARY_FILE)
        try:
            with open(path, encoding="utf-8") as file:
                summary = json.load(file)
            marks = tuple(Mark(**mark) for mark in summary.pop("marks"))
            tables: dict[str, dict[str, Any]] = {}
            for name, columns in ((TIMELINE_FILE, QUEUE_COLUMNS), (NODE_FILE, NODE_COLUMNS)):
                path = os.path.join(folder, name)
                table = pq.read_table(path, columns=list(columns))
                tables[name] = {column: table.column(column).to_numpy() for column in columns}
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise DataError(path, None, f"not the answer of a simulation: {error}") from None
        return cls(
            scenario=None,
            timeline_columns=tables[TIMELINE_FILE],
            node_columns=tables[NODE_FILE],
            marks=marks,
            summary=summary,
        )


def write_json(path: str, document: object) -> None:
    """Write a file of JSON for people to read."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def _table(columns: Mapping[str, Any], kinds: Mapping[str, str]) -> pa.Table:
    import pyarrow as pa

    types = {"f8": pa.float64(), "i8": pa.int64(), "bool": pa.bool_(), "str": pa.string()}
    return pa.table({name: pa.array(columns[name], types[kind]) for name, kind in kinds.items()})


def _frame(columns: Mapping[str, Any], kinds: Mapping[str, str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({name: pd.Series(columns[name], dtype=DTYPES[kind]) for name, kind in kinds.items()})
