"""Mnesia's tables as a start of the node would load them, without changing a file (OTP 25, mnesia 4.21).

::

    <table>.DCD         the table's records at the last dump                     disk_log
    <table>.DCL         changes since then                                       disk_log
    <table>.DAT         instead of both: a table that is only on disk            DETS
    PREVIOUS.LOG        transactions that were being moved to DCL files          disk_log
    LATEST.LOG          transactions after these                                 disk_log
    DECISION_TAB.LOG    outcomes of transactions that other nodes may ask for    disk_log
    schema.DAT          which tables there are                                   DETS

    change         {{Table, Key}, Record, write | delete | delete_object | clear_table}
    transaction    {commit, Node, Decision, RamCopies, DiscCopies, DiscOnlyCopies, Ext, SchemaOps}

A transaction that changed the schema or waited for other nodes has its decision in a record of its own, anywhere in the
logs; without one it was aborted. All others are valid as they stand there. A start applies the two logs to the DCL
files, and these to the DCD files; a log that is applied twice, because a kill came in between, changes nothing.
Temporary files (``*.TMP``) become valid when they are renamed; before that nothing reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeAlias

import attrs

from warren.queue_index.index.dets_format import surviving_terms
from warren.salvage.metadata.disk_log_format import read_items
from warren.salvage.queue_directory import Finding, OnFinding
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.storage.erlang_terms import Atom, Term, decode, encode
from warren.storage.errors import DataError, StorageError, TermError

SCHEMA_FILE: Final = "schema.DAT"
_LATEST, _PREVIOUS, _DECISIONS = "LATEST.LOG", "PREVIOUS.LOG", "DECISION_TAB.LOG"
_REVERSED_BEFORE: Final = b"4.3"
"""In logs of older versions the changes of a transaction stand in reverse order."""
_LOG_KINDS: Final = frozenset({"trans_log", "dcd_log", "dcl_log", "decision_tab"})

Records: TypeAlias = "dict[bytes, Term]"
"""A table's records by their encoded keys: Python's equality of terms is not Erlang's."""


def read_tables(
    files: ReadOnlyFileSystem, directory: str, names: Iterable[str], report: OnFinding
) -> dict[str, list[tuple[Term, ...]]]:
    """The records of the named tables in a node's directory; every other table is passed over."""
    node = _Node(files, directory, {name: {} for name in names}, report)
    node.load()
    return {
        name: [record for record in table.values() if isinstance(record, tuple)] for name, table in node.tables.items()
    }


def has_tables(files: ReadOnlyFileSystem, directory: str) -> bool:
    """Whether it is the directory of a node whose metadata is in Mnesia."""
    return any(files.exists(below(directory, name)) for name in (SCHEMA_FILE, _LATEST, _PREVIOUS))


