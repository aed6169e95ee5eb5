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

A file of Erlang's ``disk_log``, in the internal format (OTP 25)::

    file     01 02 03 04 · 63 58 4D 0B (closed properly) or 06 07 08 09 · item*
    item     u32 bytes of the term · "bWLA" · term                     terms of less than 65,528 bytes
             u32 bytes of the term · "bWLA" · MD5 of the u32 · term    longer ones

A process that was killed leaves the file open, and its last item may be incomplete. Erlang's own reader passes over
bytes that are no item until the next one begins. So does :func:`read_items`; each gap is one finding.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeAlias

import attrs

from warren.queue_index.index.dets_format import surviving_terms
from warren.salvage.queue_directory import Finding, OnFinding
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.storage.erlang_terms import Atom, Term, decode, encode
from warren.storage.errors import DataError, StorageError, TermError

_MAGIC: Final = b"\1\2\3\4"
_STATES: Final = (b"cXM\x0b", b"\6\7\x08\t")
_HEAD_BYTES: Final = 8
_ITEM_MAGIC: Final = b"bWLA"
_SIZE: Final = struct.Struct(">I")
_ITEM_HEAD_BYTES: Final = _SIZE.size + len(_ITEM_MAGIC)
_DIGESTED_FROM: Final = 65_528
"""Terms from this size on have a digest of their size before them."""
_DIGEST_BYTES: Final = 16


def read_items(data: bytes, path: str, report: OnFinding) -> Iterator[tuple[int, Term]]:
    """Yield the offset and the term of each item; report every gap, and every item that is no readable term.

    Raises :class:`DataError` if it is no such file.
    """
    if data[:4] != _MAGIC or data[4:_HEAD_BYTES] not in _STATES:
        raise DataError(path, 0, "no disk_log file: it does not begin as one")
    position = gap = _HEAD_BYTES
    while position < len(data):
        extent = _extent(data, position)
        if extent is None:
            position = _next_candidate(data, position)
            continue
        start, end = extent
        try:
            term = decode(data[start:end])
        except TermError as error:
            if position != gap or not _is_item(data, end):  # a magic in the middle of other bytes
                position = _next_candidate(data, position)
                continue
            report(Finding("unreadable log item", "damage", path, position, str(error)))
        else:
            _report_gap(path, gap, position, report)
            yield position, term
        position = gap = end
    _report_gap(path, gap, len(data), report, at_end=True)


def _extent(data: bytes, position: int) -> tuple[int, int] | None:
    """Where the term of the item at ``position`` begins and ends; ``None`` if there is no whole item."""
    start = position + _ITEM_HEAD_BYTES
    if data[position + _SIZE.size : start] != _ITEM_MAGIC:
        return None
    encoded_size = data[position : position + _SIZE.size]
    (size,) = _SIZE.unpack(encoded_size)
    if size >= _DIGESTED_FROM:
        digest = hashlib.md5(encoded_size, usedforsecurity=False).digest()
        if data[start : start + _DIGEST_BYTES] != digest:
            return None
        start += _DIGEST_BYTES
    return (start, start + size) if start + size <= len(data) else None


def _is_item(data: bytes, position: int) -> bool:
    """Whether an item, or the end of the file, follows."""
    return position == len(data) or _extent(data, position) is not None


def _next_candidate(data: bytes, position: int) -> int:
    """Where the next item could begin after ``position``."""
    magic_at = data.find(_ITEM_MAGIC, position + _SIZE.size + 1)
    return len(data) if magic_at < 0 else magic_at - _SIZE.size


def _report_gap(path: str, start: int, end: int, report: OnFinding, *, at_end: bool = False) -> None:
    if start == end:
        return
    kind = "torn log" if at_end else "damaged log"
    where = " at the end, an item that was not written completely" if at_end else " that are no item"
    report(Finding(kind, "damage", path, start, f"{end - start:,} bytes{where}"))


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
    """The records of these tables in a node's directory; every other table is passed over."""
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
    known: set[str] | None = None
    """The names of all tables; ``None`` if the schema cannot be read."""

    def load(self) -> None:
        self.known = self._schema()
        for name in self.tables:
            self._load_table(name)
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
        elif self.known is None or name in self.known:
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
                elif self.known is not None and table not in self.known:
                    self._damage("unreadable change", name, offset, f"of a table {table!r:.100}, which does not exist")
            case ("op", "rec", _, inner):
                self._apply(inner, name, offset)
            case ("op", "clear_table" | "delete_table", [*properties]):
                for table in _named(properties):
                    self.tables.get(table, {}).clear()
            case ("op", "create_table", [*properties]) if self.known is not None:
                self.known.update(_named(properties))
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
    """Its encoding; of a term that only damage can have made, and that has none, its text."""
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
