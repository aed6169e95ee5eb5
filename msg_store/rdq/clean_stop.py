"""The shortcut that a clean stop leaves: the store's index in one file, so that the next start need not scan.

Never needed, and trusted only if nothing can have happened in between: the caller's token is the same, the .rdq
files are the same with the same sizes, there is no .rdt, and none of the shortcuts that a RabbitMQ leaves when it stops
(one that ran here in between would have left them: warren deletes them before it writes into a directory). Opening a
store for writing deletes the shortcut first. Its name means nothing to a RabbitMQ.

    magic 8 · crc32 u32 of all that follows
    len(token) u32 · files u32 · messages u64 · shared u64 · token
    files    × (number u32 · size u64 · valid bytes u64)
    messages × msg_id 16 bytes
    messages × (file u32 · offset u64 · size u64)                    a place, as in warren.msg_store.rdq.locations
    shared   × (msg_id 16 bytes · count u32)                         counts above 1
"""

from __future__ import annotations

import zlib
from struct import Struct

from warren.msg_store.rdq.file_summary import FileSummary
from warren.msg_store.rdq.locations import PLACE_BYTES, Locations
from warren.msg_store.rdq.rdq_format import MSG_ID_BYTES, file_number, path_of
from warren.msg_store.rdq.recovery import Recovered
from warren.storage.filesystem import FileSystem, write_file

NAME = "warren.clean"
FOREIGN_NAMES = ("clean.dot", "file_summary.ets", "msg_store_index.ets")

_MAGIC = b"warren\x00\x02"
_START = Struct(">8sI")
_LENGTHS = Struct(">IIQQ")
_FILE = Struct(">IQQ")
_SHARED = Struct(f">{MSG_ID_BYTES}sI")


def discard(files: FileSystem, directory: str) -> None:
    """Delete every shortcut permanently, ours and RabbitMQ's: what follows will make them wrong."""
    present = {NAME, f"{NAME}.new", *FOREIGN_NAMES}.intersection(files.list(directory))
    for name in sorted(present):
        files.delete(f"{directory}/{name}")
    if present:
        files.sync_directory(directory)


def save(files: FileSystem, directory: str, token: bytes, locations: Locations, summary: FileSummary) -> None:
    """Leave a shortcut, synced; everything in the .rdq files must be synced already."""
    content = b"".join(
        (
            _LENGTHS.pack(len(token), len(summary), len(locations), len(locations.counts)),
            token,
            *(_FILE.pack(number, summary[number].size_bytes, summary[number].valid_bytes) for number in summary),
            *locations.places,
            *(place.to_bytes(PLACE_BYTES) for place in locations.places.values()),
            *(_SHARED.pack(msg_id, count) for msg_id, count in locations.counts.items()),
        )
    )
    write_file(files, f"{directory}/{NAME}", _START.pack(_MAGIC, zlib.crc32(content)) + content, sync=True)


def load(files: FileSystem, directory: str, token: bytes) -> Recovered | None:
    """Return what the last clean stop left; ``None`` if there is no shortcut that can be trusted."""
    names = files.list(directory)
    if NAME not in names or not set(FOREIGN_NAMES).isdisjoint(names):
        return None
    data = files.read(f"{directory}/{NAME}")
    if len(data) < _START.size + _LENGTHS.size:
        return None
    magic, checksum = _START.unpack_from(data)
    if magic != _MAGIC or checksum != zlib.crc32(memoryview(data)[_START.size :]):
        return None
    decoded = _decode(data)
    if decoded is None:
        return None
    recovered, stored_token = decoded
    numbers = {number for name in names if (number := file_number(name)) is not None}
    if stored_token != token or numbers != set(recovered.summary):
        return None
    sizes = ((recovered.summary[number].size_bytes, files.size(path_of(directory, number))) for number in numbers)
    return recovered if all(recorded == actual for recorded, actual in sizes) else None


def _decode(data: bytes) -> tuple[Recovered, bytes] | None:
    """The content of a shortcut whose checksum is right, and its token; ``None`` if its lengths are not its own."""
    token_size, file_count, message_count, shared_count = _LENGTHS.unpack_from(data, _START.size)
    token_at = _START.size + _LENGTHS.size
    files_at = token_at + token_size
    ids_at = files_at + file_count * _FILE.size
    places_at = ids_at + message_count * MSG_ID_BYTES
    shared_at = places_at + message_count * PLACE_BYTES
    if shared_at + shared_count * _SHARED.size != len(data):
        return None
    summary = FileSummary()
    for number, size_bytes, valid_bytes in _FILE.iter_unpack(data[files_at:ids_at]):
        summary.add(number, size_bytes, valid_bytes)
    ids = [data[at : at + MSG_ID_BYTES] for at in range(ids_at, places_at, MSG_ID_BYTES)]
    places = [int.from_bytes(data[at : at + PLACE_BYTES]) for at in range(places_at, shared_at, PLACE_BYTES)]
    shared = _SHARED.iter_unpack(data[shared_at : shared_at + shared_count * _SHARED.size])
    return Recovered(Locations(dict(zip(ids, places, strict=True)), dict(shared)), summary), data[token_at:files_at]
