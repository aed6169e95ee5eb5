"""Definitions on disk: a file with all of them, and a log of later changes.

``warren.definitions.json``, replaced as a whole::

    {"format": "warren definitions", "version": 1, "generation": 3, "checksum": "1f00ab34",
     "definitions": {"vhosts": […], "users": […], …, "exchanges": […], "queues": […], "bindings": […]}}

The definitions are as in a broker's export (:data:`KINDS`; a part that an earlier warren did not know is missing). The
checksum is CRC-32 of ``[generation,definitions]`` as compact JSON with sorted keys. ``warren.definitions.log``,
appended to; a line is a record, CRC-32 of its JSON, a space, the JSON::

    9c3e0d11 {"generation":3}
    5b70c2f4 [["put","queue",{…}],["drop","binding",{…}]]

So a declaration costs its own bytes, not those of all others. When the log outgrows the file, a new file is written and
the log is deleted. *The generation* says which file a log belongs to.

*A crash* leaves either the old file or the new one. An old log beside a new file has an earlier generation and is
ignored. A torn last record of the log was never reported as safe and is dropped, and so is what follows zeros of a lost
write: without syncs (``sync="os"``) a power loss may take what was saved since the last start. Anything else that
cannot be read is damage (:class:`DataError`) and is never overwritten: a broken record followed by whole ones, a log
without its file, a wrong checksum.

A failed save cuts the log back to where it ended before, which needs no room on the disk. If that fails too, or if a
new file was about to replace the old one, the state of the disk is unknown, and the next save writes a new file. A log
that cannot be replaced because the disk is full keeps growing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, cast

import attrs

from warren.actors.engines.declared.changes import Change, Kind
from warren.actors.log_events import log_event, logger
from warren.storage.errors import DataError, DiskFullError, StorageError, shortly
from warren.storage.filesystem import FileSystem, sync_directories_above, write_beside
from warren.storage.own_files import DEFINITIONS_FILE, DEFINITIONS_LOG

_LOG = logger("node")

FORMAT: Final = "warren definitions"
VERSION: Final = 1
KINDS: Final[dict[str, Kind]] = {
    "vhosts": "vhost",
    "users": "user",
    "permissions": "permission",
    "topic_permissions": "topic_permission",
    "policies": "policy",
    "operator_policies": "operator_policy",
    "parameters": "parameter",
    "global_parameters": "global_parameter",
    "exchanges": "exchange",
    "queues": "queue",
    "bindings": "binding",
}
"""Parts of the file, and the kind that a record names for an item of each."""
FIRST_PARTS: Final = frozenset({"vhosts", "exchanges", "queues", "bindings"})
"""The parts that every file has."""
NAMES: Final[dict[Kind, tuple[str, ...]]] = {
    "vhost": ("name",),
    "user": ("name",),
    "permission": ("user", "vhost"),
    "topic_permission": ("user", "vhost", "exchange"),
    "policy": ("vhost", "name"),
    "operator_policy": ("vhost", "name"),
    "parameter": ("vhost", "component", "name"),
    "global_parameter": ("name",),
    "exchange": ("vhost", "name"),
    "queue": ("vhost", "name"),
}
"""The fields that identify a definition; all fields for a kind not listed."""

_LOST_WRITE: Final = bytes(16)
"""That many zeros in the log are a write that a power loss took."""
MIN_LOG_BYTES: Final = 64 * 1024
"""Up to this size a log does not cause a new file; above it, the log may grow as large as the file."""

Snapshot = dict[str, list[dict[str, Any]]]


@attrs.define(eq=False, repr=False)
class DefinitionsFile:
    """The two files of one node, in its data directory. :meth:`load` comes first."""

    _files: FileSystem
    _directory: str
    _sync: bool = True
    """Whether what was saved survives a power loss, or only the process. A whole new file always does."""
    _generation: int = attrs.field(init=False, default=0)
    _has_directory: bool = attrs.field(init=False, default=False)
    """Whether the directory's own entry is synced."""
    is_safe: bool = attrs.field(init=False, default=True)
    """Whether the contents are as safe as they must be. After loading they may not be: a killed process may not have
    synced them."""
    _file_bytes: int = attrs.field(init=False, default=0)
    _log_bytes: int | None = attrs.field(init=False, default=None)
    """Bytes of whole records; a torn one may follow them. 0: no log yet; ``None``: unknown."""

    @property
    def path(self) -> str:
        return f"{self._directory}/{DEFINITIONS_FILE}"

    @property
    def log_path(self) -> str:
        return f"{self._directory}/{DEFINITIONS_LOG}"

    torn: DataError | None = attrs.field(init=False, default=None)
    """The torn bytes that :meth:`load` found after the log's last whole record."""

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self) -> Snapshot | None:
        """Return what was saved, ``None`` if nothing was. Raises :class:`DataError`; changes nothing on the disk.

        A part that is missing was never saved.
        """
        if not self._files.exists(self.path):
            if self._files.exists(self.log_path):
                raise DataError(self.path, None, f"missing, although its log {DEFINITIONS_LOG} exists")
            return None
        data = self._files.read(self.path)
        self._generation, snapshot = _parse_file(data, self.path)
        self._file_bytes, self._has_directory, self.is_safe = len(data), True, not self._sync
        self._log_bytes = 0
        if self._files.exists(self.log_path):
            log = self._files.read(self.log_path)
            records, whole_bytes = _parse_log(log, self.log_path)
            is_ours = not records or self._is_ours(records[0])
            if is_ours and (rest_bytes := len(log) - whole_bytes):
                self.torn = DataError(self.log_path, whole_bytes, f"{rest_bytes} bytes after the last record")
            if records and is_ours:
                snapshot = _replay(snapshot, _by_key(snapshot, self.path), records[1:], self.log_path)
                self._log_bytes = whole_bytes
        return snapshot

    @property
    def log_bytes(self) -> int:
        """Bytes of the log's whole records, if the log belongs to the file."""
        return self._log_bytes or 0

    @property
    def is_known(self) -> bool:
        """Whether the state of the disk is known; false after a failed save that could not be undone."""
        return self._log_bytes is not None

    def _is_ours(self, record: tuple[int, Any]) -> bool:
        match record:
            case (_, {"generation": int(generation)}) if generation <= self._generation:
                return generation == self._generation
            case (_, first):
                raise DataError(
                    self.log_path, 0, f"begins with {shortly(first, 100)}; the file has generation {self._generation}"
                )

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, changes: Sequence[Change], snapshot: Callable[[], Snapshot]) -> None:
        """Write changes. On return they, and everything that was loaded, are safe.

        ``snapshot`` returns all definitions, including the changes.

        Raises :class:`StorageError`; the changes may then be on the disk or not, until a later save returns.
        """
        log_bytes = self._log_bytes
        if log_bytes is None:
            self._write_file(snapshot())
        elif log_bytes <= max(MIN_LOG_BYTES, self._file_bytes) or not self._could_write_file(snapshot):
            self._append(changes, log_bytes)

    def _could_write_file(self, snapshot: Callable[[], Snapshot]) -> bool:
        """Write a new file if there is room for one. Return ``False`` if not, and the intact log can be extended."""
        try:
            self._write_file(snapshot())
        except DiskFullError:
            if not self.is_known:
                raise
            return False
        return True

    def _append(self, changes: Sequence[Change], log_bytes: int) -> None:
        if not self.is_safe:
            self._make_safe(log_bytes)
        data = _record(f"[{','.join(_change_json(change) for change in changes)}]") if changes else b""
        if data and not log_bytes:
            if self._files.exists(self.log_path):
                self._files.delete(self.log_path)  # an earlier generation's
            data = _record(f'{{"generation":{self._generation}}}') + data
        if data or log_bytes:
            try:
                self._append_to_log(data, log_bytes)
                if data and not log_bytes and self._sync:
                    self._files.sync_directory(self._directory)
            except BaseException:
                self._take_back(log_bytes)
                raise
        self._log_bytes, self.is_safe = log_bytes + len(data), True

    def _make_safe(self, log_bytes: int) -> None:
        """Sync what a killed process wrote, before writing anything after it.

        If the file's last rename were lost but the log survived, that would be damage; so would a record after a lost
        one.
        """
        self._files.sync_directory(self._directory)
        if log_bytes:
            try:
                self._append_to_log(b"", log_bytes)
            except BaseException:
                self._log_bytes = None  # after a failed sync it is unknown what is on the disk
                raise

    def _append_to_log(self, data: bytes, log_bytes: int) -> None:
        log = self._files.open_append(self.log_path)
        try:
            if log.end > log_bytes:  # a torn record, never reported as safe
                log.truncate(log_bytes)
            if data:
                log.append(data)
            if self._sync:
                log.sync()
        finally:
            log.close()

    def _take_back(self, log_bytes: int) -> None:
        """Cut the log back to where it ended before a failed save."""
        self._log_bytes = None
        try:
            if log_bytes:
                self._append_to_log(b"", log_bytes)
            else:
                if self._files.exists(self.log_path):
                    self._files.delete(self.log_path)
                self._files.sync_directory(self._directory)
        except StorageError as error:
            _LOG.warning(
                "%s may contain an undone change until the next one: %s",
                self.log_path,
                error,
                extra=log_event("definitions_ahead", error, path=self.log_path),
            )
        else:
            self._log_bytes = log_bytes

    def _write_file(self, snapshot: Snapshot) -> None:
        self._generation += 1  # also after one that failed: its file may be there
        document = {
            "format": FORMAT,
            "version": VERSION,
            "generation": self._generation,
            "checksum": _checksum(self._generation, snapshot),
            "definitions": snapshot,
        }
        data = json.dumps(document, indent=1).encode("ascii") + b"\n"
        if not self._has_directory:
            self._files.make_directories(self._directory)
            sync_directories_above(self._files, self._directory)
            self._has_directory = True
        try:
            scratch = write_beside(self._files, self.path, data, sync=True)
        except BaseException:
            self._generation -= 1  # the old file is there, and its log is still its own
            raise
        self._log_bytes = None
        self._files.rename(scratch, self.path)
        self._files.sync_directory(self._directory)
        self.is_safe = True
        if self._files.exists(self.log_path):
            self._files.delete(self.log_path)
        self._file_bytes, self._log_bytes = len(data), 0


