"""``warren verify``: what in a source is damaged, and what is only left over.

*Damage* is what no sound directory has. *Leftovers* are what a sound one may have after a crash, or while its garbage
waits to be collected; their kinds are named with "leftover" or "orphan". *Unread* is what warren does not read, which
says nothing about its state.

In a store, only what is needed can be missing, and that is reported for the index that needs it. Here:

* damage: a record that runs past the file's end, one with a size or type that no record has, one that does not end in
  0xFF, holes that no broker leaves, a broken message, or another one than its record names;
* leftovers: zeros at a file's end, whatever follows them, unreferenced bodies, ``.rdt`` files with all that is in them.
  A crash may cut off what a compaction was copying: that is no damage if a good copy is found. Bytes between messages
  are left over, too, if a broker from 3.13 on compacted inside a file: it did if messages were found in that file which
  a scan does not reach, and nothing that is needed is missing.

The transient store is wiped at every start: whatever it holds, nothing of it is damage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Final, TypeVar

import attrs
from rich.console import RenderableType
from rich.text import Text

from warren.msg_store.rdq.rdq_format import EndReason, Record, ScanEnd
from warren.msg_store.rdq.store_reader import StoreReader
from warren.salvage.classic.needed import NeededBodies
from warren.salvage.classic.needed_body import bad_record, contents_of, garbage, in_store, orphan, orphaned_message
from warren.salvage.names import Json, printable
from warren.salvage.queue_directory import UNREADABLE_BODY, Finding, Severity, damage_by, unreadable_file
from warren.salvage.read_only import ReadOnlyFileSystem, below, has_bytes_behind
from warren.salvage.source import Source
from warren.salvage.vhost import PERSISTENT_STORE, STORES, Vhost
from warren.storage.errors import DataError, StorageError

_Item = TypeVar("_Item")


def verify_source(source: Source) -> Iterator[Finding]:
    """Every finding, as it is found."""
    for vhost in source.vhosts:
        yield from verify_vhost(vhost)


def verify_vhost(vhost: Vhost) -> Iterator[Finding]:
    """Every finding in a vhost."""
    for queue in vhost.queues:
        yield from as_far_as_it_goes(queue.path, queue.findings())
    if vhost.is_whole:
        for name in STORES:
            yield from as_far_as_it_goes(below(vhost.path, name), _store(vhost, name))
    yield from vhost.problems


def as_far_as_it_goes(path: str, findings: Iterator[_Item]) -> Iterator[_Item | Finding]:
    """What cannot be read is a finding too."""
    try:
        yield from findings
    except StorageError as error:
        yield unreadable_file(path, error)


def _store(vhost: Vhost, name: str) -> Iterator[Finding]:
    store, directory, is_persistent = vhost.store(name), below(vhost.path, name), name == PERSISTENT_STORE
    needed = NeededBodies.of(vhost, name) if vhost.knows_needs else None
    has_all = needed is not None and needed.are_all_in(store)
    for file in store.ends:
        yield from leftover_file(below(directory, file))
    for file, record in store.records():
        if not record.good:
            path, has_good_copy = below(directory, file), store.contains(record.msg_id)
            finding = bad_record(path, record.offset, record.msg_id, has_good_copy=has_good_copy)
            if has_all and store.has_hidden(file):
                finding = garbage(path, record.offset, finding.detail)
            yield in_store(finding, is_persistent=is_persistent)
    for file, end in store.ends.items():
        path = below(directory, file)
        if has_all and end.reason is not EndReason.CLEAN and store.has_hidden(file):
            yield garbage_end(path, end)
            continue
        for finding in file_end(vhost.files, path, end):
            yield in_store(finding, is_persistent=is_persistent)
    if needed is None:
        return
    for file, record in needed.orphans(store):
        path = below(directory, file)
        yield orphan(path, record.offset, record.msg_id, record.size)
        if is_persistent:
            yield from _orphaned_message(store, path, record)


def _orphaned_message(store: StoreReader, path: str, record: Record) -> Iterator[Finding]:
    try:
        encoded = store.read(record.msg_id)
    except DataError as error:
        yield damage_by(error, UNREADABLE_BODY)
        return
    yield from orphaned_message(path, record.offset, record.msg_id, contents_of(encoded))


def leftover_file(path: str) -> Iterator[Finding]:
    """The finding about a store's file by its name alone."""
    if path.endswith(".rdt"):
        yield Finding("leftover compaction file", "leftover", path, None, "a compaction crashed")


def garbage_end(path: str, end: ScanEnd) -> Finding:
    """The finding about an end with hidden messages, if nothing that is needed is missing."""
    return garbage(path, end.offset, f"{end.reason.value}; {end.unread_bytes} bytes with messages in them")


def file_end(files: ReadOnlyFileSystem, path: str, end: ScanEnd) -> Iterator[Finding]:
    """What follows the last record of a store's file."""
    detail = f"{end.unread_bytes} bytes after the last record"
    if end.reason is EndReason.ZEROS:
        kind = "leftover bytes behind zeros" if _has_bytes_behind(files, path, end.offset) else "leftover zeros"
        yield Finding(kind, "leftover", path, end.offset, detail)
    elif end.damage is not None and path.endswith(".rdt"):
        yield Finding("leftover of a copy", "leftover", path, end.offset, detail)
    elif end.damage is not None:
        yield Finding(end.damage, "damage", path, end.offset, f"{end.reason.value}; {detail}")


def _has_bytes_behind(files: ReadOnlyFileSystem, path: str, offset: int) -> bool:
    with closing(files.open_read(path)) as handle:
        return has_bytes_behind(handle, offset)


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────────


_SECTIONS: Final = (
    ("damage", "damage", "bold red"),
    ("leftover", "left over", "bold yellow"),
    ("unread", "not read", "bold"),
)


@attrs.define
class Account:
    """Findings for people: one line for each kind in each file, however many there are."""

    _counts: Counter[Severity] = attrs.Factory(Counter)
    _lines: dict[tuple[Severity, str, str], tuple[int, Finding]] = attrs.Factory(dict)

    @property
    def damage(self) -> int:
        return self._counts["damage"]

    @property
    def leftovers(self) -> int:
        return self._counts["leftover"]

    @property
    def total(self) -> int:
        return self._counts.total()

    def count(self, finding: Finding) -> None:
        """Count a finding without listing it."""
        self._counts[finding.severity] += 1

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        self.count(finding)
        key = (finding.severity, finding.path, finding.kind)
        count, first = self._lines.get(key, (0, finding))
        self._lines[key] = (count + 1, first)

    def printable(self) -> Iterator[RenderableType]:
        """The findings, damage first, and the result."""
        for severity, title, style in _SECTIONS:
            lines = [line for (kind, _, _), line in self._lines.items() if kind == severity]
            path = None
            if lines:
                yield Text(title, style)
            for count, first in sorted(lines, key=lambda line: line[1].path):
                if first.path != path:
                    path = first.path
                    yield Text(f"  {printable(path)}", "bold")
                times = f" ×{count:,}, first" if count > 1 else ""
                place = "" if first.offset is None else f" at {first.offset:,}"
                yield Text.assemble(f"    {first.kind}", (f"{times}{place}: {printable(first.detail)}", "dim"))
            if lines:
                yield ""
        if not self.damage:
            yield Text("No damage.", "bold green")
        else:
            yield Text(f"{self.damage:,} damaged.", "bold red")


def to_report(finding: Finding) -> dict[str, Json]:
    """A finding as JSON: kind, severity, path, offset, detail."""
    return attrs.asdict(finding)
