"""Where streams are: a node's ``stream`` folder, and which queue each directory in it belongs to.

Only the node's tables say that (:mod:`warren.salvage.metadata.metadata_tables`): a directory's name is the vhost's, the
stream's and a time, without the characters that a URI cannot have. If the tables are not there or damaged, a directory
that they do not name is a stream without a vhost, named after the directory. Else it is left of a deleted stream, and
no queue, unless the source points at it.
"""

from __future__ import annotations

import posixpath
from typing import Final

from warren.salvage.names import printable, to_text
from warren.salvage.queue_descriptor import QueueDescriptor, QueueFormat, QueuePlace
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import ReadOnlyFileSystem, below, directories
from warren.salvage.streams.osiris_format import INDEX_SUFFIX, SEGMENT_SUFFIX, file_offset
from warren.storage.errors import StorageError

STREAM_FOLDER: Final = "stream"
"""In a node's data directory."""

_TABLE: Final = "rabbit_durable_queue"
_KIND: Final = "rabbit_stream_queue"
_TYPE: Final = slice(19, 21)
"""Of a queue's record: the fields with its type, and what the type knows of it."""
_LEFT_OF_DELETION: Final = "no stream of the node has this directory; pointing at it exports what is in it"
_NAMELESS: Final = "no table of a node says which stream this is"

Names = dict[bytes, tuple[bytes, bytes]]
"""Vhost and name of each stream by its directory's name."""


def stream_places(files: ReadOnlyFileSystem, place: str) -> tuple[list[QueuePlace], list[Finding]]:
    """The streams of a node's data directory, of its ``stream`` folder, or of one stream's directory, in order of vhost
    and name; and findings about other directories, and about streams without one."""
    others: list[Finding] = []
    if _is_stream(files, place, others):
        folder, members = posixpath.dirname(place), [place]
    else:
        for folder in (below(place, STREAM_FOLDER), place):
            if members := [inner for inner in directories(files, folder) if _is_stream(files, inner, others)]:
                break
        else:
            return [], []
    problems: list[Finding] = []
    names = _names(files, posixpath.dirname(folder), problems)
    places = []
    for directory in members:
        uid = posixpath.basename(directory).encode()
        is_known, is_certain = uid in (names or {}), names is not None and not problems
        if not is_known and is_certain:
            others.append(Finding("leftover of a deleted stream", "leftover", directory, None, _LEFT_OF_DELETION))
            if directory != place:
                continue
        vhost, name = names[uid] if names and is_known else (b"", uid)
        queue = QueueDescriptor(format=QueueFormat.STREAM, path=directory, name=name)
        nameless = () if is_known or is_certain else (Finding("nameless stream", "unread", directory, None, _NAMELESS),)
        places.append(QueuePlace(vhost, queue, nameless))
    if any(stream.problems for stream in places):
        others += problems
    if place not in members:
        others += _without_directory(folder, names or {}, members)
    return sorted(places, key=lambda stream: (stream.vhost, stream.queue.name)), others


def _without_directory(folder: str, names: Names, members: list[str]) -> list[Finding]:
    """The findings about streams of the tables that have no directory."""
    uids = {posixpath.basename(directory).encode() for directory in members}
    detail = "the stream {} has no directory here; in a cluster others may have it"
    return [
        Finding(
            "stream without files", "unread", below(folder, to_text(uid)), None, detail.format(printable(to_text(name)))
        )
        for uid, (_, name) in names.items()
        if uid not in uids
    ]


def _is_stream(files: ReadOnlyFileSystem, directory: str, problems: list[Finding]) -> bool:
    if not files.is_directory(directory):
        return False
    try:
        names = files.list(directory)
    except StorageError as error:
        problems.append(Finding("unreadable directory", "damage", directory, None, str(error)))
        return False
    return any(file_offset(name, suffix) is not None for name in names for suffix in (SEGMENT_SUFFIX, INDEX_SUFFIX))


def _names(files: ReadOnlyFileSystem, node: str, problems: list[Finding]) -> Names | None:
    """The streams of a node; ``None`` if it has no tables."""
    from warren.salvage.metadata.metadata_tables import has_metadata, read_metadata  # if there are streams

    if not has_metadata(files, node):
        return None
    names: Names = {}
    for record in read_metadata(files, node, [_TABLE], problems.append).tables[_TABLE]:
        match record[1:2], record[_TYPE]:
            case (("resource", bytes(vhost), "queue", bytes(name)),), (str(kind), dict(state)) if kind == _KIND:
                names[_bytes(state.get("name"))] = vhost, name
    return names


def _bytes(text: object) -> bytes:
    """A string of Erlang's, which is a list of characters."""
    characters = text if isinstance(text, list) else []
    return bytes(character for character in characters if isinstance(character, int) and 0 <= character < 256)