@attrs.define
class _Node:
    files: ReadOnlyFileSystem
    directory: str
    tables: dict[str, Records]
    report: OnFinding
    outcomes: dict[bytes, str] = attrs.field(factory=dict)
    """By encoded transaction id."""
    table_names: set[str] | None = None
    """The names of all tables; ``None`` if the schema cannot be read."""

    def load(self) -> None:
        self.table_names = self._schema()
        for name in self.tables:
            self._load_table(name)
        if not any(self.files.exists(below(self.directory, name)) for name in (_PREVIOUS, _LATEST)):
            self._damage("missing log", _LATEST, None, "a node always has it; what was changed last is missing")
        logs = [(path, items) for path, items in ((name, self._items(name)) for name in (_PREVIOUS, _LATEST)) if items]
        for _, items in ((_DECISIONS, self._items(_DECISIONS)), *logs):
            self._note_decisions(item for _, item in items)
        for name, items in logs:
            self._apply_log(name, items)

    # files

    def _items(self, name: str) -> list[tuple[int, Term]]:
        """The items of a log; none, with a finding, if the file cannot be read at all."""
        path = below(self.directory, name)
        if not self.files.exists(path):
            return []
        try:
            return list(read_items(self.files.read(path), path, self.report))
        except DataError as error:
            self._damage("unreadable log", name, error.offset, error.reason)
        except StorageError as error:
            self._damage("unreadable log", name, None, str(error))
        return []

    def _objects(self, name: str) -> list[Term] | None:
        """The objects of a DETS file; ``None``, with a finding, if it cannot be read."""
        path = below(self.directory, name)
        objects = []
        try:
            for encoded in surviving_terms(self.files.read(path), path):
                try:
                    objects.append(decode(encoded))
                except TermError as error:
                    self._damage("unreadable record", name, None, str(error))
        except DataError as error:
            self._damage("unreadable table", name, error.offset, error.reason)
            return None
        except StorageError as error:
            self._damage("unreadable table", name, None, str(error))
            return None
        return objects

    def _schema(self) -> set[str] | None:
        objects = self._objects(SCHEMA_FILE)
        if objects is None:
            return None
        return {str(row[1]) for row in objects if isinstance(row, tuple) and len(row) == 3 and isinstance(row[1], Atom)}

    def _load_table(self, name: str) -> None:
        dump, changes, table = f"{name}.DCD", f"{name}.DCL", f"{name}.DAT"
        if self.files.exists(below(self.directory, dump)):
            for offset, record in self._items(dump):
                self._put(name, record, name=dump, offset=offset)
        elif self.files.exists(below(self.directory, table)):
            for record in self._objects(table) or ():
                self._put(name, record, name=table, offset=None)
        elif self.table_names is None or name in self.table_names:
            self._damage("missing table", dump, None, "the schema has it, and there is no file of it")
        for offset, change in self._items(changes):
            self._apply(change, changes, offset)

    # transactions

    def _note_decisions(self, items: Iterable[Term]) -> None:
        for item in items:
            match item:
                case ("decision", tid, str(outcome), _, _):
                    self.outcomes[_key(tid)] = outcome
                case ("decision_list", [*decisions]):
                    self._note_decisions(decisions)
                case _:
                    pass

    def _apply_log(self, name: str, items: list[tuple[int, Term]]) -> None:
        is_reversed = False
        for offset, item in items:
            match item:
                case ("log_header", "trans_log", version, *_):
                    is_reversed = _key(version)[-len(_REVERSED_BEFORE) :] < _REVERSED_BEFORE
                case ("commit", _, decision, _, [*copies], [*only], _, [*schema]):
                    if self._is_committed(decision, name, offset):
                        for changes in (schema, copies, only):
                            for change in reversed(changes) if is_reversed else changes:
                                self._apply(change, name, offset)
                case (str(kind), *_) if kind != "commit":
                    pass  # decisions, and which nodes were up
                case _:
                    self._damage("unreadable log item", name, offset, f"not a transaction: {item!r:.100}")

    def _is_committed(self, decision: Term, name: str, offset: int) -> bool:
        match decision:
            case "presume_commit":
                return True
            case ("decision", tid, _, [*disc_nodes], _):
                outcome = self.outcomes.get(_key(tid))
                if outcome != "committed" and len(disc_nodes) > 1 and outcome != "aborted":
                    self._damage("unclear transaction", name, offset, "its outcome is on other nodes; taken as aborted")
                return outcome == "committed"
            case _:
                self._damage("unreadable log item", name, offset, f"a decision {decision!r:.100}")
                return False

    def _apply(self, change: Term, name: str, offset: int) -> None:
        match change:
            case ((str(table), key), record, str(what)) if table in self.tables:
                if not self._change(table, key, record, what, partial(self._put, table, name=name, offset=offset)):
                    self._damage("unreadable change", name, offset, f"{change!r:.100}")
            case ((str(table), _), _, _):
                if table in self.tables:
                    self._damage("unreadable change", name, offset, f"{change!r:.100}")
                elif self.table_names is not None and table not in self.table_names:
                    self._damage("unreadable change", name, offset, f"of a table {table!r:.100}, which does not exist")
            case ("op", "rec", _, inner):
                self._apply(inner, name, offset)
            case ("op", "clear_table" | "delete_table", [*properties]):
                for table in _named(properties):
                    self.tables.get(table, {}).clear()
            case ("op", "create_table", [*properties]) if self.table_names is not None:
                self.table_names.update(_named(properties))
            case ("op", *_) | ("log_header", *_):
                pass  # a table's properties
            case _:
                self._damage("unreadable change", name, offset, f"{change!r:.100}")

    def _change(self, table: str, key: Term, record: Term, what: str, put: Callable[[Term], None]) -> bool:
        """Change a table; return whether that change is known."""
        records = record if isinstance(record, list) else [record]
        match what:
            case "write":
                for written in records:
                    put(written)
            case "delete":
                self.tables[table].pop(_key(key), None)
            case "delete_object":
                stored = self.tables[table].get(_key(key))
                if stored is not None and _key(stored) in map(_key, records):
                    del self.tables[table][_key(key)]
            case "clear_table":
                self.tables[table].clear()
            case _:
                return False
        return True

    def _put(self, table: str, record: Term, *, name: str, offset: int | None) -> None:
        match record:
            case ("log_header", str(kind), *_) if kind in _LOG_KINDS:
                pass
            case (_, key, *_):
                self.tables[table][_key(key)] = record
            case _:
                self._damage("unreadable record", name, offset, f"{record!r:.100}")

    def _damage(self, kind: str, name: str, offset: int | None, detail: str) -> None:
        self.report(Finding(kind, "damage", below(self.directory, name), offset, detail))


def _key(term: Term) -> bytes:
    """Its encoding, or its text if it cannot be encoded, which only damage can cause."""
    try:
        return encode(term)
    except TermError:
        return repr(term).encode("utf-8", "surrogateescape")


def _named(properties: Iterable[Term]) -> Iterator[str]:
    """The name of the table with these properties."""
    for pair in properties:
        match pair:
            case ("name", str(table)):
                yield table
            case _:
                pass
