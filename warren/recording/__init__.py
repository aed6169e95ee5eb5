"""Recording: what a running node did, as two Parquet files.

``record = "run.parquet"`` (:class:`warren.actors.engines.node_settings.NodeSettings`) writes the queues' rows to
``run.parquet`` and the node's to ``run.node.parquet``; their columns are
:data:`warren.actors.queue.sampling.QUEUE_COLUMNS` and ``NODE_COLUMNS``. The files' metadata has, under
:data:`ABOUT_KEY`, what applies to all rows: the node's settings and when it began. For a growing file, and what a kill
leaves of it, see :mod:`warren.recording.parquet_log`.

``{time}`` in the name is the moment at which the node was opened (``20260102T030405Z``): a node that is started
repeatedly with the same settings then has a record of each run.

Needs pyarrow; it is imported when a record is begun or read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.actors.queue.sampling import NODE_COLUMNS, QUEUE_COLUMNS, Row
from warren.recording.parquet_log import ParquetLog, check_free, read
from warren.storage.errors import DataError, SettingsError, StorageError
from warren.storage.filesystem import FileSystem, RealFileSystem

if TYPE_CHECKING:
    import pandas as pd

ABOUT_KEY: Final = "warren.record"
VERSION: Final = 1
MOST_WAITING_ROWS: Final = 32_768
"""This number of rows makes a row group, however short the time; more would take a while to write at once."""
SHORTEST_GROUP_S: Final = 10.0
SHARE_OF_GROUP: Final = 0.01
"""A row group ends when it covers this share of the time so far: a kill can lose this share of a record."""
_SUFFIX: Final = ".parquet"


class RecordFile:
    """A record on its way into its files: an :class:`warren.actors.node.recorder_actor.Record`."""

    def __init__(self, files: FileSystem, path: str, wall_us: Callable[[], int]) -> None:
        began = datetime.fromtimestamp(wall_us() / 1e6, UTC)
        self.path = path.replace("{time}", began.strftime("%Y%m%dT%H%M%SZ"))
        self._files = files
        self._queues: ParquetLog | None = None
        self._node: ParquetLog | None = None
        self._flushed_s = 0.0

    def check(self) -> None:
        """Raise :class:`SettingsError` if the record cannot be begun."""
        if find_spec("pyarrow") is None:
            raise SettingsError('record needs pyarrow: pip install "warrenmq[sim]"')
        try:
            for path in (self.path, node_path(self.path)):
                check_free(self._files, path)
        except (SettingsError, StorageError) as error:
            raise SettingsError(f"record: {error}") from None

    def open(self, about: Mapping[str, Any]) -> None:
        """Create both files. Raises :class:`SettingsError` if they cannot be created."""
        metadata = {ABOUT_KEY: json.dumps({"version": VERSION} | dict(about), default=str)}
        try:
            self._queues = ParquetLog(self._files, self.path, QUEUE_COLUMNS, metadata)
            self._node = ParquetLog(self._files, node_path(self.path), NODE_COLUMNS, metadata)
        except (SettingsError, StorageError) as error:
            self.close()
            raise SettingsError(f"record: {error}") from None

    def add_queue(self, row: Row) -> None:
        """Take in a queue's row."""
        if self._queues is not None:
            self._queues.add(row)
            if self._queues.waiting >= MOST_WAITING_ROWS:
                self._queues.flush()

    def add_node(self, row: Row) -> None:
        """Take in a node's row."""
        if self._node is not None:
            self._node.add(row)

    def end_step(self, now_s: float) -> None:
        """End the row groups if they cover enough."""
        if now_s - self._flushed_s >= max(SHORTEST_GROUP_S, now_s * SHARE_OF_GROUP):
            self._flushed_s = now_s
            for log in (self._queues, self._node):
                if log is not None:
                    log.flush()

    def close(self) -> None:
        """End both files, the second even if the first cannot be ended. Delete an empty record."""
        logs = [log for log in (self._queues, self._node) if log is not None]
        self._queues = self._node = None
        is_empty = all(log.is_empty for log in logs)
        with contextlib.ExitStack() as ends:
            for log in logs:
                ends.callback(log.discard if is_empty else log.close)


def node_path(path: str) -> str:
    """Return the path of a record's node rows: ``run.node.parquet`` beside ``run.parquet``."""
    return path.removesuffix(_SUFFIX) + ".node" + _SUFFIX


@attrs.frozen(slots=False, eq=False, repr=False)
class RecordedNode:
    """A record that was read: a row for each queue and step, and one for the node and step."""

    path: str
    queues: pd.DataFrame
    """Columns: :data:`~warren.actors.queue.sampling.QUEUE_COLUMNS`. A queue that slept through a step has no row."""
    node: pd.DataFrame
    """Columns: :data:`warren.actors.queue.sampling.NODE_COLUMNS`."""
    about: Mapping[str, Any]
    """``version``, ``began_us``, ``total_memory_bytes``, and the settings: ``node`` and ``engine``."""

    @property
    def interval_s(self) -> float:
        """Between two steps."""
        return float(self.about["node"]["record_interval_ms"]) / 1000

    @property
    def names(self) -> list[str]:
        """Return the names of the queues; outside the vhost ``/``, as ``vhost/queue``."""
        return list(dict.fromkeys(self.queues["name"]))


def read_record(path: str | os.PathLike[str], *, files: FileSystem | None = None) -> RecordedNode:
    """Read a record, ended or not. Raises :class:`DataError` if it is not a record or is damaged.

    ``queues`` has one more column, ``name``: see :attr:`RecordedNode.names`.
    """
    disk, record_path = files or RealFileSystem(), os.fspath(path)
    tables = [read(disk, table_path) for table_path in (record_path, node_path(record_path))]
    for table, columns, file_path in zip(
        tables, (QUEUE_COLUMNS, NODE_COLUMNS), (record_path, node_path(record_path)), strict=True
    ):
        for name in columns:
            if name not in table.column_names:
                raise DataError(file_path, None, f"no record of a node: it has no column {name!r}")
    try:
        about = json.loads((tables[0].schema.metadata or {})[ABOUT_KEY.encode()])
        if about["version"] != VERSION:
            raise DataError(record_path, None, f"a record of version {about['version']}; this is version {VERSION}")
        _ = about["node"]["record_interval_ms"] / 1000, about["engine"], about["total_memory_bytes"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DataError(record_path, None, "no record of a node: it does not say so in its metadata") from None
    queues = tables[0].select(list(QUEUE_COLUMNS)).to_pandas()
    queues["name"] = [
        queue if vhost == "/" else f"{vhost}/{queue}"
        for vhost, queue in zip(queues["vhost"], queues["queue"], strict=True)
    ]
    return RecordedNode(record_path, queues, tables[1].select(list(NODE_COLUMNS)).to_pandas(), about)


def rescue(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write the readable part of an unfinished record to new files, which any reader of Parquet can read.

    Raises :class:`DataError` if nothing can be read, :class:`SettingsError` if the new files exist already.
    """
    import pyarrow.parquet as pq

    disk, source, destination = RealFileSystem(), os.fspath(path), os.fspath(target)
    pairs = [(source, destination), (node_path(source), node_path(destination))]
    for _, new_path in pairs:
        check_free(disk, new_path)
    tables = [read(disk, old_path) for old_path, _ in pairs]
    for table, (_, new_path) in zip(tables, pairs, strict=True):
        pq.write_table(table, new_path)