# ── formats ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _checksum(generation: int, snapshot: Any) -> str:
    text = json.dumps([generation, snapshot], sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode('ascii')):08x}"


def _record(text: str) -> bytes:
    data = text.encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _change_json(change: Change) -> str:
    return f'["{change.action}","{change.kind}",{change.definition}]'


_NO_JSON: Final = (ValueError, RecursionError)
"""Errors of parsing unknown JSON: not text, not JSON, a number of 5,000 digits, nested too deep."""


def _parse_file(data: bytes, path: str) -> tuple[int, Snapshot]:
    try:
        document = json.loads(data)
    except json.JSONDecodeError as error:
        raise DataError(path, error.pos, f"not JSON: {error.msg}") from error
    except _NO_JSON as error:
        raise DataError(path, 0, f"not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError(path, 0, f"not of the format '{FORMAT}'")
    if document.get("version") != VERSION:
        raise DataError(path, 0, f"of version {shortly(document.get('version'), 20)}; this warren reads {VERSION}")
    generation, snapshot = document.get("generation"), document.get("definitions")
    if not isinstance(generation, int) or _checksum(generation, snapshot) != document.get("checksum"):
        raise DataError(
            path, 0, "the checksum is wrong: the file is damaged or was edited; to change definitions, import them"
        )
    if not isinstance(snapshot, dict) or not FIRST_PARTS <= snapshot.keys() <= KINDS.keys():
        raise DataError(path, 0, "a part of the definitions is missing or unknown")
    for part, definitions in snapshot.items():
        if not isinstance(definitions, list) or not all(isinstance(definition, dict) for definition in definitions):
            raise DataError(path, 0, f"{part} is not a list of definitions")
    return generation, cast(Snapshot, snapshot)


def _parse_log(data: bytes, path: str) -> tuple[list[tuple[int, Any]], int]:
    """The records with their offsets, and where the last whole one ends."""
    records: list[tuple[int, Any]] = []
    torn: int | None = None
    position = 0
    *lines, _ = data.split(b"\n")
    for line in lines:
        checksum, _, text = line.partition(b" ")
        if checksum == b"%08x" % zlib.crc32(text):
            if torn is not None:
                if _LOST_WRITE in data[torn:position]:
                    break  # the log was not synced (``sync="os"``)
                raise DataError(path, torn, "a damaged record, followed by whole ones")
            try:
                records.append((position, json.loads(text)))
            except _NO_JSON as error:
                raise DataError(path, position, f"a record that is not JSON: {error}") from error
        elif torn is None:
            torn = position
        position += len(line) + 1
    return records, position if torn is None else torn


DefinitionsByKey: TypeAlias = dict[tuple[Kind, str], dict[str, Any]]
"""Definitions by their kinds and keys."""


def _by_key(snapshot: Snapshot, path: str) -> DefinitionsByKey:
    try:
        return {(KINDS[part], _key(KINDS[part], item)): item for part, items in snapshot.items() for item in items}
    except KeyError as error:
        raise DataError(path, 0, f"a definition without its {error}") from error


def _replay(snapshot: Snapshot, definitions: DefinitionsByKey, records: list[tuple[int, Any]], path: str) -> Snapshot:
    """Return the definitions after the changes of the log."""
    kinds = {KINDS[part] for part in snapshot}
    parts = {kind: part for part, kind in KINDS.items()}
    for position, changes in records:
        try:
            for action, kind, definition in changes:
                is_drop = {"put": False, "drop": True}[action]
                kinds.add(KINDS[parts[kind]])
                if is_drop:
                    del definitions[kind, _key(kind, definition)]
                else:
                    definitions[kind, _key(kind, definition)] = definition
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                path, position, f"an invalid change, or one of something missing: {shortly(error)}"
            ) from error
    replayed: Snapshot = {part: [] for part, kind in KINDS.items() if kind in kinds}
    for (kind, _), definition in definitions.items():
        replayed[parts[kind]].append(definition)
    return replayed


def _key(kind: Kind, definition: dict[str, Any]) -> str:
    """Equal for two definitions of the same object."""
    names = NAMES.get(kind)
    if names is None:
        return json.dumps(definition, sort_keys=True)
    return json.dumps([definition[name] for name in names])
