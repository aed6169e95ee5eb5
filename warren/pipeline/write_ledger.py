"""What was written to a node's topics under which epoch, so that nothing is written twice: a file for each query.

An *epoch* is a number that a query gives to a batch of rows: of a stream Spark's batch id. The *ledger* of a query lies
in the node's directory, ``writes/<query>.json``::

    {"version": 1, "query": "…", "done": [[0, 41]], "intent": {"epoch": 42, "log_end": 123456, "rows": 1000,
     "files": ["…"]}}

``done`` are the epochs that are there, as ranges, from and to. An *intent* is written before the first row of an
epoch is appended: from then on the epoch is decided, and the next writer finishes it. ``log_end`` is the end of the
CommitLog at that time; what is before it is synced. Each message bears query, epoch and row number as a property.

1. The staged files are synced (by the tasks), then the intent is written.
2. The rows are appended, in order, and are safe.
3. The epoch is done, the intent gone; then the staged files are deleted.

A crash in 1 leaves nothing. One in 2, or before 3, leaves an intent: the CommitLog is read from ``log_end`` on, rows
that are found there are left out, the others are appended. Rows are those of the intent's files, whatever the retry
has staged: it may have cut its rows into other partitions. A node has one owner at a time, so no two do this at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Self

import attrs

from warren.storage.errors import DataError, shortly
from warren.storage.filesystem import FileSystem, write_file
from warren.tables.intervals import merged

DIRECTORY: Final = "writes"
_VERSION: Final = 1


@attrs.frozen
class Intent:
    """An epoch whose rows are being appended."""

    epoch: int
    log_end: int
    rows: int
    files: tuple[str, ...]


@attrs.define
class Ledger:
    """The ledger of one query; :meth:`load` it."""

    files: FileSystem
    node: str
    query: str
    done: list[tuple[int, int]] = attrs.Factory(list)
    intent: Intent | None = None

    @property
    def path(self) -> str:
        return f"{self.node}/{DIRECTORY}/{self.query}.json"

    @classmethod
    def load(cls, files: FileSystem, node: str, query: str) -> Self:
        """Load a ledger; an empty one if the file is missing. Raises :class:`DataError` if the file is invalid."""
        ledger = cls(files, node, query)
        if not files.exists(ledger.path):
            return ledger
        try:
            document: dict[str, Any] = json.loads(files.read(ledger.path))
            if document["version"] != _VERSION or document["query"] != query:
                raise DataError(ledger.path, None, "is of another version, or another query's")
            ledger.done = [(int(first), int(last)) for first, last in document["done"]]
            if (intent := document["intent"]) is not None:
                ledger.intent = Intent(
                    int(intent["epoch"]), int(intent["log_end"]), int(intent["rows"]), tuple(intent["files"])
                )
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
            raise DataError(ledger.path, None, f"is no ledger of a query: {shortly(error)}") from error
        return ledger

    def is_done(self, epoch: int) -> bool:
        """Whether all rows of the epoch have been appended."""
        return any(first <= epoch <= last for first, last in self.done)

    def begin(self, epoch: int, log_end: int, rows: int, files: Sequence[str]) -> Intent:
        """Write down that rows are about to be appended; synced when this returns."""
        self.intent = intent = Intent(epoch, log_end, rows, tuple(files))
        self._save()
        return intent

    def finish(self) -> None:
        """Write down that the intent's rows are appended and safe."""
        if self.intent is None:
            raise RuntimeError("nothing was begun")
        self.done = merged([*self.done, (self.intent.epoch, self.intent.epoch)])
        self.intent = None
        self._save()

    def _save(self) -> None:
        directory = f"{self.node}/{DIRECTORY}"
        if not self.files.is_directory(directory):
            self.files.make_directories(directory)
            self.files.sync_directory(self.node)
        document = {
            "version": _VERSION,
            "query": self.query,
            "done": self.done,
            "intent": None if self.intent is None else attrs.asdict(self.intent),
        }
        write_file(self.files, self.path, json.dumps(document).encode(), sync=True)
