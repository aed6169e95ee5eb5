"""Finds out what a store holds by scanning its files: after a crash, and wherever shortcuts cannot be trusted.

1. What a crashed compaction left is brought in: ``<n>.rdt`` goes to where the scan of ``<n>.rdq`` stops, unless its
   records are there. (After that may be zeros, of a file that was extended and not filled yet; what was good there is
   in the ``.rdt``.)
2. All files are scanned, oldest first. Where a message stands several times, the last place counts.
3. The highest-numbered file is cut after its last good record, so that a scan finds what is appended.
4. Copies that a power loss has torn are removed: copies of messages that are stored differently in a later file too.
   They, and everything after them, are copies of a compaction's right file; without the later file they would count.

A file that changes here is rewritten, and the new file replaces it. If an fsync failed in the previous process, this
one reads bytes that no later fsync brings to the disk; after a power loss they would be zeros, and hide everything
appended after them from a scan.

On a full disk nothing is rewritten: a ``.rdt`` becomes the store's highest file as it is, and later writes go into a
new file after it, so that nothing is appended to a file whose end is torn.

A crash in here changes nothing: the ``.rdt`` goes only after its copy is synced, and each step may be taken twice.

What cannot be read is reported, not repaired, and nothing is deleted on its account. After a crash this may be torn
ends that were never confirmed: the references show whether something is lost. Zeros at a file's end are not even
reported. Reference counts are not on disk; what is found here is uncounted.

A store with typed files (``<n>.sqs``) is not recovered, but refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warren.msg_store.rdq.file_summary import FileSummary
from warren.msg_store.rdq.locations import Location, Locations, pack, unpack
from warren.msg_store.rdq.rdq_format import (
    TYPED_SUFFIX,
    Record,
    Scan,
    file_number,
    in_age_order,
    leftover_of,
    path_of,
    scan,
    scan_end,
)
from warren.storage.errors import DataError, DiskFullError
from warren.storage.filesystem import File, FileSystem, make_beside

if TYPE_CHECKING:
    from warren.msg_store.rdq.rdq_columns import ColumnScan

BAD_RECORDS_REPORTED = 100
"""At most this many bad records of a file are listed one by one."""

COPY_BYTES = 1 << 20


@attrs.define
class Recovered:
    """The result of a scan: places, files, and unreadable records."""

    locations: Locations
    summary: FileSummary
    unreadable: list[DataError] = attrs.field(factory=list)
    repeated: list[tuple[bytes, int]] = attrs.field(factory=list)
    """Messages that also stand later than these places (:func:`~warren.msg_store.rdq.locations.pack`)."""


def recover(files: FileSystem, directory: str) -> Recovered:
    """Scan the store in ``directory``; merge leftovers and cut the highest file."""
    _bring_in_leftovers(files, directory)
    recovered = Recovered(Locations(counted=False), FileSummary())
    numbers = in_age_order(files.list(directory))
    for number in numbers:
        _take_in(files, directory, number, recovered, is_current=number == numbers[-1])
    _cut_torn_copies(files, directory, recovered)
    for location in recovered.locations.locations():
        recovered.summary.validate(location.file, location.size)
    return recovered


def refuse_typed_files(files: FileSystem, directory: str) -> None:
    """Raise :class:`DataError` if the store in ``directory`` has files of a format in which warren does not write."""
    for name in files.list(directory) if files.is_directory(directory) else ():
        if name.endswith(TYPED_SUFFIX):
            reason = "a typed store file, which is only read; `warren shovel` or `warren export` copies the messages"
            raise DataError(f"{directory}/{name}", None, reason)


def report_unreadable(scanned: Scan | ColumnScan, bad_offsets: list[int], unreadable: list[DataError]) -> None:
    """Add what a scan, now at its end, met to ``unreadable``."""
    for offset in bad_offsets[:BAD_RECORDS_REPORTED]:
        unreadable.append(DataError(scanned.path, offset, "the record does not end in 0xFF"))
    if len(bad_offsets) > BAD_RECORDS_REPORTED:
        more = len(bad_offsets) - BAD_RECORDS_REPORTED
        unreadable.append(DataError(scanned.path, None, f"{more} more records do not end in 0xFF"))
    end = scanned.finish()
    if end.damage is not None:
        reason = f"{end.reason.value}; {end.unread_bytes} bytes cannot be read"
        unreadable.append(DataError(scanned.path, end.offset, reason))


def _take_in(files: FileSystem, directory: str, number: int, recovered: Recovered, *, is_current: bool) -> None:
    path = path_of(directory, number)
    handle = files.open_read(path)
    try:
        places, bad_offsets, good_end = recovered.locations.places, list[int](), 0
        scanned = scan(handle, path)
        for offset, size, msg_id, good in scanned:
            if good:
                if (previous_place := places.get(msg_id)) is not None:
                    recovered.repeated.append((msg_id, previous_place))
                places[msg_id] = pack(number, offset, size)
                good_end = offset + size
            else:
                bad_offsets.append(offset)
        report_unreadable(scanned, bad_offsets, recovered.unreadable)
        size = good_end if is_current else handle.size()
        recovered.summary.add(number, size)
        if is_current and handle.size():
            try:
                _write_anew(files, path, [(handle, good_end)])
            except DiskFullError:
                recovered.summary.resize(number, handle.size())
                recovered.summary.add(number + 1, 0)
            files.sync_directory(directory)
    finally:
        handle.close()


def _cut_torn_copies(files: FileSystem, directory: str, recovered: Recovered) -> None:
    """Cut each file before its first record that differs from the message's last place, in a later file.

    Nothing is cut that a message needs: then the record is not a torn copy.
    """
    cuts: dict[int, int] = {}
    for msg_id, previous_place in recovered.repeated:
        old, last = unpack(previous_place), unpack(recovered.locations.places[msg_id])
        is_first = old.offset < cuts.get(old.file, old.offset + 1)
        if is_first and old.file != last.file and _read(files, directory, old) != _read(files, directory, last):
            cuts[old.file] = old.offset
    if not cuts:
        return
    needed = {at.file for at in recovered.locations.locations() if at.offset >= cuts.get(at.file, at.offset + 1)}
    for number in sorted(cuts.keys() - needed):
        handle = files.open_read(path_of(directory, number))
        try:
            _write_anew(files, path_of(directory, number), [(handle, cuts[number])])
        except DiskFullError:
            continue
        finally:
            handle.close()
        recovered.summary.resize(number, cuts[number])
        files.sync_directory(directory)


def _read(files: FileSystem, directory: str, place: Location) -> bytes:
    handle = files.open_read(path_of(directory, place.file))
    try:
        return handle.pread(place.size, place.offset)
    finally:
        handle.close()


def _bring_in_leftovers(files: FileSystem, directory: str) -> None:
    leftovers = [number for name in files.list(directory) if (number := file_number(name)) is not None and number < 0]
    for leftover in leftovers:
        source = files.open_read(path_of(directory, leftover))
        try:
            size = scan_end(source, path_of(directory, leftover)).offset
            if size:
                _append(files, path_of(directory, leftover_of(leftover)), source, size)
        except DiskFullError:
            _rename_to_highest(files, directory, leftover)
        finally:
            source.close()
    if leftovers:
        files.sync_directory(directory)
    for leftover in leftovers:
        if files.exists(path_of(directory, leftover)):
            files.delete(path_of(directory, leftover))


def _rename_to_highest(files: FileSystem, directory: str, leftover: int) -> None:
    """Make a leftover the highest file: it has the same form, and the last place of a message counts."""
    path = path_of(directory, leftover)
    handle = files.open_append(path)
    try:
        handle.sync()
    finally:
        handle.close()
    highest = max(max(number, leftover_of(number)) for number in in_age_order(files.list(directory)))
    files.rename(path, path_of(directory, highest + 1))


def _append(files: FileSystem, path: str, source: File, size: int) -> None:
    """Append the first ``size`` bytes of a leftover to the readable part of its file, unless its records are there.

    Then the compaction had begun to copy the right file, and torn copies may stand at the end of this one.
    """
    if not files.exists(path):
        _write_anew(files, path, [(source, size)])
        return
    existing = files.open_read(path)
    try:
        places, end = _last_places(existing, path)
        is_there = all(
            (place := places.get(record.msg_id)) is not None
            and existing.pread(place.size, place.offset) == source.pread(record.size, record.offset)
            for record in _last_places(source, path)[0].values()
        )
        _write_anew(files, path, [(existing, end)] if is_there else [(existing, end), (source, size)])
    finally:
        existing.close()


def _last_places(handle: File, path: str) -> tuple[dict[bytes, Record], int]:
    """The last good record of each message in a file, and where its scan stops."""
    scanned = scan(handle, path)
    places = {record.msg_id: record for record in scanned if record.good}
    return places, scanned.finish().offset


def _write_anew(files: FileSystem, path: str, parts: list[tuple[File, int]]) -> None:
    """Let the file at ``path`` be the first bytes of each of the parts, synced; its name is not."""

    def write(target: File) -> None:
        for source, size in parts:
            for offset in range(0, size, COPY_BYTES):
                target.append(source.pread(min(COPY_BYTES, size - offset), offset))

    scratch = make_beside(files, path, write, sync=True)
    files.rename(scratch, path)
