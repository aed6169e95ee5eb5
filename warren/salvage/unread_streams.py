"""Streams in a broker's directory: found and named, but not read.

::

    <node's data directory>/stream/<vhost_name_digits>/00000000000000000000.segment
                                                      /00000000000000000000.index
"""

from __future__ import annotations

import posixpath
from typing import Final

from warren.salvage.names import printable
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import ReadOnlyFileSystem, below, directories

STREAM_FOLDER: Final = "stream"
"""In a node's data directory."""

_SUFFIXES: Final = (".segment", ".index")
_DIGITS: Final = 20
"""In a file's name. The segments of quorum queues have shorter names."""
_NAMED: Final = 10
"""Names in one finding. A node may have thousands of streams."""


def unread_streams(files: ReadOnlyFileSystem, place: str) -> Finding | None:
    """Return a finding that names the streams in a node's data directory, its ``stream`` folder, or one stream's
    directory; ``None`` if there is no stream."""
    if _is_stream(files, place):
        folder, streams = place, [place]
    else:
        for folder in (below(place, STREAM_FOLDER), place):
            if streams := [inner for inner in directories(files, folder) if _is_stream(files, inner)]:
                break
        else:
            return None
    names = ", ".join(printable(posixpath.basename(path)) for path in streams[:_NAMED])
    more = f" and {len(streams) - _NAMED:,} more" if len(streams) > _NAMED else ""
    count = "1 stream" if len(streams) == 1 else f"{len(streams):,} streams"
    return Finding("streams not read", "unread", folder, None, f"{count}, which warren does not read: {names}{more}")


def _is_stream(files: ReadOnlyFileSystem, directory: str) -> bool:
    return files.is_directory(directory) and any(map(_is_stream_file, files.list(directory)))


def _is_stream_file(name: str) -> bool:
    digits, dot, suffix = name.partition(".")
    return len(digits) == _DIGITS and digits.isdecimal() and dot + suffix in _SUFFIXES
