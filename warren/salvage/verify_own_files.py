"""What ``warren verify`` reports about the files that warren itself keeps in a node's data directory, beside a
broker's: definitions, the version, delayed messages, unique keys, counts of returned messages.

*Damage*: what a node would reject or skip. *Leftovers*: what a crash leaves at a log's end, and indexes that the next
start rebuilds.
"""

from __future__ import annotations

import posixpath
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from warren.actors.engines.declared.definitions_file import DefinitionsFile
from warren.actors.engines.delays.delay_format import KIND as DELAYED
from warren.actors.engines.delays.delay_format import decode_index
from warren.actors.engines.unique_keys import LOG_KIND as UNIQUE_KEYS
from warren.salvage.queue_directory import UNREADABLE_FILE, Finding, damage_by
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.storage.data_version import FILE_NAME as VERSION_FILE
from warren.storage.data_version import read_version
from warren.storage.errors import DataError, StorageError
from warren.storage.own_files import DELAYS_DIRECTORY, KEYS_LOG, RETURNED_KIND, RETURNED_LOG, SIDE_DIRECTORY
from warren.storage.record_log import RecordLog

_LOGS: Final = {".delayed": DELAYED, RETURNED_LOG: RETURNED_KIND, KEYS_LOG: UNIQUE_KEYS}
"""Kinds of record logs, by how their names end."""


def verify_own_files(files: ReadOnlyFileSystem, directory: str) -> Iterator[Finding]:
    """Every finding in them; ``directory``: the data directory."""
    yield from _checked(below(directory, VERSION_FILE), lambda: read_version(files, directory))
    yield from _definitions(files, directory)
    for folder in (DELAYS_DIRECTORY, SIDE_DIRECTORY):
        for path in _files_below(files, below(directory, folder)):
            for ending, kind in _LOGS.items():
                if path.endswith(ending):
                    yield from _record_log(files, path, kind)
            if path.endswith(".due"):
                yield from _index(files, path)


def _files_below(files: ReadOnlyFileSystem, folder: str) -> Iterator[str]:
    if not files.is_directory(folder):
        return
    for name in sorted(files.list(folder)):
        path = below(folder, name)
        if files.is_directory(path):
            yield from _files_below(files, path)
        else:
            yield path


def _checked(path: str, read: Callable[[], object]) -> Iterator[Finding]:
    try:
        read()
    except (DataError, StorageError) as error:
        yield damage_by(error, UNREADABLE_FILE, path)


def _definitions(files: ReadOnlyFileSystem, directory: str) -> Iterator[Finding]:
    definitions = DefinitionsFile(files, directory)
    if unreadable := list(_checked(definitions.path, definitions.load)):
        yield from unreadable
    elif files.exists(definitions.log_path):
        yield from _rest(files, definitions.log_path, definitions.log_bytes)


def _rest(files: ReadOnlyFileSystem, path: str, end: int) -> Iterator[Finding]:
    """The bytes after the last whole record of a log."""
    if (rest := files.size(path) - end) > 0:
        yield Finding("leftover of a write", "leftover", path, end, f"{rest} bytes after the last record")


def _record_log(files: ReadOnlyFileSystem, path: str, kind: str) -> Iterator[Finding]:
    log = RecordLog(files, path, kind)
    if unreadable := list(_checked(path, lambda: deque(log.replay(), maxlen=0))):
        yield from unreadable
    elif log.damage is not None:
        yield Finding("damaged record", "damage", path, log.damage.offset, log.damage.reason)
    elif log.torn is not None:
        yield Finding("leftover of a write", "leftover", path, log.torn.offset, log.torn.reason)


def _index(files: ReadOnlyFileSystem, path: str) -> Iterator[Finding]:
    log = posixpath.splitext(path)[0] + ".delayed"
    try:
        decode_index(files.read(path), path, files.size(log) if files.exists(log) else 0)
    except (DataError, StorageError) as error:
        yield Finding("leftover index", "leftover", path, None, f"{error}; it will be rebuilt")
